// Requests intents of a fleet by inbox messages in its topic.
//
//	produce BROKERS TOPIC binary|structured < MESSAGES
//
// Each line is a JSON object of the attributes of a CloudEvent, with its data as one of them. Once the brokers have a message,
// its id is printed. A producer that is not sure sends the same message again: the same source and id are answered once.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
)

// The fleet's partition: 0, unless the setting `fleets` names another.
const partition = 0

var modes = map[string]func(context.Context) context.Context{
	"binary":     binding.WithForceBinary,
	"structured": binding.WithForceStructured,
}

// read returns the event of a line. The SDK reads whole events: these attributes need not be repeated in each line.
func read(line []byte) (event.Event, error) {
	attributes := map[string]any{"specversion": "1.0", "datacontenttype": "application/json", "time": time.Now().UTC()}
	if err := json.Unmarshal(line, &attributes); err != nil {
		return event.Event{}, err
	}
	whole, err := json.Marshal(attributes)
	if err != nil {
		return event.Event{}, err
	}
	var message event.Event
	err = json.Unmarshal(whole, &message)
	return message, err
}

func produce(brokers, topic, mode string) error {
	with, known := modes[mode]
	if !known {
		return fmt.Errorf("invalid mode %q: must be binary or structured", mode)
	}
	config := sarama.NewConfig()
	// A minute, instead of 750 ms and 300 ms: brokers that start or elect a leader take longer.
	config.Metadata.Retry.Max = 240
	config.Producer.Retry.Max = 600
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer(strings.Split(brokers, ","), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		message, err := read(lines.Bytes())
		if err != nil {
			return err
		}
		record := sarama.ProducerMessage{Topic: topic, Partition: partition}
		if err := kafka_sarama.WriteProducerMessage(with(context.Background()), binding.ToMessage(&message), &record); err != nil {
			return err
		}
		if _, _, err := producer.SendMessage(&record); err != nil {
			return err
		}
		fmt.Println(message.ID())
	}
	return lines.Err()
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("invalid arguments: must be BROKERS TOPIC binary|structured")
	}
	if err := produce(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}
