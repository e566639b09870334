"""A map from each key to its last offset, in bounded memory (kafka-storage 8.2).

Kafka's map holds an MD5 hash and an offset in 24 bytes a slot. This map holds a SipHash under a secret of its own,
in slots of the same size. Neither map holds the keys, so two keys with equal hashes would count as one. With 128
bits that does not happen by chance, and without the secret nobody can construct such keys.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from logfs.errors import Corrupt
from logfs.format.kernels import compaction_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOT_BYTES = 24

# As the argument `null_bit` of the kernel `put_keys`: the kernel then does not look at the values.
_VALUES_UNREAD = np.uint64(0)


class OffsetMap:
    """The newest offset of each key.

    One thread writes the map; after that, any number of threads may read it. `latest_offset` is the offset up to
    which the records were put into the map, -1 at first. `put` raises it to the offset of each record that it stores.
    The caller may raise it further, past records that it leaves out.
    """

    def __init__(self, memory_bytes: int, load_factor: float, most_keys: int) -> None:
        """Make an empty map of at most `memory_bytes`; it is full when the share `load_factor` of its slots is used.

        The map always has room for one key. It takes no more memory than `most_keys` keys need. Without this second
        limit, a few dozen keys would use most of `memory_bytes`, because the hashes are spread over the whole table
        and numpy allocates it in huge pages.
        """
        self.room = max(memory_bytes // SLOT_BYTES, 2)
        count = min(self.room, int(most_keys / max(load_factor, 1 / self.room)) + 2)
        self.slots: NDArray[np.uint64] = np.zeros((count, 3), np.uint64)
        # One slot stays empty, because a search ends only at an empty slot.
        self.capacity = min(max(int(count * load_factor), 1), count - 1)
        self.secret = np.frombuffer(os.urandom(16), np.uint64)
        self.latest_offset = -1
        self._used = 0
        self._scratch = np.empty(compaction_kernels.SCRATCH_SHAPE, np.uint64)

    @property
    def share(self) -> float:
        """The number of keys in the map, as a share (0 to 1) of the slots that fit in `memory_bytes`."""
        return self._used / self.room

    def put(self, data: NDArray[np.uint8], spans: NDArray[np.int64], first_offset: int) -> int:
        """Put the keys of records at or above `first_offset` into the map; return how many batches fit completely.

        `data` has the decompressed records of several batches. `spans`, int64[batches, 5], has a row for each batch:
        the start and the end of its records in `data`, their number, the base offset, and the base timestamp (ms). If
        the map becomes full, the call stops at the first key that does not fit. Raises `Corrupt` for malformed
        records.
        """
        done, self._used, latest, outcome = compaction_kernels.put_keys(
            data,
            spans,
            first_offset,
            self.secret,
            self.slots,
            self._used,
            self.capacity,
            self._scratch,
            _VALUES_UNREAD,
        )
        if outcome < 0:
            raise Corrupt(f"batch at offset {spans[done, 3]}: its records are malformed")
        self.latest_offset = max(self.latest_offset, latest)
        return int(done)
