"""Kafka's storage classes and logfs write the same bytes for the same batches: while they run, and after rolls, clean
closes, crashes and recoveries.

LOGFS_STORIES is the number of random sequences of steps (`Story`). Each has its number as seed, so a failure can be
repeated.
"""

from __future__ import annotations

import os
import shutil
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from logfs.format.base import names
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.store.directory.log_dir import LOG_STARTS, RECOVERY_POINTS
from tests.kafka.helper import KafkaError
from tests.kafka.storage import CLIENT, NAME, KafkaStorage, LogfsStorage
from tests.kafka.story import Story, batch
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.kafka.helper import Helper

STORIES = int(os.environ.get("LOGFS_STORIES", "4"))
STEPS = 60
NOW = 1_700_000_000_000
INDEXES = (names.OFFSET_INDEX, names.TIME_INDEX)
SAME = (names.LOG, *INDEXES, names.TXN_INDEX, names.SNAPSHOT, "leader-epoch-checkpoint")
GIVES_UP = ("Attempt to append to a full", "Expected transactional write")
CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS)


class Twins:
    """The two logs of one story, in Kafka's storage classes and in logfs."""

    def __init__(self, helper: Helper, story: Story, path: Path) -> None:
        self.helper = helper
        self.story = story
        self.path = path
        self.truncated = False
        self.open()

    def open(self) -> None:
        """Open both logs, for the first time or again, and compare their states."""
        story = self.story
        self.kafka = KafkaStorage(self.helper, self.path / "kafka", story.configs, story.now_ms)
        self.logfs = LogfsStorage(self.path / "logfs", story.configs, story.now_ms)
        assert self.logfs.opened == self.kafka.opened, "the state after loading"
        story.begin()

    def go_on(self, count: int) -> None:
        """Run `count` more steps, and assert that both sides return the same answers and have the same files."""
        steps, answers = [], []
        for _ in range(count):
            step = self.story.next(self.logfs.log)
            steps.append(step)
            answers += self.logfs.run([step])
        self.truncated |= any(name == "truncate" for name, *_ in steps)
        told = self.kafka.run(steps)
        for number, (step, ours, kafkas) in enumerate(zip(steps, answers, told, strict=True)):
            assert ours == kafkas, f"step {number} of {count}, {step}"
        self.compare()

    def close(self) -> None:
        """Close both logs cleanly, and compare their files and checkpoints."""
        self.kafka.close()
        self.logfs.close()
        self.compare()
        ours, kafkas = ({name: _read(side / name) for name in CHECKPOINTS} for side in self.sides)
        assert ours == kafkas
        assert_clean(self.path / "logfs")

    @property
    def sides(self) -> tuple[Path, Path]:
        """The log directories of logfs and of Kafka."""
        return self.path / "logfs", self.path / "kafka"

    def compare(self, *, loaded: bool = False) -> None:
        """Assert that every file of the two partitions is the same, byte for byte.

        If both are just `loaded`, Kafka has extended the indexes of its active segment; logfs extends them at the
        first append. After a truncation, Kafka's extended part contains old entries; logfs clears it, for readers
        beside the writer.
        """
        ours, kafkas = (_files(side / NAME) for side in self.sides)
        preallocated = self.story.configs["preallocate"] == "true"
        for name in ours.keys() - kafkas.keys():
            # Kafka creates the indexes of a segment at their first use, and does not use those of an empty segment.
            stem, _, _ = name.partition(".")
            if name.endswith(INDEXES) and not kafkas[stem + names.LOG].strip(b"\0"):
                del ours[name]
        assert sorted(ours) == sorted(kafkas)
        # Logs first: if they differ, their indexes differ, too.
        for name, data in sorted(ours.items(), key=lambda item: not item[0].endswith(names.LOG)):
            expected = kafkas[name]
            # Kafka preallocates a .log when it creates it; logfs also preallocates an empty one that it opens.
            if (name.endswith(INDEXES) and loaded) or (name.endswith(names.LOG) and preallocated):
                data, expected = data.rstrip(b"\0"), expected.rstrip(b"\0")
            if name.endswith(INDEXES) and self.truncated and not loaded:
                assert len(data) == len(expected), name
                data = data.rstrip(b"\0")
                expected = expected[: len(data)]
            assert data == expected, f"{name}: {_first_difference(data, expected)}"

    def crashed(self, path: Path) -> Twins | None:
        """Return copies of the two logs after a simulated crash at this moment, with damage, and their recovery.

        Returns None if Kafka does not load the log, which has two reasons. Recovery may make more index entries than
        fit, because the log was opened or truncated before; logfs then leaves entries out. Or a producer wrote a
        batch outside of its open transaction, after a restart had forgotten that the transaction began below the log
        start offset.
        """
        chance = self.story.chance
        for side in self.sides:
            shutil.copytree(side, path / side.name)
        twins = object.__new__(Twins)
        twins.__dict__.update(self.__dict__, path=path, story=deepcopy(self.story))
        point = twins._damage(chance)
        start = self.logfs.log.log_start_offset
        for side in twins.sides:
            name = names.parse_directory(NAME)
            (side / RECOVERY_POINTS).write_bytes(checkpoint.format_offsets({name: point}))
            (side / LOG_STARTS).write_bytes(checkpoint.format_offsets({name: start}))
        try:
            twins.open()
        except KafkaError as error:
            if not any(words in str(error) for words in GIVES_UP):
                raise
            LogfsStorage(path / "logfs", self.story.configs, self.story.now_ms).close()
            assert_clean(path / "logfs")
            return None
        twins.compare(loaded=True)
        return twins

    def _damage(self, chance: Random) -> int:
        """Remove from both logs what a crash may remove, and return a recovery point below all of it."""
        last = self.logfs.log.active
        if chance.random() < 0.5:
            for side in self.sides:
                for path in (side / NAME).iterdir():
                    if path.suffix in (*INDEXES, names.TXN_INDEX, names.SNAPSHOT):
                        path.unlink()
        if last.size_bytes and chance.random() < 0.5:
            cut = chance.randrange(last.size_bytes)
            for side in self.sides:
                os.truncate(side / NAME / last.path.name, cut)
            return 0
        # The recovery point is inside a segment: if a segment ends at it, Kafka does not check its indexes, and logfs
        # does.
        inside = [
            segment.base_offset + 1
            for segment in self.logfs.log.segments[:-1]
            if segment.next_offset > segment.base_offset + 1
        ]
        return chance.choice([0, *inside])


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in directory.iterdir() if path.name.endswith(SAME)
    }


