#!/usr/bin/env python3
"""Requests intents of a fleet by inbox messages in its topic.

    produce.py BROKERS TOPIC binary|structured < MESSAGES

Each line is a JSON object of the attributes of a CloudEvent, with its data as one of them. Once the
brokers have a message, its id is printed. A producer that is not sure sends the same message again: the same source and
id are answered once.
"""

import json
import sys

from cloudevents.core.bindings.kafka import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from kafka import KafkaProducer

# The fleet's partition: 0, unless the setting `fleets` names another.
PARTITION = 0
MODES = {"binary": to_binary_event, "structured": to_structured_event}


def main(brokers: str, topic: str, mode: str) -> None:
    producer = KafkaProducer(bootstrap_servers=brokers.split(","), acks="all")
    for line in sys.stdin:
        attributes = json.loads(line)
        data = attributes.pop("data")
        event = CloudEvent({"datacontenttype": "application/json", **attributes}, data)
        message = MODES[mode](event)
        sent = producer.send(topic, message.value, partition=PARTITION, headers=list(message.headers.items()))
        sent.get(timeout=60)
        print(event.get_id(), flush=True)
    producer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
