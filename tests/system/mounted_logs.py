"""The logs of the model behind a mount: its daemons, and changes by its files and by commands.

The writer is the daemon of a mount, or Python while that is not mounted. Two more mounts follow the log directories,
one of them with isolation level read_committed; so does a store in another process.
"""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Client
from typing import TYPE_CHECKING

from logfs.format.base.murmur2 import partition_of
from logfs.store.admin import commit_client
from logfs.store.store import Store, now_ms
from tests.support.processes import wait_for
from tests.system.everything import COMPACTED, GROUP, LOGS, PLAIN, SETTINGS, Logs, topic_of
from tests.system.log_model import COMMITTED, UNCOMMITTED
from tests.system.mounts import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.format.batches.record import Record
    from logfs.log.read.read_committed import Isolation
    from tests.support.spawner import Child, Spawner

# How long a process that follows, or one that ends, may need.
END_SECONDS = 20
READ_COMMITTED = ("-o", "isolation=read_committed")


class Shown:
    """A mount, and the isolation level that its readers have."""

    def __init__(self, daemon: Daemon, isolation: Isolation) -> None:
        self.daemon = daemon
        self.isolation = isolation
        self.is_follower = "--read-only" in daemon.options
        # The number of breaks in a log when its records were last seen here.
        self.agreed: dict[str, int] = {}

    def start(self) -> None:
        assert self.daemon.start().wait_until_ready(), self.daemon.child.output[-2000:]

    @property
    def path(self) -> Path:
        return self.daemon.path


class Tail:
    """A file of records that stays open: what it showed, and the offset of the last record that was read."""

    def __init__(self, shown: Shown, name: str, breaks: int) -> None:
        self.shown = shown
        self.name = name
        self.breaks = breaks
        self.last = -1
        self.new = b""
        self.file = os.open(shown.path / name / "records", os.O_RDONLY)

    def read_on(self, wanted: bytes) -> bytes:
        """Return what is new in the file. All of it must be wanted."""
        self.new += os.read(self.file, 1 << 20)
        assert wanted.startswith(self.new), f"{self.new!r}, not {wanted!r}"
        return self.new


