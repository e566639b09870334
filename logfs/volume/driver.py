"""The requests of a container engine about volumes: create, remove, mount, unmount and list them."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidSetting, InvalidStore, UnknownVolume
from logfs.locks import Level, make_lock
from logfs.log.disk.disk import Disk
from logfs.store.directory.mount_table import DEAD_ERRORS, MountState, mounted_at
from logfs.volume.log_mounts import LogMounts
from logfs.volume.options import parse_options
from logfs.volume.volume_table import Volume, VolumeTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logfs.volume.options import VolumeOptions

logger = logging.getLogger(__name__)


class VolumeStatus(NamedTuple):
    """A volume as container engines show it.

    `mountpoint` is the path that containers get, "" while the volume is not mounted. `users` is the number of ids,
    usually of containers, that use the volume.
    """

    name: str
    mountpoint: str
    options: VolumeOptions
    users: int


class VolumeDriver:
    """The volumes of a machine. Any thread may call the methods.

    Requests for different log directories do not wait for each other. Each use of a volume, usually by a container,
    has an id, which the engine sends. A log directory is mounted while at least one id uses one of its volumes. An
    engine may repeat a request: a second mount for the same id, and an unmount for an unknown id, change nothing.
    """

    def __init__(self, state: Path, logs: Path) -> None:
        """Keep the table of volumes and the mountpoints in the directory `state`.

        A volume without the option `logdir` has its log directory in `logs`. The mounts that an earlier process has
        made with the same `state` stay in use. Raises `Corrupt` for a malformed table, `InvalidStore` if another
        process uses `state`, and `OSError`.
        """
        self._logs, self._state = logs, state
        for path in (state / "mounts", logs):
            path.mkdir(parents=True, exist_ok=True)
        # Other users must not reach the mounts through this directory. Containers do not go through it, because the
        # engine mounts their volumes for them.
        state.chmod(0o700)
        # A lock on `state` is held until the process ends; the kernel then releases it.
        self._claim = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidStore(
                f"{state}: another volume plugin keeps its volumes here; stop it, or give another --state"
            ) from None
        self._table = VolumeTable(Disk(), state / "volumes.json")
        self._mounts = LogMounts(state / "mounts")
        self._lock = make_lock(Level.VOLUMES)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Remove the ids of each volume that is not mounted now, then unmount each log directory that no id uses.

        After a reboot, for example, no volume is mounted. A volume whose daemon has died still counts as mounted and
        keeps its ids, because its containers may still run.
        """
        for volume in self._table:
            logdir, ro = volume.options.logdir, volume.options.ro
            if self._mounts.find(logdir, ro=ro) is None and not self._is_dead(volume):
                self._table.put(volume._replace(ids=frozenset()))
        for volume in self._table:
            with self._mounts.lock(volume.options.logdir):
                try:
                    self._end_unused(volume.options)
                except InvalidStore as error:
                    logger.warning("%s", error)

    def _is_dead(self, volume: Volume) -> bool:
        """Whether the daemon of a volume's mount has died."""
        own = self._mounts.mountpoint(volume.options.logdir, ro=volume.options.ro)
        return mounted_at(own) is MountState.DEAD

    def create(self, name: str, given: Mapping[str, str]) -> None:
        """Create a volume with the options in `given` (texts by option name), unless the volume exists.

        Raises `InvalidName` for an invalid name; `InvalidSetting` for an invalid option, and for a volume that exists
        with other options; and `OSError`.
        """
        options = parse_options(name, given, self._logs)
        logdir = Path(options.logdir)
        if logdir == self._logs or logdir.is_relative_to(self._state):
            raise InvalidSetting(
                f"volume {name}: logdir={logdir}: the plugin keeps its own files there; give another directory"
            )
        with self._lock:
            known = self._table.find(name)
            if known is None:
                self._table.put(Volume(name, options))
            elif known.options != options:
                raise InvalidSetting(
                    f"volume {name}: exists with other options; remove the volume first, or choose another name"
                )

    def remove(self, name: str) -> None:
        """Remove a volume from the table; its log directory stays.

        Raises `UnknownVolume`, `InvalidStore` while the volume is in use, and `OSError`.
        """
        with self._lock:
            volume = self._known(name)
            if volume.ids:
                raise InvalidStore(f"volume {name}: is in use; remove its containers first")
            self._table.remove(name)

    def mount(self, name: str, user: str) -> str:
        """Mount a volume for the id `user`, and return the path for the container.

        Unless the volume is read-only, the directory that it shows is created if it is missing, and gets the owner
        and mode in the options. Raises `UnknownVolume` and `OSError`. Raises `InvalidStore` if the log directory
        cannot be mounted, if a read-only volume shows a missing directory, or if there is no parent directory in
        which a missing directory can be created.
        """
        with self._lock:
            volume = self._known(name)
        options = volume.options
        with self._mounts.lock(options.logdir):
            try:
                path = self._shown(options)
                with self._lock:
                    known = self._known(name)
                    self._table.put(known._replace(ids=known.ids | {user}))
            except BaseException:
                self._end_unused(options)
                raise
        return str(path)

    def _shown(self, options: VolumeOptions) -> Path:
        """Mount the log directory, set the owner and mode in the options, and return the path for the container."""
        if not options.shown and not options.ro:
            # The root of the mount shows the owner and mode of the log directory, so set those of the log directory.
            _make(Path(options.logdir), options)
        try:
            return self._in_mount(options)
        except OSError as error:
            if error.errno not in DEAD_ERRORS:
                raise
        # The daemon of the mount died after the mount was found. Try again: the dead mount is replaced.
        return self._in_mount(options)

    def _in_mount(self, options: VolumeOptions) -> Path:
        path = self._mounts.mount(options.logdir, ro=options.ro) / options.shown
        if options.ro and not path.is_dir():
            raise InvalidStore(
                f"{options.logdir}: has no {path.name}, and a read-only volume creates nothing; create it first"
            )
        if options.shown and not options.ro:
            _make(path, options)
            for partition in (path / "partitions").glob("*") if options.topic else ():
                _give(partition, options)
        return path

    def unmount(self, name: str, user: str) -> None:
        """End the use of a volume by the id `user`. Unmount the log directory if no other id uses it.

        Raises `UnknownVolume`, `InvalidStore` if the directory cannot be unmounted, and `OSError`.
        """
        with self._lock:
            volume = self._known(name)
        with self._mounts.lock(volume.options.logdir):
            with self._lock:
                known = self._known(name)
                self._table.put(known._replace(ids=known.ids - {user}))
            self._end_unused(volume.options)

    def _end_unused(self, options: VolumeOptions) -> None:
        """Unmount the read-only or the writable mount of a log directory, if no id uses this mount.

        `options.logdir` is the log directory, and `options.ro` says which of the two mounts. The caller must hold the
        lock of the log directory.
        """
        with self._lock:
            used = [
                each
                for each in self._table
                if each.ids
                and (each.options.logdir, each.options.ro) == (options.logdir, options.ro)
            ]
        if not used:
            self._mounts.unmount(options.logdir, ro=options.ro)

    def status(self, name: str) -> VolumeStatus:
        """Return the status of a volume. Raises `UnknownVolume`."""
        with self._lock:
            volume = self._known(name)
        return self._status(volume)

    def volumes(self) -> list[VolumeStatus]:
        """Return the status of all volumes, sorted by name."""
        with self._lock:
            volumes = sorted(self._table, key=lambda each: each.name)
        return [self._status(each) for each in volumes]

    def _status(self, volume: Volume) -> VolumeStatus:
        # `_lock` is not held here, because a mount that hangs must not delay requests for other volumes.
        options = volume.options
        mount = self._mounts.find(options.logdir, ro=options.ro) if volume.ids else None
        path = "" if mount is None else str(mount / options.shown)
        return VolumeStatus(volume.name, path, options, len(volume.ids))

    def _known(self, name: str) -> Volume:
        volume = self._table.find(name)
        if volume is None:
            raise UnknownVolume(f"no such volume: {name}")
        return volume


def _make(path: Path, options: VolumeOptions) -> None:
    """Make a directory if it is missing, and give it the owner and the mode in the options.

    The owner and the mode of a topic's directory are not changed. Instead, the caller sets those of the topic's
    partitions, from which the files of the topic take their owner and mode.
    """
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise InvalidStore(f"{path}: is not a directory") from None
    except FileNotFoundError:
        raise InvalidStore(
            f"{path}: its parent directory does not exist; create it first"
        ) from None
    if not options.topic:
        _give(path, options)


def _give(path: Path, options: VolumeOptions) -> None:
    if options.uid is not None or options.gid is not None:
        owner = -1 if options.uid is None else options.uid
        os.chown(path, owner, -1 if options.gid is None else options.gid)
    if options.mode is not None:
        path.chmod(options.mode)
