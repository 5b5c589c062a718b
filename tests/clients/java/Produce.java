import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.cloudevents.CloudEvent;
import io.cloudevents.core.message.Encoding;
import io.cloudevents.jackson.JsonFormat;
import io.cloudevents.kafka.CloudEventSerializer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Requests intents of a fleet by inbox messages in its topic: Produce BROKERS TOPIC binary|structured &lt; MESSAGES.
 *
 * <p>Each line is a JSON object of the attributes of a CloudEvent, with its data as one of them. Once the brokers have a message, its
 * id is printed. A producer that is not sure sends the same message again: the same source and id are answered once.
 */
public final class Produce {
  /** The fleet's partition: 0, unless the setting `fleets` names another. */
  private static final int PARTITION = 0;

  public static void main(String[] arguments) throws Exception {
    var serializer = new CloudEventSerializer();
    var encoding = Encoding.valueOf(arguments[2].toUpperCase());
    serializer.configure(
        encoding == Encoding.STRUCTURED
            ? Map.of(CloudEventSerializer.ENCODING_CONFIG, encoding, CloudEventSerializer.EVENT_FORMAT_CONFIG, JsonFormat.CONTENT_TYPE)
            : Map.of(CloudEventSerializer.ENCODING_CONFIG, encoding),
        false);
    Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "acks", "all");
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    try (var producer = new KafkaProducer<>(settings, new StringSerializer(), serializer)) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        CloudEvent event = read(line);
        producer.send(new ProducerRecord<>(arguments[1], PARTITION, null, event)).get();
        System.out.println(event.getId());
      }
    }
  }

  /** Returns the event of a line. The SDK reads whole events: these attributes need not be repeated in each line. */
  private static CloudEvent read(String line) throws Exception {
    var mapper = new ObjectMapper();
    ObjectNode attributes = mapper.createObjectNode();
    attributes.put("specversion", "1.0").put("datacontenttype", "application/json").put("time", Instant.now().toString());
    attributes.setAll((ObjectNode) mapper.readTree(line));
    return new JsonFormat().deserialize(mapper.writeValueAsBytes(attributes));
  }
}
