"""The metrics of a store as Prometheus text, with Kafka's names where Kafka has the metric.

The names are those that the JMX exporter gives to Kafka's beans, so that dashboards and alerts for brokers work:
domain, type and name in lower case, joined by `_`. The bean `kafka.log:type=Log,name=Size` is `kafka_log_log_size`.
For a counter, `PerSec` becomes `_total`. Metrics that Kafka does not have begin with `logfs_`, and metrics that every
process has begin with `process_`. docs/monitoring.md has the table.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import LogfsError
from logfs.format.base import names
from logfs.store.maintenance.retention import RetentionCause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from logfs.log.disk.latency_histogram import LatencyHistogram
    from logfs.log.read.log import Log
    from logfs.log.state.log_state import LogState
    from logfs.store.maintenance.compaction import CompactionPlan
    from logfs.store.store import Store

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


class Sample(NamedTuple):
    """One value of a metric, with its labels.

    `suffix` is added to the name of the metric; the samples of a histogram have one, such as `_bucket`.
    """

    value: float
    labels: Mapping[str, object] = {}
    suffix: str = ""


class Family(NamedTuple):
    """One metric: its name, type and help text, and its samples in the order in which they are written."""

    name: str
    kind: str
    help: str
    samples: Sequence[Sample]


# The text format.


def render(families: Iterable[Family]) -> bytes:
    """Return families in Prometheus' text format; those without samples are left out."""
    out: list[str] = []
    for name, kind, text, samples in families:
        if samples:
            text = text.replace("\\", "\\\\").replace("\n", "\\n")
            out.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
            out += [f"{name}{s.suffix}{_labels(s.labels)} {_number(s.value)}\n" for s in samples]
    return "".join(out).encode()


def _labels(labels: Mapping[str, object]) -> str:
    pairs = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    # A path may hold bytes that are not valid UTF-8.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(value)


def histogram(
    labels: Mapping[str, object], times: LatencyHistogram, unit: float = 1.0
) -> list[Sample]:
    """Return the samples of a histogram of durations, each with `labels`.

    `unit` is the number of units in a second: 1 for samples in seconds, 1000 for samples in milliseconds.
    """
    buckets = list(times.buckets())
    samples = [
        Sample(count, {**labels, "le": _number(bound * unit)}, "_bucket")
        for bound, count in buckets
    ]
    total = times.total_ns / 1e9 * unit
    return [*samples, Sample(total, labels, "_sum"), Sample(buckets[-1][1], labels, "_count")]


# The metrics of a store.


def metrics(store: Store, more: Iterable[Family] = ()) -> bytes:
    """Return Prometheus text: a store's metrics and `more`. Raises `WouldBlock` in a thread that must not wait."""
    store.disk.check_may_block()
    plans = _plans(store)
    return render(
        [
            *_logs(
                [partition for _, partition in sorted(store.registry.partitions.copy().items())]
            ),
            _flushes(store),
            *_dirty(store, plans),
            *_cleaner(store, plans),
            *_retention(store),
            *_tiering(store),
            *_directories(store),
            *_upkeep(store),
            *_groups(store),
            *more,
            *_process(),
        ]
    )


def _single(name: str, kind: str, text: str, value: float) -> Family:
    return Family(name, kind, text, [Sample(value)])


def _of(partition: Log) -> dict[str, object]:
    return {"topic": partition.topic, "partition": partition.partition}


# The metrics of each partition: name, help text, and the function that returns the value. `_STATES` are of its log.
_STATES: Sequence[tuple[str, str, Callable[[LogState], float]]] = (
    (
        "kafka_log_log_size",
        "Bytes of the .log files of a partition in its directory.",
        lambda state: state.local_bytes,
    ),
    (
        "kafka_log_log_numlogsegments",
        "Segments of a partition.",
        lambda state: len(state.segments),
    ),
    (
        "kafka_log_log_logstartoffset",
        "The first readable offset of a partition.",
        lambda state: state.log_start_offset,
    ),
    (
        "kafka_log_log_logendoffset",
        "The next offset of a partition.",
        lambda state: state.log_end_offset,
    ),
    (
        "logfs_damaged_ranges",
        "Ranges of offsets that are known to be damaged; reads of them fail with EIO.",
        lambda state: len(state.damaged),
    ),
)
_LOGS: Sequence[tuple[str, str, Callable[[Log], float]]] = (
    (
        "logfs_recovery_point",
        "The first offset not known to be on the disk.",
        lambda p: p.recovery_point,
    ),
    (
        "logfs_partition_failed",
        "1 if a write or an fsync failed and appends are refused until the next mount.",
        lambda p: int(p.failure is not None),
    ),
    (
        "logfs_partition_paused",
        "1 if upkeep of the partition is paused.",
        lambda p: int(p.is_paused),
    ),
)
_TRAFFIC: Sequence[tuple[str, str, Callable[[Log], float]]] = (
    ("messagesin", "Records appended", lambda p: p.appended_records),
    ("bytesin", "Bytes of batches appended", lambda p: p.appended_bytes),
    ("bytesout", "Bytes given to readers of the mount", lambda p: p.traffic.bytes_out),
    ("failedproducerequests", "Appends that failed", lambda p: p.traffic.failed_appends),
    ("failedfetchrequests", "Reads that failed", lambda p: p.traffic.failed_reads),
)


