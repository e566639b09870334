"""What a store and its partitions say of themselves: for status files, metrics and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logfs.log.partition import Partition
    from logfs.store.store import Store


def partition_status(partition: Partition) -> dict[str, Any]:
    """Offsets, sizes (bytes), segments and times (ms) of a partition."""
    config = partition.config
    segments = partition.segments
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "log_start_offset": partition.log_start_offset,
        "log_end_offset": partition.log_end_offset,
        "last_stable_offset": partition.last_stable_offset,
        "recovery_point": partition.recovery_point,
        "size_bytes": partition.size_bytes,
        "segments": len(segments),
        "active_segment": segments[-1].base_offset,
        "first_timestamp": _first_timestamp(partition),
        "last_timestamp": partition.last_timestamp,
        "leader_epoch": partition.epochs.latest,
        "producers": len(partition.producers),
        "open_transactions": len(partition.producers.open_transactions()),
        "cleanup_policy": ",".join(sorted(config.cleanup_policy)),
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
        "last_cleaning_ms": partition.cleaned_ms,
        "uncleanable": None if partition.uncleanable is None else str(partition.uncleanable),
        "paused": partition.is_paused,
        "damaged_ranges": [
            [damage.first_offset, damage.next_offset]
            for segment in segments
            for damage in segment.damaged
        ],
        "torn": list(partition.torn),
        "failure": None if partition.failure is None else str(partition.failure),
    }


def _first_timestamp(partition: Partition) -> int:
    """The timestamp of the first readable record; -1 if there is none, or it cannot be read."""
    from logfs.errors import LogfsError

    try:
        offset = partition.first_offset_from(partition.log_start_offset)
        record = None if offset is None else partition.record(offset)
    except LogfsError:
        return -1
    return -1 if record is None or record.timestamp is None else record.timestamp


def store_status(store: Store) -> dict[str, Any]:
    """The whole of a store, without what each partition says of itself."""
    return {
        "log_dirs": [str(log_dir.path) for log_dir in store.log_dirs],
        "offline_log_dirs": {
            str(log_dir.path): str(log_dir.failure)
            for log_dir in store.log_dirs
            if log_dir.failure is not None
        },
        "read_only": store.read_only,
        "uptime_ms": store.clock() - store.opened_ms,
        "partitions": len(store.partitions),
        "offline": {name: str(reason) for name, reason in sorted(store.offline.items())},
        "background": store.background,
    }


_METRICS = (
    ("kafka_log_log_size", "gauge", "Bytes of the .log files of a partition."),
    ("kafka_log_log_num_log_segments", "gauge", "Segments of a partition."),
    ("kafka_log_log_log_start_offset", "gauge", "The first readable offset of a partition."),
    ("kafka_log_log_log_end_offset", "gauge", "The next offset of a partition."),
    ("logfs_recovery_point", "gauge", "The first offset not known to be on the disk."),
    ("logfs_appended_records_total", "counter", "Records appended since the store was opened."),
    ("logfs_appended_bytes_total", "counter", "Bytes of batches appended since then."),
    ("logfs_flushes_total", "counter", "Successful flushes since then."),
    ("logfs_partition_failed", "gauge", "1 if a write or an fsync failed and appends are refused."),
)


def metrics(store: Store, more: dict[str, float] | None = None) -> bytes:
    """Prometheus text, with Kafka's names where Kafka has the metric; `more` are gauges without labels."""
    samples: dict[str, list[str]] = {name: [] for name, _, _ in _METRICS}
    for _, partition in sorted(store.partitions.items()):
        labels = f'{{topic="{partition.topic}",partition="{partition.partition}"}}'
        values = (
            partition.size_bytes,
            len(partition.segments),
            partition.log_start_offset,
            partition.log_end_offset,
            partition.recovery_point,
            partition.appended_records,
            partition.appended_bytes,
            partition.flushes,
            int(partition.failure is not None),
        )
        for (metric, _, _), value in zip(_METRICS, values, strict=True):
            samples[metric].append(f"{metric}{labels} {value}\n")
    out = []
    for name, kind, text in _METRICS:
        out.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        out += samples[name]
    gauges: dict[str, float] = {
        "logfs_uptime_seconds": (store.clock() - store.opened_ms) / 1000,
        "kafka_log_log_manager_offline_log_directory_count": len(store.failed),
        "kafka_log_log_cleaner_manager_uncleanable_partitions_count": sum(
            partition.uncleanable is not None for partition in store.partitions.values()
        ),
        "logfs_offline_partitions": len(store.offline),
        **(more or {}),
    }
    for name, gauge in gauges.items():
        out.append(f"# TYPE {name} gauge\n{name} {gauge}\n")
    return "".join(out).encode()
