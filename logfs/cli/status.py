"""`logfs status`: show the state of one mount, of all mounts, or of a log directory."""

from __future__ import annotations

import os
from json import dumps
from typing import TYPE_CHECKING, Any

from logfs.cli.common import path_argument
from logfs.errors import InvalidStore
from logfs.format.base.quantities import format_duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from logfs.cli.watch import Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: a mount or a log directory, and the form of the output."""
    parser.add_argument(
        "target",
        type=path_argument,
        nargs="?",
        help="a mount or a log directory; without it, all mounts",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the status as JSON, one object per mount, as in the file .logfs/status.json",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the state of a mount or a log directory; without an argument, of all mounts.

    The exit code is 1 if a mount cannot be read, a partition is offline or damaged, or a log directory has failed.
    With `--json` it is 1 only if a mount cannot be read. Raises `InvalidStore` if the argument is no mount, log
    directory or bucket, or if nothing is mounted and there is no argument. Also raises the errors of `logfs.open` if
    a log directory cannot be opened.
    """
    from logfs.cli.watch import MountSource, mounts, source

    wanted = arguments.target
    if wanted is None:
        sources: list[Source] = [*map(MountSource, mounts(write_behind=True))]
    else:
        sources = [source(wanted, write_behind=True)]
    if not sources:
        raise InvalidStore("no logfs is mounted; mount one, or give a log directory")
    code = 0
    for each in sources:
        try:
            code |= _print(each, json=arguments.json)
        finally:
            each.close()
    return code


def _print(source: Source, *, json: bool) -> int:
    from logfs.cli.watch import MountSource

    path = source.name
    is_mount = isinstance(source, MountSource)
    try:
        look = source.look()
    except OSError as error:
        if not is_mount:
            raise
        if isinstance(error, PermissionError):
            print(f"{path}: cannot be read, because it belongs to another user ({error.strerror})")
        else:
            print(f"{path}: {error.strerror}")
        return 1
    status = look.status
    if json:
        print(dumps(status, indent=2))
        return 0
    if is_mount:
        print(f"{path}: logfs {status['version']}, pid {status['pid']}")
    else:
        print(f"{path}: a log directory, opened read-only")
    if "write_behind" in status:
        print(f"  store       {status['write_behind']} (write-behind)")
        print(f"  errors      {status['errors']} (see {os.path.join(path, '.logfs/errors')})")
        print(f"  open files  {status['open_files']}, of which {status['failed_files']} failed")
        return 1 if status["failed_files"] else 0
    dirs = ", ".join(status["log_dirs"])
    print(f"  log dirs    {dirs}{' (read-only)' if status['read_only'] else ''}")
    if is_mount:
        print(f"  up          {format_duration(status['uptime_ms'])}")
        print(f"  errors      {status['errors']} (see {os.path.join(path, '.logfs/errors')})")
    waiting = f", {status['unloaded']} not loaded yet" if status["unloaded"] else ""
    print(f"  partitions  {status['partitions']}{waiting}")
    # The daemon may be of an earlier release, whose status lacks this entry.
    failed = status.get("offline_log_dirs", {})
    for directory, reason in failed.items():
        print(f"  failed      {directory}: {reason}")
    for name, reason in status["offline"].items():
        print(f"  offline     {name}: {reason}")
    damaged = status.get("damaged_ranges", {})
    for name, count in damaged.items():
        print(f"  damaged     {name}: {count} ranges of offsets; 'logfs check' lists them")
    _print_mirror(status.get("mirror"))
    if status["upkeep"] and not status["read_only"]:
        _print_upkeep(status)
    return 1 if status["offline"] or failed or damaged else 0


def _print_upkeep(status: Mapping[str, Any]) -> None:
    upkeep = status["upkeep"]
    for work in status["background"]:
        text = f"{work['what']} {work['name']}"
        text += f", {work['phase']}" if work["phase"] else ""
        if work["total_bytes"]:
            share = min(work["done_bytes"] / work["total_bytes"], 1)
            text += f": {share:.0%} of {work['total_bytes']} bytes"
        print(f"  doing       {text}")
    now_ms = status["now_ms"]
    due = ", ".join(
        f"{task} in {format_duration(max(due_ms - now_ms, 0))}"
        for task, due_ms in upkeep["next_due_ms"].items()
    )
    print(f"  upkeep      {'paused' if upkeep['paused'] else due}")
    for failed in upkeep["waiting_after_errors"]:
        print(f"  failed      {failed}; will be retried")
    for name, done in upkeep["last_retention"].items():
        print(
            f"  retention   {name}: {done['segments']} segments, {done['bytes']} bytes dropped "
            f"{format_duration(now_ms - done['when_ms'])} ago"
        )
    for name, done in upkeep["last_cleaning"].items():
        print(
            f"  compaction  {name}: {done['bytes_before']} bytes became {done['bytes_after']} "
            f"{format_duration(now_ms - done['when_ms'])} ago, in {format_duration(done['seconds'] * 1000)}"
        )


def _print_mirror(mirror: Mapping[str, Any] | None) -> None:
    """Print the state of the mirror; None stands for a mount that mirrors no cluster, or a log directory."""
    if mirror is None:
        return
    behind = "not connected" if mirror["lag"] is None else f"{mirror['lag']} offsets behind"
    print(f"  mirror      of {mirror['from']}, {behind}")
    for what, reason in mirror["problems"].items():
        print(f"  failed      mirror, {what}: {reason}; will be retried")