def _logs(partitions: Sequence[Log]) -> Iterator[Family]:
    labels = [_of(partition) for partition in partitions]
    # One snapshot of each log, so that its numbers agree with each other.
    states = [partition.state for partition in partitions]

    def samples(values: Iterable[float]) -> list[Sample]:
        return list(map(Sample, values, labels))

    for name, text, of_state in _STATES:
        yield Family(name, GAUGE, text, samples(map(of_state, states)))
    for name, text, value in _LOGS:
        yield Family(name, GAUGE, text, samples(map(value, partitions)))
    for name, text, value in _TRAFFIC:
        name = f"kafka_server_brokertopicmetrics_{name}_total"
        yield Family(
            name, COUNTER, f"{text} since the store was opened.", samples(map(value, partitions))
        )


def _flushes(store: Store) -> Family:
    samples = histogram({}, store.disk.flush_times, 1000)
    text = "Milliseconds that it took to make logs durable (fsync)."
    return Family("kafka_log_logflushstats_logflushrateandtimems", HISTOGRAM, text, samples)


# Compaction.


def _plans(store: Store) -> dict[str, CompactionPlan]:
    """Return the compaction plan of each compacted log; logs that cannot be read are left out."""
    plans = {}
    for name, partition in sorted(store.registry.partitions.copy().items()):
        try:
            if partition.config.is_compacted:
                plans[name] = store.compactor.plan(name)
        except (LogfsError, OSError):
            continue
    return plans


def _dirty(store: Store, plans: Mapping[str, CompactionPlan]) -> Iterator[Family]:
    rows = [
        (_of(store.registry.partitions[name]), plan)
        for name, plan in plans.items()
        if name in store.registry.partitions
    ]
    yield Family(
        "logfs_cleaner_dirty_ratio",
        GAUGE,
        "The share of a compacted log's sealed bytes that is not cleaned yet.",
        [Sample(plan.ratio, labels) for labels, plan in rows],
    )
    yield Family(
        "logfs_cleaner_cleanable_bytes",
        GAUGE,
        "Bytes of a compacted log that a cleaning round would read for their keys.",
        [Sample(plan.cleanable_bytes, labels) for labels, plan in rows],
    )


def _cleaner(store: Store, plans: Mapping[str, CompactionPlan]) -> Iterator[Family]:
    compactor = store.compactor
    results = list(compactor.last.values())
    read = sum(result.bytes_read for result in results)
    written = sum(result.cleaned.bytes_after for result in results)
    newest = max(results, key=lambda result: result.when_ms, default=None)
    since = store.clock() - compactor.timer.since_ms
    for name, text, value in (
        (
            "logcleanermanager_max_dirty_percent",
            "The dirty ratio of the dirtiest log, in percent.",
            int(100 * max((plan.ratio for plan in plans.values()), default=0)),
        ),
        (
            "logcleanermanager_time_since_last_run_ms",
            "Milliseconds since the last search for logs to clean.",
            since,
        ),
        (
            "logcleaner_cleaner_recopy_percent",
            "Bytes that the last cleaning round of each log wrote, in percent of the bytes it read.",
            int(100 * written / read) if read else 0,
        ),
        (
            "logcleaner_max_buffer_utilization_percent",
            "How full the map of keys was in the last cleaning round, in percent.",
            int(100 * newest.cleaned.map_share) if newest else 0,
        ),
        (
            "logcleaner_max_clean_time_secs",
            "Duration of the last cleaning round in seconds.",
            round(newest.seconds, 3) if newest else 0,
        ),
        (
            "logcleaner_max_compaction_delay_secs",
            "Seconds by which the most delayed log exceeds max.compaction.lag.ms.",
            max((plan.delay_ms for plan in plans.values()), default=0) // 1000,
        ),
        (
            "logcleaner_deadthreadcount",
            "1 if an unexpected error ended the last search for logs to clean.",
            int(compactor.is_dead),
        ),
    ):
        yield _single(f"kafka_log_{name}", GAUGE, text, value)
    for name, text, count in (
        ("rounds", "Cleaning rounds that were finished.", compactor.rounds),
        (
            "aborted_rounds",
            "Cleaning rounds that were aborted because the log was changed or closed.",
            compactor.aborted,
        ),
        ("read_bytes", "Bytes that cleaning rounds read.", compactor.bytes_read),
        ("written_bytes", "Bytes that cleaning rounds wrote.", compactor.bytes_written),
    ):
        yield _single(f"logfs_cleaner_{name}_total", COUNTER, text, count)


