"""The exception hierarchy. A message says what is wrong and, where that is known, the place and the remedy.

`LogfsError` is the root class, so `except LogfsError` catches all classes of this module.
`logfs.mount.errnos` maps the classes that a call on a mounted file can raise to the errno that the caller gets. The
other classes, such as the errors of producers, are raised only to callers in Python.
"""

from __future__ import annotations


class LogfsError(Exception):
    """The root class of the errors of logfs."""


# Raised for names and offsets that are wrong, and for partitions that exist already or have records.


class InvalidName(LogfsError, ValueError):
    """A text from the user is invalid: a name, an offset, a time, a range, a command or an option."""


class UnknownPartition(LogfsError, KeyError):
    """The store has no partition of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


class PartitionExists(LogfsError):
    """The store already has a partition of that name."""


class PartitionNotEmpty(LogfsError):
    """A partition that was to be deleted only without records has records."""


class UnknownVolume(LogfsError, LookupError):
    """The plugin for containers has no volume of that name."""


class OffsetOutOfRange(LogfsError, IndexError):
    """The offset lies outside [log start offset, log end offset)."""


# Raised by appends.


class RecordTooLarge(LogfsError, ValueError):
    """A record's batch would be larger than `max.message.bytes` or `segment.bytes`."""


class InvalidRecord(LogfsError, ValueError):
    """The topic's settings refuse a record (no key where one is needed, or a bad timestamp), or input is malformed.

    Malformed input is, for example, a commit request that cannot be parsed.
    """


class InvalidEnvelope(LogfsError, ValueError):
    """A line is not the JSON envelope of a record."""


class InvalidProducerEpoch(LogfsError, ValueError):
    """A batch or marker has a lower epoch than the newest instance of its producer."""


class OutOfOrderSequence(LogfsError, ValueError):
    """A batch's sequence numbers do not follow those of its producer's last batch."""


class InvalidTransactionState(LogfsError, ValueError):
    """A producer with an open transaction sent a batch that does not belong to the transaction."""


class CoordinatorFenced(LogfsError, ValueError):
    """A marker has a lower coordinator epoch than the newest transaction coordinator."""


class CommitPending(LogfsError):
    """A commit is decided and recorded, but not finished. It finishes after the cause in the message is removed."""


class NotWritable(LogfsError):
    """The store was opened read-only, the topic mirrors a cluster, or the bucket belongs to another store."""

    @classmethod
    def of_mirror(cls, partition: str, source: str) -> NotWritable:
        """Return the error for a change of `partition`, which mirrors the cluster with the id `source`."""
        return cls(
            f"{partition}: is a mirror of {source}, and read-only; 'logfs promote' makes it a log of its own"
        )


class PartitionFailed(LogfsError):
    """An earlier write or fsync failed: the partition takes no more writes until it is reopened.

    A failed fsync is not tried again: the kernel may have dropped the dirty pages, and would then report success
    for data that are lost.
    """


class LogDirFailed(PartitionFailed, OSError):
    """A log directory had a storage error or was removed: its partitions are offline until the store is opened again.

    It corresponds to Kafka's KafkaStorageException. Its `errno` is None, so callers do not mistake it for a full
    disk.
    """


# Raised for wrong bytes, on the disk or from a caller.


class Corrupt(LogfsError):
    """Bytes break the format of their file: a bad CRC, an impossible length, a malformed line."""


class Unsupported(LogfsError):
    """Bytes are well-formed, but of a kind that this release does not handle."""


class RemoteStorageError(LogfsError):
    """The object store refused a request, did not answer in time or sent wrong bytes; a later request may succeed."""


class NotDecodable(LogfsError, ValueError):
    """A value has no id of a known schema, or its bytes do not fit that schema."""


class SchemasUnavailable(LogfsError):
    """The schemas cannot be read: a registry does not answer, or a directory has no schemas."""


class ClusterError(LogfsError):
    """A Kafka cluster cannot be reached, refuses the credentials, or answers with an error."""


# Raised when a store is opened, configured or mounted.


class InvalidSetting(LogfsError, ValueError):
    """A setting's name is unknown, or its value has a wrong type, is out of range or contradicts another one."""


class StoreLocked(LogfsError):
    """Another process (a broker or logfs) holds the lock of a log directory."""


class RequestInterrupted(LogfsError):
    """The mount that executed a request ended before it answered the request."""


class InvalidStore(LogfsError):
    """The log directories cannot form one store, their contents are not a store, or a mount is refused.

    A mount is refused for an unsuitable mountpoint or mount option.
    """
