"""The job that audits whole log directories: every batch and every index entry, with one work item per segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.errors import UnknownPartition
from logfs.log.audit import Account, Finding, Severity, audit, check_boundaries, error, note
from logfs.log.disk.disk import TRIES, Gone
from logfs.log.scan.segment_descriptor import describe_segment
from logfs.spark.jobs.job_runner import WorkItem, run
from logfs.spark.jobs.missing import UnreadableSegment, still_in_log
from logfs.spark.jobs.selection import log_dirs, opened
from logfs.store.observe.check import (
    check_log_dir_files,
    check_partition,
    check_small_files,
    trusts_indexes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from logfs.log.read.log import Log
    from logfs.log.scan.segment_descriptor import SegmentDescriptor
    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.selection import Paths
    from logfs.store.store import Store


@dataclass(frozen=True)
class Verification:
    """The result of an audit: the findings, and how much was audited.

    First come the findings about files directly in the log directories, then those about each partition, in the order
    of the names. `partitions`, `segments` and `records` are counts. `size_bytes` is the size of the .log files.
    """

    findings: tuple[Finding, ...]
    partitions: int
    segments: int
    records: int
    size_bytes: int

    @property
    def errors(self) -> list[Finding]:
        """The findings with the severity ERROR, which report lost or wrong data."""
        return [found for found in self.findings if found.severity is Severity.ERROR]


def verify(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Audit log directories, and return the findings.

    Checks every batch and index entry, and the other files of the log directories and partitions. Key indexes are
    checked only in partitions with errors. Unlike `logfs check`, this does not check whether the bucket of tiered
    partitions belongs to another store.

    Nothing is changed. A broker or a mount may use the directories meanwhile. Files that change during the audit may
    cause errors, so the driver audits each partition with errors once more, as `logfs check` does. A segment that is
    removed from the log during the audit is reported as a note. A segment that is in the log but missing on a task's
    machine is reported as an error that names the host.

    `topics` limits the audit to these topics. `progress` is called with (bytes of logs done, total bytes). Blocks
    until the job has ended. Raises the errors of `logfs.open`; `Gone` or `FileNotFoundError` if files leave a log
    during each of several attempts to list its segments; `OSError`; and `JobFailed` if a segment exists on the
    machine of its task, but cannot be read.
    """
    with opened(paths, topics) as store:
        findings = list(check_log_dir_files(store))
        small: dict[str, list[Finding]] = {}
        works: list[WorkItem[AuditSubject]] = []
        starts: dict[str, int] = {}
        for name in store:
            plan = _planned(store, name)
            if plan is not None:
                small[name], subjects = plan
                starts[name] = store[name].log_start_offset
                works += [WorkItem(each, each.segment.size_bytes) for each in subjects]
    found = run(spark, "logfs verify", works, _audit, progress)
    missing = set(
        still_in_log(paths, (each for each in found if isinstance(each, UnreadableSegment)))
    )
    of_logs: dict[str, list[Finding]] = {name: [] for name in starts}
    of_missing: dict[str, list[Finding]] = {name: [] for name in starts}
    accounts: dict[str, list[Account]] = {name: [] for name in starts}
    for work, outcome in zip(works, found, strict=True):
        name = work.item.segment.partition
        if isinstance(outcome, UnreadableSegment):
            of_missing[name].append(_of_missing(outcome, is_error=outcome in missing))
            # The segment was not audited. Add an `Account` which says that the segment may lack offsets. Without an
            # account, `check_boundaries` would report all offsets of the segment as missing.
            planned = outcome.segment
            accounts[name].append(
                Account(planned.path, planned.path, planned.base_offset, True, planned.next_offset)
            )
            continue
        wrong, account = outcome
        of_logs[name] += wrong
        if account is not None:
            accounts[name].append(account)
    for name, start in starts.items():
        audited = [*small[name], *of_logs[name], *check_boundaries(accounts[name], start)]
        if any(each.severity is Severity.ERROR for each in audited):
            audited = check_partition(log_dirs(paths), name)
        findings += [*audited, *of_missing[name]]
    return Verification(
        tuple(findings),
        len(starts),
        len(works),
        sum(account.records for each in accounts.values() for account in each),
        sum(work.size_bytes for work in works),
    )


def _planned(store: Store, name: str) -> tuple[list[Finding], list[AuditSubject]] | None:
    """Return the findings about the files of a partition that belong to no segment, and its segments to audit.

    Returns None if the partition was deleted.

    Raises `Gone` or `FileNotFoundError` if files are removed from the log during each of `TRIES` attempts, and
    `OSError`.
    """
    for left in reversed(range(TRIES)):
        try:
            partition = store[name]
            return list(check_small_files(store, partition)), audit_subjects(store, partition)
        except (Gone, FileNotFoundError, UnknownPartition):
            store.refresh()
            if name not in store and name not in store.offline:
                return None
            if not left:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


@dataclass(frozen=True)
class AuditSubject:
    """A segment to audit in another process. It can be pickled.

    `epochs` has (leader epoch, start offset) of each leader epoch of the log, in order. `trusts_indexes` tells
    whether a difference between an index and the .log file is an error. `live` tells whether another process has the
    log directory open for writing.
    """

    segment: SegmentDescriptor
    epochs: tuple[tuple[int, int], ...]
    trusts_indexes: bool
    live: bool
    log_start_offset: int

    def audit(self) -> tuple[list[Finding], Account | None]:
        """Audit the segment, and return the findings and an `Account`: facts to compare with other segments.

        The caller passes the accounts of all segments to `check_boundaries`, which finds the problems between them.
        Raises `Gone` or `FileNotFoundError` if the planned segment does not exist on this machine any more, and
        `OSError`.
        """
        segment = self.segment.open()
        findings: list[Finding] = []
        account = None
        try:
            for found in audit(
                segment,
                self.epochs,
                trusts_indexes=self.trusts_indexes,
                live=self.live,
                log_start_offset=self.log_start_offset,
            ):
                if isinstance(found, Account):
                    account = found
                else:
                    findings.append(found)
        finally:
            segment.close()
        if findings:
            # Compaction may have replaced the .log file and its indexes meanwhile. Findings that compare the old file
            # with the new indexes would prove nothing, so raise `Gone` if the file was replaced.
            self.segment.check_in_place()
        return findings, account


def _audit(subject: AuditSubject) -> tuple[list[Finding], Account | None] | UnreadableSegment:
    try:
        return subject.audit()
    except (FileNotFoundError, Gone) as why:
        return UnreadableSegment.here(subject.segment, why)


def _of_missing(missing: UnreadableSegment, *, is_error: bool) -> Finding:
    path = missing.segment.path
    if is_error:
        return error(path, f"cannot be audited: {missing.text}")
    return note(path, "has left the log while it was audited")


def audit_subjects(store: Store, partition: Log) -> list[AuditSubject]:
    """Return an `AuditSubject` for each segment of a partition, in order.

    Raises `Gone` or `FileNotFoundError` if files leave the log during each of several attempts, and `OSError`.
    """
    epochs, start = tuple(partition.epochs.entries), partition.log_start_offset
    live = store.registry.homes[partition.name.directory].live
    return [
        AuditSubject(
            plan,
            epochs,
            trusts_indexes(store, partition, segment),
            live and not segment.disk.is_remote,
            start,
        )
        for segment, plan in describe_segment(partition)
    ]
