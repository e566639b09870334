"""The metrics of a store as Prometheus text, with Kafka's names where Kafka has the metric.

The names are those that the JMX exporter gives to Kafka's beans, so that dashboards and alerts for brokers work:
domain, type and name in lower case, joined by `_`. The bean `kafka.log:type=Log,name=Size` is `kafka_log_log_size`.
For a counter, `PerSec` becomes `_total`. The names of metrics that Kafka does not have begin with `logfs_`, and those
of metrics that every process has with `process_`. docs/monitoring.md lists all metrics.
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
from logfs.format.messages.group_record import lag_of
from logfs.store.maintenance.retention import RetentionCause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from logfs.log.disk.latency_histogram import LatencyHistogram
    from logfs.log.read.log import Log
    from logfs.log.state.log_state import LogState
    from logfs.store.store import Store

_TRAFFIC = "kafka_server_brokertopicmetrics_"


class Sample(NamedTuple):
    """One value of a metric, with its labels.

    `suffix` is added to the name of the metric; the samples of a histogram have one, such as `_bucket`.
    """

    value: float
    labels: Mapping[str, object] = {}
    suffix: str = ""


class Family(NamedTuple):
    """One metric: its name, its help text, and its samples in the order in which they are written."""

    name: str
    help: str
    samples: Sequence[Sample]


# The functions below write metrics as text.


def render(families: Iterable[Family], *, as_openmetrics: bool = False) -> bytes:
    """Return metrics in Prometheus' text format or as OpenMetrics 1.0; a metric without samples is left out."""
    out: list[str] = []
    for name, text, samples in families:
        if samples:
            text = text.replace("\\", "\\\\").replace("\n", "\\n")
            # In OpenMetrics, the name of a counter does not have the suffix `_total` of its sample.
            family = name.removesuffix("_total") if as_openmetrics else name
            out.append(f"# HELP {family} {text}\n# TYPE {family} {_kind(name, samples)}\n")
            out += [f"{name}{s.suffix}{_labels(s.labels)} {_number(s.value)}\n" for s in samples]
    return "".join([*out, "# EOF\n" if as_openmetrics else ""]).encode()


def _kind(name: str, samples: Sequence[Sample]) -> str:
    """Return the type of a metric. Only samples of a histogram have suffixes; a counter's name ends in `_total`."""
    if samples[0].suffix:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


def _labels(labels: Mapping[str, object]) -> str:
    pairs = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    # A path may have bytes that are not valid UTF-8, but the output must be UTF-8: escape these bytes.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(value)


def histogram(
    labels: Mapping[str, object], times: LatencyHistogram, unit: float = 1.0
) -> list[Sample]:
    """Return the samples of a histogram of durations, each with `labels`.

    `unit` determines the unit of the samples: 1 for seconds, 1000 for milliseconds.
    """
    buckets = list(times.buckets())
    samples = [
        Sample(count, {**labels, "le": _number(bound * unit)}, "_bucket")
        for bound, count in buckets
    ]
    total = times.total_ns / 1e9 * unit
    return [*samples, Sample(total, labels, "_sum"), Sample(buckets[-1][1], labels, "_count")]


# The rest of this module collects the metrics of a store.

