"""The status of a store and of its partitions, for status files and the command line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from logfs.errors import LogfsError
from logfs.format.base.quantities import format_duration
from logfs.store.maintenance.schedule import PAUSABLE
from logfs.store.maintenance.upkeep import key_index_progress

if TYPE_CHECKING:
    from logfs.log.read.log import Log
    from logfs.store.maintenance.compaction import CompactionResult
    from logfs.store.maintenance.retention import Retained
    from logfs.store.store import Store


def partition_status(partition: Log, store: Store) -> dict[str, Any]:
    """Return a partition's offsets, sizes (bytes), times (ms since the epoch), failures and upkeep, for JSON."""
    config, name = partition.config, partition.name.directory
    # Take one snapshot of the log, so that all its offsets and sizes are from the same moment.
    state = partition.stable_state
    status: dict[str, Any] = {
        "topic": partition.topic,
        "partition": partition.partition,
        "log_start_offset": state.log_start_offset,
        "log_end_offset": state.log_end_offset,
        "last_stable_offset": state.last_stable_offset,
        "recovery_point": partition.recovery_point,
        "size_bytes": state.size_bytes,
        "segments": len(state.segments),
        "active_segment": state.segments[-1].base_offset,
        "first_timestamp": first_timestamp(partition),
        "last_timestamp": state.last_timestamp,
        "leader_epoch": partition.epochs.latest,
        "producers": len(partition.producers),
        "open_transactions": len(partition.producers.open_transactions()),
        "cleanup_policy": ",".join(sorted(config.cleanup_policy)),
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
    }
    if partition.is_tiered:
        local = state.local_segments
        status["local_start_offset"] = local[0].base_offset
        status["local_segments"] = len(local)
        status["local_bytes"] = state.local_bytes
    works = [asdict(work) for work in list(store.registry.background) if work.name == name]
    cleaned, retained = store.compactor.last.get(name), store.retainer.last.get(name)
    is_paused = partition.is_paused or store.registry.is_paused
    return status | {
        "last_cleaning_ms": partition.cleaned_ms,
        "uncleanable": None if partition.uncleanable is None else str(partition.uncleanable),
        "paused": partition.is_paused,
        "damaged_ranges": [[damage.first_offset, damage.next_offset] for damage in state.damaged],
        "torn": list(partition.torn),
        "failure": None if partition.failure is None else str(partition.failure),
        "background": works,
        "compaction_requested": name in store.compactor.requested,
        "copy_lag_bytes": store.remote_log_manager.plan_of(partition).size_bytes,
        "last_cleaning": cleaned and _cleaning(cleaned),
        "last_retention": retained and _retention(retained),
        "next_due_ms": {} if is_paused else _next_due(store),
    }


def _cleaning(done: CompactionResult) -> dict[str, Any]:
    return {
        "when_ms": done.when_ms,
        "seconds": round(done.seconds, 3),
        "bytes_before": done.cleaned.bytes_before,
        "bytes_after": done.cleaned.bytes_after,
        "segments_before": done.cleaned.segments_before,
        "segments_after": done.cleaned.segments_after,
        "clean_up_to": done.cleaned.first_dirty,
    }


def _retention(done: Retained) -> dict[str, Any]:
    return {
        "when_ms": done.when_ms,
        "segments": done.segments,
        "bytes": done.size_bytes,
        "log_start_offset": done.log_start_offset,
    }


def _next_due(store: Store) -> dict[str, int]:
    return {task.value: due_ms for task, due_ms in store.scheduler.next_due().items()}


def first_timestamp(partition: Log) -> int:
    """Return the timestamp (ms) of the first record.

    Return -1 if there is no record, if it is only in the object store, or if it cannot be read.
    """
    if partition.segments[0].is_tiered:
        # Reading the record would send requests to the object store.
        return -1
    try:
        offset = partition.first_offset_from(partition.log_start_offset)
        record = None if offset is None else partition.record(offset)
    except (LogfsError, OSError):
        return -1
    return -1 if record is None or record.timestamp is None else record.timestamp


def upkeep_status(store: Store) -> dict[str, Any]:
    """Return the status of a store's upkeep: what it did last, and what is due next (ms since the epoch)."""
    scheduler = store.scheduler
    return {
        "paused": store.registry.is_paused,
        "last_run_ms": scheduler.last_run_ms,
        "last_run_seconds": round(scheduler.last_run_seconds, 6),
        "next_due_ms": _next_due(store),
        "waiting_after_errors": [
            *scheduler.backoff.describe(),
            *store.remote_log_manager.backoff.describe(),
        ],
        "bucket_refused": store.tiered.owner.refusal,
        "last_retention": {n: _retention(done) for n, done in sorted(store.retainer.last.items())},
        "last_cleaning": {n: _cleaning(done) for n, done in sorted(store.compactor.last.items())},
    }


def upkeep_text(store: Store) -> str:
    """Return the status of a store's upkeep as lines of text.

    They say whether upkeep is paused, which work runs now, when each task is due, and which work has failed.
    """
    scheduler = store.scheduler
    lines = ["paused" if store.registry.is_paused else "upkeep"]
    lines += [
        str(work) for work in (*store.registry.background, *key_index_progress(store.registry))
    ]
    for task, due_ms in scheduler.next_due().items():
        if store.registry.is_paused and task in PAUSABLE:
            lines.append(f"{task.value}: paused")
        else:
            wait_ms = max(due_ms - store.clock(), 0)
            lines.append(f"{task.value}: due in {format_duration(wait_ms)}")
    for backoff in (scheduler.backoff, store.remote_log_manager.backoff):
        lines += [f"failed, and will be retried: {failed}" for failed in backoff.describe()]
    if store.tiered.owner.refusal:
        lines.append(store.tiered.owner.refusal)
    return "".join(f"{line}\n" for line in lines)


def store_status(store: Store) -> dict[str, Any]:
    """Return the status of a store: its log directories, offline partitions, upkeep and background operations.

    Of the partitions that are not offline, the number is included, and how many damaged ranges those have that have
    any.
    """
    return {
        "log_dirs": [str(log_dir.path) for log_dir in store.log_dirs],
        "offline_log_dirs": {
            str(log_dir.path): str(log_dir.failure)
            for log_dir in store.log_dirs
            if log_dir.failure is not None
        },
        "read_only": store.read_only,
        "now_ms": store.clock(),
        "uptime_ms": store.clock() - store.registry.opened_ms,
        "partitions": len(store),
        "unloaded": len(store.registry.unloaded),
        "recovered_bytes": store.recovered_bytes,
        "offline": {name: str(reason) for name, reason in sorted(store.offline.copy().items())},
        "damaged_ranges": {
            name: len(damaged)
            for name, partition in sorted(store.registry.partitions.copy().items())
            if (damaged := partition.state.damaged)
        },
        "upkeep": upkeep_status(store),
        "background": [
            asdict(work)
            for work in (*store.registry.background, *key_index_progress(store.registry))
        ],
    }
