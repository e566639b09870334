"""`logfs status`: what a mount, or all mounts, are doing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidStore

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The mountpoint."""
    parser.add_argument("mountpoint", type=Path, nargs="?", help="a mount; without it, all of them")
    parser.add_argument("--json", action="store_true", help="the status.json of each")


def run(arguments: argparse.Namespace) -> int:
    """Print it; exit code 1 if a mount is dead or something in it is offline."""
    from logfs.mount.table import fuse_mounts

    if arguments.mountpoint is not None:
        mounts = [os.path.abspath(arguments.mountpoint)]
        if mounts[0] not in fuse_mounts():
            raise InvalidStore(f"{mounts[0]}: nothing of ours is mounted here")
    else:
        mounts = [path for path, source in fuse_mounts().items() if source == "logfs"]
    code = 0
    for mount in mounts:
        code |= _print(mount, json=arguments.json)
    return code


def _print(mount: str, *, json: bool) -> int:
    import orjson

    try:
        data = (Path(mount) / ".logfs/status.json").read_bytes()
    except OSError as error:
        print(f"{mount}: dead ({error.strerror}); 'logfs umount {mount}' clears it away")
        return 1
    if json:
        print(data.decode(), end="")
        return 0
    status = orjson.loads(data)
    print(f"{mount}: logfs {status['version']}, pid {status['pid']}")
    print(
        f"  log dirs    {', '.join(status['log_dirs'])}{' (read-only)' if status['read_only'] else ''}"
    )
    print(f"  up          {status['uptime_ms'] / 1000:.0f} s")
    print(f"  partitions  {status['partitions']}")
    print(f"  errors      {status['errors']} (see {mount}/.logfs/errors)")
    # A daemon that was started before this release does not tell.
    failed = status.get("offline_log_dirs", {})
    for path, reason in failed.items():
        print(f"  failed      {path}: {reason}")
    for name, reason in status["offline"].items():
        print(f"  offline     {name}: {reason}")
    for work in status["background"]:
        print(f"  doing       {work}")
    return 1 if status["offline"] or failed else 0
