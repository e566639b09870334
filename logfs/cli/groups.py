"""`logfs groups`: show the committed offsets and the lag of consumer groups, or commit or delete offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import (
    Target,
    add_json,
    add_log_dirs,
    ask,
    check_names,
    group_name,
    log_dirs_of,
    not_empty,
    print_json,
    recovery_progress,
    table_lines,
    with_whole_store,
)
from logfs.errors import InvalidName, did_you_mean
from logfs.format.base import names
from logfs.format.messages.group_record import lag_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.store.groups import GroupOffset
    from logfs.store.store import Store

_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, the offsets to show, the form of the output, `--commit` and `--forget`."""
    add_log_dirs(parser)
    parser.add_argument(
        "-p", "--partition", type=not_empty, metavar="NAME", help="this partition or topic only"
    )
    parser.add_argument("-g", "--group", type=group_name, help="this group only")
    add_json(parser)
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--commit",
        nargs=3,
        metavar=("GROUP", "NAME", "OFFSET"),
        help="commit an offset for a partition, or for each one of a topic: a number, earliest, latest, or the first "
        "offset at or after a time, @2021-11-28T11:53:20Z",
    )
    change.add_argument(
        "--forget",
        nargs=2,
        metavar=("GROUP", "NAME"),
        help="delete the committed offsets for a partition or a topic",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the committed offsets, or commit or delete offsets; exit code 1 if there was no offset to delete."""
    from logfs.store.store import Store

    writes = bool(arguments.commit or arguments.forget)
    log_dirs = with_whole_store(log_dirs_of(arguments.log_dirs, for_writing=writes))
    if arguments.commit:
        return _commit(log_dirs, *arguments.commit)
    if arguments.forget:
        return _forget(log_dirs, *arguments.forget)
    with Store(log_dirs, read_only=True, progress=recovery_progress(), create=False) as store:
        rows = list(_rows(store, arguments.partition, arguments.group))
    if arguments.json:
        _print_json(rows)
    else:
        _print_table(rows)
    return 0


def _commit(log_dirs: list[Path], group: str, name: str, words: str) -> int:
    from logfs.store.admin.requests import CommitOffsets

    check_names(Target(log_dirs, name))
    done = ask(log_dirs, CommitOffsets(group, {name: words}))
    for partition, offset in done["offsets"].items():
        print(f"committed offset {offset} of {group} for {partition}")
    return 0


def _forget(log_dirs: list[Path], group: str, name: str) -> int:
    from logfs.store.admin.requests import ForgetOffset

    forgotten = ask(log_dirs, ForgetOffset(group, name))["partitions"]
    for partition in forgotten:
        print(f"deleted the offset of {group} for {partition}")
    if not forgotten:
        print(f"{group} has no offset committed for {name}")
    return 0 if forgotten else 1


def _rows(
    store: Store, name: str | None, group: str | None
) -> Iterator[tuple[GroupOffset, int | None]]:
    """Yield each committed offset with the log end offset of its partition, None if the store lacks the partition.

    With `name`, a partition or a topic, only offsets for its partitions are yielded, and with `group`, only offsets
    of this group; None selects all. Raises `UnknownPartition` if the store lacks `name`, and `InvalidName` if the
    store has no committed offset of `group`.
    """
    wanted = None if name is None else names.partitions_named(name, store.registry.homes)
    for each in wanted or ():
        _ = store[each]
    every = list(store.groups)
    known = {each.group for each in every}
    if group is not None and group not in known:
        where = ", ".join(str(log_dir.path) for log_dir in store.log_dirs)
        hint = did_you_mean(group, known)
        raise InvalidName(f"{where}: has no group {group!r} with committed offsets{hint}")
    for found in every:
        directory = found.partition.directory
        if (wanted is None or directory in wanted) and group in (None, found.group):
            yield found, store[directory].log_end_offset if directory in store else None


def _print_table(rows: list[tuple[GroupOffset, int | None]]) -> None:
    cells = [_COLUMNS]
    for (group, partition, commit), end in rows:
        log_end, lag = ("-", "-") if end is None else (str(end), str(lag_of(commit.offset, end)))
        cells.append(
            (group, partition.topic, str(partition.partition), str(commit.offset), log_end, lag)
        )
    print("\n".join(table_lines(cells)))


def _print_json(rows: list[tuple[GroupOffset, int | None]]) -> None:
    for (group, partition, commit), end in rows:
        row = {
            "group": group,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": commit.offset,
            "logEndOffset": end,
            "lag": None if end is None else lag_of(commit.offset, end),
            "leaderEpoch": commit.leader_epoch,
            "metadata": commit.metadata,
            "commitTimestamp": commit.commit_timestamp,
        }
        print_json(row)
