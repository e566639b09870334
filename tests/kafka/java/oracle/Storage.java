package oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogCleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogManager;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Kafka's storage classes without a broker: the log of one partition in a directory, and a clock that is set. */
final class Storage {
    private static final Map<String, Storage> OPEN = new HashMap<>();
    private static final int EPOCH = 0;
    // A marker may have the epoch of its transaction, as of version 2 it must have a later one.
    private static final short TRANSACTION_VERSION = 1;
    private static final int DAY_MS = 86_400_000;
    // What a broker gives its one cleaner by default: log.cleaner.io.buffer.size, for reading and writing.
    private static final int IO_BYTES = 512 * 1024 / 2;
    private static final int MAX_IO_BYTES = 1024 * 1024 + 12;

    private final Clock clock = new Clock();
    private final LogManager manager;
    private final UnifiedLog log;

    /** It stands still but where it is set. */
    private static final class Clock implements Time {
        private long now;

        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return TimeUnit.MILLISECONDS.toNanos(now);
        }

        @Override
        public void sleep(long ms) {
            now += ms;
        }
    }

    /** What is to be done at once is done at once, in the caller's thread; what is to be done later never is. */
    private static final class Now implements Scheduler {
        private static final ScheduledThreadPoolExecutor NEVER = new ScheduledThreadPoolExecutor(0);

        @Override
        public void startup() {}

        @Override
        public void shutdown() {}

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (delayMs == 0 && periodMs < 0) {
                task.run();
            }
            return NEVER.schedule(() -> {}, Long.MAX_VALUE, TimeUnit.NANOSECONDS);
        }

        @Override
        public void resizeThreadPool(int size) {}
    }

    static void register(Map<String, Oracle.Call> calls) {
        calls.put("openStorage", arguments -> {
            Storage storage = new Storage(arguments);
            OPEN.put(arguments.get("directory").textValue(), storage);
            return storage.state();
        });
        calls.put("storageSteps", arguments -> {
            Storage storage = OPEN.get(arguments.get("directory").textValue());
            List<Object> answers = new ArrayList<>();
            for (JsonNode step : arguments.get("steps")) {
                answers.add(List.of(storage.answer(step), storage.state()));
            }
            return answers;
        });
        calls.put("closeStorage", arguments -> {
            OPEN.remove(arguments.get("directory").textValue()).manager.shutdown();
            return null;
        });
    }

    private Storage(JsonNode arguments) throws Exception {
        clock.now = arguments.get("now").longValue();
        TopicPartition partition = Topics.partition(arguments);
        Properties overrides = new Properties();
        arguments.get("configs").properties().forEach(
            entry -> overrides.put(entry.getKey(), entry.getValue().asText()));
        manager = new LogManager(
            List.of(new File(arguments.get("directory").textValue())),
            List.of(),
            resource -> overrides,
            new LogConfig(Map.of()),
            new CleanerConfig(false),
            1,
            Long.MAX_VALUE,
            Long.MAX_VALUE,
            Long.MAX_VALUE,
            Long.MAX_VALUE,
            DAY_MS,
            new ProducerStateManagerConfig(DAY_MS, false),
            DAY_MS,
            new Now(),
            new BrokerTopicStats(),
            new LogDirFailureChannel(1),
            clock,
            false,
            1,
            (config, directories, logs, failures, time) -> new LogCleaner(config, directories, logs, failures, time));
        manager.startup(Set.of(partition.topic()));
        log = manager.getOrCreateLog(partition, Optional.empty());
        // What becoming the leader of an only replica does; where records are there already, the next append does it.
        if (log.isEmpty() && log.logEndOffset() == 0) {
            log.assignEpochStartOffset(EPOCH, 0);
        }
        log.updateHighWatermark(log.logEndOffset());
    }

    /** [start, end, last stable, base of the active segment]. */
    private List<Long> state() {
        return List.of(
            log.logStartOffset(), log.logEndOffset(), log.lastStableOffset(), log.activeSegment().baseOffset());
    }

    /** The first and last offset of what was appended, or the name of what was thrown. */
    private Object answer(JsonNode step) throws Exception {
        try {
            return run(step);
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }

    private Object run(JsonNode step) throws Exception {
        switch (step.get(0).textValue()) {
            case "append" -> {
                ByteBuffer batch = ByteBuffer.wrap(step.get(1).binaryValue());
                return append(MemoryRecords.readableRecords(batch), AppendOrigin.valueOf(step.get(2).textValue()));
            }
            case "end" -> {
                ControlRecordType type =
                    step.get(3).booleanValue() ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
                EndTransactionMarker marker = new EndTransactionMarker(type, step.get(4).intValue());
                return append(
                    MemoryRecords.withEndTransactionMarker(
                        clock.now, step.get(1).longValue(), (short) step.get(2).intValue(), marker),
                    AppendOrigin.COORDINATOR);
            }
            case "roll" -> log.roll();
            case "flush" -> log.flush(false);
            case "truncate" -> manager.truncateTo(Map.of(log.topicPartition(), step.get(1).longValue()), false);
            case "start" -> log.maybeIncrementLogStartOffset(
                step.get(1).longValue(), LogStartOffsetIncrementReason.ClientRecordDeletion);
            case "clock" -> clock.now = step.get(1).longValue();
            case "expire" -> log.removeExpiredProducers(clock.now);
            case "clean" -> {
                return clean(step.get(1).intValue(), step.get(2).doubleValue());
            }
            case "retain" -> {
                return retain();
            }
            default -> throw new IllegalArgumentException("no such step: " + step);
        }
        return List.of();
    }

    /** One round of the cleaner over all that is sealed: the nanoseconds of it, and the offset it got to. */
    private List<Long> clean(int memoryBytes, double loadFactor) throws Exception {
        Throttler none = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", clock);
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(memoryBytes), IO_BYTES, MAX_IO_BYTES, loadFactor, none, clock, partition -> {});
        LogToClean everything = new LogToClean(log, log.logStartOffset(), log.activeSegment().baseOffset(), false);
        long start = System.nanoTime();
        long end = cleaner.clean(everything).getKey();
        return List.of(System.nanoTime() - start, end);
    }

    /** Retention: the nanoseconds of it, and how many segments went. */
    private List<Long> retain() throws Exception {
        long start = System.nanoTime();
        long count = log.deleteOldSegments();
        return List.of(System.nanoTime() - start, count);
    }

    private List<Long> append(MemoryRecords records, AppendOrigin origin) throws Exception {
        LogAppendInfo info = log.appendAsLeader(
            records, EPOCH, origin, RequestLocal.noCaching(), VerificationGuard.SENTINEL, TRANSACTION_VERSION);
        log.updateHighWatermark(log.logEndOffset());
        return List.of(info.firstOffset(), info.lastOffset());
    }
}