# The help texts, by the beginning of the metric's name and then by its rest. docs/monitoring.md has them, too.
_HELP = {
    "kafka_log_": {
        "log_size": "Bytes of the .log files of a partition in its directory.",
        "log_numlogsegments": "Segments of a partition.",
        "log_logstartoffset": "The first readable offset of a partition.",
        "log_logendoffset": "The next offset of a partition.",
        "logflushstats_logflushrateandtimems": "Milliseconds that it took to make logs durable (fsync).",
        "logmanager_remaininglogstorecover": "Logs that remain to be recovered.",
        "logmanager_remainingsegmentstorecover": "Segments that remain to be recovered.",
        "logmanager_offlinelogdirectorycount": "Log directories that have failed.",
    },
    "kafka_log_logcleaner_": {
        "cleaner_recopy_percent": (
            "Bytes that the last cleaning round of each log wrote, in percent of the bytes it read."
        ),
        "max_buffer_utilization_percent": "How full the map of keys was in the last cleaning round, in percent.",
        "max_clean_time_secs": "Duration of the last cleaning round in seconds.",
        "max_compaction_delay_secs": "Seconds by which the most delayed log exceeds max.compaction.lag.ms.",
        "deadthreadcount": "1 if an unexpected error ended the last search for logs to clean.",
    },
    "kafka_log_logcleanermanager_": {
        "max_dirty_percent": "The dirty ratio of the dirtiest log, in percent.",
        "time_since_last_run_ms": "Milliseconds since the last search for logs to clean.",
        "uncleanable_partitions_count": "Partitions that are no longer compacted because of an error.",
        "uncleanable_bytes": "Bytes of the partitions that are no longer compacted because of an error.",
    },
    _TRAFFIC: {
        "messagesin_total": "Records appended since the store was opened.",
        "bytesin_total": "Bytes of batches appended since the store was opened.",
        "bytesout_total": "Bytes given to readers of the mount since the store was opened.",
        "failedproducerequests_total": "Appends that failed since the store was opened.",
        "failedfetchrequests_total": "Reads that failed since the store was opened.",
        "remotelogsizebytes": "Bytes of a tiered log's .log files in the object store.",
        "remotecopylagbytes": "Bytes of a tiered log that wait to be copied into the object store.",
        "remotecopylagsegments": "Segments of a tiered log that wait to be copied into the object store.",
        "remotecopybytes_total": "Bytes of .log files copied into the object store since the store was opened.",
        "remotecopyrequests_total": "Segments copied into the object store since the store was opened.",
        "remotecopyerrors_total": "Copies of a segment that failed since the store was opened.",
        "remotefetchbytes_total": "Bytes fetched from the object store since the store was opened.",
        "remotefetchrequests_total": "Chunks fetched from the object store since the store was opened.",
        "remotedeleterequests_total": "Segments deleted in the object store since the store was opened.",
        "remotedeleteerrors_total": "Deletions of a segment that failed since the store was opened.",
    },
    "kafka_server_replicamanager_": {
        "offlinereplicacount": "Partitions that could not be loaded, or whose log directory has failed.",
        "partitioncount": "Partitions that are not offline.",
    },
    "logfs_": {
        "recovery_point": "The first offset not known to be on the disk.",
        "partition_failed": "1 if a write or an fsync failed and appends are refused until the next mount.",
        "partition_paused": "1 if upkeep of the partition is paused.",
        "damaged_ranges": "Ranges of offsets that are known to be damaged; reads of them fail with EIO.",
        "cleaner_dirty_ratio": "The share of a compacted log's sealed bytes that is not cleaned yet.",
        "cleaner_cleanable_bytes": "Bytes of a compacted log that a cleaning round would read for their keys.",
        "cleaner_rounds_total": "Cleaning rounds that were finished.",
        "cleaner_aborted_rounds_total": "Cleaning rounds that were aborted because the log was changed or closed.",
        "cleaner_read_bytes_total": "Bytes that cleaning rounds read.",
        "cleaner_written_bytes_total": "Bytes that cleaning rounds wrote.",
        "retention_segments_total": "Segments that retention dropped, by reason.",
        "retention_bytes_total": "Bytes of the segments that retention dropped, by reason.",
        "log_dir_free_bytes": "Free bytes on the disk of a log directory.",
        "log_dir_size_bytes": "Size of the disk of a log directory in bytes.",
        "partitions_unloaded": "Partitions that are neither loaded nor offline yet; they have no other metrics.",
        "uptime_seconds": "Seconds since the store was opened.",
        "loading_seconds": "Seconds that the opening of the store took; a mount recovers partitions after it.",
        "recovered_bytes": "Bytes of .log files that recovery has read since the store was opened.",
        "upkeep_last_run_timestamp_seconds": "When upkeep last looked for due tasks, in seconds since 1970.",
        "upkeep_last_run_seconds": "Seconds that the last run of upkeep took, without compaction.",
        "upkeep_failures_total": "Upkeep tasks that failed.",
        "upkeep_waiting": "Upkeep tasks that wait for a retry after an error.",
        "upkeep_paused": "1 if upkeep as a whole is paused.",
        "background_done_bytes": "Bytes that a background task has processed.",
        "background_total_bytes": "Bytes that a background task is expected to process, at most.",
        "group_lag": "Offsets between the committed offset of a group and the log end.",
    },
    "process_": {
        "cpu_seconds_total": "CPU time.",
        "virtual_memory_bytes": "Virtual memory.",
        "resident_memory_bytes": "Resident memory.",
        "start_time_seconds": "When the process began.",
        "open_fds": "Open file descriptors.",
        "max_fds": "The limit of open file descriptors.",
    },
}
_HELP_BY_NAME = {
    beginning + rest: text for beginning, texts in _HELP.items() for rest, text in texts.items()
}


