"""Kafka's murmur2 hash, which chooses the partition of a key. `columnar_encoder` has compiled code for many keys."""

from __future__ import annotations

_MASK = 0xFFFF_FFFF
_FACTOR = 0x5BD1_E995
_SEED = 0x9747_B28C


def murmur2(data: bytes) -> int:
    """Return the hash of `data` as an unsigned number of 32 bits."""
    found = _SEED ^ len(data)
    end = len(data) & ~3
    for at in range(0, end, 4):
        block = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _MASK
        block = (block ^ (block >> 24)) * _FACTOR & _MASK
        found = found * _FACTOR & _MASK ^ block
    if end < len(data):
        found = (found ^ int.from_bytes(data[end:], "little")) * _FACTOR & _MASK
    found = (found ^ (found >> 13)) * _FACTOR & _MASK
    return found ^ (found >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key: a number in 0..`partitions` - 1."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
