"""The audit of batches by compiled loops, compared with their audit by columns."""

from __future__ import annotations

import random
import re
import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from logfs.format.batches.batch import HEADER_SIZE, Batch, seal
from logfs.format.batches.compression import Codec, compress
from logfs.format.batches.record import Record, encode_record
from logfs.log.audit import Severity
from logfs.log.segment import batch_scanner
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stores import Clock

NAME = "orders-0"
CODECS = ["producer", "lz4", "gzip", "producer"]


def positions_in(data: bytes) -> list[int]:
    """Return the position of each batch."""
    positions, at = [], 0
    while at < len(data):
        positions.append(at)
        at += Batch.parse(data, at).header.size_bytes
    return positions


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return a log with a changed byte in one batch, behind the offset of the batch; its CRC is made right again."""
    at = rng.choice(positions_in(data))
    size = Batch.parse(data, at).header.size_bytes
    changed = bytearray(data)
    # The third is the offset of the first record, in a batch that is not compressed.
    anywhere = rng.randrange(23, HEADER_SIZE), rng.randrange(HEADER_SIZE, size)
    where = rng.choice([*anywhere, HEADER_SIZE + 3])
    changed[at + where] ^= 1 << rng.randrange(8)
    struct.pack_into(">I", changed, at + 17, crc32c(bytes(changed[at + 21 : at + size])))
    return bytes(changed)


def test_the_audit_finds_the_same_with_and_without_columns(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches whose CRC is right but whose bytes are not have the same findings both ways."""
    rng = random.Random(11)
    path = tmp_path / "store"
    with Store(path, clock=clock) as store:
        orders = store.create(NAME)
        for number in range(16):
            kind = "LogAppendTime" if number == 9 else "CreateTime"
            set_topic(
                store,
                "orders",
                compression_type=CODECS[number % 4],
                index_interval_bytes=0,
                message_timestamp_type=kind,
            )
            orders.append([Record(b"v%d" % n, b"k" * (n % 3), (), n) for n in range(number + 1)])
    log = path / NAME / f"{0:020}.log"
    whole = log.read_bytes()
    seen: list[str] = []
    for _ in range(120):
        log.write_bytes(damaged(whole, rng))
        found = [str(finding) for finding in check(path)]
        with monkeypatch.context() as patch:
            patch.setattr(batch_scanner.ScannedBatches, "measure_plainly", lambda _: None)
            assert [str(finding) for finding in check(path)] == found
        seen += found
    for text in ("its records lie outside its offsets", "does not fit its record", "malformed"):
        assert any(text in each for each in seen), text
    told = re.findall(r"batch -?\d+ at byte (-?\d+)", "\n".join(seen))
    assert {int(at) for at in told} <= {*positions_in(whole)}
    assert len(set(told)) > 5


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("deltas", [(1, 1, 2), (2, 1, 0), (0, 0, 0), (0, 2, 2)])
def test_offsets_that_do_not_rise_are_found(
    tmp_path: Path, clock: Clock, deltas: tuple[int, ...], codec: Codec
) -> None:
    """A batch whose records have repeated or falling offsets is an error, although its CRC is right."""
    path = tmp_path / "store"
    with Store(path, clock=clock) as store:
        orders = store.create(NAME)
        for _ in range(3):
            orders.append([b"a", b"b", b"c"])
    log = path / NAME / f"{0:020}.log"
    good = log.read_bytes()
    size = Batch.parse(good).header.size_bytes
    records = b"".join(
        encode_record(Record(b"v"), offset_delta=delta, timestamp_delta=0) for delta in deltas
    )
    odd = bytearray(HEADER_SIZE) + compress(codec, records)
    seal(
        odd,
        attributes=codec,
        base_offset=3,
        last_offset_delta=2,
        base_timestamp=0,
        max_timestamp=0,
        record_count=3,
        leader_epoch=0,
    )
    log.write_bytes(good[:size] + odd + good[2 * size :])
    Store(path, clock=clock, recover=True).close()
    errors = [str(finding) for finding in check(path) if finding.severity is Severity.ERROR]
    assert len(errors) == 1
    assert "batch 3" in errors[0]
    assert "do not rise" in errors[0]