def metrics(store: Store, more: Iterable[Family] = (), *, as_openmetrics: bool = False) -> bytes:
    """Return the metrics of a store, those in `more`, and those of this process, as Prometheus text.

    With `as_openmetrics`, the text has the format of OpenMetrics 1.0. Raises `WouldBlock` in a thread that must not
    wait for the disk.
    """
    store.disk.check_may_block()
    return render(
        [
            *_logs(store),
            *_cleaner(store),
            *_retention(store),
            *_tiering(store),
            *_directories(store),
            *_upkeep(store),
            *_groups(store),
            *more,
            *_process(),
        ],
        as_openmetrics=as_openmetrics,
    )


def _family(name: str, samples: Sequence[Sample]) -> Family:
    return Family(name, _HELP_BY_NAME[name], samples)


def _single(name: str, value: float) -> Family:
    return _family(name, [Sample(value)])


def _of(partition: Log) -> dict[str, object]:
    return {"topic": partition.topic, "partition": partition.partition}


def _partitions(store: Store) -> list[Log]:
    return [partition for _, partition in sorted(store.registry.partitions.copy().items())]


# The functions that return the metrics of a partition, by metric name. `_STATES` has those that take its `LogState`,
# `_LOGS` those that take its `Log`.
_STATES: Mapping[str, Callable[[LogState], float]] = {
    "kafka_log_log_size": lambda state: state.local_bytes,
    "kafka_log_log_numlogsegments": lambda state: len(state.segments),
    "kafka_log_log_logstartoffset": lambda state: state.log_start_offset,
    "kafka_log_log_logendoffset": lambda state: state.log_end_offset,
    "logfs_damaged_ranges": lambda state: len(state.damaged),
}
_LOGS: Mapping[str, Callable[[Log], float]] = {
    "logfs_recovery_point": lambda log: log.recovery_point,
    "logfs_partition_failed": lambda log: int(log.failure is not None),
    "logfs_partition_paused": lambda log: int(log.is_paused),
    f"{_TRAFFIC}messagesin_total": lambda log: log.appended_records,
    f"{_TRAFFIC}bytesin_total": lambda log: log.appended_bytes,
    f"{_TRAFFIC}bytesout_total": lambda log: log.traffic.bytes_out,
    f"{_TRAFFIC}failedproducerequests_total": lambda log: log.traffic.failed_appends,
    f"{_TRAFFIC}failedfetchrequests_total": lambda log: log.traffic.failed_reads,
}


def _logs(store: Store) -> Iterator[Family]:
    partitions = _partitions(store)
    labels = [_of(partition) for partition in partitions]
    # Take one snapshot of each log, so that all its offsets and sizes are from the same moment.
    states = [partition.state for partition in partitions]
    for name, of_state in _STATES.items():
        yield _family(name, list(map(Sample, map(of_state, states), labels)))
    for name, of_log in _LOGS.items():
        yield _family(name, list(map(Sample, map(of_log, partitions), labels)))
    flushes = histogram({}, store.disk.flush_times, 1000)
    yield _family("kafka_log_logflushstats_logflushrateandtimems", flushes)


