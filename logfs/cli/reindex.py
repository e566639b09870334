"""`logfs reindex`: make all indexes of a partition anew from its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, recovery_progress, target

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET."""
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Open the one partition through recovery from its beginning, which makes every index anew."""
    from logfs.cli.common import partition
    from logfs.log import key_map
    from logfs.store import door
    from logfs.store.store import Store

    wanted = target(arguments.target)
    door.check_there(wanted.log_dirs)
    progress = recovery_progress()
    with Store(wanted.log_dirs, only=wanted.name, recover=True, progress=progress) as store:
        found = partition(store, wanted)
        # What the key maps knew is made anew by the next who asks for a key.
        key_map.forget(found)
        print(f"{wanted.name}: {len(found.segments)} segments, {found.log_end_offset} offsets")
        return 1 if any(segment.damaged for segment in found.segments) else 0
