"""`logfs report`: write a report about log directories as one HTML page."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, log_dirs_of, path_argument, progress_bar
from logfs.log.disk.disk import USUAL_MODE, Disk
from logfs.log.disk.memory import keep_memory

if TYPE_CHECKING:
    import argparse

NAME = Path("logfs-report.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, the file to write, and `--quick`, which reads only indexes."""
    add_log_dirs(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=path_argument,
        default=NAME,
        metavar="FILE",
        help=f"the page to write, {NAME} by default; - for standard output",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="read only indexes: no audit, and no numbers of keys and compression",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page; exit code 1 if the audit finds an error, a partition is offline or a log directory failed."""
    import logfs
    from logfs.report.contents import read_report, size_of
    from logfs.report.page import render
    from logfs.store.observe.check import Severity

    keep_memory()
    log_dirs = log_dirs_of(arguments.log_dirs)
    full = not arguments.quick
    with progress_bar("reading", size_of(log_dirs) if full else None) as bar:
        report = read_report(log_dirs, full=full, progress=bar.update)
    page = render(report, logfs.__version__)
    if arguments.output == Path("-"):
        sys.stdout.write(page)
    elif arguments.output.exists() and not arguments.output.is_file():
        # The output is a device or a pipe: write into it. A rename would put a plain file in its place.
        arguments.output.write_text(page, encoding="utf-8")
    else:
        _replace(Path(os.path.realpath(arguments.output)), page)
        print(f"wrote {arguments.output}")
    is_damaged = any(each.severity is Severity.ERROR for each in report.findings or ())
    return int(is_damaged or bool(report.problems))


def _replace(path: Path, page: str) -> None:
    """Replace a file atomically, and keep its mode. After an error, such as a full disk, the old page remains.

    A file that did not exist gets the usual mode (0666 less the umask), so that a web server can read it.
    """
    disk = Disk(USUAL_MODE)
    try:
        with disk.replacing(path, path.with_name(f"{path.name}.tmp")) as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fd, path.stat().st_mode & 0o777)
            disk.write(file, 0, page.encode())
    except OSError as error:
        error.filename = str(path)
        raise
