// Prints the events of a fleet, each once and in order, as lines of JSON.
//
//	consume BROKERS TOPIC [AFTER]
//
// A consumer stores the id of the last event that it has processed together with its result, and continues after it. Each
// event is delivered at least once, and an event without a higher id was processed before.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
	"github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
)

// A fleet has one partition, and its events have one order: 0, unless the setting `fleets` names another.
const partition = 0

func consume(brokers, topic, after string) error {
	last, err := strconv.ParseUint(after, 10, 64)
	if err != nil {
		return err
	}
	config := sarama.NewConfig()
	// A minute, instead of 750 ms: brokers that start or elect a leader take longer.
	config.Metadata.Retry.Max = 240
	consumer, err := sarama.NewConsumer(strings.Split(brokers, ","), config)
	if err != nil {
		return err
	}
	records, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	for record := range records.Messages() {
		event, err := binding.ToEvent(context.Background(), kafka_sarama.NewMessageFromConsumerMessage(record))
		if err != nil {
			return err
		}
		// The SDK adds the place in the topic, which the event does not have.
		for _, name := range []string{"kafkaoffset", "kafkapartition", "kafkatopic"} {
			event.SetExtension(name, nil)
		}
		if err := event.Validate(); err != nil {
			return err
		}
		position, err := strconv.ParseUint(event.ID(), 10, 64)
		if err != nil {
			return err
		}
		if position <= last {
			continue
		}
		last = position
		text, err := json.Marshal(event)
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	}
	return nil
}

func main() {
	arguments := append(os.Args[1:], "0")
	if len(arguments) < 3 {
		log.Fatal("invalid arguments: must be BROKERS TOPIC [AFTER]")
	}
	if err := consume(arguments[0], arguments[1], arguments[2]); err != nil {
		log.Fatal(err)
	}
}
