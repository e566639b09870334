"""Reading commands print every good record of a damaged log once and in order, and name the damage."""

from __future__ import annotations

import base64
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

import orjson
import pytest
from crc32c import crc32c

from logfs.cli import main
from logfs.errors import Corrupt
from logfs.format.batches.batch import HEADER_SIZE, LENGTH_OVERHEAD
from logfs.format.batches.columns import Columns
from logfs.format.batches.compression import Codec
from logfs.format.text.rendering import View
from logfs.log.scan import scan_split
from logfs.log.segment import text_index_cache
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.batches import batch as producers_batch
from tests.support.legacy_encoder import Old, message, wrapper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.log.segment.batch_iterator import DamagedRange
    from tests.support.stores import Clock

NAME = "orders-0"
# The number of batches in a segment, and of records in a batch.
BATCHES, RECORDS = 8, 3
COUNT = 2 * BATCHES * RECORDS


def batches(data: bytes) -> list[bytes]:
    """Return the batches of a .log file, whose content is `data`."""
    found = []
    while data:
        size = LENGTH_OVERHEAD + int.from_bytes(data[8:12], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def garbled(batch: bytes) -> bytes:
    """Return a batch with a right checksum and records that cannot be read."""
    changed = bytearray(batch)
    changed[HEADER_SIZE:] = b"\x7f" * (len(batch) - HEADER_SIZE)
    changed[17:21] = crc32c(changed[21:]).to_bytes(4, "big")
    return bytes(changed)


def uncounted(batch: bytes) -> bytes:
    """Return a batch with a right checksum and a record count of 0."""
    changed = bytearray(batch)
    changed[57:61] = bytes(4)
    changed[17:21] = crc32c(changed[21:]).to_bytes(4, "big")
    return bytes(changed)


def moved(batch: bytes) -> bytes:
    """Return a valid batch of other offsets, and the end of the batch that it was written over."""
    offset = int.from_bytes(batch[:8], "big") + 3 * RECORDS
    return offset.to_bytes(8, "big") + batch[8:] + b"end"


# What replaces a batch, and whether the batch is still part of it.
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "one byte": (lambda batch: b"\xff" + batch, True),
    "junk": (lambda batch: b"junk" * 4 + batch, True),
    "zeros": (lambda batch: bytes(200) + batch, True),
    "its header before it": (lambda batch: batch[:50] + batch, True),
    "its beginning before it": (lambda batch: batch[:70] + batch, True),
    "nothing": (lambda batch: b"", False),
    "garbled records": (garbled, False),
    "uncounted records": (uncounted, False),
    "another batch": (moved, False),
    "twice": (lambda batch: batch + batch, True),
    "a wrong checksum": (lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]), False),
}
COMMANDS = {
    "cat": ["cat"],
    "envelopes": ["cat", "-J"],
    "format": ["cat", "-F", "%s\\n"],
    "tail": ["tail", "-n", "1000"],
}


@pytest.fixture
def log_dir(tmp_path: Path, clock: Clock) -> Path:
    """Two segments, whose text indexes have an entry for every second batch, so that a block has several batches."""
    path = tmp_path / "log"
    number = iter(range(COUNT))
    with Store(path, clock=clock) as store:
        store.settings.set_topic("orders", "index.interval.bytes", "150")
        partition = store.create(NAME)
        for _ in range(2):
            for _ in range(BATCHES):
                partition.append([b"value %d" % next(number) for _ in range(RECORDS)])
            partition.roll(clock())
    return path


