// Prints the events of a fleet, each once and in order, as lines of JSON.
//
//     node consume.js BROKERS TOPIC [AFTER]
//
// A consumer stores the id of the last event that it has processed together with its result, and continues after it.
// Each event is delivered at least once, and an event without a higher id was processed before.

const { Kafka: Binding } = require("cloudevents");
const { Kafka, logLevel } = require("kafkajs");

// A fleet has one partition, and its events have one order: 0, unless the setting `fleets` names another.
const PARTITION = 0;
const [brokers, topic, after = "0"] = process.argv.slice(2);

/** Returns the message as the SDK expects it: headers and key as text. */
const message = ({ headers, key, value }) => ({
  headers: Object.fromEntries(Object.entries(headers).map(([name, bytes]) => [name, bytes.toString()])),
  key: key?.toString(),
  value,
});

async function main() {
  const kafka = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR });
  const consumer = kafka.consumer({ groupId: `${topic}-printed` });
  consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || fail(payload.error));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let last = BigInt(after);
  await consumer.run({
    // The id of the last event determines where to continue, not the group's offset.
    autoCommit: false,
    eachMessage: async ({ partition, message: record }) => {
      if (partition !== PARTITION) {
        return;
      }
      const event = Binding.toEvent(message(record));
      event.validate();
      const position = BigInt(event.id);
      if (position > last) {
        last = position;
        console.log(event.toString());
      }
    },
  });
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

main().catch(fail);
