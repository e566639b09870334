package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumers, one for each call. */
final class Consumers {
    private static final Duration POLL = Duration.ofMillis(100);

    static void register(Map<String, Oracle.Call> calls) {
        calls.put("consume", Consumers::consume);
        calls.put("offsetsForTimes", Consumers::offsetsForTimes);
        calls.put("commitOffsets", Consumers::commit);
        calls.put("joinGroup", Consumers::join);
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode rows) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode row : rows) {
            offsets.put(
                new TopicPartition(row.get(0).textValue(), row.get(1).intValue()),
                new OffsetAndMetadata(row.get(2).longValue(), row.get(3).textValue()));
        }
        return offsets;
    }

    static KafkaConsumer<byte[], byte[]> open(JsonNode arguments) {
        Map<String, Object> config = new HashMap<>();
        config.put("enable.auto.commit", false);
        config.put("auto.offset.reset", "none");
        config.put("max.poll.records", 100_000);
        config.put("max.partition.fetch.bytes", 8 << 20);
        // Closing waits for the fetch that is under way.
        config.put("fetch.max.wait.ms", 10);
        config.putAll(Topics.client(arguments));
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** From an offset, or the earliest, to where the log ended when asked; see `row`. */
    private static Object consume(JsonNode arguments) {
        TopicPartition partition = Topics.partition(arguments);
        List<Object> rows = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = open(arguments)) {
            consumer.assign(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            if (arguments.get("offset").isNull()) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, arguments.get("offset").longValue());
            }
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    if (record.offset() < end) {
                        rows.add(row(record));
                    }
                }
            }
        }
        return rows;
    }

    /** [offset, timestamp, timestamp type's number, key, value, [[name, value], …], leader epoch]. */
    private static Object row(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), header.value()));
        }
        return Arrays.asList(
            record.offset(),
            record.timestamp(),
            record.timestampType().id,
            record.key(),
            record.value(),
            headers,
            record.leaderEpoch().orElse(-1));
    }

    /** For each timestamp [offset, timestamp, leader epoch or null], or null. */
    private static Object offsetsForTimes(JsonNode arguments) {
        TopicPartition partition = Topics.partition(arguments);
        List<Object> rows = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = open(arguments)) {
            for (JsonNode timestamp : arguments.get("timestamps")) {
                OffsetAndTimestamp found =
                    consumer.offsetsForTimes(Map.of(partition, timestamp.longValue())).get(partition);
                rows.add(found == null
                    ? null
                    : Arrays.asList(found.offset(), found.timestamp(), found.leaderEpoch().orElse(null)));
            }
        }
        return rows;
    }

    private static Object commit(JsonNode arguments) {
        try (KafkaConsumer<byte[], byte[]> consumer = open(arguments)) {
            consumer.commitSync(offsets(arguments.get("offsets")));
        }
        return null;
    }

    /** A member of a group reads until it has `count` records, commits, and leaves; how many it had. */
    private static Object join(JsonNode arguments) {
        int count = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = open(arguments)) {
            List<String> topics = new ArrayList<>();
            arguments.get("topics").forEach(topic -> topics.add(topic.textValue()));
            consumer.subscribe(topics);
            while (count < arguments.get("count").intValue()) {
                count += consumer.poll(POLL).count();
            }
            consumer.commitSync();
        }
        return count;
    }

    private Consumers() {}
}
