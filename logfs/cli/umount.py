"""`logfs umount`: unmount, and wait for the daemon to have closed its store."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidStore

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The mountpoint."""
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument(
        "-l", "--lazy", action="store_true", help="take the name away now, even if it is busy"
    )


def run(arguments: argparse.Namespace) -> int:
    """Unmount. Returns when the store can be opened by somebody else, or at once if the mount was dead."""
    from logfs.mount.session import unmount
    from logfs.mount.table import Mounted, mounted_at

    mountpoint = Path(os.path.abspath(arguments.mountpoint))
    found = mounted_at(mountpoint)
    if found is Mounted.NOTHING:
        raise InvalidStore(f"{mountpoint}: nothing of ours is mounted here")
    daemon = _daemon(mountpoint) if found is Mounted.LIVE else None
    unmount(mountpoint, lazy=arguments.lazy)
    if daemon is not None and not arguments.lazy:
        select.select([daemon], [], [])
        os.close(daemon)
    return 0


def _daemon(mountpoint: Path) -> int | None:
    """A pidfd of the mount's daemon: readable once the process has ended; None if it cannot be had."""
    import orjson

    try:
        status = orjson.loads((mountpoint / ".logfs/status.json").read_bytes())
        return os.pidfd_open(int(status["pid"]))
    except (OSError, ValueError, KeyError):
        return None