class MountedLogs(Logs):
    """The logs, their mounts, a follower, and the files that are open.

    While `mounted`, the daemon of `writing` has the log directories, and `store` is closed.
    """

    def __init__(self, spawner: Spawner, root: Path, seed: int) -> None:
        super().__init__(root, seed, now_ms)
        self.spawner = spawner
        self.tails: list[Tail] = []
        # The mode of `records` of a log, once it was changed.
        self.modes: dict[str, int] = {}
        # The end of a log when it came into its directory. A file that is opened in another process while that still
        # shows the place before ends there.
        self.arrived: dict[str, int] = {}
        self.writing = Shown(Daemon(spawner, root / "rw", self.log_dirs), UNCOMMITTED)
        self.following = [
            Shown(Daemon(spawner, root / "ro", self.log_dirs, "--read-only"), UNCOMMITTED),
            Shown(
                Daemon(spawner, root / "rc", self.log_dirs, "--read-only", *READ_COMMITTED),
                COMMITTED,
            ),
        ]
        self.follower: Child | None = None

    def settings_of(self, name: str) -> dict[str, object]:
        # No compaction that the model does not know of.
        return {**super().settings_of(name), "min_cleanable_dirty_ratio": 1}

    def start(self) -> None:
        """Start what follows the log directories."""
        for shown in self.following:
            shown.start()
        address = str(self.root / "socket")
        self.follower = self.spawner.call("tests.system.everything:follow", address, *self.log_dirs)

        def connect() -> bool:
            try:
                self.connection = Client(address)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            return True

        wait_for(connect)

    def stop(self) -> None:
        """Stop what follows the log directories."""
        self.connection.close()
        assert self.follower is not None
        assert self.follower.wait(END_SECONDS) == 0, self.follower.output
        self.follower.close()
        for shown in self.following:
            self.end_mount(shown, kill=False)

    def close(self) -> None:
        """Stop everything, and audit the log directories."""
        self.stop()
        self.to_python()
        self.store.close()
        self.audit(PLAIN)

    def release(self) -> None:
        """Kill whatever runs, and remove all mounts."""
        for tail in self.tails:
            os.close(tail.file)
        for shown in (self.writing, *self.following):
            if shown.daemon.is_started:
                shown.daemon.close()
        if self.follower is not None:
            self.follower.close()

    def end_mount(self, shown: Shown, *, kill: bool) -> None:
        """Stop or kill the daemon of a mount, with the files that are open there."""
        self.drop(lambda tail: tail.shown is shown)
        daemon = shown.daemon
        if kill:
            daemon.child.kill()
            daemon.child.wait(END_SECONDS)
        else:
            assert daemon.stop() == 0, daemon.child.output[-2000:]
        assert "Traceback" not in daemon.child.output, daemon.child.output[-4000:]
        daemon.close()

    def drop(self, which: Callable[[Tail], bool]) -> None:
        """Close files that are open."""
        for tail in [each for each in self.tails if which(each)]:
            os.close(tail.file)
            self.tails.remove(tail)

    def to_python(self) -> None:
        """Have this process open the log directories for writing."""
        if self.mounted:
            self.end_mount(self.writing, kill=False)
            self.mounted = False
            self.store = self.open()

    def to_mount(self) -> None:
        """Mount the log directories for writing."""
        if not self.mounted:
            self.store.close()
            self.mounted = True
            self.mount()

    def mount(self) -> None:
        options, isolation = self.chance.choice([((), UNCOMMITTED), (READ_COMMITTED, COMMITTED)])
        path = self.writing.path
        self.writing = Shown(Daemon(self.spawner, path, self.log_dirs, *options), isolation)
        self.writing.start()

    def switch(self, name: str) -> None:
        if self.mounted:
            self.to_python()
        else:
            self.to_mount()

    def run(self, *words: object, stdin: bytes = b"", code: int = 0) -> bytes:
        """Run a command, and return what it printed."""
        done = self.spawner.run(*words, stdin=stdin)
        assert done.returncode == code, f"{words}: {done}"
        return done.stdout

    def target(self, name: str, *, writes: bool = False) -> list[object]:
        """Return one of the ways in which a command can name a log. A read-only mount refuses one that `writes`."""
        mounts = [*([] if writes else self.following), *([self.writing] if self.mounted else [])]
        by_mount = [[self.chance.choice(mounts).path / name]] if mounts else []
        return self.chance.choice([[self.home(name) / name], [*self.log_dirs, name], *by_mount])

    def path(self, name: str) -> Path:
        return self.writing.path / name

    def write(self, path: Path, text: object) -> None:
        with open(path, "a") as file:
            file.write(f"{text}\n")

    # Changes by the files of the mount, and by commands beside it.

    def append_by_mount(self, name: str) -> None:
        way = self.chance.choice(["line", "jsonl", "topic", "command"])
        records = self.records()
        if way == "line" and name != COMPACTED:
            self.append_lines(name, records)
            return
        data = b"".join(map(envelope, records))
        if way == "topic":
            self.write_once(self.writing.path / "topics" / topic_of(name) / "append.jsonl", data)
            count = len(self.topic(name))
            for record in records:
                number = partition_of(record.key or b"", count)
                at = f"{topic_of(name)}-{number}"
                self.note(at, self.models[at].end, [record])
            return
        if way == "command":
            self.run("append", "--jsonl", *self.target(name, writes=True), stdin=data)
        else:
            self.write_once(
                self.path(name) / "append.jsonl", data, self.models[name].end + len(records)
            )
        self.note(name, self.models[name].end, records)

    def append_lines(self, name: str, records: list[Record]) -> None:
        """Append values; the daemon gives them a time."""
        first, began = self.models[name].end, now_ms()
        data = b"".join(each.value + b"\n" for each in records if each.value)
        self.write_once(self.path(name) / "append", data, first + len(records))
        with Store(self.log_dirs, read_only=True) as store:
            records = list(store[name].read(first))
        assert all(began <= (each.timestamp or 0) <= now_ms() for each in records)
        self.note(name, first, records)

    def write_once(self, path: Path, data: bytes, end: int | None = None) -> None:
        """Append by one write, and perhaps sync; check the offset after the last record of the write."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            assert os.write(file, data) == len(data)
            if end is not None:
                assert int(os.getxattr(file, "user.logfs.last_offset")) == end - 1
            if self.chance.random() < 0.2:
                os.fsync(file)
        finally:
            os.close(file)

    def commit_by_mount(self, name: str) -> None:
        with Store(self.log_dirs, read_only=True) as store:
            files, wanted = self.staged(name, store)
        self.note_commit(commit_client.commit(self.log_dirs, "writer", self.sent, files), wanted)

    def roll_by_mount(self, name: str) -> None:
        self.write(self.path(name) / "ctl", "roll")

    def flush_by_mount(self, name: str) -> None:
        with open(self.path(name) / "append") as file:
            os.fsync(file.fileno())

    def delete_records_by_mount(self, name: str) -> None:
        offset = self.readable(name)
        if self.chance.random() < 0.5:
            self.write(self.path(name) / "log-start-offset", offset)
        else:
            self.run("delete-records", "--before", offset, *self.target(name, writes=True))
        self.models[name].start = offset

    def retain_by_mount(self, name: str) -> None:
        model, setting = self.models[name], self.path(name) / "config/retention.bytes"
        if any(each.transactions()[1] < each.end for each in self.topic(name)):
            return
        self.write(setting, 4000)
        self.write(self.path(name) / "ctl", "retain")
        self.run("retain", *self.log_dirs)
        self.write(setting, -1)
        for at in LOGS:
            if topic_of(at) == topic_of(name):
                model = self.models[at]
                start = int((self.path(at) / "log-start-offset").read_text())
                assert model.start <= start <= model.end
                model.start = start

    def compact_by_mount(self, name: str) -> None:
        self.run("compact", *self.chance.choice([[], ["--roll"]]), *self.target(name, writes=True))
        with Store(self.log_dirs, read_only=True) as store:
            self.note_compaction(name, store)

    def tier_by_mount(self, name: str) -> None:
        self.run("tier", *self.log_dirs)
        if self.chance.random() < 0.7:
            self.run("retain", *self.log_dirs)

    def move_by_mount(self, name: str) -> None:
        self.drop_moved(name)
        source, target = self.home(name), self.away(name)
        if self.chance.random() < 0.5:
            self.run("move", *self.target(name, writes=True), "--to", target)
        else:
            self.write(self.path(name) / "ctl", f"move {target}")
            wait_for(lambda: (target / name).is_dir() and not (source / name).is_dir())

    def set_by_mount(self, name: str) -> None:
        setting = self.chance.choice([*SETTINGS])
        value = self.chance.choice(SETTINGS[setting])
        way = self.chance.choice([name, f"topics/{topic_of(name)}", ""])
        if way:
            self.write(self.path(way) / "config" / setting, value)
        else:
            self.run("config", *self.log_dirs, "--topic", topic_of(name), f"{setting}={value}")

    def commit_offset_by_mount(self, name: str) -> None:
        model = self.models[name]
        offset = self.chance.randrange(model.start, model.end + 1)
        way = self.chance.choice(["partition", "topic", "command"])
        if way == "partition":
            self.write(self.path(name) / "groups" / GROUP, offset)
        elif way == "topic":
            number = name.rpartition("-")[2]
            self.write(self.path(f"topics/{topic_of(name)}/groups/{GROUP}"), f"{number} {offset}")
        else:
            self.run("groups", *self.log_dirs, "--commit", GROUP, name, offset)
        self.commits[GROUP, name] = offset

    def forget_offset_by_mount(self, name: str) -> None:
        if self.commits.pop((GROUP, name), None) is not None:
            self.run("groups", *self.log_dirs, "--forget", GROUP, name)

    def recreate_by_mount(self, name: str) -> None:
        self.drop_deleted(name)
        settings = [
            f"{key.replace('_', '.')}={value}" for key, value in self.settings_of(name).items()
        ]
        if self.chance.random() < 0.5:
            place = self.path(name)
            if len(self.topic(name)) == 1 and self.chance.random() < 0.5:
                place = self.path(f"topics/{topic_of(name)}")
            logs = [each for each in LOGS if topic_of(each) == topic_of(name)]
            if all(self.models[each].start == self.models[each].end for each in logs):
                place.rmdir()
            else:
                self.run("delete", *self.log_dirs, place.name)
            place.mkdir()
            self.run("config", *self.log_dirs, "--topic", topic_of(name), *settings)
        else:
            self.run("delete", *self.target(name, writes=True))
            words = [word for each in settings for word in ("-c", each)]
            self.run("create", *words, *self.log_dirs, name)
        self.forget(name)

    def chmod_by_mount(self, name: str) -> None:
        mode = self.chance.choice([0o600, 0o640, 0o644, 0o400])
        (self.path(name) / "records").chmod(mode)
        self.modes[name] = mode

    def reopen_by_mount(self, name: str) -> None:
        self.end_mount(self.writing, kill=False)
        self.mount()

    def kill_by_mount(self, name: str) -> None:
        self.end_mount(self.writing, kill=True)
        if self.chance.random() < 0.3:
            self.writing.daemon.start()
            self.end_mount(self.writing, kill=True)
        self.mount()

    # Other changes.

    def move(self, name: str) -> None:
        self.drop_moved(name)
        super().move(name)

    def drop_moved(self, name: str) -> None:
        """Close the files that end where a log leaves its log directory: those of other processes."""
        self.drop(lambda tail: tail.name == name and tail.shown.is_follower)
        self.arrived[name] = self.models[name].end

    def recreate(self, name: str) -> None:
        self.drop_deleted(name)
        super().recreate(name)

    def drop_deleted(self, name: str) -> None:
        self.drop(lambda tail: tail.name == name)
        self.modes.pop(name, None)
        self.arrived[name] = 0

    def follow_again(self, name: str) -> None:
        """Stop or kill a mount that follows, and mount it again."""
        shown = self.chance.choice(self.following)
        self.end_mount(shown, kill=self.chance.random() < 0.5)
        shown.daemon = Daemon(self.spawner, shown.path, self.log_dirs, *shown.daemon.options)
        shown.start()

    def restore(self, name: str) -> None:
        self.stop()
        super().restore(name)
        self.start()


def envelope(record: Record) -> bytes:
    """Return the line of a record for `append.jsonl`."""
    told = {
        "key": (record.key or b"").decode(),
        "value": (record.value or b"").decode(),
        "timestamp": record.timestamp,
    }
    return json.dumps(told).encode() + b"\n"
