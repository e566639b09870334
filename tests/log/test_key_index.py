"""The key index, for `keys/` and `newest`: the newest record of each key, whatever happens to the log or the file."""

from __future__ import annotations

import base64
import os
import random
import shutil
import struct
import tempfile
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.base.names import file_name
from logfs.format.batches.record import Record
from logfs.format.files import key_table_format
from logfs.format.files.key_table_format import HEADER_BYTES, SLOT_BYTES
from logfs.log.read import key_index, recent_keys
from logfs.log.read.read_committed import Isolation
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from logfs.store.maintenance.upkeep import update_key_indexes
from logfs.store.observe.check import Severity, check
from logfs.store.observe.status import store_status
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.command_line import call, ok
from tests.support.crashdisk import fast_directory
from tests.support.examples import examples
from tests.support.processes import Threads, run
from tests.support.stores import Clock, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.log.append.partition import Partition
    from logfs.log.read.reader import Reader
    from tests.support.mounts import Mount

NAME = "orders-0"
ODD_KEYS = [
    b"",
    b".",
    b"..",
    b".hidden",
    b"a/b",
    b"50%",
    b"%2F",
    b"nul\0nul",
    b"\xff\xfe not utf-8",
    "späť \N{SNOWMAN}".encode(),
    b"plain.json",
    b"new\nline",
    b" ",
    b"k" * 255,
]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the key index write its file for a log of any size."""
    monkeypatch.setattr(key_index, "SMALLEST_BYTES", 1)


def pairs(*keys: str, value: bytes | None = b"v") -> list[Record]:
    return [Record(value, key.encode()) for key in keys]


def offset_of(reader: Reader, key: bytes) -> int | None:
    record = reader.newest(key)
    return None if record is None else record.offset


def map_file(partition: Partition) -> Path:
    return partition.directory / names.KEY_INDEX


# Lookups.


def test_the_newest_record_of_a_key(store: Store) -> None:
    """A lookup gives the last record of a key, as a dict does; a null value deletes the key, a null key is no key."""
    log = store.create(NAME)
    log.append(pairs("a", "b", "a"))
    assert offset_of(log, b"a") == 2
    assert offset_of(log, b"b") == 1
    assert log.newest(b"c") is None
    log.append([Record(None, b"a"), Record(b"no key")])
    assert log.newest(b"a") is None
    log.append(pairs("a"))
    found = log.newest(b"a")
    assert found is not None
    assert (found.offset, found.key, found.value) == (5, b"a", b"v")


def test_keys_of_every_kind(store: Store) -> None:
    """Any bytes are a key."""
    log = store.create(NAME)
    log.append([Record(b"%d" % n, key) for n, key in enumerate(ODD_KEYS)])
    assert [offset_of(log, key) for key in ODD_KEYS] == list(range(len(ODD_KEYS)))


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_compressed_batches(store: Store, codec: str) -> None:
    store.settings.set_topic("orders", "compression.type", codec)
    log = store.create(NAME)
    log.append(pairs(*(f"k{n % 10}" for n in range(95))))
    assert offset_of(log, b"k7") == 87


def test_keys_below_the_log_start_are_not_found(store: Store) -> None:
    """A key whose newest record lies below the log start offset has no record."""
    log = store.create(NAME)
    log.append(pairs("a", "b", "c"))
    assert offset_of(log, b"a") == 0
    store.delete_records(NAME, 2)
    assert log.newest(b"a") is None
    assert offset_of(log, b"c") == 2


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("isolation", list(Isolation))
def test_transactions(store: Store, isolation: Isolation) -> None:
    """Only read_uncommitted finds records of aborted and open transactions, and no lookup finds a marker."""
    log = store.create(NAME)
    reader = log.isolated(isolation)
    log.append(pairs("a", "b", "c"))
    assert offset_of(reader, b"a") == 0
    aborted, committed = Producer(log, 1), Producer(log, 2)
    aborted.send("a")
    aborted.end(commit=False)
    committed.send("b")
    is_all = isolation is Isolation.READ_UNCOMMITTED
    assert offset_of(reader, b"a") == (3 if is_all else 0)
    assert offset_of(reader, b"b") == (5 if is_all else 1)
    committed.end(commit=True)
    assert offset_of(reader, b"b") == 5
    assert offset_of(reader, b"a") == (3 if is_all else 0)
    assert reader.newest(struct.pack(">HH", 0, 1)) is None


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("isolation", list(Isolation))
def test_compaction_removes_the_null_of_an_aborted_transaction(
    store: Store, isolation: Isolation
) -> None:
    """Then the key has its older value again, also for a store that had found the null."""
    set_topic(store, "orders", cleanup_policy="compact")
    log = store.create(NAME)
    reader = log.isolated(isolation)
    log.append(pairs("a", "b", "c"))
    log.append(pairs("b", value=None))
    producer = Producer(log, 1)
    producer.send_records(pairs("a", "c", value=None))
    is_all = isolation is Isolation.READ_UNCOMMITTED
    assert offset_of(reader, b"a") == (None if is_all else 0)
    producer.end(commit=False)
    assert offset_of(reader, b"c") == (None if is_all else 2)
    store.compact(NAME, roll=True)
    assert [record.offset for record in log.read()] == [0, 2, 3]
    assert [offset_of(reader, key) for key in (b"a", b"b", b"c")] == [0, None, 2]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("isolation", list(Isolation))
def test_the_audit_accepts_what_compaction_removes_of_transactions(
    log_dir: Path, isolation: Isolation
) -> None:
    """A saved index may name a record of an aborted transaction, which compaction then removes."""
    with Store(log_dir) as store:
        set_topic(store, "orders", cleanup_policy="compact")
        log = store.create(NAME)
        log.append(pairs("a", "b"))
        producer = Producer(log, 1)
        producer.send_records(pairs("a", "c"))
        producer.end(commit=False)
        log.append(pairs("d"))
        log.roll(1)
        log.append(pairs("e"))
        assert offset_of(log.isolated(isolation), b"d") == 5
        store.compact(NAME)
        assert [record.offset for record in log.read()] == [0, 1, 5, 6]
        log.append(pairs("f"))
    assert not list(check(log_dir))
    with Store(log_dir) as store:
        assert offset_of(store[NAME].isolated(isolation), b"a") == 0
    assert not list(check(log_dir))


def test_a_damaged_transaction_index(store: Store, log_dir: Path) -> None:
    """Beside a writer, a read_committed lookup raises `Corrupt`, and a read_uncommitted one finds its key."""
    log = store.create(NAME)
    producer = Producer(log, 1)
    producer.send("a")
    producer.end(commit=False)
    log.append(pairs("b"))
    log.roll(1)
    path = log_dir / NAME / f"{0:020}.txnindex"
    whole = path.read_bytes()
    path.write_bytes(b"\x7f" + whole[1:])
    with Store(log_dir, read_only=True) as beside:
        assert offset_of(beside[NAME], b"b") == 2
        for _ in range(2):
            with pytest.raises(Corrupt):
                offset_of(beside[NAME].committed, b"b")
    path.write_bytes(whole)
    with Store(log_dir, read_only=True) as beside:
        assert offset_of(beside[NAME].committed, b"b") == 2


# The file.


@pytest.mark.usefixtures("_small")
def test_the_file_is_used_at_the_next_opening(log_dir: Path) -> None:
    """The part of the log that the file covers is not read again; later records are found as well."""
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append(pairs(*map(str, range(5000))))
        assert offset_of(log, b"77") == 77
        written = map_file(log).stat()
    with Store(log_dir) as store:
        log = store[NAME]
        seen: list[int] = []
        log.keys.on_progress = lambda done, total: seen.append(total)
        log.append(pairs("new"))
        assert offset_of(log, b"77") == 77
        assert offset_of(log, b"new") == 5000
        assert not seen
        assert map_file(log).stat().st_ino == written.st_ino


@pytest.mark.parametrize("name", [names.KEY_INDEX, names.COMMITTED_KEY_INDEX])
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_a_crash_left_unfinished_is_removed_at_opening(
    log_dir: Path, name: str, clean: bool
) -> None:
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append(pairs("a"))
    left = log_dir / NAME / f"{name}.tmp"
    left.write_bytes(b"half of it")
    if not clean:
        (log_dir / CLEAN_SHUTDOWN).unlink()
    with Store(log_dir) as store:
        assert not left.exists()
        assert offset_of(store[NAME], b"a") == 0


def test_no_index_is_made_without_a_lookup(log_dir: Path) -> None:
    """Without a lookup there is no index, and for a small log no file is written after one either."""
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append(pairs("a"))
        update_key_indexes(store.registry)
        assert not list(log.key_indexes())
        assert offset_of(log, b"a") == 0
        assert not map_file(log).exists()


def spoil_header(path: Path) -> None:
    _flip(path, 20)


def spoil_version(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack(">I", 99)
    path.write_bytes(data)


def spoil_slots(path: Path) -> None:
    data = bytearray(path.read_bytes())
    end = len(data) - 4 * ((len(data) - HEADER_BYTES) // (512 * SLOT_BYTES))
    data[HEADER_BYTES:end] = bytes(end - HEADER_BYTES)
    path.write_bytes(data)


def spoil_checksums(path: Path) -> None:
    _flip(path, path.stat().st_size - 1)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    "spoil", [spoil_header, spoil_version, spoil_slots, spoil_checksums, cut, empty, Path.unlink]
)
def test_a_damaged_file_is_rebuilt(log_dir: Path, spoil: Callable[[Path], None]) -> None:
    """A damaged or missing file, or one of another version, is rebuilt; the audit notes it, and lookups are right."""
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append(pairs(*map(str, range(100))))
        assert offset_of(log, b"7") == 7
        path = map_file(log)
    spoil(path)
    found = [finding for finding in check(log_dir) if finding.path == path]
    assert all(finding.severity is Severity.NOTE for finding in found)
    assert bool(found) == path.exists()
    with Store(log_dir) as store:
        log = store[NAME]
        assert [offset_of(log, b"%d" % n) for n in range(100)] == list(range(100))
        assert log.newest(b"100") is None
    assert not [finding for finding in check(log_dir) if finding.path == path]


@pytest.mark.usefixtures("_small")
def test_damage_is_found_while_the_index_is_in_use(store: Store) -> None:
    """Every lookup checks the block that it reads."""
    log = store.create(NAME)
    log.append(pairs(*map(str, range(100))))
    assert offset_of(log, b"7") == 7
    with map_file(log).open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(bytes(512 * SLOT_BYTES))
    assert [offset_of(log, b"%d" % n) for n in range(100)] == list(range(100))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("by", [1, -1000])
def test_an_index_with_wrong_offsets_is_detected(log_dir: Path, by: int) -> None:
    """Wrong offsets under valid checksums show in a lookup by the record, and in the audit by the whole log.

    An offset beyond the log end is not one whose record compaction has removed.
    """
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append(pairs(*map(str, range(100))))
        assert offset_of(log, b"7") == 7
        path = map_file(log)
    shift_offsets(path, by)
    assert [str(f) for f in check(log_dir) if f.severity is Severity.ERROR] == [
        f"error: {path}: does not agree with the log; run 'logfs reindex'"
    ]
    with Store(log_dir) as store:
        log = store[NAME]
        assert offset_of(log, b"7") == 7
    assert not list(check(log_dir))


def shift_offsets(path: Path, by: int) -> None:
    """Make every slot of a key index name an offset `by` before its own, with valid checksums."""
    data = path.read_bytes()
    header = key_table_format.parse_header(data, len(data))
    end = HEADER_BYTES + header.slots * SLOT_BYTES
    words = [*struct.iter_unpack("<QQQ", data[HEADER_BYTES:end])]
    slots = b"".join(
        struct.pack("<QQQ", a, b, max(word - by, 0) if word else 0) for a, b, word in words
    )
    crcs = key_table_format.format_crcs(slots)
    head = key_table_format.format_header(header, crcs)
    path.write_bytes(head + data[len(head) : HEADER_BYTES] + slots + crcs)


@pytest.mark.usefixtures("_small")
def test_a_file_of_another_log_is_not_used(log_dir: Path, tmp_path: Path) -> None:
    """A file is not used if the last batch that it covers is gone, as after a truncation and new appends."""
    clock = Clock()
    with Store(log_dir, clock=clock) as store:
        log = store.create(NAME)
        for key in ("a", "b", "c"):
            log.append(pairs(key))
        assert offset_of(log, b"c") == 2
        shutil.copy(map_file(log), tmp_path / "kept")
        store.truncate(NAME, 1)
        clock.now_ms += 1
        for key in ("b", "d", "e"):
            log.append(pairs(key))
    shutil.copy(tmp_path / "kept", log_dir / NAME / names.KEY_INDEX)
    with Store(log_dir) as store:
        log = store[NAME]
        assert [offset_of(log, key) for key in (b"a", b"b", b"c", b"d")] == [0, 1, None, 2]


@pytest.mark.usefixtures("_small")
def test_reindex_removes_the_file(log_dir: Path) -> None:
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append(pairs("a"))
        assert offset_of(log, b"a") == 0
        path = map_file(log)
    assert path.exists()
    ok("reindex", log_dir / NAME)
    assert not path.exists()


@pytest.mark.usefixtures("_small")
def test_the_index_is_in_memory_if_no_file_can_be_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk no file is written, and lookups succeed."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = store.create(NAME)
    log.append(pairs("a", "b"))
    monkeypatch.setattr(store.disk, "allocate", full)
    assert offset_of(log, b"b") == 1
    log.append(pairs("a"))
    assert offset_of(log, b"a") == 2
    assert [path.name for path in log.directory.glob("logfs*")] == []


@pytest.mark.usefixtures("_small")
def test_more_keys_than_the_memory_holds(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a log with very many keys is made in several steps."""
    monkeypatch.setattr(key_index, "MEMORY_KEYS", 3000)
    with Store(log_dir) as store:
        log = store.create(NAME)
        for first in range(0, 40_000, 5000):
            log.append(
                [Record(b"v" * 100, b"%d" % (n % 15_000)) for n in range(first, first + 5000)]
            )
        expected = {b"%d" % (n % 15_000): n for n in range(40_000)}
        assert {key: offset_of(log, key) for key in expected} == expected
        assert log.newest(b"15000") is None


