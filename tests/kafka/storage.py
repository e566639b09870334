"""One log, kept by Kafka's storage classes and by logfs: the same steps for both, the same answers expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from logfs import errors
from logfs.store.store import Store
from tests.support.stores import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.kafka.helper import Helper

TOPIC = "orders"
NAME = f"{TOPIC}-0"
CLIENT, COORDINATOR = "CLIENT", "COORDINATOR"

# A step is its name and what it takes, as `Storage.java` reads it.
Step = tuple[object, ...]
# The first and last offset, or the name of what was thrown; and [start, end, last stable, active base].
Answer = tuple["list[int] | str", "list[int]"]

# What Kafka calls the refusals.
_NAMES = {
    "OutOfOrderSequenceException": errors.OutOfOrderSequence,
    "InvalidProducerEpochException": errors.InvalidProducerEpoch,
    "InvalidTxnStateException": errors.InvalidTransactionState,
    "TransactionCoordinatorFencedException": errors.CoordinatorFenced,
    "RecordTooLargeException": errors.RecordTooLarge,
    "RecordBatchTooLargeException": errors.RecordTooLarge,
    "InvalidRecordException": errors.InvalidRecord,
    "InvalidTimestampException": errors.InvalidRecord,
    "RecordValidationException": errors.InvalidRecord,
    "CorruptRecordException": errors.Corrupt,
    "OffsetOutOfRangeException": errors.OffsetOutOfRange,
}


class Storage(Protocol):
    """A log directory with one partition, open until `close` or for ever."""

    directory: Path

    def run(self, steps: Sequence[Step]) -> list[Answer]:
        """Take some steps, and what came of each."""

    def close(self) -> None:
        """Shut it down cleanly."""


class KafkaStorage:
    """Kafka's own."""

    def __init__(
        self, helper: Helper, directory: Path, configs: Mapping[str, object], now_ms: int
    ) -> None:
        self.directory = directory
        self._helper = helper
        directory.mkdir(parents=True, exist_ok=True)
        # A broker's smallest segment is of 1 MiB; Kafka's tests use another name for smaller ones.
        names = {"segment.bytes": "internal.segment.bytes"}
        state = helper.call(
            "openStorage",
            directory=str(directory),
            topic=TOPIC,
            partition=0,
            now=now_ms,
            configs={names.get(name, name): str(value) for name, value in configs.items()},
        )
        self.opened = _raised(state)

    def run(self, steps: Sequence[Step]) -> list[Answer]:
        """Take some steps, and what came of each."""
        answers = self._helper.call("storageSteps", directory=str(self.directory), steps=steps)
        return [
            (
                _NAMES[came].__name__ if isinstance(came, str) and came in _NAMES else came,
                _raised(state),
            )
            for came, state in answers
        ]

    def close(self) -> None:
        """Shut it down cleanly."""
        self._helper.call("closeStorage", directory=str(self.directory))


def _raised(state: list[int]) -> list[int]:
    """Kafka's last stable offset stays below a start that was raised, until the next append raises it too."""
    start, end, stable, active = state
    return [start, end, max(stable, start), active]


class LogfsStorage:
    """Ours."""

    def __init__(self, directory: Path, configs: Mapping[str, object], now_ms: int) -> None:
        self.directory = directory
        self._clock = Clock(now_ms)
        self.store = Store(directory, clock=self._clock)
        if NAME not in self.store:
            for name, value in configs.items():
                self.store.settings.set_topic(TOPIC, name, str(value))
            self.store.create(NAME)
        self.log = self.store[NAME]
        self.opened = self._state()

    def run(self, steps: Sequence[Step]) -> list[Answer]:
        """Take some steps, and what came of each."""
        return [(self._answer(step), self._state()) for step in steps]

    def close(self) -> None:
        """Shut it down cleanly."""
        self.store.close()

    def _state(self) -> list[int]:
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        return [start, end, log.last_stable_offset, log.active.base_offset]

    def _answer(self, step: Step) -> list[int] | str:
        try:
            return self._run(self.log, *step)
        except errors.LogfsError as error:
            return type(error).__name__

    def _run(self, log: Partition, kind: object, *arguments: object) -> list[int]:
        match kind, *arguments:
            case "append", bytes(data), origin:
                done = log.append_batch(data, coordinator=origin == COORDINATOR)
                return [done.first_offset, done.last_offset]
            case "end", int(producer), int(epoch), bool(commit), int(coordinator):
                at = log.end_transaction(
                    producer, epoch, commit=commit, coordinator_epoch=coordinator
                )
                return [at, at]
            case ("roll",):
                log.roll(self._clock())
            case ("flush",):
                log.flush()
            case "truncate", int(offset):
                self.store.truncate(NAME, offset)
            case "start", int(offset):
                log.advance_log_start(offset)
            case "clock", int(now_ms):
                self._clock.now_ms = now_ms
            case ("expire",):
                log.expire_producers(self._clock(), 86_400_000)
            case _:
                raise ValueError(f"no such step: {kind}")
        return []
