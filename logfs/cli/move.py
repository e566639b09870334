"""`logfs move`: move a partition to another log directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import (
    add_target,
    ask,
    existing_target,
    path_argument,
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

    If the store is mounted, the destination must be a log directory of that mount.
    """
    from logfs.store.admin.requests import Move
    from logfs.store.directory.recognition import check_log_dirs

    log_dirs, name = existing_target(arguments.target)
    wanted = arguments.to.absolute()
    # Accept an empty directory: the move makes it a log directory.
    check_log_dirs([wanted], may_be_empty=True)
    known = [path.absolute() for path in log_dirs]
    known += [wanted] if wanted not in known else []
    done = ask(known, Move(name, str(wanted)), title=f"moving {name}")
    print(done["directory"])
    return 0