def _cleaner(store: Store) -> Iterator[Family]:
    compactor = store.compactor
    plans = []
    for partition in _partitions(store):
        # Logs that cannot be read are left out.
        with suppress(LogfsError, OSError):
            if partition.config.is_compacted:
                plans.append((compactor.plan(partition.name.directory), _of(partition)))
    ratios = [Sample(plan.ratio, labels) for plan, labels in plans]
    yield _family("logfs_cleaner_dirty_ratio", ratios)
    sizes = [Sample(plan.cleanable_bytes, labels) for plan, labels in plans]
    yield _family("logfs_cleaner_cleanable_bytes", sizes)
    results = list(compactor.last.values())
    read = sum(result.bytes_read for result in results)
    written = sum(result.cleaned.bytes_after for result in results)
    newest = max(results, key=lambda result: result.when_ms, default=None)
    dirty_ratio = max((plan.ratio for plan, _ in plans), default=0)
    map_share = newest.cleaned.map_share if newest else 0
    delay_ms = max((plan.delay_ms for plan, _ in plans), default=0)
    for name, value in (
        ("manager_max_dirty_percent", int(100 * dirty_ratio)),
        ("manager_time_since_last_run_ms", store.clock() - compactor.timer.since_ms),
        ("_cleaner_recopy_percent", int(100 * written / read) if read else 0),
        ("_max_buffer_utilization_percent", int(100 * map_share)),
        ("_max_clean_time_secs", round(newest.seconds, 3) if newest else 0),
        ("_max_compaction_delay_secs", delay_ms // 1000),
        ("_deadthreadcount", int(compactor.is_dead)),
    ):
        yield _single(f"kafka_log_logcleaner{name}", value)
    yield _single("logfs_cleaner_rounds_total", compactor.rounds)
    yield _single("logfs_cleaner_aborted_rounds_total", compactor.aborted)
    yield _single("logfs_cleaner_read_bytes_total", compactor.bytes_read)
    yield _single("logfs_cleaner_written_bytes_total", compactor.bytes_written)


def _retention(store: Store) -> Iterator[Family]:
    for name, counts in (
        ("logfs_retention_segments_total", store.retainer.segments),
        ("logfs_retention_bytes_total", store.retainer.size_bytes),
    ):
        samples = [Sample(counts[cause], {"reason": cause.value}) for cause in RetentionCause]
        yield _family(name, samples)


def _tiering(store: Store) -> Iterator[Family]:
    """Yield the metrics of tiered storage, which have Kafka's names (KIP-405, KIP-963)."""
    prefix = f"{_TRAFFIC}remote"
    manager, sizes, lags = store.remote_log_manager, [], []
    for partition in _partitions(store):
        with suppress(LogfsError, OSError):
            log = store.tiered.of(partition)
            if log is not None:
                size = sum(each.size_bytes for each in log.finished())
                sizes.append(Sample(size, _of(partition)))
                if not store.read_only:
                    lags.append((manager.plan_of(partition), _of(partition)))
    yield _family(f"{prefix}logsizebytes", sizes)
    sizes = [Sample(lag.size_bytes, labels) for lag, labels in lags]
    yield _family(f"{prefix}copylagbytes", sizes)
    segments = [Sample(len(lag.segments), labels) for lag, labels in lags]
    yield _family(f"{prefix}copylagsegments", segments)
    requests, fetched = store.tiered.fetched()
    for name, value in (
        ("copybytes", manager.copied_bytes),
        ("copyrequests", manager.copied_segments),
        ("copyerrors", manager.copy_errors),
        ("fetchbytes", fetched),
        ("fetchrequests", requests),
        ("deleterequests", manager.deleted_segments),
        ("deleteerrors", manager.delete_errors),
    ):
        yield _single(f"{prefix}{name}_total", value)


def _directories(store: Store) -> Iterator[Family]:
    directories = [str(log_dir.path) for log_dir in store.log_dirs]
    counts, sizes, logs, segments = (Counter(dict.fromkeys(directories, 0)) for _ in range(4))
    for partition in list(store.registry.partitions.values()):
        if partition.uncleanable is not None:
            path = str(partition.directory.parent)
            if path in counts:
                counts[path] += 1
                sizes[path] += partition.size_bytes
    for unloaded in list(store.registry.unloaded.values()):
        log_dir = unloaded.log_dir
        if not (log_dir.clean or log_dir.live):
            logs[str(log_dir.path)] += 1
            with suppress(LogfsError, OSError):
                files = log_dir.disk.scan(unloaded.path)
                segments[str(log_dir.path)] += sum(file.name.endswith(names.LOG) for file in files)
    free, size = {}, {}
    for path in directories:
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        free[path] = found.f_bavail * found.f_frsize
        size[path] = found.f_blocks * found.f_frsize
    values: dict[str, Mapping[str, float]] = {
        "kafka_log_logcleanermanager_uncleanable_partitions_count": counts,
        "kafka_log_logcleanermanager_uncleanable_bytes": sizes,
        "kafka_log_logmanager_remaininglogstorecover": logs,
        "kafka_log_logmanager_remainingsegmentstorecover": segments,
        "logfs_log_dir_free_bytes": free,
        "logfs_log_dir_size_bytes": size,
    }
    for name, by_path in values.items():
        samples = [Sample(value, {"logdirectory": path}) for path, value in by_path.items()]
        yield _family(name, samples)
    offline = len(store.registry.failed)
    yield _single("kafka_log_logmanager_offlinelogdirectorycount", offline)
    yield _single("kafka_server_replicamanager_offlinereplicacount", len(store.offline))
    yield _single("kafka_server_replicamanager_partitioncount", len(store))
    yield _single("logfs_partitions_unloaded", len(store.registry.unloaded))


def _upkeep(store: Store) -> Iterator[Family]:
    scheduler = store.scheduler
    uptime_ms = store.clock() - store.registry.opened_ms
    yield _single("logfs_uptime_seconds", uptime_ms / 1000)
    yield _single("logfs_loading_seconds", round(store.loading_seconds, 6))
    yield _single("logfs_recovered_bytes", store.recovered_bytes)
    if scheduler.last_run_ms is not None:
        yield _single("logfs_upkeep_last_run_timestamp_seconds", scheduler.last_run_ms / 1000)
    yield _single("logfs_upkeep_last_run_seconds", round(scheduler.last_run_seconds, 6))
    backoffs = (scheduler.backoff, store.remote_log_manager.backoff)
    yield _single("logfs_upkeep_failures_total", sum(each.failures for each in backoffs))
    yield _single("logfs_upkeep_waiting", sum(len(list(each)) for each in backoffs))
    yield _single("logfs_upkeep_paused", int(store.registry.is_paused))
    works = [
        (work, {"what": work.what, "name": work.name}) for work in list(store.registry.background)
    ]
    done = [Sample(work.done_bytes, labels) for work, labels in works]
    yield _family("logfs_background_done_bytes", done)
    total = [Sample(work.total_bytes, labels) for work, labels in works]
    yield _family("logfs_background_total_bytes", total)


def _groups(store: Store) -> Iterator[Family]:
    samples = []
    try:
        for group, name, commit in store.groups:
            partition = store.registry.partitions.get(name.directory)
            if partition is not None:
                labels = {"group": group, **_of(partition)}
                samples.append(Sample(lag_of(commit.offset, partition.log_end_offset), labels))
    except (LogfsError, OSError):
        # The lag is unknown if the commits cannot be read. The other metrics must still be written.
        samples = []
    yield _family("logfs_group_lag", samples)


def _process() -> Iterator[Family]:
    """Yield metrics of this process, such as its CPU time, under the names of Prometheus' client libraries."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    boot = next(
        float(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime ")
    )
    yield _single("process_cpu_seconds_total", (int(fields[11]) + int(fields[12])) / tick)
    yield _single("process_virtual_memory_bytes", int(fields[20]))
    yield _single("process_resident_memory_bytes", int(fields[21]) * page)
    yield _single("process_start_time_seconds", boot + int(fields[19]) / tick)
    yield _single("process_open_fds", len(os.listdir("/proc/self/fd")))
    yield _single("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
