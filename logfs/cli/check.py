"""`logfs check`: audit everything, and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, log_dirs_of, progress_bar

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Log directories."""
    add_log_dirs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; exit code 1 if there is an error among them."""
    from logfs.store.check import Severity, check

    log_dirs = log_dirs_of(arguments.log_dirs)
    total = sum(file.stat().st_size for path in log_dirs for file in path.glob("*/*.log"))
    errors = notes = 0
    with progress_bar("checking", total) as bar:
        for finding in check(log_dirs, lambda _, size: bar.update(size) and None):
            bar.clear()
            print(finding)
            errors += finding.severity is Severity.ERROR
            notes += finding.severity is Severity.NOTE
    print(f"{errors} errors, {notes} notes" if errors or notes else "clean")
    return 1 if errors else 0
