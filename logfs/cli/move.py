"""`logfs move`: move a partition to another log directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import (
    Target,
    add_target,
    check_partition_exists,
    open_target,
    path_argument,
    progress_bar,
    target,
)

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET (the partition), and the log directory to move to."""
    add_target(parser)
    parser.add_argument(
        "--to",
        required=True,
        type=path_argument,
        metavar="LOGDIR",
        help="the destination log directory",
    )


def run(arguments: argparse.Namespace) -> int:
    """Move the partition, with a progress bar on a terminal, and print its new directory."""
    from logfs.store.observe import commit_client

    source = target(arguments.target)
    check_partition_exists(source)
    log_dirs, name = source
    wanted = arguments.to.absolute()
    # An empty directory is accepted: the move makes it a log directory.
    commit_client.require_log_dirs([wanted], may_be_empty=True)
    known = [path.absolute() for path in log_dirs]
    known += [wanted] if wanted not in known else []
    store, partition = open_target(Target(known, name))
    with store:
        with progress_bar(f"moving {name}", partition.size_bytes) as bar:
            store.mover.move(name, wanted, progress=bar.update)
        print(partition.directory)
    return 0