def _retention(store: Store) -> Iterator[Family]:
    for name, text, counts in (
        ("segments", "Segments that retention dropped, by reason.", store.retainer.segments),
        (
            "bytes",
            "Bytes of the segments that retention dropped, by reason.",
            store.retainer.size_bytes,
        ),
    ):
        samples = [Sample(counts[cause], {"reason": cause.value}) for cause in RetentionCause]
        yield Family(f"logfs_retention_{name}_total", COUNTER, text, samples)


# Tiered storage: the metrics have Kafka's names (KIP-405, KIP-963).


def _tiering(store: Store) -> Iterator[Family]:
    prefix = "kafka_server_brokertopicmetrics_remote"
    logs = []
    for _, partition in sorted(store.registry.partitions.copy().items()):
        try:
            log = store.tiered.of(partition)
        except (LogfsError, OSError):
            continue
        if log is not None:
            logs.append((partition, log))
    sizes = [(_of(p), sum(each.size_bytes for each in log.finished())) for p, log in logs]
    yield Family(
        f"{prefix}logsizebytes",
        GAUGE,
        "Bytes of a tiered log's .log files in the object store.",
        [Sample(size, labels) for labels, size in sizes],
    )
    manager = store.remote_log_manager
    lags = [(_of(p), manager.lag_of(p)) for p, _ in logs if not store.read_only]
    for name, text, values in (
        ("bytes", "Bytes", [lag.size_bytes for _, lag in lags]),
        ("segments", "Segments", [len(lag.segments) for _, lag in lags]),
    ):
        yield Family(
            f"{prefix}copylag{name}",
            GAUGE,
            f"{text} of a tiered log that wait to be copied into the object store.",
            [Sample(value, labels) for (labels, _), value in zip(lags, values, strict=True)],
        )
    requests, fetched = store.tiered.fetched()
    for name, text, value in (
        ("copybytes", "Bytes of .log files copied into the object store", manager.copied_bytes),
        ("copyrequests", "Segments copied into the object store", manager.copied_segments),
        ("copyerrors", "Copies of a segment that failed", manager.copy_errors),
        ("fetchbytes", "Bytes fetched from the object store", fetched),
        ("fetchrequests", "Chunks fetched from the object store", requests),
        ("deleterequests", "Segments deleted in the object store", manager.deleted_segments),
        ("deleteerrors", "Deletions of a segment that failed", manager.delete_errors),
    ):
        yield _single(
            f"{prefix}{name}_total", COUNTER, f"{text} since the store was opened.", value
        )


# The store as a whole.


def _directories(store: Store) -> Iterator[Family]:
    directories = [str(log_dir.path) for log_dir in store.log_dirs]
    uncleanable = [p for p in list(store.registry.partitions.values()) if p.uncleanable is not None]

    def each(name: str, text: str, values: Mapping[str, float]) -> Family:
        samples = [Sample(value, {"logdirectory": path}) for path, value in values.items()]
        return Family(name, GAUGE, text, samples)

    at_home = {
        path: [p for p in uncleanable if str(p.directory.parent) == path] for path in directories
    }
    prefix = "kafka_log_logcleanermanager_uncleanable_"
    text = "Partitions that are no longer compacted because of an error."
    yield each(
        f"{prefix}partitions_count", text, {path: len(found) for path, found in at_home.items()}
    )
    yield each(
        f"{prefix}bytes",
        "Bytes of the partitions that are no longer compacted because of an error.",
        {path: sum(p.size_bytes for p in found) for path, found in at_home.items()},
    )
    prefix = "kafka_log_logmanager_remaining"
    logs, segments = _remaining(store)
    yield each(f"{prefix}logstorecover", "Logs that remain to be recovered.", logs)
    yield each(f"{prefix}segmentstorecover", "Segments that remain to be recovered.", segments)
    free, size = {}, {}
    for path in directories:
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        free[path] = found.f_bavail * found.f_frsize
        size[path] = found.f_blocks * found.f_frsize
    yield each("logfs_log_dir_free_bytes", "Free bytes on the disk of a log directory.", free)
    yield each("logfs_log_dir_size_bytes", "Size of the disk of a log directory in bytes.", size)
    yield _single(
        "kafka_log_logmanager_offlinelogdirectorycount",
        GAUGE,
        "Log directories that have failed.",
        len(store.registry.failed),
    )
    yield _single(
        "kafka_server_replicamanager_offlinereplicacount",
        GAUGE,
        "Partitions that could not be loaded, or whose log directory has failed.",
        len(store.offline),
    )
    yield _single(
        "kafka_server_replicamanager_partitioncount",
        GAUGE,
        "Partitions that are not offline.",
        len(store),
    )
    text = "Partitions that are neither loaded nor offline yet; they have no other metrics."
    yield _single("logfs_partitions_unloaded", GAUGE, text, len(store.registry.unloaded))


