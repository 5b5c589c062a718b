#!/usr/bin/env python3
"""Prints the events of a fleet, each once and in order, as lines of JSON.

    consume.py BROKERS TOPIC [AFTER]

A consumer stores the id of the last event that it has processed together with its result, and continues after it. Each
event is delivered at least once, and an event without a higher id was processed before.
"""

import sys

from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from cloudevents.core.formats.json import JSONFormat
from kafka import KafkaConsumer, TopicPartition

# A fleet has one partition, and its events have one order: 0, unless the setting `fleets` names another.
PARTITION = 0


def main(brokers: str, topic: str, after: str = "0") -> None:
    consumer = KafkaConsumer(bootstrap_servers=brokers.split(","), auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, PARTITION)])
    last = int(after)
    for record in consumer:
        event = from_kafka_event(KafkaMessage(dict(record.headers), record.key, record.value))
        position = int(event.get_id())
        if position > last:
            last = position
            print(JSONFormat().write(event).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
