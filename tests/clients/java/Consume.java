import io.cloudevents.CloudEvent;
import io.cloudevents.jackson.JsonFormat;
import io.cloudevents.kafka.CloudEventDeserializer;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Prints the events of a fleet, each once and in order, as lines of JSON: Consume BROKERS TOPIC [AFTER].
 *
 * <p>A consumer stores the id of the last event that it has processed together with its result, and continues after it. Each event
 * is delivered at least once, and an event without a higher id was processed before.
 */
public final class Consume {
  /** A fleet has one partition, and its events have one order: 0, unless the setting `fleets` names another. */
  private static final int PARTITION = 0;

  public static void main(String[] arguments) {
    var last = arguments.length > 2 ? Long.parseLong(arguments[2]) : 0;
    var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    var format = new JsonFormat();
    Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
    try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new CloudEventDeserializer())) {
      var partition = new TopicPartition(arguments[1], PARTITION);
      consumer.assign(List.of(partition));
      consumer.seekToBeginning(List.of(partition));
      while (true) {
        for (var record : consumer.poll(Duration.ofSeconds(1))) {
          CloudEvent event = record.value();
          long position = Long.parseLong(event.getId());
          if (position > last) {
            last = position;
            out.println(new String(format.serialize(event), StandardCharsets.UTF_8));
          }
        }
      }
    }
  }
}
