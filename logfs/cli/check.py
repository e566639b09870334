"""`logfs check`: audit log directories without changing them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from logfs.cli.common import (
    add_json,
    add_log_dirs,
    entries,
    log_dirs_of,
    print_json,
    progress_bar,
)
from logfs.log.disk.memory import keep_memory

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, and the form of the output."""
    add_log_dirs(parser)
    add_json(parser)


def _size_bytes(log_dir: Path) -> int:
    """Return the total size in bytes of all .log files in a log directory; 0 if it is the URL of a bucket.

    Files that cannot be examined count as 0 bytes: the audit reports them.
    """
    total = 0
    for directory in entries(log_dir):
        for name in entries(log_dir / directory):
            if name.endswith(".log"):
                with suppress(OSError):
                    # Do not follow a symlink: its target may be missing, or be the symlink itself.
                    total += (log_dir / directory / name).lstat().st_size
    return total


def run(arguments: argparse.Namespace) -> int:
    """Audit the log directories, and print the findings; exit code 1 if one of them is an error.

    If the log directories have no partitions, the text output says so, instead of `clean`.
    """
    from logfs.store.observe.check import Severity, check
    from logfs.store.store import Store

    keep_memory()
    log_dirs = log_dirs_of(arguments.log_dirs)
    total = sum(map(_size_bytes, log_dirs))
    errors = notes = 0
    with progress_bar("checking", total) as bar:
        for finding in check(log_dirs, lambda _, size: bar.update(size) and None):
            bar.clear()
            if arguments.json:
                severity = finding.severity.name.lower()
                print_json({"severity": severity, "path": str(finding.path), "text": finding.text})
            else:
                print(finding)
            errors += finding.severity is Severity.ERROR
            notes += finding.severity is Severity.NOTE
    if arguments.json:
        return 1 if errors else 0
    if errors or notes:
        print(f"{errors} errors, {notes} notes")
    else:
        with Store(log_dirs, read_only=True, only="") as store:
            print(
                "clean" if store.registry.homes else "nothing to check: there are no partitions yet"
            )
    return 1 if errors else 0
