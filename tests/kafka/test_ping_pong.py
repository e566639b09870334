"""A broker and logfs append to one directory in turn. Each ends cleanly or by SIGKILL before the other starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from logfs.errors import OutOfOrderSequence
from logfs.format.batches.batch import assign_offset
from logfs.format.batches.record import Record
from logfs.format.kernel_warmup import warm_up
from logfs.store.store import Store
from tests.kafka import wire
from tests.kafka.client import COMMITTED
from tests.kafka.story import batch
from tests.support.requirements import DEEP
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.tools import Tools

pytestmark = pytest.mark.campaign

TOPIC = "pong"
NAME = f"{TOPIC}-0"
# (the broker is killed, logfs is killed), for each round.
ROUNDS = [(False, False), (False, True), (True, False), (True, True)]
if DEEP:
    ROUNDS.append((False, False))
# Producers that are unknown to the broker's coordinator: one appends on both sides, the others only in logfs.
SHARED, COMMITTER, ABORTER, LINGERER = range(900_000, 900_004)


@dataclass
class Log:
    """The expected contents of the log."""

    values: dict[int, bytes] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    # The first offsets of open transactions.
    pending: dict[str, int] = field(default_factory=dict)
    # The last batch of the shared producer with its base offset, and the next sequence number.
    last: tuple[bytes, int] = (b"", -1)
    sequence: int = 0

    def add(self, offset: int, *values: bytes) -> int:
        """Add appended records after all others, and return their first offset."""
        assert offset > max(self.values, default=-1), "an offset was given twice"
        self.values.update(enumerate(values, offset))
        return offset

    def committed(self) -> dict[int, bytes]:
        """Return the values by offset that read_committed shows."""
        stable = min(self.pending.values(), default=1 << 62)
        return {o: v for o, v in self.values.items() if o < stable and o not in self.aborted}


def shared_batch(log: Log, *values: bytes, gap: int = 0) -> bytes:
    """Return the next batch of the shared producer; with a `gap` its sequence does not follow."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(value, timestamp=now_ms) for value in values]
    return batch(records, producer=SHARED, epoch=0, sequence=log.sequence + gap)


def brokers_turn(broker: Broker, client: Client, log: Log, number: int) -> None:
    """Check in the broker that all records exist and the shared producer is known, and append more of each kind."""
    seen = {record.offset: record.value for record in client.consume(TOPIC)}
    assert seen == log.values
    if log.sequence:
        assert wire.produce(broker.servers, TOPIC, log.last[0]) == (0, log.last[1])
        error, _ = wire.produce(broker.servers, TOPIC, shared_batch(log, b"later", gap=1))
        assert error == wire.OUT_OF_ORDER_SEQUENCE
    # The previous producer with this transactional id is fenced, and its open transaction is aborted.
    left = client.producer(transactional_id="left")
    ours = client.producer(transactional_id="ours")
    for name in ("left", "ours"):
        if name in log.pending:
            log.aborted.add(log.pending.pop(name))
    ours.close()
    shown = {r.offset: r.value for r in client.consume(TOPIC, isolation=COMMITTED)}
    assert shown == log.committed()
    for idempotent in (False, True):
        value = b"broker %d %d" % (number, idempotent)
        (sent,) = client.produce(TOPIC, [Record(value)], enable_idempotence=idempotent)
        log.add(sent.offset, value)
    data = shared_batch(log, b"shared", b"broker %d" % number)
    error, offset = wire.produce(broker.servers, TOPIC, data)
    assert error == 0
    note_shared(log, data, offset, b"shared", b"broker %d" % number)
    with client.producer(transactional_id="ended") as ended:
        for end in (ended.abort, ended.commit):
            ended.begin()
            (sent,) = ended.send(TOPIC, [Record(b"broker's transaction")])
            log.add(sent.offset, b"broker's transaction")
            if end == ended.abort:
                log.aborted.add(sent.offset)
            end()
    left.begin()
    (sent,) = left.send(TOPIC, [Record(b"left open")])
    log.pending["left"] = log.add(sent.offset, b"left open")
    left.close(abandon=True)


def note_shared(log: Log, data: bytes, offset: int, *values: bytes) -> None:
    """Note an appended batch of the shared producer."""
    log.last = (data, log.add(offset, *values))
    log.sequence += len(values)


def our_turn(directory: Path, log: Log, number: int, *, clean: bool) -> Store:
    """Check and append the same in logfs, which recovers if and only if the broker was killed."""
    store = Store(directory)
    assert store.log_dirs[0].clean == clean
    assert not store.offline
    partition = store[NAME]
    assert {r.offset: r.value for r in partition.read()} == log.values
    assert {r.offset: r.value for r in partition.committed.read()} == log.committed()
    for data, offset in [log.last, last_of_a_client(partition)]:
        again = partition.append_batch(data)
        assert (again.duplicate, again.first_offset) == (True, offset)
    with pytest.raises(OutOfOrderSequence):
        partition.append_batch(shared_batch(log, b"later", gap=1))
    values = [b"logfs %d %d" % (number, count) for count in range(3)]
    log.add(partition.append(values), *values)
    if number % 2:
        partition.roll(store.clock())
    data = shared_batch(log, *values)
    note_shared(log, data, partition.append_batch(data).first_offset, *values)
    our_transactions(partition, log, number)
    our_coordinator(store, log, number)
    return store


