"""`logfs create`: create a partition, or a topic with several partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, ask, parse_changes, target

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET, the number of partitions, settings, and whether to create log directories.

    TARGET is LOGDIR/PARTITION, or LOGDIR… PARTITION. With a number of partitions, a topic stands in place of
    PARTITION.
    """
    add_target(parser)
    parser.add_argument(
        "-n",
        "--partitions",
        type=int,
        metavar="N",
        help="TARGET is a topic, LOGDIR/TOPIC: create its partitions 0 to N-1, except those that exist",
    )
    parser.add_argument(
        "-c",
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the topic, e.g. compression.type=zstd; may be repeated",
    )
    parser.add_argument(
        "-p",
        "--parents",
        action="store_true",
        help="create a missing log directory, too; without -p only an empty directory becomes a new store",
    )


def run(arguments: argparse.Namespace) -> int:
    """Create a partition, or the missing partitions of a topic, and print the new paths.

    Settings in the arguments are applied to the topic first.
    """
    from logfs.format.base import names
    from logfs.store.admin.requests import Create, CreateTopic

    changes = parse_changes(arguments.config, of_topic=True)
    if arguments.parents:
        _make_log_dirs(arguments.target, arguments.partitions)
    wanted = target(arguments.target, may_be_empty=True, for_writing=True)
    if arguments.partitions is not None:
        names.check_topic(wanted.name)
        request = CreateTopic(wanted.name, arguments.partitions, dict(changes))
        for directory in ask(wanted.log_dirs, request)["directories"]:
            print(directory)
        return 0
    names.parse_directory(wanted.name)
    done = ask(wanted.log_dirs, Create(wanted.name, dict(changes)))
    print(done["directory"])
    return 0


def _make_log_dirs(words: Sequence[str], partitions: int | None) -> None:
    """Create the missing log directories that TARGET names, with missing parents.

    `words` are the words of TARGET: LOGDIR/NAME, or LOGDIR… NAME. NAME is a topic if its number of `partitions` is
    given. Raises `InvalidName` for a wrong name or number. Raises `InvalidStore` if an existing LOGDIR is neither a
    log directory nor empty, or if a missing one would lie in a mount of logfs, in another log directory or in a
    partition. After these errors, nothing was created.
    """
    from logfs.format.base import names
    from logfs.log.disk.bucket_path import as_path
    from logfs.log.disk.disk import DIRECTORY_MODE
    from logfs.store.directory.recognition import PathKind, check_log_dirs, check_place, recognise
    from logfs.store.topic import check_partition_count

    paths, name = [as_path(word).absolute() for word in words[:-1]], words[-1]
    if not paths:
        path = as_path(name).absolute()
        paths, name = [path.parent], path.name
    if partitions is None:
        names.parse_directory(name)
    else:
        names.check_topic(name)
        check_partition_count(name, partitions)
    missing = [path for path in paths if recognise(path).kind is PathKind.MISSING]
    check_log_dirs([path for path in paths if path not in missing], may_be_empty=True)
    for path in missing:
        check_place(path)
    for path in missing:
        path.mkdir(mode=DIRECTORY_MODE, parents=True)
