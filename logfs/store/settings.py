"""The changed settings (overrides) of topics and of the broker level, stored as files in the log directories.

A broker keeps such changes in its metadata log. logfs has no such log, so each log directory has two kinds of Java
properties files: `logfs.properties` for the broker-level settings, and `<topic>@p` for those of a topic. Kafka
ignores plain files there, but does not start if it finds a directory that is not a partition's (kafka-storage 1.2).

Topic names have no `@`, so `<topic>@p` cannot clash with other files. The suffix has only two characters because a
file name may have 255 characters: a topic's name takes up to 249 of them, and `.tmp` four.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from logfs.config import BrokerConfig, LogConfig
from logfs.errors import (
    Corrupt,
    InvalidName,
    InvalidSetting,
    InvalidStore,
    LogDirFailed,
    LogfsError,
)
from logfs.format.base.names import check_topic
from logfs.format.files.checkpoint import format_meta_properties, parse_properties
from logfs.locks import Level, make_rlock
from logfs.setting import broker_setting, topic_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from logfs.log.disk.disk import Disk
    from logfs.setting import Setting

logger = logging.getLogger(__name__)

BROKER_FILE = "logfs.properties"
TOPIC_SUFFIX = "@p"
HEADER = b"# Settings that were changed in logfs. Kafka ignores this file.\n"

_NOTHING: Mapping[str, str] = MappingProxyType({})


class BrokerSettings(NamedTuple):
    """Broker-level settings: the changed ones, as texts by name, and those in force."""

    overrides: Mapping[str, str]
    config: BrokerConfig


class Settings:
    """The settings of a store's topics and of the broker level: the changed ones (overrides), and those in force.

    A change writes a file with the overrides to every log directory. When overrides are read, the log directories are
    searched in order, and the first copy of the file counts. A change writes the copy in the first log directory
    last, so this copy is unchanged if the change fails or a crash interrupts it. (If no directory had a copy before,
    the next opening may read the unfinished change.) The next change makes all copies equal again.

    Any thread may read and change settings; a mapping that was returned never changes. A topic need not have
    partitions. Methods that read a file raise `OSError`, `Corrupt` for a damaged file and `InvalidSetting` for an
    invalid setting in the file; methods that take a topic raise `InvalidName` for an invalid topic name.
    """

    def __init__(self, log_dirs: Sequence[tuple[Disk, Path]]) -> None:
        """Read the broker-level settings from `log_dirs`, each with its disk. Failed log directories are skipped."""
        self._all_log_dirs = tuple(log_dirs)
        # The store's other log directories, which are not open here.
        self.missing_log_dirs: Sequence[Path] = ()
        self._lock = make_rlock(Level.SETTINGS)
        self._topics: dict[str, Mapping[str, str]] = {}
        self._log_configs: dict[str, tuple[Mapping[str, str], Mapping[str, str], LogConfig]] = {}
        # The broker-level settings that were changed: texts by setting name.
        self.broker_overrides = self._read(BROKER_FILE, broker_setting)
        # The broker-level settings in force, except those that are only defaults for topics.
        self.broker_config = BrokerConfig.resolve(self.broker_overrides)
        # Incremented by each change of a topic or of the broker level, so that callers can tell that one was made.
        self.version = 0
        # Called with changed broker-level settings before they are written; may raise `InvalidSetting`.
        self.broker_checks: list[Callable[[BrokerSettings], object]] = []
        # When this process removed a settings file, by file name (ns since the epoch): no mtime shows a removal.
        self._removed_ns: dict[str, int] = {}

    def topic_overrides(self, topic: str) -> Mapping[str, str]:
        """Return the settings that were changed for a topic: texts by setting name."""
        overrides = self._topics.get(topic)
        if overrides is None:
            overrides = self._read(_topic_file(topic), topic_setting)
            # If another thread has changed the topic since the read, use the newer overrides of that thread.
            overrides = self._topics.setdefault(topic, overrides)
        return overrides

    def log_config(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic. Raises `InvalidSetting` if two settings contradict each other."""
        overrides, broker = self.topic_overrides(topic), self.broker_overrides
        cached = self._log_configs.get(topic)
        # The cached settings are current if both mappings of overrides are the same objects: a change replaces them.
        if cached is not None and cached[0] is overrides and cached[1] is broker:
            return cached[2]
        config = LogConfig.resolve(overrides, broker)
        self._log_configs[topic] = (overrides, broker, config)
        return config

    def set_topic(self, topic: str, name: str, text: str | None) -> None:
        """Change the setting `name` of a topic to `text`, durably; None or a blank text removes the override.

        Raises the errors of `change_topic`.
        """
        self.change_topic(topic, {name: text})

    def change_topic(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change settings of a topic durably, all or none; they take effect at once.

        `changes` has texts by setting name; None or a blank text removes an override. These errors are raised before
        anything is written: `InvalidSetting` for an unknown name, an invalid value, a value that contradicts another
        setting, tiering without a bucket, or the end of tiering while `remote.log.delete.on.disable` is false;
        `LogDirFailed` while a log directory is offline; `InvalidStore` if another log directory of the store, which
        this process has not opened, also has the settings of the topic.
        """
        if not changes:
            return
        with self._lock:
            overrides = self.check_topic(topic, changes)
            self._write(_topic_file(topic), overrides)
            self._topics[topic] = overrides
            self.version += 1

    def check_topic(self, topic: str, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        """Return the overrides that a topic would have after `changes`. Raises the errors of `change_topic`."""
        overrides = _changed(self.topic_overrides(topic), topic_setting, changes)
        config = LogConfig.resolve(overrides, self.broker_overrides)
        self._check_change(topic, config, self.broker_config)
        self._check_log_dirs(_topic_file(topic))
        return overrides

    @contextmanager
    def changing(self, topic: str, changes: Mapping[str, str | None]) -> Iterator[None]:
        """Change settings of a topic for the work in this context, and undo the change if that work fails.

        `changes` has texts by setting name; None or a blank text removes an override. The work fails if it raises any
        exception, also `KeyboardInterrupt`. Raises the errors of `change_topic` before the work. If another thread
        changes the topic meanwhile, nothing is undone. If the former settings cannot be written back, an error is
        logged, and the work's error is raised.
        """
        before = self.topic_overrides(topic)
        self.change_topic(topic, changes)
        after = self.topic_overrides(topic)
        try:
            yield
        except BaseException:
            if after is not before:
                self._undo(topic, before, after)
            raise

    def _undo(self, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Restore the overrides `before` of a topic; do nothing if its overrides are no longer `after`.

        If the file cannot be written, the `OSError` is logged, and the overrides stay as they are.
        """
        with self._lock:
            if self.topic_overrides(topic) is not after:
                return
            try:
                self._write(_topic_file(topic), before)
            except OSError as error:
                logger.error("topic %s: its former settings cannot be restored: %s", topic, error)
                return
            self._topics[topic] = before
            self.version += 1

    def _check_change(self, topic: str, config: LogConfig, broker: BrokerConfig) -> None:
        if config.remote_storage_enable and not broker.remote_storage_url:
            raise InvalidSetting(
                "remote.storage.enable: there is no bucket for the segments; first set remote.storage.url, as in "
                "'logfs config LOGDIR remote.storage.url=s3://bucket/prefix'"
            )
        try:
            before = self.log_config(topic)
        except InvalidSetting:
            return  # the settings in force are invalid, so there is nothing to compare the change with
        config.check_change(before)

    def set_broker(self, name: str, text: str | None) -> None:
        """Change the broker-level setting `name` to `text`, durably; None or a blank text removes the override.

        Raises the errors of `change_broker`.
        """
        self.change_broker({name: text})

    def change_broker(self, changes: Mapping[str, str | None]) -> None:
        """Change broker-level settings durably, all or none; they take effect at once.

        `changes` has texts by setting name; None or a blank text removes an override. These errors are raised before
        anything is written: `InvalidSetting` for an unknown name, an invalid value, a value that contradicts another
        setting of the broker level or of any topic, or a new number of partitions for `__remote_log_metadata` when it
        has partitions already; `LogDirFailed` while a log directory is offline; `InvalidStore` if another log
        directory of the store, which this process has not opened, also has broker-level settings.
        """
        if not changes:
            return
        with self._lock:
            broker, config = self.check_broker(changes)
            self._write(BROKER_FILE, broker)
            self.broker_overrides, self.broker_config = broker, config
            self.version += 1

    def check_broker(self, changes: Mapping[str, str | None]) -> BrokerSettings:
        """Return the broker-level settings that `changes` would make. Raises the errors of `change_broker`."""
        broker = _changed(self.broker_overrides, broker_setting, changes)
        found = BrokerSettings(broker, BrokerConfig.resolve(broker))
        LogConfig.resolve(_NOTHING, broker)
        for check in self.broker_checks:
            check(found)
        topics = {
            entry.name.removesuffix(TOPIC_SUFFIX)
            for disk, log_dir in self._log_dirs()
            for entry in disk.scan(log_dir)
            if entry.name.endswith(TOPIC_SUFFIX)
        }
        for topic in topics:
            self._check_topic(topic, *found)
        self._check_log_dirs(BROKER_FILE)
        return found

    def reread(self, topics: Iterable[str] | None = None) -> None:
        """Read the broker-level settings and those of `topics` again, in a read-only store.

        Without `topics`, all settings that were read before are read again. If a settings file cannot be read or is
        invalid, a warning is logged, and its settings stay as they were.
        """
        broker = self._reread(
            BROKER_FILE, broker_setting, self.broker_overrides, BrokerConfig.resolve
        )
        with self._lock:
            self.broker_overrides, self.broker_config = broker, BrokerConfig.resolve(broker)
        for topic in list(self._topics) if topics is None else topics:
            before = self.topic_overrides(topic)
            overrides = self._reread(
                _topic_file(topic),
                topic_setting,
                before,
                lambda now: LogConfig.resolve(now, broker),
            )
            with self._lock:
                self._topics[topic] = overrides

    def _reread(
        self,
        name: str,
        setting: Callable[[str], Setting],
        before: Mapping[str, str],
        resolve: Callable[[Mapping[str, str]], object],
    ) -> Mapping[str, str]:
        try:
            overrides = self._read(name, setting)
            resolve(overrides)
        except (LogfsError, OSError) as error:
            logger.warning("%s: old settings stay, new ones cannot be read: %s", name, error)
            return before
        # Return the same object if nothing changed: callers then need not compute the settings in force again.
        return before if overrides == before else overrides

    def check_removable(self, topic: str) -> None:
        """Raise an error if `remove_topic` could not remove the overrides of a topic from all log directories.

        A topic without overrides passes. Otherwise raises `LogDirFailed` if a log directory is offline, and
        `InvalidStore` if a log directory in `missing_log_dirs` has a copy of the overrides.
        """
        if self.topic_overrides(topic):
            self._check_log_dirs(_topic_file(topic))

    def remove_topic(self, topic: str) -> None:
        """Remove the overrides of a deleted topic, so that a later topic of that name has the defaults."""
        with self._lock:
            self._write(_topic_file(topic), _NOTHING)
            self._topics[topic] = _NOTHING

    def check_copy(self, topic: str, disk: Disk, log_dir: Path) -> None:
        """Raise `InvalidSetting` if the settings file of a topic in `log_dir` differs from the store's settings."""
        try:
            theirs = _read_file(disk, log_dir / _topic_file(topic), topic_setting)
        except FileNotFoundError:
            return
        ours = self.topic_overrides(topic)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise InvalidSetting(
                    f"topic {topic}: {name} is {ours.get(name, 'not set')}, but {theirs.get(name, 'not set')} in "
                    f"{log_dir}; set it to the same value in both log directories"
                )

    def copy_to(self, topic: str, disk: Disk, log_dir: Path, *, is_new: bool) -> None:
        """Copy the overrides of a topic durably to `log_dir`, unless this directory has a settings file of the topic.

        The copy is read if the directory is later opened without the other ones. If `is_new` (the directory has no
        partition yet), the broker-level overrides are copied, too.
        """
        with self._lock:
            copies = {_topic_file(topic): self.topic_overrides(topic)}
            if is_new:
                copies[BROKER_FILE] = self.broker_overrides
            for name, overrides in copies.items():
                if overrides and not disk.exists(log_dir / name):
                    disk.replace_file(log_dir / name, _file_of(overrides))

    def _check_log_dirs(self, name: str) -> None:
        """Raise an error if a change of the settings file `name` could not update its copies in all log directories.

        An outdated copy could be read later. Raises `LogDirFailed` if a log directory is offline, and `InvalidStore`
        if a log directory in `missing_log_dirs` has a copy.
        """
        for disk, _ in self._all_log_dirs:
            if disk.failure is not None:
                raise disk.failure
        for path in self.missing_log_dirs:
            if (path / name).exists():
                here = " ".join(str(log_dir) for _, log_dir in self._all_log_dirs)
                raise InvalidStore(
                    f"{path / name}: the settings were not changed, because the log directory of this copy is not "
                    f"open; open all log directories together, as in '{here} {path}'"
                )

    def _check_topic(self, topic: str, broker: Mapping[str, str], config: BrokerConfig) -> None:
        try:
            self.log_config(topic)
        except (Corrupt, InvalidName, InvalidSetting):
            return  # the topic was invalid before; it must not block changes for the other topics
        try:
            changed = LogConfig.resolve(self.topic_overrides(topic), broker)
            self._check_change(topic, changed, config)
        except InvalidSetting as problem:
            raise InvalidSetting(
                f"topic {topic}: {problem}; the broker-level setting is not changed, because the topic depends on it"
            ) from None

    def _log_dirs(self) -> Iterator[tuple[Disk, Path]]:
        """Iterate over the log directories that work. One that fails during the iteration is left out."""
        return (each for each in self._all_log_dirs if each[0].failure is None)

    def changed_ns(self, topic: str | None = None) -> int:
        """Return when the settings of a topic, or of the broker level, last changed: ns since the epoch, 0 if never.

        This is the newest mtime of all copies of the settings file, or the time when this process removed the file,
        if that is later.
        """
        name = BROKER_FILE if topic is None else _topic_file(topic)
        times = [self._removed_ns.get(name, 0)]
        for disk, log_dir in self._log_dirs():
            try:
                times.append(disk.stat(log_dir / name).mtime_ns)
            except OSError:
                continue
        return max(times)

    def _read(self, name: str, setting: Callable[[str], Setting]) -> Mapping[str, str]:
        for disk, log_dir in self._log_dirs():
            try:
                return _read_file(disk, log_dir / name, setting)
            except (FileNotFoundError, LogDirFailed):
                continue
        return _NOTHING

    def _write(self, name: str, overrides: Mapping[str, str]) -> None:
        data = _file_of(overrides)
        for disk, log_dir in reversed(tuple(self._log_dirs())):
            path = log_dir / name
            if overrides:
                disk.replace_file(path, data)
            elif disk.exists(path):
                disk.unlink(path)
                disk.sync_directory(log_dir)
                self._removed_ns[name] = time.time_ns()


def _topic_file(topic: str) -> str:
    check_topic(topic)
    return topic + TOPIC_SUFFIX


def _read_file(disk: Disk, path: Path, setting: Callable[[str], Setting]) -> Mapping[str, str]:
    data = disk.read_file(path)
    try:
        overrides = parse_properties(data)
        for key, text in overrides.items():
            setting(key).parse(text)
    except Corrupt as problem:
        raise Corrupt(f"{path}: {problem}; correct or remove that line") from None
    except InvalidSetting as problem:
        raise InvalidSetting(f"{path}: {problem}; correct or remove that line") from None
    return MappingProxyType(overrides)


def _file_of(overrides: Mapping[str, str]) -> bytes:
    return HEADER + format_meta_properties(overrides)


def _changed(
    overrides: Mapping[str, str],
    setting: Callable[[str], Setting],
    changes: Mapping[str, str | None],
) -> Mapping[str, str]:
    """Return `overrides` with `changes` applied, in canonical form; None or a blank text removes an override.

    `setting` returns the `Setting` for a name. Raises `InvalidSetting` for an unknown name or an invalid value.
    """
    changed = dict(overrides)
    for name, text in changes.items():
        known = setting(name)
        changed.pop(known.name, None)
        if text is not None and text.strip():
            changed[known.name] = known.format(known.parse_typed(text))
    return MappingProxyType(changed)
