"""Commits by other processes: under Kafka's lock, or through the mount that has the log directories at the time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from logfs.errors import InvalidName, InvalidRecord, InvalidStore, StoreLocked, UnknownPartition
from logfs.format.batches.record import Record
from logfs.format.files.commit_file import STAGED, StagedFile
from logfs.log.disk.disk import Disk
from logfs.store.admin import client, commit_client
from logfs.store.admin.requests import CreateMissing, Discard
from logfs.store.directory.lock import MOUNT_FILE
from logfs.store.settings import Settings
from logfs.store.staged_commits import Committed
from logfs.store.store import Store
from tests.support.staging import stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.mounts import Mount


def put(
    log_dir: Path, writer: str, sequence: int, wanted: dict[str, list[bytes]]
) -> list[StagedFile]:
    """Stage values as a task of another process does, and return the staged files."""
    settings = Settings([(Disk(), log_dir)])
    return [
        stage(
            log_dir / name,
            settings.log_config(name.rpartition("-")[0]),
            writer,
            sequence,
            [Record(value) for value in values],
            now_ms=1_700_000_000_000,
        )
        for name, values in wanted.items()
    ]


def read(log_dir: Path, name: str) -> list[bytes | None]:
    """Return the values of a partition's records."""
    with Store(log_dir, read_only=True) as store:
        return [record.value for record in store[name].read()]


def test_without_a_mount_a_commit_opens_the_directories(log_dir: Path) -> None:
    """Without a mount, only the partitions of the commit are opened.

    A store that was clean before is clean afterwards, and left-over staged files are removed.
    """
    with Store(log_dir) as store:
        for name in ("a-0", "b-0", "c-0"):
            store.create(name)
    twin = put(log_dir, "q", 0, {"a-0": [b"twin"]})
    done = commit_client.commit(
        log_dir, "q", 0, put(log_dir, "q", 0, {"a-0": [b"1"], "b-0": [b"2", b"3"]})
    )
    assert done == Committed(False, {"a-0": (0, 1), "b-0": (0, 2)})
    assert commit_client.commit([log_dir], "q", 0, put(log_dir, "q", 0, {"a-0": [b"1"]})).already
    assert (read(log_dir, "a-0"), read(log_dir, "b-0")) == ([b"1"], [b"2", b"3"])
    assert (log_dir / ".kafka_cleanshutdown").exists()
    assert not (log_dir / "a-0" / twin[0].name).exists()
    with pytest.raises(InvalidStore):
        commit_client.commit(log_dir / "nowhere", "q", 1, [])
    with pytest.raises(UnknownPartition, match="logfs create"):
        commit_client.commit(log_dir, "q", 1, [StagedFile("d-0", "x", 1, 1)])


def test_a_mount_takes_commits(mount: Mount) -> None:
    """A commit through a mount is seen at once, also by readers that have cached sizes, and is made once."""
    log_dir = mount.log_dirs[0]
    for name in ("a-0", "b-0"):
        mount.partition(name)
    lines = mount.path / "a-0/records"
    for _ in range(3):
        assert lines.stat().st_size == 0
    told = json.loads((log_dir / MOUNT_FILE).read_bytes())
    assert told["mountpoint"] == str(mount.path)
    wanted = {"a-0": [b"%d" % n for n in range(2000)], "b-0": [b"x"]}
    done = commit_client.commit(log_dir, "q", 0, put(log_dir, "q", 0, wanted))
    assert done == Committed(False, {"a-0": (0, 2000), "b-0": (0, 1)})
    assert lines.read_bytes() == b"".join(value + b"\n" for value in wanted["a-0"])
    assert (mount.path / "b-0/records").read_bytes() == b"x\n"
    assert commit_client.commit(log_dir, "q", 0, put(log_dir, "q", 0, wanted)).already
    with (mount.path / "a-0/append").open("ab", buffering=0) as file:
        file.write(b"after\n")
    assert lines.read_bytes().endswith(b"1999\nafter\n")
    mount.stop()
    assert not (log_dir / MOUNT_FILE).exists()
    assert commit_client.commit(log_dir, "q", 0, []).already
    assert not list(log_dir.rglob("*" + STAGED))