def _remaining(store: Store) -> tuple[Counter[str], Counter[str]]:
    """Return how many logs, and .log files of them, are still to be recovered in each log directory."""
    logs = Counter(dict.fromkeys((str(log_dir.path) for log_dir in store.log_dirs), 0))
    segments = logs.copy()
    for unloaded in list(store.registry.unloaded.values()):
        log_dir = unloaded.log_dir
        if not (log_dir.clean or log_dir.live):
            logs[str(log_dir.path)] += 1
            with suppress(LogfsError, OSError):
                files = log_dir.disk.scan(unloaded.path)
                segments[str(log_dir.path)] += sum(file.name.endswith(names.LOG) for file in files)
    return logs, segments


def _upkeep(store: Store) -> Iterator[Family]:
    scheduler = store.scheduler
    yield _single(
        "logfs_uptime_seconds",
        GAUGE,
        "Seconds since the store was opened.",
        (store.clock() - store.registry.opened_ms) / 1000,
    )
    text = "Seconds that the opening of the store took; a mount recovers partitions after it."
    yield _single("logfs_loading_seconds", GAUGE, text, round(store.loading_seconds, 6))
    text = "Bytes of .log files that recovery has read since the store was opened."
    yield _single("logfs_recovered_bytes", GAUGE, text, store.recovered_bytes)
    if scheduler.last_run_ms is not None:
        text = "When upkeep last looked for due tasks, in seconds since 1970."
        seconds = scheduler.last_run_ms / 1000
        yield _single("logfs_upkeep_last_run_timestamp_seconds", GAUGE, text, seconds)
    text = "Seconds that the last run of upkeep took, without compaction."
    yield _single(
        "logfs_upkeep_last_run_seconds", GAUGE, text, round(scheduler.last_run_seconds, 6)
    )
    text = "Upkeep tasks that failed."
    yield _single("logfs_upkeep_failures_total", COUNTER, text, scheduler.failures)
    text = "Upkeep tasks that wait for a retry after an error."
    yield _single("logfs_upkeep_waiting", GAUGE, text, len(list(scheduler.backoff)))
    text = "1 if upkeep as a whole is paused."
    yield _single("logfs_upkeep_paused", GAUGE, text, int(store.registry.is_paused))
    works = [
        (work, {"what": work.what, "name": work.name}) for work in list(store.registry.background)
    ]
    text = "Bytes that a background task has processed."
    done = [Sample(work.done_bytes, labels) for work, labels in works]
    yield Family("logfs_background_done_bytes", GAUGE, text, done)
    text = "Bytes that a background task is expected to process, at most."
    total = [Sample(work.total_bytes, labels) for work, labels in works]
    yield Family("logfs_background_total_bytes", GAUGE, text, total)


def _groups(store: Store) -> Iterator[Family]:
    samples = []
    try:
        for group, name, commit in store.groups:
            partition = store.registry.partitions.get(name.directory)
            if partition is not None:
                labels = {"group": group, **_of(partition)}
                samples.append(Sample(max(partition.log_end_offset - commit.offset, 0), labels))
    except (LogfsError, OSError):
        # If commits cannot be read now, the metrics of the partitions of __consumer_offsets show it.
        samples = []
    text = "Records between the committed offset of a group and the log end."
    yield Family("logfs_group_lag", GAUGE, text, samples)


def _process() -> Iterator[Family]:
    """Yield the metrics that Prometheus' client libraries have for every process, as far as /proc has them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    boot = next(
        float(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime ")
    )
    for name, kind, text, value in (
        ("cpu_seconds_total", COUNTER, "CPU time.", (int(fields[11]) + int(fields[12])) / tick),
        ("virtual_memory_bytes", GAUGE, "Virtual memory.", int(fields[20])),
        ("resident_memory_bytes", GAUGE, "Resident memory.", int(fields[21]) * page),
        ("start_time_seconds", GAUGE, "When the process began.", boot + int(fields[19]) / tick),
        ("open_fds", GAUGE, "Open file descriptors.", len(os.listdir("/proc/self/fd"))),
        (
            "max_fds",
            GAUGE,
            "The limit of open file descriptors.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
    ):
        yield _single(f"process_{name}", kind, text, value)
