// Requests intents of a fleet by inbox messages in its topic.
//
//     node produce.js BROKERS TOPIC binary|structured < MESSAGES
//
// Each line is a JSON object of the attributes of a CloudEvent, with its data as one of them. Once the
// brokers have a message, its id is printed. A producer that is not sure sends the same message again: the same source
// and id are answered once.

const { createInterface } = require("node:readline");
const { CloudEvent, Kafka: Binding } = require("cloudevents");
const { Kafka, Partitioners, logLevel } = require("kafkajs");

// The fleet's partition: 0, unless the setting `fleets` names another.
const PARTITION = 0;
const [brokers, topic, mode] = process.argv.slice(2);
const modes = { binary: Binding.binary, structured: Binding.structured };

async function main() {
  const kafka = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  await producer.connect();
  for await (const line of createInterface({ input: process.stdin })) {
    const event = new CloudEvent({ datacontenttype: "application/json", ...JSON.parse(line) });
    const { headers, value } = modes[mode](event);
    // The SDK names every attribute, also those that the event does not have, and leaves values as they are.
    const given = Object.entries(headers).filter(([, text]) => text !== undefined);
    const texts = Object.fromEntries(given.map(([name, text]) => [name, String(text)]));
    const text = typeof value === "string" ? value : JSON.stringify(value);
    await producer.send({ topic, acks: -1, messages: [{ partition: PARTITION, headers: texts, value: text }] });
    console.log(event.id);
  }
  await producer.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
