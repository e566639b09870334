package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Producers, by name: several may be at work at once, in transactions or not. */
final class Producers {
    private static final Map<String, KafkaProducer<byte[], byte[]>> OPEN = new HashMap<>();

    static void register(Map<String, Oracle.Call> calls) {
        calls.put("openProducer", Producers::open);
        calls.put("send", Producers::send);
        calls.put("begin", arguments -> {
            producer(arguments).beginTransaction();
            return null;
        });
        calls.put("sendOffsets", Producers::sendOffsets);
        calls.put("commit", arguments -> {
            producer(arguments).commitTransaction();
            return null;
        });
        calls.put("abort", arguments -> {
            producer(arguments).abortTransaction();
            return null;
        });
        calls.put("closeProducer", Producers::close);
        calls.put("partitionOfKey", arguments -> BuiltInPartitioner.partitionForKey(
            arguments.get("key").binaryValue(), arguments.get("partitions").intValue()));
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonNode arguments) {
        return OPEN.get(arguments.get("producer").textValue());
    }

    private static Object open(JsonNode arguments) {
        Map<String, Object> config = new HashMap<>();
        // What ends a batch is the caller's flush, not a clock, as far as the sizes allow it.
        config.put("linger.ms", 60_000);
        config.put("delivery.timeout.ms", 120_000);
        config.put("batch.size", 1_000_000);
        config.putAll(Topics.client(arguments));
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        OPEN.put(arguments.get("producer").textValue(), producer);
        if (config.containsKey("transactional.id")) {
            producer.initTransactions();
        }
        return null;
    }

    /** Each list of records is sent and flushed: a batch, if it is not too large. Its answer: [offset, timestamp]s. */
    private static Object send(JsonNode arguments) throws Exception {
        List<Object> appended = new ArrayList<>();
        for (JsonNode batch : arguments.get("batches")) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : batch) {
                sent.add(producer(arguments).send(record(arguments, record)));
            }
            producer(arguments).flush();
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata metadata = future.get();
                appended.add(List.of(metadata.offset(), metadata.timestamp()));
            }
        }
        return appended;
    }

    /** A record is [timestamp or null, key, value, [[name, value], …]]. */
    private static ProducerRecord<byte[], byte[]> record(JsonNode arguments, JsonNode record) throws IOException {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.get(3)) {
            headers.add(new RecordHeader(header.get(0).textValue(), bytes(header.get(1))));
        }
        return new ProducerRecord<>(
            arguments.get("topic").textValue(),
            arguments.get("partition").intValue(),
            record.get(0).isNull() ? null : record.get(0).longValue(),
            bytes(record.get(1)),
            bytes(record.get(2)),
            headers);
    }

    private static byte[] bytes(JsonNode text) throws IOException {
        return text.isNull() ? null : text.binaryValue();
    }

    private static Object sendOffsets(JsonNode arguments) {
        try (KafkaConsumer<byte[], byte[]> member = Consumers.open(arguments)) {
            producer(arguments).sendOffsetsToTransaction(
                Consumers.offsets(arguments.get("offsets")), member.groupMetadata());
        }
        return null;
    }

    /** Abandoned: gone at once, as if its process had been killed; its transaction stays open. */
    private static Object close(JsonNode arguments) {
        KafkaProducer<byte[], byte[]> producer = OPEN.remove(arguments.get("producer").textValue());
        producer.close(arguments.get("abandon").booleanValue() ? Duration.ZERO : Duration.ofSeconds(30));
        return null;
    }

    private Producers() {}
}
