package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What an Admin client does: topics, their settings, offsets by time. */
final class Topics {
    private static final int MOST_ADMINS = 2;

    // By servers, the last used ones: a client whose broker has ended goes on looking for it, ten times a second.
    private static final Map<String, Admin> ADMINS = new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Admin> eldest) {
            if (size() <= MOST_ADMINS) {
                return false;
            }
            eldest.getValue().close(Duration.ZERO);
            return true;
        }
    };

    static void register(Map<String, Oracle.Call> calls) {
        calls.put("createTopic", Topics::create);
        calls.put("deleteTopic", arguments -> {
            admin(arguments).deleteTopics(List.of(arguments.get("topic").textValue())).all().get();
            return null;
        });
        calls.put("growTopic", Topics::grow);
        calls.put("topicIds", Topics::ids);
        calls.put("alterTopic", Topics::alter);
        calls.put("topicSettings", Topics::settings);
        calls.put("movePartition", Topics::move);
        calls.put("deleteRecords", Topics::deleteRecords);
        calls.put("listOffsets", Topics::listOffsets);
        calls.put("groupOffsets", Topics::groupOffsets);
    }

    static Map<String, Object> client(JsonNode arguments) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", arguments.get("servers").textValue());
        // A broker that was stopped on purpose is back sooner than the default would look again.
        config.put("reconnect.backoff.max.ms", 100);
        if (arguments.has("configs")) {
            arguments.get("configs").properties().forEach(
                entry -> config.put(entry.getKey(), entry.getValue().asText()));
        }
        return config;
    }

    static TopicPartition partition(JsonNode arguments) {
        return new TopicPartition(arguments.get("topic").textValue(), arguments.get("partition").intValue());
    }

    private static Admin admin(JsonNode arguments) {
        return ADMINS.computeIfAbsent(arguments.get("servers").textValue(), servers ->
            Admin.create(Map.of("bootstrap.servers", servers, "reconnect.backoff.max.ms", 100)));
    }

    private static Object create(JsonNode arguments) throws Exception {
        String name = arguments.get("topic").textValue();
        Map<String, String> configs = new HashMap<>();
        arguments.get("configs").properties().forEach(
            entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        int partitions = arguments.get("partitions").intValue();
        Map<Integer, List<Integer>> replicas = new HashMap<>();
        for (JsonNode brokers : arguments.withArray("replicas")) {
            List<Integer> some = new ArrayList<>();
            brokers.forEach(each -> some.add(each.intValue()));
            replicas.put(replicas.size(), some);
        }
        NewTopic topic = (replicas.isEmpty()
            ? new NewTopic(name, Optional.of(partitions), Optional.empty())
            : new NewTopic(name, replicas)).configs(configs);
        String id = admin(arguments).createTopics(List.of(topic)).topicId(name).get().toString();
        awaitServed(admin(arguments), name, partitions);
        return id;
    }

    private static Object grow(JsonNode arguments) throws Exception {
        String name = arguments.get("topic").textValue();
        int count = arguments.get("partitions").intValue();
        admin(arguments).createPartitions(Map.of(name, NewPartitions.increaseTo(count))).all().get();
        awaitServed(admin(arguments), name, count);
        return null;
    }

    private static void awaitServed(Admin admin, String name, int count) throws Exception {
        while (!served(admin, name, count)) {
            Thread.sleep(5);
        }
    }

    private static boolean served(Admin admin, String name, int count) throws Exception {
        try {
            List<TopicPartitionInfo> found =
                admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions();
            return found.size() == count && found.stream().allMatch(partition -> partition.leader() != null);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                return false;
            }
            throw error;
        }
    }

    private static Object ids(JsonNode arguments) throws Exception {
        Map<String, String> ids = new HashMap<>();
        admin(arguments).listTopics(new ListTopicsOptions().listInternal(true)).listings().get()
            .forEach(listing -> ids.put(listing.name(), listing.topicId().toString()));
        return ids;
    }

    private static Object alter(JsonNode arguments) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        arguments.get("configs").properties().forEach(entry -> changes.add(new AlterConfigOp(
            new ConfigEntry(entry.getKey(), entry.getValue().isNull() ? null : entry.getValue().asText()),
            entry.getValue().isNull() ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET)));
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, arguments.get("topic").textValue());
        admin(arguments).incrementalAlterConfigs(Map.of(topic, changes)).all().get();
        return null;
    }

    /** Gives a partition other replicas, and waits until they have all records. */
    private static Object move(JsonNode arguments) throws Exception {
        List<Integer> replicas = new ArrayList<>();
        arguments.get("replicas").forEach(each -> replicas.add(each.intValue()));
        TopicPartition partition = partition(arguments);
        Admin admin = admin(arguments);
        admin.alterPartitionReassignments(
            Map.of(partition, Optional.of(new NewPartitionReassignment(replicas)))).all().get();
        while (admin.listPartitionReassignments().reassignments().get().containsKey(partition)) {
            Thread.sleep(100);
        }
        return null;
    }

    /** The settings that were made for the topic itself, by name. */
    private static Object settings(JsonNode arguments) throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, arguments.get("topic").textValue());
        Map<String, Object> found = new HashMap<>();
        admin(arguments).describeConfigs(List.of(topic)).all().get().get(topic).entries().forEach(entry -> {
            if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) {
                found.put(entry.name(), entry.value());
            }
        });
        return found;
    }

    private static Object deleteRecords(JsonNode arguments) throws Exception {
        TopicPartition partition = partition(arguments);
        RecordsToDelete before = RecordsToDelete.beforeOffset(arguments.get("before").longValue());
        return admin(arguments).deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition).get()
            .lowWatermark();
    }

    /** Each spec is "earliest", "latest", "max" or a timestamp; its answer [offset, timestamp, leader epoch or null]. */
    private static Object listOffsets(JsonNode arguments) throws Exception {
        TopicPartition partition = partition(arguments);
        ListOffsetsOptions options = new ListOffsetsOptions(
            IsolationLevel.valueOf(arguments.get("isolation").textValue().toUpperCase()));
        List<ListOffsetsResult> asked = new ArrayList<>();
        for (JsonNode spec : arguments.get("specs")) {
            asked.add(admin(arguments).listOffsets(Map.of(partition, spec(spec)), options));
        }
        List<Object> found = new ArrayList<>();
        for (ListOffsetsResult result : asked) {
            ListOffsetsResult.ListOffsetsResultInfo info = result.partitionResult(partition).get();
            List<Object> row = new ArrayList<>(List.of(info.offset(), info.timestamp()));
            row.add(info.leaderEpoch().orElse(null));
            found.add(row);
        }
        return found;
    }

    private static OffsetSpec spec(JsonNode spec) {
        if (spec.isNumber()) {
            return OffsetSpec.forTimestamp(spec.longValue());
        }
        return switch (spec.textValue()) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max" -> OffsetSpec.maxTimestamp();
            default -> throw new IllegalArgumentException("no such offset: " + spec);
        };
    }

    /** Of every partition that the group has committed: [topic, partition, offset, leader epoch or null, metadata]. */
    private static Object groupOffsets(JsonNode arguments) throws Exception {
        List<Object> rows = new ArrayList<>();
        admin(arguments).listConsumerGroupOffsets(arguments.get("group").textValue())
            .partitionsToOffsetAndMetadata().get().forEach((partition, committed) -> {
                List<Object> row = new ArrayList<>(
                    List.of(partition.topic(), partition.partition(), committed.offset()));
                row.add(committed.leaderEpoch().orElse(null));
                row.add(committed.metadata());
                rows.add(row);
            });
        return rows;
    }

    private Topics() {}
}
