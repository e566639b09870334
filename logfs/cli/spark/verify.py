"""`logfs spark verify`: audit log directories as `logfs check` does, on many disks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs
from logfs.cli.spark.common import add_session, add_topics, bar, session

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, topics, and the session."""
    add_log_dirs(parser)
    add_topics(parser)
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    """Audit the partitions, and print the findings and a summary; exit code 1 if one of the findings is an error."""
    with session(arguments, "verify") as spark, bar("verifying") as progress:
        from logfs.spark.jobs import verify

        report = verify(spark, arguments.log_dirs, topics=arguments.topics, progress=progress)
    for finding in report.findings:
        print(finding)
    errors = len(report.errors)
    print(
        f"{report.partitions} partitions, {report.segments} segments, {report.records} records, "
        f"{report.size_bytes} bytes: {errors} errors, {len(report.findings) - errors} notes"
    )
    return 1 if errors else 0
