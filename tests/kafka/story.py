"""Random steps for a log: valid and invalid actions of producers, coordinators and administrators."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING

from logfs.format.batches.batch import HEADER_SIZE, increment_sequence, seal
from logfs.format.batches.compression import Codec, compress
from logfs.format.batches.record import NO_TIMESTAMP, Record, encode_record
from tests.kafka.storage import CLIENT, COORDINATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logfs.log.append.partition import Partition
    from tests.kafka.storage import Step

PRODUCERS = range(1000, 1030, 5)
HOUR_MS = 3_600_000
_TRANSACTIONAL = 0x10


def batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    base_timestamp: int | None = None,
) -> bytes:
    """Return a batch as a client sends it."""
    times = [NO_TIMESTAMP if r.timestamp is None else r.timestamp for r in records]
    base = times[0] if base_timestamp is None else base_timestamp
    body = b"".join(
        encode_record(record, offset_delta=number, timestamp_delta=time - base)
        for number, (record, time) in enumerate(zip(records, times, strict=True))
    )
    data = bytearray(HEADER_SIZE) + compress(codec, body)
    seal(
        data,
        attributes=codec | (_TRANSACTIONAL if transactional else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=base,
        max_timestamp=max(times),
        record_count=len(records),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return bytes(data)


class Story:
    """A sequence of random steps, each of which fits the current state of the log. The seed determines them all."""

    def __init__(self, seed: int, now_ms: int) -> None:
        self.chance = Random(seed)
        self.now_ms = now_ms
        self.configs = self._draw_configs()
        # The base offsets of batches since the last open, and the batches that each producer has sent.
        self._starts: list[int] = []
        self._sent: dict[int, list[bytes]] = {}
        kinds: list[tuple[int, Callable[[Partition], Step]]] = [
            (30, self._plain),
            (25, self._idempotent),
            (20, self._transactional),
            (14, self._end),
            (6, self._again),
            (3, self._disordered),
            (2, self._refused),
            (3, self._coordinator),
            (3, lambda _: ("roll",)),
            (1, lambda _: ("flush",)),
            (5, self._clock),
            (1, lambda _: ("expire",)),
            (2, self._truncate),
            (2, self._delete),
        ]
        self._kinds = [kind for _, kind in kinds]
        self._weights = list(accumulate(weight for weight, _ in kinds))

    def next(self, log: Partition) -> Step:
        """Return the next step."""
        (kind,) = self.chance.choices(self._kinds, cum_weights=self._weights)
        step = kind(log)
        if step[0] in ("append", "end"):
            self._starts.append(log.log_end_offset)
        return step

    def begin(self) -> None:
        """Note that the log has been opened again.

        From now on, no step truncates into the batches from before. If a segment is truncated before anything was
        appended to it since it was opened, Kafka forgets its greatest timestamp, and writes no closing entry
        (docs/format.md).
        """
        self._starts = []

    def _draw_configs(self) -> dict[str, object]:
        draw = self.chance.choice
        # Without jitter, the end of a segment is deterministic; deleted files are removed at once.
        configs: dict[str, object] = {"segment.jitter.ms": 0, "file.delete.delay.ms": 0}
        configs["segment.bytes"] = draw([700, 1500, 4000, 4000, 1 << 20])
        configs["index.interval.bytes"] = draw([0, 1, 150, 300, 1000, 4096])
        configs["segment.index.bytes"] = draw([40, 100, 1000, 1000, 10 << 20])
        configs["segment.ms"] = draw([500, 3000, 604_800_000, 604_800_000])
        configs["message.timestamp.type"] = draw(["CreateTime"] * 3 + ["LogAppendTime"])
        configs["compression.type"] = draw(["producer"] * 3 + ["uncompressed"])
        configs["preallocate"] = draw(["false"] * 3 + ["true"])
        configs["cleanup.policy"] = draw(["delete"] * 3 + ["compact"])
        if configs["cleanup.policy"] == "compact":
            configs["max.compaction.lag.ms"] = draw([1000, 9_223_372_036_854_775_807])
        return configs

    # Batches.

    def _records(self) -> list[Record]:
        chance = self.chance
        style = chance.random()
        keyed = self.configs["cleanup.policy"] == "compact" or chance.random() < 0.3
        records = []
        for _ in range(chance.choice([1, 1, 1, 2, 3, 5])):
            time = self.now_ms + chance.randint(-2000, 2000)
            if style < 0.1 or (style < 0.2 and chance.random() < 0.5):
                time = NO_TIMESTAMP
            value = chance.randbytes(1) * chance.choice([0, 1, 20, 60, 200])
            headers = [("h", chance.choice([None, b"", b"x"]))] if chance.random() < 0.1 else []
            records.append(Record(value, b"k" if keyed else None, headers, time))
        return records

    def _batch(self, **fields: int | bool) -> bytes:
        codec = self.chance.choice([Codec.NONE] * 3 + list(Codec))
        base = self.now_ms - 7 if self.chance.random() < 0.05 else None
        data = batch(self._records(), codec=codec, base_timestamp=base, **fields)  # type: ignore[arg-type]
        self._sent.setdefault(int(fields.get("producer", -1)), []).append(data)
        return data

    def _plain(self, _: Partition) -> Step:
        return "append", self._batch(), CLIENT

    def _follow(self, log: Partition, *, transactional: bool, gap: int = 1) -> Step:
        """Append the next batch of some producer. The log accepts it if `gap` is 1."""
        known = log.producers[self.chance.choice(PRODUCERS)]
        epoch, sequence = known.epoch, increment_sequence(known.last_sequence, gap)
        if epoch < 0 or self.chance.random() < 0.05:
            epoch, sequence = epoch + 1, gap - 1
        if known.epoch < 0:
            # An unknown producer may begin with any sequence, also with one close to the wraparound.
            sequence = self.chance.choice([0, 0, 7, 2**31 - 3])
        data = self._batch(
            producer=known.producer_id, epoch=epoch, sequence=sequence, transactional=transactional
        )
        return "append", data, CLIENT

    def _idempotent(self, log: Partition) -> Step:
        return self._follow(log, transactional=False)

    def _transactional(self, log: Partition) -> Step:
        return self._follow(log, transactional=True)

    def _coordinator(self, log: Partition) -> Step:
        transactional = self.chance.random() < 0.8
        name, data, _ = self._follow(
            log, transactional=transactional, gap=self.chance.randint(1, 4)
        )
        if self.chance.random() < 0.2:
            name, data, _ = self._again(log)
        return name, data, COORDINATOR

    def _again(self, log: Partition) -> Step:
        """Repeat one of the last seven batches of a producer; the log does not remember the oldest of them."""
        sent = self._sent.get(self.chance.choice(PRODUCERS))
        return ("append", self.chance.choice(sent[-7:]), CLIENT) if sent else self._plain(log)

    def _disordered(self, log: Partition) -> Step:
        return self._follow(log, transactional=False, gap=self.chance.randint(2, 4))

    def _refused(self, log: Partition) -> Step:
        known = log.producers[self.chance.choice(PRODUCERS)]
        match self.chance.randrange(4):
            case 0:
                data = self._batch(
                    producer=known.producer_id, epoch=max(known.epoch - 1, 0), sequence=0
                )
            case 1:
                data = batch([Record(b"later", b"k", [], self.now_ms + 2 * HOUR_MS)])
            case 2:
                data = batch([Record(b"large" * 800, b"k", [], self.now_ms)])
            case _:
                data = bytearray(self._batch())
                data[-1] ^= 1
        return "append", bytes(data), CLIENT

    # Transactions, time, truncation and deletion.

    def _end(self, log: Partition) -> Step:
        chance = self.chance
        open_now = sorted(log.producers.open_transactions())
        known = log.producers[chance.choice(open_now or PRODUCERS)]
        epoch = max(known.epoch, 0) + chance.choice([0] * 12 + [1, -1])
        coordinator = max(known.coordinator_epoch, 0) + chance.choice([0] * 12 + [1, -1])
        return "end", known.producer_id, max(epoch, 0), chance.random() < 0.5, max(coordinator, 0)

    def _clock(self, _: Partition) -> Step:
        self.now_ms += self.chance.choice([1, 100, 400, 3000] * 3 + [30 * HOUR_MS])
        return "clock", self.now_ms

    def _truncate(self, log: Partition) -> Step:
        """Truncate to the start of a batch at or above the log start offset; below it, the log would be emptied."""
        starts = [at for at in self._starts if log.log_start_offset <= at < log.log_end_offset]
        offset = self.chance.choice(starts[-12:] or [log.log_end_offset])
        self._starts = [at for at in self._starts if at < offset]
        return "truncate", offset

    def _delete(self, log: Partition) -> Step:
        return "start", self.chance.randint(log.log_start_offset, log.log_end_offset + 1)
