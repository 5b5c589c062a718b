// Prints the events of a fleet, each once and in order, as lines of JSON.
//
//     node consume.js BROKERS TOPIC [AFTER]
//
// A consumer keeps the id of the last event that it is done with, beside what it made of it, and begins behind it:
// events come once or more, and one that has no higher id has been seen.

const { Kafka: Binding } = require("cloudevents");
const { Kafka, logLevel } = require("kafkajs");

// A fleet has one partition, and its events have one order: 0, unless the setting `fleets` says otherwise.
const PARTITION = 0;
const [brokers, topic, after = "0"] = process.argv.slice(2);

/** What the SDK takes: headers and key as text. */
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
    // Where it goes on is said by the events, and not by the group.
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