def test_bytes_before_the_first_batch_are_an_error(tmp_path: Path, clock: Clock) -> None:
    """Bytes without a batch at the log start are reported, although no offset is missing."""
    path = tmp_path / "store"
    with Store(path, clock=clock) as store:
        store.create(NAME).append([b"a", b"b"])
    log = path / NAME / f"{0:020}.log"
    log.write_bytes(b"A" * 17 + log.read_bytes())
    errors = [str(finding) for finding in check(path) if finding.severity is Severity.ERROR]
    assert any("damage before offset 0" in each for each in errors)


@pytest.mark.parametrize("step", [2, 3, 7])
def test_the_offset_index_of_a_follower_is_right(tmp_path: Path, clock: Clock, step: int) -> None:
    """An entry for several batches has the position of the first and the last offset of the last one."""
    path = tmp_path / "store"
    with Store(path, clock=clock) as store:
        orders = store.create(NAME)
        for _ in range(60):
            orders.append([b"x" * 50] * 3)
        orders.roll(clock.now_ms)
        headers = [batch.header for batch in orders.batches(0)]
    positions, at = [], 0
    for header in headers:
        positions.append(at)
        at += header.size_bytes
    entries = [
        (headers[first + step - 1].last_offset, positions[first])
        for first in range(step, len(headers) - step, step)
    ]
    index = path / NAME / "00000000000000000000.index"

    def findings() -> list[str]:
        index.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
        found = check([path])
        return [str(each) for each in found if each.severity is Severity.ERROR]

    assert findings() == []
    offset, position = entries[2]
    for wrong in ((offset + 1, position), (offset, position + 1)):
        entries[2] = wrong
        found = findings()
        assert any("no batch with last offset" in each for each in found), (wrong, found)


@pytest.mark.parametrize("start", [0, 2, 3])
def test_a_transaction_from_the_log_start_on_needs_its_index_entry(
    tmp_path: Path, clock: Clock, start: int
) -> None:
    """One that began below the log start does not: recovery may have seen only a part of it."""
    path = tmp_path / "store"
    with Store(path, clock=clock) as store:
        orders = store.create(NAME)
        orders.append([b"before"] * 2)
        producer = Producer(orders, 7)
        producer.send("a")
        producer.send("b")
        producer.end(commit=False)
        orders.roll(clock.now_ms)
        orders.advance_log_start(start)
        store.checkpoints.write()
    (index,) = path.glob("*/*.txnindex")
    index.write_bytes(b"")
    errors = [str(finding) for finding in check(path) if finding.severity is Severity.ERROR]
    assert ["aborted at offset 4" in each for each in errors] == [True] * (start <= 2)


def test_a_transaction_after_one_that_began_below_the_log_start_needs_its_index_entry(
    tmp_path: Path, clock: Clock
) -> None:
    """The audit misses no entry because an earlier transaction of the same producer began below the log start."""
    path = tmp_path / "store"
    with Store(path, clock=clock) as store:
        orders = store.create(NAME)
        producer = Producer(orders, 7)
        orders.append([b"before"] * 5)
        producer.send("a")
        orders.roll(clock.now_ms)
        orders.append([b"between"] * 5)
        producer.end(commit=False)
        producer.send("b")
        producer.end(commit=False)
        orders.roll(clock.now_ms)
        orders.advance_log_start(8)
        store.checkpoints.write()
    (index,) = path.glob("*/*.txnindex")
    data = index.read_bytes()
    index.write_bytes(data[: len(data) // 2])
    errors = [str(finding) for finding in check(path) if finding.severity is Severity.ERROR]
    assert ["aborted at offset 13" in each for each in errors] == [True]
