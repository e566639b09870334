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
        _make_log_dirs(arguments.target)
    wanted = target(arguments.target, may_be_empty=True)
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


def _make_log_dirs(words: Sequence[str]) -> None:
    """Create the missing log directories that TARGET names, with missing parents, except inside a mount of logfs.

    `words` are the words of TARGET: LOGDIR/NAME, or LOGDIR… NAME. Raises `InvalidStore` for a log directory that
    would lie in another one or in a partition.
    """
    from logfs.log.disk.bucket_path import as_path
    from logfs.log.disk.disk import DIRECTORY_MODE
    from logfs.store.directory.recognition import PathKind, check_place, recognise

    for path in [as_path(word) for word in words[:-1]] or [as_path(words[0]).absolute().parent]:
        if recognise(path).kind is PathKind.MISSING:
            check_place(path.absolute())
            path.mkdir(mode=DIRECTORY_MODE, parents=True)
