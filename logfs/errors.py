"""The one error tree. Every message says what went wrong, where, and what to do about it.

`LogfsError` is the root, so a caller can catch everything of ours in one clause. Which errno a class becomes on
the mount is the mount's business (`logfs.mount.errnos`).
"""

from __future__ import annotations


class LogfsError(Exception):
    """The root of all errors that logfs raises on purpose."""


# These errors can be returned when something is named that is not there, or cannot be.


class InvalidName(LogfsError, ValueError):
    """A topic, partition, offset, time or range that does not follow the rules for its name."""


class UnknownPartition(LogfsError, KeyError):
    """No partition of that name is in the store."""

    def __str__(self) -> str:
        return str(self.args[0])


class PartitionExists(LogfsError):
    """A partition of that name is in the store already."""


class OffsetOutOfRange(LogfsError, IndexError):
    """The offset lies outside [log start offset, log end offset)."""


# These errors can be returned when something is appended.


class RecordTooLarge(LogfsError, ValueError):
    """A record whose batch would be larger than `max.message.bytes`, or than `segment.bytes`."""


class InvalidRecord(LogfsError, ValueError):
    """A record that the topic's settings refuse: no key where one is needed, or a bad timestamp."""


class InvalidEnvelope(LogfsError, ValueError):
    """A line that is not a JSON envelope of a record."""


class InvalidProducerEpoch(LogfsError, ValueError):
    """A batch or marker of a producer instance that a newer one has replaced."""


class OutOfOrderSequence(LogfsError, ValueError):
    """A batch whose sequence numbers do not follow those of its producer's last batch."""


class InvalidTransactionState(LogfsError, ValueError):
    """A batch outside the transaction that its producer has open."""


class CoordinatorFenced(LogfsError, ValueError):
    """A marker of a transaction coordinator that a newer one has replaced."""


class CommitPending(LogfsError):
    """A commit that is decided could not be done yet; it will be, once what the message tells of is mended."""


class NotWritable(LogfsError):
    """The store was opened read-only."""


class PartitionFailed(LogfsError):
    """A write or an fsync failed before: the partition takes no more writes until it is reopened.

    The kernel may have dropped the dirty pages and report success the next time, so a retry would lie.
    """


class LogDirFailed(PartitionFailed, OSError):
    """A storage error in a log directory, or its end: everything in it is offline until the store is opened again.

    As Kafka's KafkaStorageException. It has no errno of its own, so that nobody takes it for a full disk.
    """


# These errors can be returned when bytes on the disk, or from a caller, are not what they should be.


class Corrupt(LogfsError):
    """Bytes that break Kafka's format: a bad CRC, an impossible length, a malformed file."""


class Unsupported(LogfsError):
    """Well-formed bytes of a kind that this release does not handle."""


# These errors can be returned when a store is opened or configured.


class InvalidSetting(LogfsError, ValueError):
    """A setting's name is unknown, or its value is of the wrong type or out of range."""


class StoreLocked(LogfsError):
    """Another process, a broker or a logfs, holds the lock of a log directory."""


class InvalidStore(LogfsError):
    """The log directories do not fit together, or hold something that no store can be made of."""
