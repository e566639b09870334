"""`logfs move`: take a partition to another log directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing, progress_bar, target

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET, and where it is to go."""
    add_target(parser)
    parser.add_argument(
        "--to", required=True, type=Path, metavar="LOGDIR", help="the log directory it is to be in"
    )


def run(arguments: argparse.Namespace) -> int:
    """Move, with a bar on a terminal; print where the partition is now."""
    log_dirs, name = target(arguments.target)
    wanted = arguments.to.absolute()
    known = [path.absolute() for path in log_dirs]
    known += [wanted] if wanted not in known else []
    store, partition = open_for_writing([*map(str, known), name])
    with store:
        with progress_bar(f"moving {name}", partition.size_bytes) as bar:
            store.mover.move(name, wanted, progress=bar.update)
        print(partition.directory)
    return 0
