"""Auditing whole log directories: every batch and every index entry, a segment a piece of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.log.audit import Account, Finding, Severity, Subject, settle
from logfs.log.planned import planned
from logfs.spark.jobs.running import Work, run
from logfs.spark.jobs.selection import opened
from logfs.store.check import check_log_dirs, check_small_files, trusts_indexes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from logfs.log.partition import Partition
    from logfs.spark.jobs.running import Progress
    from logfs.spark.jobs.selection import Paths
    from logfs.store.store import Store


@dataclass(frozen=True)
class Report:
    """What an audit read, and what it found: by partition, in the order of their names."""

    findings: tuple[Finding, ...]
    partitions: int
    segments: int
    records: int
    size_bytes: int

    @property
    def errors(self) -> list[Finding]:
        """Those that tell of something lost or wrong."""
        return [found for found in self.findings if found.severity is Severity.ERROR]


def verify(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Audit log directories as `logfs check` does, but for the maps of `keys/`; nothing is changed.

    It may run beside a broker or a mount; what those take away meanwhile is only noted. `topics` leaves the others
    out. `progress` is told (bytes of logs that are done, bytes in all). Raises what opening
    a store read-only raises, and `JobFailed` where a log could not be read at all.
    """
    with opened(paths, topics) as store:
        findings = list(check_log_dirs(store))
        small: dict[str, list[Finding]] = {}
        works: list[Work[Subject]] = []
        for name in store:
            small[name] = list(check_small_files(store, store[name]))
            works += [Work(each, each.segment.size_bytes) for each in subjects(store, store[name])]
        starts = {name: store[name].log_start_offset for name in store}
    found = run(spark, "logfs verify", works, Subject.audit, progress)
    of_logs: dict[str, list[Finding]] = {name: [] for name in starts}
    accounts: dict[str, list[Account]] = {name: [] for name in starts}
    for work, (wrong, account) in zip(works, found, strict=True):
        name = work.item.segment.partition
        of_logs[name] += wrong
        if account is not None:
            accounts[name].append(account)
    for name, start in starts.items():
        findings += [*small[name], *of_logs[name], *settle(accounts[name], start)]
    return Report(
        tuple(findings),
        len(starts),
        len(works),
        sum(account.records for each in accounts.values() for account in each),
        sum(work.size_bytes for work in works),
    )


def subjects(store: Store, partition: Partition) -> list[Subject]:
    """The segments of a partition, as what a task needs to audit each."""
    epochs = tuple(partition.epochs.entries)
    segments = zip(planned(partition), partition.segments, strict=True)
    return [
        Subject(plan, epochs, trusts_indexes(store, partition, segment))
        for plan, segment in segments
    ]
