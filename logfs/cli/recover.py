"""`logfs recover`: run recovery now, even after a clean shutdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, log_dirs_of, recovery_progress

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument for log directories."""
    add_log_dirs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Recover all partitions, and print the log start and end offset of each, cut-off torn tails, and damage.

    The exit code is 1 if a segment is damaged, a partition is offline, or a log directory has failed.
    """
    from logfs.store.store import Store

    log_dirs = log_dirs_of(arguments.log_dirs, for_writing=True)
    code = 0
    with Store(log_dirs, recover=True, progress=recovery_progress(), create=False) as store:
        for name in store:
            partition = store[name]
            print(f"{name}: {partition.log_start_offset}..{partition.log_end_offset}")
            for note in partition.torn:
                print(f"  {note}")
            for segment in partition.segments:
                for damage in segment.damaged:
                    print(f"  {damage.error(segment.path)}")
                    code = 1
        for name, reason in sorted(store.offline.items()):
            print(f"{name}: offline: {reason}")
            code = 1
        code |= bool(store.registry.failed)
    return code
