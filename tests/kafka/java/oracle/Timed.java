package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What the bench times by the clock of this JVM, in nanoseconds. The clients, by name, stay open between calls. */
final class Timed {
    private static final Map<String, KafkaConsumer<byte[], byte[]>> CONSUMERS = new HashMap<>();
    private static final Map<String, List<KafkaProducer<byte[], byte[]>>> PRODUCERS = new HashMap<>();

    static void register(Map<String, Oracle.Call> calls) {
        calls.put("timedSeeks", Timed::seeks);
        calls.put("timedLookups", Timed::lookups);
        calls.put("timedSends", Timed::sends);
        calls.put("closeTimed", arguments -> {
            CONSUMERS.values().forEach(consumer -> consumer.close());
            PRODUCERS.values().forEach(producers -> producers.forEach(producer -> producer.close()));
            CONSUMERS.clear();
            PRODUCERS.clear();
            return null;
        });
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode arguments) {
        return CONSUMERS.computeIfAbsent(arguments.get("client").textValue(), name -> {
            KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                Topics.client(arguments), new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.assign(List.of(Topics.partition(arguments)));
            return consumer;
        });
    }

    /** Seek and poll until records arrive: for each offset [nanoseconds, offset of the first record, its value]. */
    private static Object seeks(JsonNode arguments) {
        KafkaConsumer<byte[], byte[]> consumer = consumer(arguments);
        TopicPartition partition = Topics.partition(arguments);
        List<Object> rows = new ArrayList<>();
        for (JsonNode offset : arguments.get("offsets")) {
            long start = System.nanoTime();
            consumer.seek(partition, offset.longValue());
            ConsumerRecords<byte[], byte[]> records;
            do {
                records = consumer.poll(Duration.ofSeconds(1));
            } while (records.isEmpty());
            long nanoseconds = System.nanoTime() - start;
            ConsumerRecord<byte[], byte[]> first = records.iterator().next();
            rows.add(List.of(nanoseconds, first.offset(), first.value()));
        }
        return rows;
    }

    /** For each timestamp [nanoseconds, offset of the first record at or after it, or null]. */
    private static Object lookups(JsonNode arguments) {
        KafkaConsumer<byte[], byte[]> consumer = consumer(arguments);
        TopicPartition partition = Topics.partition(arguments);
        List<Object> rows = new ArrayList<>();
        for (JsonNode timestamp : arguments.get("timestamps")) {
            long start = System.nanoTime();
            OffsetAndTimestamp found =
                consumer.offsetsForTimes(Map.of(partition, timestamp.longValue())).get(partition);
            long nanoseconds = System.nanoTime() - start;
            rows.add(Arrays.asList(nanoseconds, found == null ? null : found.offset()));
        }
        return rows;
    }

    /** As many threads as `producers`, each with its own, send all values and wait for each; the nanoseconds of all. */
    private static Object sends(JsonNode arguments) throws Exception {
        TopicPartition partition = Topics.partition(arguments);
        List<byte[]> values = new ArrayList<>();
        for (JsonNode value : arguments.get("values")) {
            values.add(value.binaryValue());
        }
        List<Callable<Void>> work = new ArrayList<>();
        for (KafkaProducer<byte[], byte[]> producer : producers(arguments)) {
            work.add(() -> {
                for (byte[] value : values) {
                    producer.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, value)).get();
                }
                return null;
            });
        }
        ExecutorService threads = Executors.newFixedThreadPool(work.size());
        try {
            long start = System.nanoTime();
            for (Future<Void> done : threads.invokeAll(work)) {
                done.get();
            }
            return System.nanoTime() - start;
        } finally {
            threads.shutdown();
        }
    }

    private static List<KafkaProducer<byte[], byte[]>> producers(JsonNode arguments) {
        return PRODUCERS.computeIfAbsent(arguments.get("client").textValue(), name -> {
            List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
            for (int number = 0; number < arguments.get("producers").intValue(); number++) {
                producers.add(new KafkaProducer<>(
                    Topics.client(arguments), new ByteArraySerializer(), new ByteArraySerializer()));
            }
            return producers;
        });
    }

    private Timed() {}
}
