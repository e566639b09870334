"""`logfs describe`: print sizes and offsets of partitions, as a table or as the JSON of kafka-log-dirs."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from logfs.cli.common import (
    add_log_dirs,
    log_dirs_of,
    recovery_progress,
    split_name,
    table_lines,
)
from logfs.format.base import names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from logfs.format.base.names import TopicPartition
    from logfs.log.read.log import Log
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, topics, and the form of the output."""
    add_log_dirs(parser)
    parser.add_argument("--topic-list", metavar="TOPIC,…", help="these topics only")
    parser.add_argument("--json", action="store_true", help="the JSON line of kafka-log-dirs")


def run(arguments: argparse.Namespace) -> int:
    """Print the partitions; exit code 1 if a partition is offline or a log directory has failed."""
    from logfs.store.store import Store

    words, name = split_name(arguments.log_dirs)
    with Store(log_dirs_of(words), read_only=True, progress=recovery_progress()) as store:
        is_chosen = _choice(store, name, arguments.topic_list)
        if arguments.json:
            _print_json(store, is_chosen)
        else:
            _print_table(store, is_chosen)
        return 1 if store.offline or store.registry.failed else 0


def _choice(store: Store, name: str, topic_list: str | None) -> Callable[[TopicPartition], bool]:
    """Return a filter for partitions, which accepts those that both `name` and `topic_list` select.

    `name` is a partition or a topic; "" selects all. `topic_list` has topics separated by commas; None selects all.
    """
    named = names.partitions_named(name, store.registry.homes)
    topics = topic_list.split(",") if topic_list else []

    def is_chosen(each: TopicPartition) -> bool:
        return (not name or each.directory in named) and (not topics or each.topic in topics)

    return is_chosen


def _print_json(store: Store, is_chosen: Callable[[TopicPartition], bool]) -> None:
    import json

    from logfs.store.maintenance.move_recovery import futures

    log_dirs = []
    for log_dir in store.log_dirs:
        partitions = [
            {
                "partition": name,
                "size": _local_bytes(store[name]),
                "offsetLag": 0,
                "isFuture": False,
            }
            for name in store
            if store.registry.home(name) == log_dir.path and is_chosen(store[name].name)
        ]
        partitions += [
            {"partition": name.directory, "size": size, "offsetLag": -1, "isFuture": True}
            for name, size in futures(log_dir)
            if is_chosen(name)
        ]
        log_dirs.append(
            {"partitions": partitions, "error": _error(log_dir), "logDir": str(log_dir.path)}
        )
    brokers = [{"broker": _broker_id(store), "logDirs": log_dirs}]
    print(json.dumps({"brokers": brokers, "version": 1}, separators=(",", ":")))


def _error(log_dir: LogDir) -> str | None:
    """Return the name of the Java exception that kafka-log-dirs prints if `log_dir` has failed; None if it works."""
    failed = log_dir.failure is not None
    return "org.apache.kafka.common.errors.KafkaStorageException" if failed else None


def _broker_id(store: Store) -> int:
    """Return the node id in `meta.properties` of the first working log directory; 0 if the file or the id is missing.

    Raises `Corrupt` if the file is malformed, or if the id is not a number.
    """
    from logfs.errors import Corrupt
    from logfs.format.files import checkpoint
    from logfs.store.directory.log_dir import META_PROPERTIES

    log_dir = store.registry.working[0]
    path = log_dir.path / META_PROPERTIES
    if not log_dir.disk.exists(path):
        return 0
    try:
        properties = checkpoint.parse_properties(log_dir.disk.read_file(path))
    except Corrupt as error:
        raise Corrupt(f"{path}: {error}") from None
    found = properties.get("node.id", properties.get("broker.id", "0"))
    if re.fullmatch(r"-?[0-9]{1,10}", found) is None:
        raise Corrupt(f"{path}: the node id {found!r} is not a number")
    return int(found)


def _local_bytes(partition: Log) -> int:
    return partition.until_settled(lambda: partition.local_bytes)


def _row(partition: Log, *, shows_local: bool) -> list[str]:
    from logfs.format.base.quantities import format_time

    # Take all numbers from one state: the log may change meanwhile.
    state = partition.state
    return [
        partition.name.directory,
        str(state.log_start_offset),
        str(state.log_end_offset),
        str(state.size_bytes),
        *([str(state.local_bytes)] if shows_local else []),
        str(len(state.segments)),
        format_time(state.last_timestamp),
    ]


def _print_table(store: Store, is_chosen: Callable[[TopicPartition], bool]) -> None:
    chosen = [name for name in store if is_chosen(store[name].name)]
    # For a tiered log, LOCAL is the size of the part in the log directory; SIZE includes the object store.
    shows_local = any(store[name].is_tiered for name in chosen)
    local = ["LOCAL"] if shows_local else []
    rows = [["PARTITION", "START", "END", "SIZE", *local, "SEGMENTS", "LAST RECORD", "LOG DIR"]]
    for name in chosen:
        row = partial(_row, store[name], shows_local=shows_local)
        rows.append([*store[name].until_settled(row), str(store.registry.home(name))])
    print("\n".join(table_lines(rows, numbers=range(1, 5 + len(local)))))
    for failure in store.registry.failed:
        print(failure)
    for name, reason in sorted(store.offline.items()):
        print(f"{name}  offline: {reason}")
