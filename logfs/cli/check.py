"""`logfs check`: audit everything, and change nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, log_dirs_of, progress_bar

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Log directories."""
    add_log_dirs(parser)


def _size_bytes(log_dir: Path) -> int:
    """The bytes of all .log files. What cannot be looked at counts nothing here: the audit reports it."""
    total = 0
    for file in log_dir.glob("*/*.log"):
        with suppress(OSError):
            # A link is not followed: it may lead nowhere, or to itself.
            total += file.lstat().st_size
    return total


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; exit code 1 if there is an error among them.

    A log directory that has no partitions yet is not called clean: there was nothing to look at.
    """
    from logfs.store.check import Severity, check
    from logfs.store.store import Store

    log_dirs = log_dirs_of(arguments.log_dirs)
    total = sum(map(_size_bytes, log_dirs))
    errors = notes = 0
    with progress_bar("checking", total) as bar:
        for finding in check(log_dirs, lambda _, size: bar.update(size) and None):
            bar.clear()
            print(finding)
            errors += finding.severity is Severity.ERROR
            notes += finding.severity is Severity.NOTE
    if errors or notes:
        print(f"{errors} errors, {notes} notes")
    else:
        with Store(log_dirs, read_only=True, only="") as store:
            print("clean" if store.homes else "nothing to check: there are no partitions yet")
    return 1 if errors else 0
