"""The life of one write-behind mount: mount, collect writes, send them on, unmount."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import trio

from logfs.errors import InvalidStore
from logfs.mount import threads
from logfs.mount.errnos import ErrorLog
from logfs.mount.mounting import (
    first_error,
    mounted,
    one_stop,
    prepare_mountpoint,
    start_notifier,
)
from logfs.mount.threads import run_in_thread
from logfs.mount.watchdog import watchdog
from logfs.mount.write_behind.linger import Linger
from logfs.mount.write_behind.operations import WriteBehindOperations, check_main_mount
from logfs.store.directory.mount_table import WRITE_BEHIND_TYPE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


# The default `linger.ms` of Kafka's producer since Kafka 4.0.
DEFAULT_LINGER_MS = 5
MOST_LINGER_MS = 60_000
_MAX_TASKS = 400


@dataclass(frozen=True, kw_only=True)
class WriteBehindOptions:
    """The options of one write-behind mount.

    `mount` is the mountpoint of the main mount, to which the written lines are sent, and `mountpoint` that of the
    write-behind mount. The kernel is made to send the written bytes every `linger_ms`.
    """

    mount: Path
    mountpoint: Path
    linger_ms: int = DEFAULT_LINGER_MS
    allow_other: bool = False
    # Whether the mountpoint may contain files, which the mount then hides.
    nonempty: bool = False
    fuse_options: frozenset[str] = field(default_factory=frozenset)


def run(options: WriteBehindOptions, *, ready: Callable[[], None] = lambda: None) -> None:
    """Mount, and serve requests until unmounted or stopped by SIGTERM, SIGINT or SIGHUP.

    At a signal, all data written so far is sent to the main mount before the unmount. `ready` is called when the
    mount answers. Raises `InvalidStore` for an unsuitable mountpoint, main mount or `linger_ms`, and `OSError`.
    """
    if not 1 <= options.linger_ms <= MOST_LINGER_MS:
        raise InvalidStore(f"linger_ms={options.linger_ms}: must be from 1 to {MOST_LINGER_MS} ms")
    # The mountpoint of the main mount, as the mount table shows it.
    main = Path(os.path.realpath(options.mount))
    mountpoint = prepare_mountpoint(
        options.mountpoint, partial(_check_main, main), sources=[main], nonempty=options.nonempty
    )
    words = {"default_permissions", "nosuid", "nodev", *options.fuse_options}
    if options.allow_other:
        words.add("allow_other")
    with watchdog() as watch, one_stop() as stop_wanted:
        linger = Linger(options.linger_ms)
        errors = ErrorLog(lambda: time.time_ns() // 1_000_000)
        operations = WriteBehindOperations(main, linger, options.linger_ms, errors)
        threads.start()
        place = Path(os.path.realpath(mountpoint))
        with mounted(operations, mountpoint, WRITE_BEHIND_TYPE, str(main), words):
            watch(place)
            try:
                trio.run(_serve, linger, place, stop_wanted, ready)
            except BaseExceptionGroup as group:
                raise first_error(group) from group


def _check_main(mount: Path) -> None:
    """Raise `InvalidStore` unless `mount` is the mountpoint of a store, and is not mounted read-only."""
    try:
        check_main_mount(mount)
    except OSError:
        raise InvalidStore(
            f"{mount}: no store is mounted here; give the mountpoint of 'logfs mount', then an empty directory"
        ) from None
    if os.statvfs(mount).f_flag & os.ST_RDONLY:
        raise InvalidStore(
            f"{mount}: is mounted read-only, and takes no appends; mount it without --read-only"
        )


async def _serve(
    linger: Linger,
    mountpoint: Path,
    stop_wanted: Callable[[], Awaitable[None]],
    ready: Callable[[], None],
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop, linger, stop_wanted)
        nursery.start_soon(linger.run)
        nursery.start_soon(_announce, linger, mountpoint, ready)
        await pyfuse3.main(max_tasks=_MAX_TASKS)
        nursery.cancel_scope.cancel()


async def _stop(linger: Linger, stop_wanted: Callable[[], Awaitable[None]]) -> None:
    await stop_wanted()
    await linger.stop()
    pyfuse3.terminate()


async def _announce(linger: Linger, mountpoint: Path, ready: Callable[[], None]) -> None:
    """Wait until the mount answers a `stat`, then start `linger` and call `ready`.

    From then on `linger` makes the kernel send the written bytes. A worker thread calls `stat`, because this thread
    must answer it.
    """
    found = await run_in_thread(os.stat, mountpoint)
    start_notifier()
    linger.start(mountpoint, found.st_dev)
    ready()
