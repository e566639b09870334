package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/** The records of __remote_log_metadata, by Kafka's own classes. */
final class Tiered {
    static void register(Map<String, Oracle.Call> calls) {
        calls.put("remoteMetadata", arguments -> new RemoteLogMetadataSerde().serialize(metadata(arguments)));
        calls.put("remoteMetadataText", arguments ->
            new RemoteLogMetadataSerde().deserialize(arguments.get("value").binaryValue()).toString());
        calls.put("remoteMetadataPartition", arguments ->
            new RemoteLogMetadataTopicPartitioner(arguments.get("partitions").intValue())
                .metadataPartition(partition(arguments)));
    }

    private static RemoteLogMetadata metadata(JsonNode fields) throws IOException {
        long time = fields.get("event_timestamp").longValue();
        int broker = fields.get("broker_id").intValue();
        byte state = (byte) fields.get("state").intValue();
        if (!fields.has("segment_id")) {
            return new RemotePartitionDeleteMetadata(
                partition(fields), RemotePartitionDeleteState.forId(state), time, broker);
        }
        RemoteLogSegmentId id =
            new RemoteLogSegmentId(partition(fields), Uuid.fromString(fields.get("segment_id").textValue()));
        RemoteLogSegmentState segmentState = RemoteLogSegmentState.forId(state);
        Optional<CustomMetadata> custom = fields.get("custom").isNull()
            ? Optional.empty()
            : Optional.of(new CustomMetadata(fields.get("custom").binaryValue()));
        if (!fields.has("start_offset")) {
            return new RemoteLogSegmentMetadataUpdate(id, time, custom, segmentState, broker);
        }
        Map<Integer, Long> epochs = new TreeMap<>();
        fields.get("leader_epochs").forEach(pair -> epochs.put(pair.get(0).intValue(), pair.get(1).longValue()));
        return new RemoteLogSegmentMetadata(
            id,
            fields.get("start_offset").longValue(),
            fields.get("end_offset").longValue(),
            fields.get("max_timestamp").longValue(),
            broker,
            time,
            fields.get("size_bytes").intValue(),
            custom,
            segmentState,
            epochs,
            fields.get("txn_index_is_empty").booleanValue());
    }

    private static TopicIdPartition partition(JsonNode fields) {
        return new TopicIdPartition(
            Uuid.fromString(fields.get("topic_id").textValue()),
            fields.get("partition").intValue(),
            fields.get("topic").textValue());
    }

    private Tiered() {}
}