def test_partitions_are_created_through_the_mount_or_directly(mount: Mount) -> None:
    """A mount creates partitions and shows them at once; without a mount the client creates them.

    Existing partitions stay as they are. If one name is invalid, no partition is created.
    """
    log_dir = mount.log_dirs[0]
    mount.partition("a-0")
    staged = put(log_dir, "q", 0, {"a-0": [b"kept"]})
    commit_client.commit(log_dir, "q", 0, staged)
    commit_client.create(log_dir, ["a-0", "a-1"])
    assert (mount.path / "a-1/records").read_bytes() == b""
    with pytest.raises(InvalidName):
        commit_client.create(log_dir, ["b-0", "../c-0"])
    mount.stop()
    commit_client.create([log_dir], ["a-1", "a-2"])
    with Store(log_dir, read_only=True) as store:
        assert sorted(store) == ["a-0", "a-1", "a-2"]
    assert read(log_dir, "a-0") == [b"kept"]
    with Store(log_dir), pytest.raises(StoreLocked):
        commit_client.create(log_dir, ["a-3"], seconds=0.1)


def test_a_partition_that_is_created_at_the_same_time_is_no_error(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sinks that begin with the same partitions both go on."""
    with Store(log_dir) as store:
        create = store.create

        def late(name: str) -> object:
            create(name)
            return create(name)

        monkeypatch.setattr(store, "create", late)
        request = CreateMissing(["a-0", "b-0"])
        assert request.run(store, lambda done, total: None) == {"directories": []}
        assert sorted(store) == ["a-0", "b-0"]


def test_a_missing_log_directory_is_not_created(log_dir: Path) -> None:
    """A missing path may be misspelt, as for `logfs create`. A first partition makes an empty directory a store."""
    for ask in (
        lambda: commit_client.commit(log_dir, "q", 0, []),
        lambda: commit_client.create(log_dir, ["a-0"]),
    ):
        with pytest.raises(InvalidStore, match="does not exist"):
            ask()
    log_dir.mkdir()
    with pytest.raises(InvalidStore, match="holds no partitions"):
        commit_client.commit(log_dir, "q", 0, [])
    assert not list(log_dir.iterdir())
    commit_client.create(log_dir, ["a-0"])
    with Store(log_dir, read_only=True) as store:
        assert list(store) == ["a-0"]


def test_a_mount_refuses_invalid_commits_with_the_reason(mount: Mount) -> None:
    """A refused commit is the same error as without a mount.

    A process that writes the file itself gets an errno, and `.logfs/errors` gets a line.
    """
    log_dir = mount.log_dirs[0]
    mount.partition("a-0")
    (mount.path / "a-0/config/cleanup.policy").write_text("compact")
    staged = put(log_dir, "q", 0, {"a-0": [b"no key"]})
    with pytest.raises(InvalidRecord, match="needs a key"):
        commit_client.commit(log_dir, "q", 0, staged)
    with pytest.raises(UnknownPartition):
        commit_client.commit(log_dir, "q", 0, [StagedFile("d-0", "x", 1, 1)])
    with pytest.raises(OSError, match="Invalid argument"):
        (mount.path / ".logfs/admin").write_bytes(b'{"operation":"commit"}\n')
    assert "not an administrative request" in mount.errors()
    (log_dir / "outside.staged").write_bytes((log_dir / "a-0" / staged[0].name).read_bytes())
    wrong = (f"{0:020}.log", "\0.staged", "\ud800.staged", "\udcff.staged", "\n.staged")
    for name in ("../outside.staged", str(log_dir / "outside.staged"), *wrong):
        with pytest.raises(InvalidRecord, match="is not the name of a staged file"):
            commit_client.commit(log_dir, "q", 0, [replace(staged[0], name=name)])
        client.ask(mount.path, Discard((replace(staged[0], name=name),)))
    (log_dir / "outside.staged").unlink()
    with pytest.raises(InvalidRecord, match="does not fit in"):
        commit_client.commit(log_dir, "q", 2**64, [])
    for file in (["a-0", "x.staged", "1", 1], ["a-0", 1, 1, 1], ["a-0", "x.staged", 2**64, 1]):
        staged_file = dict(
            zip(("partition", "name", "size_bytes", "record_count"), file, strict=True)
        )
        request = {"operation": "commit", "writer": "q", "sequence": 1, "staged": [staged_file]}
        with pytest.raises(OSError, match="Invalid argument"):
            (mount.path / ".logfs/admin").write_bytes(json.dumps(request).encode() + b"\n")
    assert "internal error" not in mount.errors()
    # A large request arrives in many writes.
    many = [StagedFile("d-0", f"{number:0100}", 1, 1) for number in range(20_000)]
    with pytest.raises(UnknownPartition):
        commit_client.commit(log_dir, "q", 0, many)


def test_mounts_come_and_go_between_commits(make_mount: Callable[..., Mount]) -> None:
    """Each commit is made once while the mount is stopped, killed and mounted again."""
    mount = make_mount()
    mount.partition("a-0")
    log_dir = mount.log_dirs[0]
    failures: list[BaseException] = []
    wanted = [b"%d" % number for number in range(40)]

    def send() -> None:
        try:
            for number, value in enumerate(wanted):
                commit_client.commit(
                    log_dir, "q", number, put(log_dir, "q", number, {"a-0": [value]})
                )
        except BaseException as error:
            failures.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(3):
        mount.kill() if number % 2 else mount.stop()
        if number % 2:
            # A dead mount stays, and so does its announcement in the log directory.
            assert (log_dir / MOUNT_FILE).exists()
        _restart(mount, sender)
    sender.join(100)
    assert not sender.is_alive()
    assert not failures
    mount.stop()
    assert read(log_dir, "a-0") == wanted


def test_an_answer_counts_if_the_mount_goes_away_after_it(
    make_mount: Callable[..., Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was answered is made, even if the daemon is killed before its client closes the file."""
    mount = make_mount()
    mount.partition("a-0")
    log_dir = mount.log_dirs[0]
    answer_of = client._answer

    def answer_and_kill(*words: Any) -> object:
        answer = answer_of(*words)
        mount.kill()
        return answer

    monkeypatch.setattr(client, "_answer", answer_and_kill)
    done = commit_client.commit(log_dir, "q", 0, put(log_dir, "q", 0, {"a-0": [b"x"]}))
    assert done.offsets == {"a-0": (0, 1)}
    mount.start()
    mount.stop()
    assert read(log_dir, "a-0") == [b"x"]


def _restart(mount: Mount, sender: threading.Thread) -> None:
    """Mount again; retry while `sender` commits, because a commit without a mount has the lock."""
    while True:
        has_lock = sender.is_alive()
        try:
            mount.start()
            return
        except AssertionError:
            assert has_lock
            assert "in use by" in mount.log.read_text()
            mount.stop()


HOLD = """
import sys
from logfs.store.store import Store
with Store(sys.argv[1], create=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_that_holds_the_directory_is_named(log_dir: Path) -> None:
    """The client waits; then the error names the other process, and says what to do."""
    with Store(log_dir) as store:
        store.create("a-0")
    (log_dir / MOUNT_FILE).write_text('{"pid": 1, "mountpoint": "/"}')
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(log_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        staged = put(log_dir, "q", 0, {"a-0": [b"x"]})
        with pytest.raises(StoreLocked, match=f"process {other.pid} .*stop it, or open"):
            commit_client.commit(log_dir, "q", 0, staged, seconds=0.1)
        other.communicate()
    assert not commit_client.commit(log_dir, "q", 0, staged).already
    (log_dir / MOUNT_FILE).unlink()
