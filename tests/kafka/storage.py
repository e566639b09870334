"""One log in Kafka's storage classes and in logfs. Both run the same steps, and their answers must be equal."""

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

# The name of a step and its arguments, as `Storage.java` reads them.
Step = tuple[object, ...]
# [first offset, last offset], [] or the name of the raised error; and the state of the log: [log start offset, log
# end offset, last stable offset, base offset of the active segment].
Answer = tuple["list[int] | str", "list[int]"]

# The errors of logfs by the name of Kafka's exception.
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
    """A log directory with one partition. It stays open if `close` is never called."""

    directory: Path

    def run(self, steps: Sequence[Step]) -> list[Answer]:
        """Run some steps, and return the answer of each."""

    def close(self) -> None:
        """Close the log cleanly."""


class KafkaStorage:
    """The log in Kafka's storage classes."""

    def __init__(
        self, helper: Helper, directory: Path, configs: Mapping[str, object], now_ms: int
    ) -> None:
        self.directory = directory
        self._helper = helper
        directory.mkdir(parents=True, exist_ok=True)
        # `segment.bytes` must be at least 1 MiB; Kafka's own tests use another setting for smaller segments.
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
        """Run some steps, and return the answer of each."""
        answers = self._helper.call("storageSteps", directory=str(self.directory), steps=steps)
        return [
            (
                _NAMES[came].__name__ if isinstance(came, str) and came in _NAMES else came,
                _raised(state),
            )
            for came, state in answers
        ]

    def close(self) -> None:
        """Close the log cleanly."""
        self._helper.call("closeStorage", directory=str(self.directory))


def _raised(state: list[int]) -> list[int]:
    """Return Kafka's state with a last stable offset that is not below the log start offset.

    After the log start offset was raised, Kafka raises the last stable offset only at the next append.
    """
    start, end, stable, active = state
    return [start, end, max(stable, start), active]


class LogfsStorage:
    """The log in logfs."""

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
        """Run some steps, and return the answer of each."""
        return [(self._answer(step), self._state()) for step in steps]

    def close(self) -> None:
        """Close the log cleanly."""
        self.store.close()

    def _state(self) -> list[int]:
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        return [start, end, log.last_stable_offset, log.active.base_offset]

    def _answer(self, step: Step) -> list[int] | str:
        try:
            return self._run(self.log, *step)
        except errors.InvalidRecord:
            # Kafka's RecordValidationException does not tell a wrong timestamp from other errors.
            return errors.InvalidRecord.__name__
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
