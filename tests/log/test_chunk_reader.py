"""Chunks of objects are fetched ahead of a sequential reader, and again if they may have arrived wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from logfs.errors import Corrupt, RemoteStorageError
from logfs.format.base.crc import crc32c
from logfs.format.tiered.chunk_index import ChunkIndex
from logfs.log.disk.bucket_path import BucketPath
from logfs.log.disk.disk import Disk
from logfs.log.remote.chunk_cache import ChunkCache
from logfs.log.remote.chunk_reader import ChunkReader, StoredFile
from logfs.log.remote.object_store import ObjectStore
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 100
COUNT = 60
NAMES = ("one", "two", "three", "four")


class RecordedStore(ObjectStore):
    """A directory that stands for a bucket: it records the chunks that are read, in order, and may return others."""

    def __init__(self, directory: Path) -> None:
        super().__init__(BucketPath(f"file://{directory}"))
        self.asked: list[tuple[str, int]] = []
        self.answers: list[bytes] = []
        self.held = threading.Event()
        self.held.set()

    def get(self, key: str, position: int, size: int) -> memoryview:
        self.asked.append((key.rpartition("/")[2], position // CHUNK))
        assert self.held.wait(60)
        return memoryview(self.answers.pop(0)) if self.answers else super().get(key, position, size)


def content(number: int) -> bytes:
    """Return the bytes of a chunk, which no other chunk has."""
    return b"chunk %d " % number * CHUNK


@pytest.fixture
def store(tmp_path: Path) -> RecordedStore:
    """A store of four objects."""
    data = b"".join(content(number)[:CHUNK] for number in range(COUNT))
    for name in NAMES:
        (tmp_path / name).write_bytes(data)
    return RecordedStore(tmp_path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory that is empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def reader(store: RecordedStore) -> ChunkReader:
    """A reader of the store through the cache."""
    return ChunkReader(store, Disk(), ChunkCache())


def stored(tmp_path: Path, name: str = "one", count: int = COUNT, **known: object) -> StoredFile:
    """Return the first `count` chunks of an object as a file."""
    chunks = ChunkIndex(CHUNK, count * CHUNK, CHUNK, CHUNK)
    key = str(tmp_path / name).lstrip("/")
    return StoredFile(key, 0, count * CHUNK, chunks, is_compressed=False)._replace(**known)


def check(
    reader: ChunkReader, file: StoredFile, number: int, ahead: StoredFile | None = None
) -> None:
    """Read a chunk, and compare it."""
    data = reader.read(file, number * CHUNK, CHUNK, lambda: ahead)
    assert bytes(data) == content(number)[:CHUNK]


def test_a_sequential_reader_is_ahead_by_more_and_more_chunks(
    store: RecordedStore, reader: ChunkReader, tmp_path: Path
) -> None:
    """By none at first, then by 1, 2, 4 and 8; a chunk that is there is not requested again."""
    file = stored(tmp_path)
    for number, ahead in enumerate([0, 1, 2, 4, 8, 8, 8]):
        check(reader, file, number)
        wanted = {("one", each) for each in range(number + ahead + 1)}
        wait_for(lambda wanted=wanted: wanted <= set(store.asked))
        assert set(store.asked) == wanted
        wait_for(lambda wanted=wanted: reader.requests == len(wanted))
    assert len(store.asked) == len(set(store.asked))


def test_a_reader_that_jumps_fetches_only_what_it_reads(
    store: RecordedStore, reader: ChunkReader, tmp_path: Path
) -> None:
    """Forwards, backwards, and twice the same chunk."""
    file = stored(tmp_path)
    places = [0, 2, 1, 30, 30, 59, 57, 0, 2]
    for number in places:
        check(reader, file, number)
    assert [number for _, number in store.asked] == [0, 2, 1, 30, 59, 57]


def test_the_next_file_is_begun_before_this_one_ends(
    store: RecordedStore, reader: ChunkReader, tmp_path: Path
) -> None:
    """Its first chunk; the reader is then ahead in it by as many chunks as before."""
    file, following = stored(tmp_path, count=4), stored(tmp_path, "two")
    for number in range(3):
        check(reader, file, number, following)
    wait_for(lambda: ("two", 0) in store.asked)
    check(reader, following, 0)
    wanted = [
        *(("one", number) for number in range(4)),
        *(("two", number) for number in range(5)),
    ]
    wait_for(lambda: len(store.asked) >= len(wanted))
    wait_for(lambda: reader.requests == len(wanted))
    assert sorted(store.asked) == wanted


def test_little_is_fetched_ahead_while_many_requests_run(
    store: RecordedStore, reader: ChunkReader, tmp_path: Path
) -> None:
    """Of the readers of four objects, the third is ahead by less, and the last by nothing: 16 requests may run."""
    files = [stored(tmp_path, name) for name in NAMES]
    for file in files:
        for number in range(4):
            check(reader, file, number)
    before = {(name, number) for name in NAMES for number in range(8)}
    wait_for(lambda: reader.requests == len(before))
    store.held.clear()
    for file in files:
        check(reader, file, 4)
    begun = {(name, number) for name in NAMES[:2] for number in range(8, 13)}
    begun |= {("three", number) for number in range(8, 11)}
    wait_for(lambda: begun <= set(store.asked))
    store.held.set()
    wait_for(lambda: reader.requests == len(store.asked))
    assert set(store.asked) == before | begun


def test_bytes_with_a_wrong_crc_are_requested_three_times(
    store: RecordedStore, reader: ChunkReader, tmp_path: Path
) -> None:
    """Right ones at the third request are returned; otherwise the error names the object and the bytes."""
    file = stored(tmp_path, crcs=[crc32c(content(number)[:CHUNK]) for number in range(COUNT)])
    wrong = bytes(CHUNK)
    store.answers = [wrong, wrong]
    check(reader, file, 7)
    assert store.asked == [("one", 7)] * 3
    store.answers = [wrong] * 9
    with pytest.raises(
        RemoteStorageError, match=f"{tmp_path}/one: bytes 900 to 999: the CRC-32C is wrong"
    ):
        check(reader, file, 9)
    assert store.asked == [("one", 7)] * 3 + [("one", 9)] * 3


def test_bytes_with_another_digest_are_compared(
    store: RecordedStore, reader: ChunkReader, tmp_path: Path
) -> None:
    """Without a CRC: the same bytes from three requests are returned, but are not kept in the cache."""
    file = stored(tmp_path, count=1, version="0" * 32)
    for reads in (1, 2):
        check(ChunkReader(store, Disk(), ChunkCache()), file, 0)
        assert store.asked == [("one", 0)] * 3 * reads
    store.answers = [bytes([number]) * CHUNK for number in range(20)]
    with pytest.raises(RemoteStorageError, match="two requests returned different bytes"):
        check(reader, file, 0)
    assert len(store.answers) == 20 - 2 * 3


def test_an_object_that_is_too_short_is_an_error(
    store: RecordedStore, reader: ChunkReader, tmp_path: Path
) -> None:
    """The error says how many bytes were returned."""
    store.answers = [bytes(CHUNK - 1)] * 3
    with pytest.raises(Corrupt, match="the object is too short: only 99 of these 100 bytes"):
        check(reader, stored(tmp_path), 0)
