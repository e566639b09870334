"""At which offset each key was seen last, in a bounded piece of memory (kafka-storage 8.2).

Kafka's map holds an MD5 and an offset in 24 bytes a slot; this one a SipHash under a secret of its own, in as many
bytes. Neither holds the keys, and two keys with equal hashes would be taken for one: with 128 bits that happens to
nobody, and with a secret nobody can bring it about.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from logfs.errors import Corrupt
from logfs.format import sieve

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOT_BYTES = 24

_VALUES_UNREAD = np.uint64(0)
_MOST_KEYS = 2**63


class OffsetMap:
    """The newest offset of each key. One writer, and then any number of readers.

    `latest_offset` is the last offset that the map knows all about, -1 before the first.
    """

    def __init__(self, memory_bytes: int, load_factor: float, most_keys: int = _MOST_KEYS) -> None:
        """Room for as many keys as go into the share `load_factor` of so much memory; at least for one.

        No more memory is taken than `most_keys` need: hashes lie everywhere in it, and numpy has it in huge pages,
        so that a few dozen keys would touch most of the 128 MiB that a round may have.
        """
        self.room = max(memory_bytes // SLOT_BYTES, 2)
        count = min(self.room, int(most_keys / max(load_factor, 1 / self.room)) + 2)
        self.slots: NDArray[np.uint64] = np.zeros((count, 3), np.uint64)
        # A search ends at an empty slot.
        self.capacity = min(max(int(count * load_factor), 1), count - 1)
        self.secret = np.frombuffer(secrets.token_bytes(16), np.uint64)
        self.latest_offset = -1
        self._used = 0
        self._scratch = np.empty(sieve.SCRATCH_SHAPE, np.uint64)

    def __len__(self) -> int:
        return self._used

    @property
    def share(self) -> float:
        """How full all the memory is that the map might take, from 0 to 1."""
        return self._used / self.room

    def put(self, data: NDArray[np.uint8], spans: NDArray[np.int64], first_offset: int) -> int:
        """Take the keys of several batches at or beyond an offset; how many batches, if not all found room.

        `spans` is int64[batches, 5] as for `decode_columns`. The map is full before the record that did not fit.
        Raises `Corrupt` for records that break the format.
        """
        done, self._used, latest, outcome = sieve.put_keys(
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
            raise Corrupt(f"batch {spans[done, 3]}: its records are malformed")
        self.latest_offset = max(self.latest_offset, latest)
        return int(done)

    def get(self, key: bytes) -> int:
        """The newest offset of a key, -1 if it was not seen."""
        first, second = sieve.hash_key(np.frombuffer(key, np.uint8), 0, len(key), self.secret)
        slot = sieve.find_slot(self.slots, np.uint64(first), np.uint64(second))
        return int(self.slots[slot, 2]) - 1
