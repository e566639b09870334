"""Two tables of keys and the offsets of their newest records: one in a file that never changes, one in memory.

Both hold hashes of the keys, which depend on a random secret, and not the keys themselves. Importing this module
loads the compiled kernels, which takes long: import it only in a thread that may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logfs.errors import Corrupt
from logfs.format.files import key_table_format
from logfs.format.files.key_table_format import BLOCK_BYTES, BLOCK_SLOTS, HEADER_BYTES, SLOT_BYTES
from logfs.format.kernels import compaction_kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from logfs.format.files.key_table_format import TableHeader
    from logfs.log.disk.disk import Disk

# The least number of slots of a `MemoryTable`, and the share of its slots in use at which it grows.
_FIRST_SLOTS = 1024
_LOAD_FACTOR = 0.7
# How many blocks of a file `FileTable.chunks` reads at once.
_CHUNK_BLOCKS = 128


class MemoryTable:
    """A table in memory, which grows when `put` finds it full.

    Only one thread at a time may add keys. Meanwhile other threads may call `get`, which finds the keys added before.
    """

    def __init__(self, secret: bytes, keys: int = 0) -> None:
        """Make an empty table with room for `keys` keys; their hashes depend on the 16 bytes of `secret`."""
        self.secret = np.frombuffer(secret, np.uint64)
        self.slots: NDArray[np.uint64] = np.zeros((max(keys * 3 // 2, _FIRST_SLOTS), 3), np.uint64)
        self.used = 0
        self._scratch = np.empty(compaction_kernels.SCRATCH_SHAPE, np.uint64)

    def put(
        self,
        data: NDArray[np.uint8],
        spans: NDArray[np.int64],
        first_offset: int,
        *,
        nulls: bool = True,
    ) -> None:
        """Add the keys of the records with offsets of at least `first_offset`; the records must come in offset order.

        `data` (uint8[bytes]) has the records, uncompressed. `spans`, int64[batches, 5], has one row for each batch:
        start and end of its records in `data`, record count, base offset, base timestamp (ms). A record replaces the
        entry of its key, so adding the last records again changes nothing. With `nulls`, the entry of a key whose
        newest value is null gets `NULL_BIT`; without, no new entry gets it. Raises `Corrupt` for malformed records.
        """
        while len(spans):
            done, self.used, _, outcome = compaction_kernels.put_keys(
                data,
                spans,
                first_offset,
                self.secret,
                self.slots,
                self.used,
                int(len(self.slots) * _LOAD_FACTOR),
                self._scratch,
                np.uint64(compaction_kernels.NULL_BIT if nulls else 0),
            )
            if outcome < 0:
                raise Corrupt(f"batch at offset {spans[done, 3]}: its records are malformed")
            if outcome == compaction_kernels.FULL:
                self._grow()
            spans = spans[done:]

    def put_table(self, slots: NDArray[np.uint64]) -> None:
        """Add the entries of another table that has the same secret; they replace the entries of the same keys.

        `slots`, uint64[n, 3], are the slots of the other table: the two words of a key's hash, and the key's entry, 0
        in an empty slot. Raises `Corrupt` if there is no room for all entries, because this method does not make the
        table grow.
        """
        self.used += _moved(slots, self.slots, self.used)

    def hash_key(self, key: bytes) -> tuple[np.uint64, np.uint64]:
        """Return the 128-bit hash of a key as two words; it depends on the table's secret."""
        array = np.frombuffer(key, np.uint8)
        first, second = compaction_kernels.hash_key(array, 0, len(key), self.secret)
        return np.uint64(first), np.uint64(second)

    def get(self, first: np.uint64, second: np.uint64) -> int:
        """Return the entry of the key whose hash is the words `first` and `second`; 0 if there is none.

        An entry is the offset of the key's newest record plus 1, with `NULL_BIT` set if its value is null.
        """
        return int(self.slots[compaction_kernels.find_slot(self.slots, first, second), 2])

    def _grow(self) -> None:
        larger: NDArray[np.uint64] = np.zeros((len(self.slots) * 2, 3), np.uint64)
        _moved(self.slots, larger, 0)
        self.slots = larger


def _moved(old: NDArray[np.uint64], slots: NDArray[np.uint64], used: int) -> int:
    """Put the keys of the table `old` into the table `slots`, which has `used` keys; return how many are new.

    Raises `Corrupt` if the keys do not fit. This happens if `slots` was made for the number of keys in a file header,
    and this number is too low.
    """
    added = int(compaction_kernels.move_slots(old, slots, used))
    if added < 0:
        raise Corrupt("a key index has more keys than its header states")
    return added