@pytest.mark.usefixtures("_small")
def test_lookups_are_right_while_the_log_changes(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During appends, rolls and compaction a lookup gives no record older than the newest one when it began."""
    monkeypatch.setattr(key_index, "MEMORY_KEYS", 8)
    keys = [b"key %d" % number for number in range(60)]
    newest = dict.fromkeys(keys, -1)
    over = threading.Event()
    asked: Counter[int] = Counter()

    def ask(number: int) -> None:
        chosen = random.Random(number)
        while not over.is_set():
            key = chosen.choice(keys)
            least = newest[key]
            record = log.newest(key)
            assert (-1 if record is None else record.offset) >= least
            assert record is None or (record.key, record.value) == (key, b"of " + key)
            asked[number] += 1

    with Store(log_dir) as store:
        for setting in ("cleanup.policy=compact", "segment.bytes=4000", "file.delete.delay.ms=0"):
            store.settings.set_topic("orders", *setting.split("="))
        log = store.create(NAME)
        threads = Threads([])
        for number in range(4):
            threads.start(partial(ask, number))
        chosen = random.Random(4)
        try:
            while not threads.errors and (
                len(asked) < 4 or min(asked.values()) < 200 or not store.compactor.rounds
            ):
                for key in chosen.sample(keys, 20):
                    newest[key] = log.append([Record(b"of " + key, key)])
                if log.log_end_offset % 500 == 0:
                    store.compact(NAME, roll=True)
                    store.upkeep(compaction=False)
        finally:
            over.set()
            threads.join()
        assert not threads.errors, threads.errors[0]
        assert {key: offset_of(log, key) for key in keys} == newest


def test_the_status_reports_the_reading_of_keys(store: Store) -> None:
    """While a long log is read for its keys, status.json reports the progress."""
    log = store.create(NAME)
    for _ in range(5):
        log.append([Record(b"v" * 1000, b"%d" % n) for n in range(500)])
    seen: list[dict[str, Any]] = []
    log.keys.on_progress = lambda done, total: seen.extend(store_status(store)["background"])
    assert offset_of(log, b"7") == 2007
    assert (seen[-1]["what"], seen[-1]["name"]) == ("reading keys of", NAME)
    assert 0 < seen[-1]["done_bytes"] <= seen[-1]["total_bytes"]
    assert store_status(store)["background"] == []


def test_upkeep_updates_an_index_that_is_in_use(store: Store, clock: Clock) -> None:
    """Upkeep covers new records before the next lookup, but not after an hour without lookups."""
    log = store.create(NAME)
    log.append(pairs("a"))
    assert offset_of(log, b"a") == 0
    seen: list[int] = []
    log.keys.on_progress = lambda done, total: seen.append(total)
    many = [Record(b"v" * 1000, b"%d" % n) for n in range(500)]
    log.append(many)
    update_key_indexes(store.registry)
    assert len(seen) > 0
    seen.clear()
    assert offset_of(log, b"7") == 8
    update_key_indexes(store.registry)
    log.append(many)
    clock.now_ms += key_index.IDLE_MS
    update_key_indexes(store.registry)
    assert not seen
    assert offset_of(log, b"7") == 508
    assert seen


# The listing of keys.


def test_the_listing_is_of_the_end_of_the_log(store: Store) -> None:
    """The listing has the keys of the newest records, newest first, each once, without deleted keys."""
    log = store.create(NAME)
    for n in range(3000):
        log.append(pairs(f"old{n}", value=b"v" * 1000))
    log.append(pairs("a", "b", "c", "a"))
    log.append(pairs("b", value=None))
    found = recent_keys.recent_keys(log, 1000)
    assert found[:2] == [b"a", b"c"]
    assert found[2:] == [b"old%d" % n for n in range(2999, 2999 - len(found) + 2, -1)]
    assert recent_keys.TAIL_BYTES / 1100 < len(found) < recent_keys.TAIL_BYTES / 900
    assert recent_keys.recent_keys(log, 3) == found[:3]


# On a mount.


def envelope(key: str, value: str | None) -> bytes:
    return orjson.dumps({"key": key, "value": value}) + b"\n"


def put(orders: Path, *lines: bytes) -> None:
    with (orders / "append.jsonl").open("ab") as file:
        file.write(b"".join(lines))


def test_a_key_is_a_link(orders: Path) -> None:
    """A key is a symbolic link to its newest record, and cat reads the record through it.

    Right after an append by the same caller the link is always up to date.
    """
    link = orders / "keys/a"
    for number in range(20):
        put(orders, envelope("a", f"value {number}"))
        assert os.readlink(link) == f"../offsets/{number}"
        assert link.read_text() == f"value {number}"
        found = link.lstat()
        assert found.st_size == len(os.readlink(link))
    assert found.st_mtime == link.stat().st_mtime
    assert orjson.loads((orders / "keys/a.json").read_bytes())["offset"] == 19
    assert os.readlink(orders / "keys/a.json") == "../offsets/19.json"
    assert run("cat", link) == "value 19"
    with pytest.raises(PermissionError):
        link.unlink()


def test_a_deleted_key_does_not_exist(orders: Path) -> None:
    """`keys/` has no entry for a deleted key, a key that never existed, or a name that stands for no key."""
    put(orders, envelope("a", "1"), envelope("b", "2"), envelope("a%2F", "3"), envelope("c", None))
    gone = orders / "keys/b"
    assert gone.read_text() == "2"
    put(orders, envelope("b", None))
    for name in ("b", "c", "z", "%61", "a%2f", "a%2F", "a%", "%zz", "b.json", "z.json"):
        assert not os.path.lexists(orders / "keys" / name), name
    assert os.path.lexists(orders / "keys/a%252F")
    assert set(os.listdir(orders / "keys")) == {"a", "a%252F"}
    put(orders, envelope("b", "again"))
    assert gone.read_text() == "again"
    (orders / "log-start-offset").write_text("5")
    assert not os.path.lexists(orders / "keys/a")
    assert gone.read_text() == "again"


def test_odd_keys_have_names(orders: Path) -> None:
    """Each key has one name, which ls shows and open accepts; a key that is too long for a name has no entry."""
    for number, key in enumerate(ODD_KEYS):
        text = {"base64": base64.b64encode(key).decode()}
        put(orders, orjson.dumps({"key": text, "value": str(number)}) + b"\n")
    listed = os.listdir(orders / "keys")
    assert listed == [file_name(key, (".json",)) for key in reversed(ODD_KEYS)]
    for number, key in enumerate(ODD_KEYS):
        assert (orders / "keys" / file_name(key, (".json",))).read_text() == str(number)
    assert (orders / "keys/%").read_text() == "0"
    assert orjson.loads((orders / "keys/plain%2Ejson.json").read_bytes())["offset"] == 10
    assert not os.path.lexists(orders / "keys/plain.json")
    assert not os.path.lexists(os.fsencode(orders / "keys") + b"/\xff")
    put(orders, envelope("l" * 300, "long"))
    assert "l" * 300 not in os.listdir(orders / "keys")


def test_read_committed(make_mount: Callable[..., Mount], tmp_path: Path) -> None:
    """With -o isolation=read_committed a key never leads to a record of an aborted or open transaction."""
    log_dir = tmp_path / "log"
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append(pairs("a", "b"))
        producer = Producer(log, 1)
        producer.send("a")
        producer.end(commit=False)
        producer.send("b")
    mounts = {
        isolation: make_mount(
            "--read-only", "-o", f"isolation={isolation.value}", name=isolation.value
        )
        for isolation in Isolation
    }
    for isolation, targets in (
        (Isolation.READ_COMMITTED, ["../offsets/0", "../offsets/1"]),
        (Isolation.READ_UNCOMMITTED, ["../offsets/2", "../offsets/4"]),
    ):
        keys = mounts[isolation].path / NAME / "keys"
        assert [os.readlink(keys / key) for key in "ab"] == targets
        assert sorted(os.listdir(keys)) == ["a", "b"]


def test_segments_do_not_show_the_file(make_mount: Callable[..., Mount], tmp_path: Path) -> None:
    """A log of 20 MB has a key index file; `segments/` shows only the files that a broker would have."""
    with Store(tmp_path / "log") as store:
        log = store.create(NAME)
        for first in range(0, 20_000, 1000):
            log.append([Record(b"v" * 1000, b"%d" % n) for n in range(first, first + 1000)])
    mount = make_mount()
    assert os.readlink(mount.path / NAME / "keys/777") == "../offsets/777"
    assert (tmp_path / "log" / NAME / names.KEY_INDEX).exists()
    assert not [name for name in os.listdir(mount.path / NAME / "segments") if "keys" in name]


# Read-only, and on the command line.


@pytest.mark.usefixtures("_small")
def test_the_index_of_a_reader_follows_a_live_writer(log_dir: Path) -> None:
    """A reader's index follows appends, truncations, compactions and deletions of a writer, and writes no file."""
    clock = Clock()
    with Store(log_dir, clock=clock) as writer, Store(log_dir, read_only=True) as store:
        log = writer.create(NAME)
        writer.settings.set_topic("orders", "cleanup.policy", "compact,delete")
        for key in ("a", "b", "a"):
            log.append(pairs(key))
        store.refresh()
        assert offset_of(store[NAME], b"a") == 2
        log.append(pairs("b"))
        assert offset_of(store[NAME], b"b") == 3
        assert not map_file(log).exists()
        writer.truncate(NAME, 2)
        clock.now_ms += 1
        log.append(pairs("c"))
        log.append(pairs("d"))
        assert [offset_of(store[NAME], key) for key in (b"a", b"b", b"c", b"d")] == [0, 1, 2, 3]
        log.append(pairs("c"))
        writer.compact(NAME, roll=True)
        assert [offset_of(store[NAME], key) for key in (b"c", b"d")] == [4, 3]
        writer.delete(NAME)
        writer.create(NAME).append(pairs("d"))
        store.refresh()
        assert [offset_of(store[NAME], key) for key in (b"c", b"d")] == [None, 0]


@pytest.mark.usefixtures("_small")
def test_a_read_only_store_keeps_its_index_in_the_cache(log_dir: Path) -> None:
    """A read-only store writes nothing into the log directory; the next one uses the cached index."""
    with Store(log_dir) as store:
        store.create(NAME).append(pairs(*map(str, range(1000))))
    before = sorted(os.listdir(log_dir / NAME))
    for is_first in (True, False):
        with Store(log_dir, read_only=True) as store:
            log = store[NAME]
            seen: list[int] = []
            log.keys.on_progress = lambda done, total, seen=seen: seen.append(done)
            written = set(cache().glob("*")) if cache().exists() else set()
            assert offset_of(log, b"500") == 500
            assert bool(set(cache().glob("*")) - written) == is_first
    assert sorted(os.listdir(log_dir / NAME)) == before


@pytest.mark.usefixtures("_small")
def test_the_cache_of_read_only_stores_has_a_limit(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index that was used least recently makes room for a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = [f"orders-{number}" for number in range(3)]
    with Store(log_dir) as store:
        for name in names:
            store.create(name).append(pairs(*map(str, range(1000))))
    with Store(log_dir, read_only=True) as store:
        assert offset_of(store[names[0]], b"5") == 5
    (first,) = cache().glob("*")
    monkeypatch.setattr(key_index, "CACHE_BYTES", first.stat().st_size * 2)
    os.utime(first, (0, 0))
    with Store(log_dir, read_only=True) as store:
        for name in names[1:]:
            assert offset_of(store[name], b"5") == 5
    assert len([*cache().glob("*")]) == 2
    assert not first.exists()


def cache() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"], "logfs", "keys")


def test_cat_by_key(log_dir: Path) -> None:
    """`logfs cat --newest` prints the newest record of a key in any format; without one it fails with exit code 1."""
    with Store(log_dir) as store:
        log = store.create(NAME)
        log.append([Record(b"old", b"a"), Record(b"new", b"a"), Record(None, b"b")])
        log.append([Record(b"slash", b"a/b"), Record(b"bytes", b"\xff")])
    command = ["cat", log_dir / NAME]
    assert ok(*command, "--newest", "a") == "new\n"
    assert orjson.loads(ok(*command, "--json", "--newest", "a"))["offset"] == 1
    assert ok(*command, "--format", "%o %k=%s", "--newest", "a/b") == "3 a/b=slash"
    assert ok(*command, "--newest", os.fsdecode(b"\xff")) == "bytes\n"
    for key in ("b", "nobody"):
        done = call(*command, "--newest", key)
        assert (done.returncode, done.stdout) == (1, b"")
        assert (
            done.stderr.decode()
            == f"logfs: {NAME}: no record has the key '{key}', or its newest record is a tombstone\n"
        )


# Against a dict.


class KeyMachine(RuleBasedStateMachine):
    """Any order of operations on a log and on the index file; `records` maps offsets to the records that are left."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory(dir=fast_directory())
        self.log_dir = Path(self.root.name) / "log"
        self.clock = Clock()
        self.records: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.store = Store(self.log_dir, clock=self.clock)
        for name, value in (
            ("cleanup.policy", "compact,delete"),
            ("segment.bytes", "2000"),
            ("min.cleanable.dirty.ratio", "0.0"),
            ("delete.retention.ms", "0"),
            ("retention.ms", "-1"),
        ):
            self.store.settings.set_topic("orders", name, value)
        self.store.create(NAME)
        key_index.SMALLEST_BYTES = 500

    @property
    def log(self) -> Partition:
        return self.store[NAME]

    @rule(
        items=st.lists(
            st.tuples(st.integers(0, 9), st.none() | st.binary(max_size=30)),
            min_size=1,
            max_size=20,
        )
    )
    def append(self, items: list[tuple[int, bytes | None]]) -> None:
        made = [(b"k%d" % key, value) for key, value in items]
        first = self.log.append([Record(value, key) for key, value in made])
        self.records.update(enumerate(made, first))

    @rule(keys=st.lists(st.integers(0, 11), max_size=4))
    def ask(self, keys: list[int]) -> None:
        for key in keys:
            self.check(b"k%d" % key)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock())

    @rule()
    def compact(self) -> None:
        self.clock.now_ms += 10
        self.store.compact(NAME, roll=True)

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.store.delete_records(NAME, start + int((end - start) * share))
        self.store.retain()

    @rule(share=st.floats(0.5, 1))
    def truncate(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.store.truncate(NAME, start + int((end - start) * share))
        self.forget_truncated()

    @rule()
    def keep_up(self) -> None:
        update_key_indexes(self.store.registry)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.store.close()
        else:
            for home in self.store.log_dirs:
                home.close()
        self.store = Store(self.log_dir, clock=self.clock)
        self.forget_truncated()

    @precondition(lambda self: map_file(self.log).exists())
    @rule(place=st.floats(0, 1, exclude_max=True))
    def damage(self, place: float) -> None:
        size = map_file(self.log).stat().st_size
        _flip(map_file(self.log), int(size * place))
        self.reopen(clean=True)

    @invariant()
    def one_answer(self) -> None:
        self.check(b"k%d" % (self.log.log_end_offset % 12))

    def forget_truncated(self) -> None:
        # A later time, so that the same batch is not made twice. Records that compaction removed do not come back.
        self.clock.now_ms += 1
        left = {record.offset for record in self.log.read()}
        self.records = {n: record for n, record in self.records.items() if n in left}

    def check(self, key: bytes) -> None:
        newest = max((n for n, (known, _) in self.records.items() if known == key), default=None)
        found = self.log.newest(key)
        if newest is None or newest < self.log.log_start_offset or self.records[newest][1] is None:
            assert found is None
        else:
            assert found is not None
            assert (found.offset, found.value) == (newest, self.records[newest][1])

    def teardown(self) -> None:
        for number in range(12):
            self.check(b"k%d" % number)
        self.store.close()
        assert_clean(self.log_dir)
        key_index.SMALLEST_BYTES = _SMALLEST_BYTES
        self.root.cleanup()


_SMALLEST_BYTES = key_index.SMALLEST_BYTES
TestKeyMachine = KeyMachine.TestCase
TestKeyMachine.settings = settings(examples(0.4), stateful_step_count=30)


def test_a_lookup_beside_a_truncation(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is cut off between the search in the index and the read: the newest that is left is found."""
    log = store.create(NAME)
    log.append([Record(b"old", b"k")])
    log.append([Record(b"new", b"k")])
    find = key_index.KeyIndex._find

    def find_and_truncate(index: key_index.KeyIndex, key: bytes) -> tuple[int | None, int]:
        monkeypatch.undo()
        found = find(index, key)
        assert store.truncate(NAME, 1)
        return found

    monkeypatch.setattr(key_index.KeyIndex, "_find", find_and_truncate)
    found = log.newest(b"k")
    assert found is not None
    assert found.value == b"old"
