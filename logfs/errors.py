"""The exception hierarchy. A message says what is wrong and, where that is known, the place and the remedy.

`LogfsError` is the root class, so `except LogfsError` catches all classes of this module.
`logfs.mount.errnos` maps the classes that a call on a mounted file can raise to the errno that the caller gets. The
other classes, such as the errors of producers, are raised only to callers in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, such as `; did you mean 'orders-0'?`.

    The suggestion is the most similar name in `known`; upper and lower case count as equal. Returns "" if no name in
    `known` is similar.
    """
    if not isinstance(name, str):
        # A caller may look up a key of any type in a mapping. No name is similar to a key that is not a string.
        return ""
    # `difflib` is imported here, because it is needed only after an error.
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


class LogfsError(Exception):
    """The root class of the errors of logfs."""


class _MissingKey(KeyError):
    """A `KeyError` whose text is its message. The text of a plain `KeyError` is its message in quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


# The classes below are raised for names and offsets that are wrong, and for partitions that exist already or have
# records.


class InvalidName(LogfsError, ValueError):
    """An argument is invalid: for example a name, an offset, a time, a range, a number, a command or an option."""


class InvalidUsage(InvalidName):
    """The words of a command line are wrong, such as an option's value. The command exits with code 2."""


class UnknownPartition(LogfsError, _MissingKey):
    """The store has no partition or topic of the given name."""


class UnknownGroup(LogfsError, _MissingKey):
    """No consumer group of the given name has committed offsets."""


class PartitionExists(LogfsError):
    """The partition exists already, or a log directory has another file or directory with the partition's name."""


class PartitionNotEmpty(LogfsError):
    """The partition has records, but the caller asked to delete it only if it is empty."""


class UnknownVolume(LogfsError, LookupError):
    """The volume plugin for containers has no volume of the given name."""


class OffsetOutOfRange(LogfsError, IndexError):
    """The offset lies outside the range that the operation allows, or is no longer in the log."""


# The classes below are raised by appends.


class RecordTooLarge(LogfsError, ValueError):
    """A record is too large: even alone in a batch, it would exceed `max.message.bytes` or `segment.bytes`."""


class InvalidRecord(LogfsError, ValueError):
    """The topic's settings do not allow a record, or input is malformed.

    For example, a record for a compacted topic has no key, or its timestamp is out of range. Malformed input is, for
    example, a commit request that cannot be parsed.
    """


class InvalidTimestamp(InvalidRecord):
    """The topic's settings do not allow the timestamp of a record."""


class InvalidEnvelope(LogfsError, ValueError):
    """A line is not the JSON envelope of a record."""


class InvalidProducerEpoch(LogfsError, ValueError):
    """A batch, a transaction marker or a call comes from an outdated instance of a producer.

    The producer epoch of such a batch or marker is lower than that of the newest instance. A call comes
    from an outdated instance if a later transaction with the same transactional id has begun.
    """


class OutOfOrderSequence(LogfsError, ValueError):
    """A batch's sequence numbers do not follow those of its producer's last batch."""


class InvalidTransactionState(LogfsError, ValueError):
    """A batch or a call is refused because of the state of a transaction.

    A transaction that has ended allows no call, and one in which an append has failed can only be aborted. While a
    producer has an open transaction, it may not send a batch that does not belong to the transaction.
    """


class CoordinatorFenced(LogfsError, ValueError):
    """A transaction marker has a lower coordinator epoch than that of the newest transaction coordinator."""


class CommitPending(LogfsError):
    """A commit of staged batches, such as those of an import, is durably decided, but not carried out completely.

    The message has the cause. When the cause is removed, the next commit, the upkeep or the next opening of the store
    completes the commit.
    """


class NotWritable(LogfsError):
    """A change is refused: the store is read-only, the topic is a mirror, or the bucket belongs to another store.

    Also raised if the caller lacks the permission to write, or to send requests to a mount.
    """

    @classmethod
    def of_mirror(cls, partition: str, source: str) -> NotWritable:
        """Return the error for a change of `partition`, which mirrors the cluster with the id `source`."""
        return cls(
            f"{partition}: is a mirror of {source}, and read-only; run 'logfs promote' to stop mirroring"
        )


class PartitionFailed(LogfsError):
    """The partition takes no writes until the store is reopened: a change of it has failed, or it is offline.

    Such a change is, for example, a write, an fsync, a truncation, a deletion, or a move to another log directory. A
    failed fsync is not tried again: the kernel may have dropped the dirty pages, and a second fsync would report
    success for lost data.

    Also raised if the store is closed (`StoreClosed`), or was closed before the partition could be loaded. In one
    case the partition has not failed: a segment was to be copied to an object store, and before the copy ended, the
    segment left the log or the store was closed.
    """


class StoreClosed(PartitionFailed, ValueError):
    """The store was closed; open it again."""


class LogDirFailed(PartitionFailed, OSError):
    """The partitions of a log directory are offline: it had a storage error, or was removed or replaced.

    Also raised in a forked child of the process that opened the store, and for a change after the store was closed.
    Reopen the store to use the partitions again. The error corresponds to Kafka's KafkaStorageException. It is an
    `OSError` whose `errno` is None, so code that checks the errno for a full disk (ENOSPC) does not handle it.
    """


# The classes below are raised for wrong bytes, on the disk or from a caller.


class Corrupt(LogfsError):
    """Bytes violate the format of their file: for example a bad CRC, an impossible length or a malformed line."""


class Unsupported(LogfsError):
    """Bytes are well-formed, but of a kind or version that this release does not support."""


class RemoteStorageError(LogfsError):
    """The object store refused a request, did not answer in time or sent wrong bytes; a later request may succeed."""


class NotDecodable(LogfsError, ValueError):
    """A value lacks the id of a known schema, the schema cannot be used, or the value does not match the schema."""


class SchemasUnavailable(LogfsError):
    """The schemas cannot be read, for example because a registry does not answer or a directory has no schemas."""


class ClusterError(LogfsError):
    """A Kafka cluster cannot be reached, refuses the credentials, or answers with an error."""


# The classes below are raised when a store is opened, configured or mounted.


class InvalidSetting(LogfsError, ValueError):
    """A setting's name is unknown, or its value has a wrong type, is out of range or contradicts another setting."""


class UnknownSetting(InvalidSetting, _MissingKey):
    """There is no setting of the given name."""


class StoreLocked(LogfsError):
    """A log directory is locked by another process (a broker or logfs), or by another store of this process."""


class RequestInterrupted(LogfsError):
    """A request to a mount got no answer, because the mount ended or the request was cancelled.

    The request may have been executed completely, in part or not at all.
    """


class InvalidStore(LogfsError):
    """The log directories or the bucket cannot be used as one store, or a mount is refused.

    For example, the contents of a directory are not a log, or a log directory of the store is missing. A mount is
    refused for an unsuitable mountpoint or mount option.
    """