def _first_difference(ours: bytes, kafkas: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, kafkas, strict=False)) if a != b), None)
    if at is None:
        return f"{len(ours)} bytes, and Kafka's has {len(kafkas)}"
    return f"at {at} {ours[at : at + 40].hex()}, and Kafka's has {kafkas[at : at + 40].hex()}"


def test_preallocation_has_the_same_length(helper: Helper, tmp_path: Path) -> None:
    """Preallocated files, .log included, are equal in Kafka and logfs, in a new segment and in a sealed one."""
    configs = {"preallocate": "true", "segment.bytes": 5000, "segment.index.bytes": 1001}
    kafka = KafkaStorage(helper, tmp_path / "kafka", configs, NOW)
    logfs = LogfsStorage(tmp_path / "logfs", configs, NOW)
    for step in [("append", batch([Record(b"v")]), CLIENT), ("roll",)] * 2:
        assert logfs.run([step]) == kafka.run([step])
        ours, kafkas = (_files(side.directory / NAME) for side in (logfs, kafka))
        assert {name: ours[name] for name in kafkas} == kafkas
        assert [len(kafkas[name]) for name in sorted(kafkas) if name.endswith(names.LOG)][
            -1
        ] == 5000
    kafka.close()
    logfs.close()


@pytest.mark.parametrize("seed", range(STORIES))
def test_a_story_leaves_the_same_bytes(helper: Helper, tmp_path: Path, seed: int) -> None:
    """Both sides have the same files after appends, rolls, truncations, deletions, crashes and clean closes."""
    story = Story(seed, NOW)
    twins = Twins(helper, story, tmp_path / "story")
    for part in range(3):
        twins.go_on(STEPS)
        after = twins.crashed(tmp_path / f"crash-{part}")
        if after is not None:
            after.go_on(STEPS // 4)
            after.close()
        twins.close()
        twins.open()
        twins.compare(loaded=True)
    twins.close()