@pytest.mark.drawn(25)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("place", [0, 3, BATCHES - 1])
@pytest.mark.parametrize("index", ["old", "none", "recovered"])
def test_every_good_record_is_printed_once(
    log_dir: Path, damage: str, place: int, index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every good record is printed in each form, whether the text index is older or newer than the damage."""
    make, is_there = DAMAGE[damage]
    path = log_dir / NAME / f"{0:020}.log"
    whole = batches(path.read_bytes())
    path.write_bytes(b"".join([*whole[:place], make(whole[place]), *whole[place + 1 :]]))
    if index == "none":
        path.with_suffix(".textindex").unlink()
    if index == "recovered":
        (log_dir / ".kafka_cleanshutdown").unlink()
        main(["recover", str(log_dir)])
    first = place * RECORDS
    lost = range(first, first) if is_there else range(first, first + RECORDS)
    wanted = [f"value {number}" for number in range(COUNT) if number not in lost]
    assert [f for f in check([log_dir]) if f.severity is Severity.ERROR] or not place
    capsys.readouterr()
    for form, words in COMMANDS.items():
        code = main([words[0], str(log_dir / NAME), *words[1:]])
        shown = capsys.readouterr()
        lines = shown.out.splitlines()
        if form == "envelopes":
            lines = [orjson.loads(line)["value"] for line in lines]
        assert lines == wanted, form
        # Junk before the first batch of the log is skipped, and has no offset to report.
        assert (code, "orders-0/" in shown.err) in (
            (1, True),
            *([(0, False)] if is_there else []),
        ), form
    for count in (1, RECORDS, COUNT // 2 + 1, COUNT - first, COUNT - first + 1, COUNT):
        for isolation in ("read_committed", "read_uncommitted"):
            main(["tail", "-n", str(count), str(log_dir / NAME), "--isolation", isolation])
            assert capsys.readouterr().out.splitlines() == wanted[-count:], (count, isolation)
    with Store(log_dir, read_only=True) as store:
        orders = store[NAME]
        split: list[Columns | DamagedRange] = []
        for piece in scan_split.plan(orders, 0, COUNT, split_bytes=200):
            split += scan_split.read(piece)
    of_pieces = [each for each in split if isinstance(each, Columns)]
    values = [record.value.decode() for each in of_pieces for record in each.records()]
    assert values == wanted
    assert len(of_pieces) < len(split) or is_there
    for number in range(COUNT):
        code = main(["cat", "-o", str(number), str(log_dir / NAME)])
        shown = capsys.readouterr()
        assert (code, shown.out) == ((1, "") if number in lost else (0, f"value {number}\n"))
        assert ("are damaged" in shown.err) == (number in lost)


@pytest.mark.parametrize("form", [[], ["-J"], ["-F", "%s\\n"]])
def test_bytes_after_a_sealed_segment_are_named(
    log_dir: Path, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Such bytes have no offsets, and are reported before the first record of the next segment."""
    path = log_dir / NAME / f"{0:020}.log"
    path.write_bytes(path.read_bytes() + b"\xa5" * 50)
    assert main(["cat", *form, str(log_dir / NAME)]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == COUNT
    assert f"damage before offset {COUNT // 2}" in shown.err


@pytest.mark.parametrize("form", [[], ["-J"], ["-F", "%s\\n"], ["--isolation", "read_committed"]])
@pytest.mark.parametrize("index", ["old", "recovered", "beside a writer"])
def test_a_damaged_control_batch_is_named(
    tmp_path: Path, form: list[str], index: str, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged marker hides no text, and a later marker of the producer decides what becomes of the records.

    Beside a writer, offsets may be missing, as after compaction, and other damage is still damage.
    """
    log_dir = tmp_path / "log"
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        for sequence in range(40):
            sent = producers_batch(1, sequence, b"%d" % sequence, transactional=True)
            orders.append_batch(sent)
            orders.end_transaction(1, 0, commit=True)
    path = log_dir / NAME / f"{0:020}.log"
    whole = batches(path.read_bytes())
    path.write_bytes(b"".join([*whole[:41], whole[41][:-1] + b"\xa5", *whole[42:]]))
    if index == "recovered":
        (log_dir / ".kafka_cleanshutdown").unlink()
        main(["recover", str(log_dir)])
        capsys.readouterr()
    with Store(log_dir, clock=clock) if index == "beside a writer" else nullcontext():
        assert main(["cat", *form, str(log_dir / NAME)]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 40
    assert "offsets 41 to 41 are damaged" in shown.err


def test_a_replica_may_lack_offsets_that_its_leader_compacted(
    log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A follower does not record its gaps: a lone batch between two gaps is no damage, and stays."""
    (log_dir / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    (log_dir / ".kafka_cleanshutdown").unlink()
    path = log_dir / NAME / f"{0:020}.log"
    whole = batches(path.read_bytes())
    path.write_bytes(b"".join(whole[::2]))
    for suffix in (".index", ".timeindex", ".textindex"):
        path.with_suffix(suffix).unlink()
    kept = [n for n in range(COUNT) if n >= COUNT // 2 or n // RECORDS % 2 == 0]
    for _ in range(2):
        assert [found for found in check([log_dir]) if found.severity is Severity.ERROR] == []
        capsys.readouterr()
        assert main(["cat", str(log_dir / NAME)]) == 0
        shown = capsys.readouterr()
        assert (shown.out.splitlines(), shown.err) == ([f"value {n}" for n in kept], "")
        with Store(log_dir) as store:
            assert [record.offset for record in store[NAME].read()] == kept


@pytest.mark.parametrize("gone", [1, 2, BATCHES // 2 - 1])
def test_damage_affects_no_batch_after_a_gap(
    log_dir: Path, gone: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where offsets are missing, a damaged batch proves nothing about the batch before it."""
    (log_dir / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    path = log_dir / NAME / f"{0:020}.log"
    left = batches(path.read_bytes())[::2]
    left[gone] = bytes(len(left[gone]))
    path.write_bytes(b"".join(left))
    for suffix in (".index", ".timeindex", ".textindex"):
        path.with_suffix(suffix).unlink()
    kept = [n for n in range(COUNT) if n >= COUNT // 2 or n // RECORDS % 2 == 0]
    wanted = [n for n in kept if n // RECORDS != 2 * gone]
    for words in (["cat"], ["cat", "-F", "%s\\n"], ["tail", "-n", "1000"]):
        assert main([words[0], str(log_dir / NAME), *words[1:]]) == 1
        assert capsys.readouterr().out.splitlines() == [f"value {n}" for n in wanted]
    for number in wanted:
        assert main(["cat", "-o", str(number), str(log_dir / NAME)]) == 0
        assert capsys.readouterr().out == f"value {number}\n"


@pytest.mark.parametrize("order", ["063481527", "014725368", "125036478", "025346817"])
def test_a_text_view_has_whole_lines_wherever_it_begins(
    log_dir: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a reading begins does not decide whether a valid message in a wrong order is accepted.

    Beside a writer, which may have compacted the log, offsets may be missing.
    """
    monkeypatch.setattr(text_index_cache, "SMALLEST_BYTES", 0)
    path = log_dir / NAME / f"{0:020}.log"
    olds = [Old(n, b"old %d" % n, None, 1_700_000_000_000 + n) for n in range(BATCHES * RECORDS)]
    singles = [message(1, old) for old in olds[:4]]
    wrappers = [wrapper(1, Codec.SNAPPY, olds[n : n + 4]) for n in range(4, len(olds), 4)]
    messages = [*singles, *wrappers]
    path.write_bytes(b"".join(messages))
    with Store(log_dir, recover=True) as store:
        text = store[NAME].text(View.ENVELOPES)
        known = {*text.read(0, text.size).split(b"\n")}
    with Store(log_dir), Store(log_dir, read_only=True) as store:
        path.write_bytes(b"".join([messages[int(n)] for n in order]))
        path.with_suffix(".textindex").unlink()
        for start in range(COUNT):
            try:
                text = store[NAME].text(View.ENVELOPES, start)
                found = text.read(0, text.size)
            except Corrupt:
                continue
            assert {*found.split(b"\n")} <= known


def test_partition_metadata_is_not_needed_to_read(
    log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readers ignore damaged or missing metadata: only a process that creates partitions needs the topic id."""
    path = log_dir / NAME / "partition.metadata"
    before = path.read_bytes()
    for data in (bytes(43), b"", before[:20]):
        path.write_bytes(data)
        assert main(["cat", str(log_dir / NAME)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == COUNT
    for make in (path.mkdir, lambda: path.symlink_to("nowhere"), lambda: os.mkfifo(path)):
        path.rmdir() if path.is_dir() else path.unlink()
        make()
        assert main(["cat", str(log_dir / NAME)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == COUNT
    path.unlink()
    path.write_bytes(before)


def test_dump_names_a_path_that_is_not_utf8(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A path that is not UTF-8 is printed as base64, like bytes in an envelope."""
    path = tmp_path / os.fsdecode(f"{0:020}.log".encode() + b"\xff")
    path.touch()
    assert main(["dump", "--json", str(path)]) == 1
    (file,) = capsysbinary.readouterr().out.splitlines()
    assert base64.b64decode(orjson.loads(file)["file"]["base64"]) == os.fsencode(path)