def warm_up() -> None:
    """Compile the kernels that lookups and insertions use, or load them from numba's cache.

    Otherwise the first lookup would compile or load them, perhaps in a thread that must not wait.
    """
    table = MemoryTable(bytes(16))
    table.get(*table.hash_key(b""))
    table.put(np.frombuffer(b"\0", np.uint8), np.zeros((1, 5), np.int64), 0)
    table.put_table(table.slots)


class FileTable:
    """A table in a file. A lookup usually reads one or two blocks, and verifies the checksum of each of them."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Open the file `path`. Raises `Corrupt` if it is not a valid table, and `OSError`."""
        self.path = path
        self._disk = disk
        self._file = disk.open(path)
        self.size_bytes = disk.size(self._file)
        head = disk.read(self._file, 0, HEADER_BYTES)
        try:
            self.header = key_table_format.parse_header(head, self.size_bytes)
            start = HEADER_BYTES + self.header.slots * SLOT_BYTES
            self._crcs = key_table_format.parse_crcs(
                head, disk.read(self._file, start, self.size_bytes - start)
            )
        except Corrupt as error:
            raise self._damaged(error) from None

    def get(self, disk: Disk, first: np.uint64, second: np.uint64) -> int:
        """Return the entry of the key whose hash is the words `first` and `second`; 0 if there is none.

        An entry is the offset of the key's newest record plus 1, with `NULL_BIT` set if its value is null. `disk`
        decides whether the calling thread may wait for the disk: if not, `WouldBlock` is raised. Also raises
        `OSError`, and `Corrupt` if the file is damaged.
        """
        low, high, count = int(first), int(second), self.header.slots
        at = ((low >> 32) * count) >> 32
        for _ in range(count // BLOCK_SLOTS + 1):
            number, within = divmod(at, BLOCK_SLOTS)
            data = disk.read(self._file, HEADER_BYTES + number * BLOCK_BYTES, BLOCK_BYTES)
            self._check(number, data)
            words = np.frombuffer(data, "<u8").reshape(-1, 3)[within:]
            ends = np.flatnonzero(
                (words[:, 2] == 0) | ((words[:, 0] == low) & (words[:, 1] == high))
            )
            if len(ends):
                return int(words[ends[0], 2])
            at = (number + 1) * BLOCK_SLOTS % count
        raise self._damaged(Corrupt("the table has no empty slot"))

    def chunks(self) -> Iterator[NDArray[np.uint64]]:
        """Yield all slots of the table in several arrays uint64[slots, 3], after verifying their checksums.

        A slot has the two words of a key's hash, and the entry that `get` returns for it; this entry is 0 in an empty
        slot. Raises `Corrupt` for a damaged block, and `OSError`.
        """
        for first in range(0, len(self._crcs), _CHUNK_BLOCKS):
            count = min(_CHUNK_BLOCKS, len(self._crcs) - first)
            start = HEADER_BYTES + first * BLOCK_BYTES
            data = self._disk.read(self._file, start, count * BLOCK_BYTES)
            for number in range(count):
                self._check(first + number, data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])
            yield np.frombuffer(data, np.uint64).reshape(-1, 3)

    def _check(self, number: int, data: memoryview) -> None:
        try:
            key_table_format.check_block(data, self._crcs[number])
        except Corrupt as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Corrupt) -> Corrupt:
        return Corrupt(f"{self.path}: {error}")


def write_table(
    disk: Disk,
    path: Path,
    temporary: Path,
    parts: Iterable[NDArray[np.uint64]],
    header: TableHeader,
) -> FileTable:
    """Merge the tables `parts`, write the result to the file `path`, and open it.

    `parts` are the slots of tables with the secret of `header`, each uint64[n, 3]; later parts override earlier ones.
    `header.used` must be at least the number of distinct keys in all parts; the header in the file gets the actual
    number. The table is written to `temporary` and renamed at the end, so a crash leaves the old file or the new one.
    The file is durable on return. Raises `Corrupt` if there are too many keys, `OSError`, and the errors of iterating
    over `parts`.
    """
    count = key_table_format.slots_for(header.used)
    size = key_table_format.file_bytes(count)
    end = HEADER_BYTES + count * SLOT_BYTES
    with disk.replacing(path, temporary) as file:
        disk.allocate(file, 0, size)
        mapping = disk.map(file, size)
        view = memoryview(mapping)[HEADER_BYTES:end]
        slots = np.frombuffer(view, np.uint64).reshape(-1, 3)
        used = 0
        for part in parts:
            used += _moved(part, slots, used)
        crcs = key_table_format.format_crcs(view)
        disk.sync_map(mapping)
        header = header._replace(slots=count, used=used)
        disk.write(file, end, crcs)
        disk.write(file, 0, key_table_format.format_header(header, crcs))
        disk.sync(file)
    disk.sync_directory(path.parent)
    return FileTable(disk, path)
