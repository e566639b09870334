"""`logfs move`: move a partition to another log directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import (
    add_target,
    ask,
    check_partition_exists,
    path_argument,
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
    """Move the partition, with a progress bar on a terminal, and print its new directory.

    A mount moves it only to a log directory that it has.
    """
    from logfs.store.admin.commit_client import require_log_dirs
    from logfs.store.admin.requests import Move

    source = target(arguments.target)
    check_partition_exists(source)
    log_dirs, name = source
    wanted = arguments.to.absolute()
    # An empty directory is accepted: the move makes it a log directory.
    require_log_dirs([wanted], may_be_empty=True)
    known = [path.absolute() for path in log_dirs]
    known += [wanted] if wanted not in known else []
    done = ask(known, Move(name, str(wanted)), title=f"moving {name}")
    print(done["directory"])
    return 0