def our_transactions(partition: Partition, log: Log, number: int) -> None:
    """Commit one transaction, abort one, and leave one open for the next round."""
    offsets = {}
    if number:
        partition.end_transaction(LINGERER, 0, commit=bool(number % 2))
        at = log.pending.pop("lingering")
        if not number % 2:
            log.aborted.add(at)
    for producer in (COMMITTER, ABORTER, LINGERER):
        value = b"logfs %d of %d" % (number, producer)
        records = [Record(value, timestamp=time.time_ns() // 1_000_000)]
        data = batch(records, producer=producer, epoch=0, sequence=number, transactional=True)
        offsets[producer] = log.add(partition.append_batch(data).first_offset, value)
    partition.end_transaction(ABORTER, 0, commit=False)
    partition.end_transaction(COMMITTER, 0, commit=True)
    log.aborted.add(offsets[ABORTER])
    log.pending["lingering"] = offsets[LINGERER]


def our_coordinator(store: Store, log: Log, number: int) -> None:
    """Commit or abort transactions of an id that the broker's client also uses, and leave one of another id open."""
    for name in ("ended", "ended", "ours"):
        transaction = store.transactions.begin(name)
        value = b"logfs %d of id %s" % (number, name.encode())
        offset = log.add(transaction.append(NAME, [value]), value)
        if name == "ours":
            log.pending[name] = offset
        elif offset % 2:
            transaction.commit()
        else:
            transaction.abort()
            log.aborted.add(offset)


def last_of_a_client(partition: Partition) -> tuple[bytes, int]:
    """Return the last batch of a producer with an id from the broker, as it was sent, and its base offset."""
    found = (b"", -1)
    for segment in partition.segments:
        for item in segment.walk():
            assert isinstance(item, tuple)
            header = item[1].header
            if 0 <= header.producer_id < SHARED and not header.is_control:
                data = bytearray(item[1].data)
                assign_offset(data, 0, -1)
                found = (bytes(data), header.base_offset)
    return found


def in_a_child(turn: Callable[[], Store], log: Log) -> Log:
    """Take a turn in a child process that is then killed, and return the expected contents of the log."""
    context = multiprocessing.get_context("fork")
    ours, childs = context.Pipe(duplex=False)

    def run() -> None:
        store = turn()
        childs.send(log)
        assert not store.read_only, "open until the end"
        os.kill(os.getpid(), signal.SIGKILL)

    process = context.Process(target=run)
    process.start()
    childs.close()
    told = ours.recv()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert isinstance(told, Log)
    return told


def audit(directory: Path, tools: Tools, *, clean: bool) -> None:
    """Assert that logfs finds no error in any partition, and Kafka's tool none in the logs and the closed indexes."""
    assert_clean(directory)
    logs = sorted((directory / NAME).glob("*.log"))
    stems = [path.with_suffix("") for path in (logs if clean else logs[:-1])]
    indexes = [stem.with_suffix(suffix) for stem in stems for suffix in (".index", ".timeindex")]
    for options in ("--index-sanity-check", "--verify-index-only"):
        if indexes:
            done = tools.dump(*indexes, options=options)
            assert (done.code, done.err) == (0, "")
            assert "Mismatches in" not in done.out
    dumped = tools.dump(*logs)
    assert "isvalid: false" not in dumped.out
    assert "invalid bytes" not in dumped.out


def test_rounds(
    make_broker: Callable[..., Broker], connect: Callable[[Broker], Client], tools: Tools
) -> None:
    """No record is lost, no offset is used twice, and each side knows the producers of the other."""
    # Before the fork, so that no child process has to do it.
    warm_up()
    broker = make_broker()
    client = connect(broker)
    # Many index entries, and a new segment in each turn, because the previous turn was seconds ago.
    client.create_topic(TOPIC, retention_ms=-1, segment_ms=500, index_interval_bytes=100)
    log = Log()
    for number, (broker_is_killed, we_are_killed) in enumerate(ROUNDS):
        brokers_turn(broker, client, log, number)
        (broker.kill if broker_is_killed else broker.stop)()
        audit(broker.log_dir, tools, clean=not broker_is_killed)

        turn = partial(our_turn, broker.log_dir, log, number, clean=not broker_is_killed)
        if we_are_killed:
            log = in_a_child(turn, log)
        else:
            turn().close()
        audit(broker.log_dir, tools, clean=not we_are_killed)
        broker.start()
        said = broker.log()
        assert ("Skipping recovery of" in said) == (not we_are_killed)
        assert ("Recovering unflushed segment" in broker.log_of(NAME)) == we_are_killed
    brokers_turn(broker, client, log, len(ROUNDS))
    broker.stop()
    audit(broker.log_dir, tools, clean=True)
