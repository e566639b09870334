"""`logfs dump`: print files line by line, as kafka-dump-log does.

In this package "the tool" is kafka-dump-log. As in the tool, the lines go to standard output, and the summary of
findings at the end goes to standard error. With `--json`, both go to standard output, one JSON object per line. If
the tool would fail on a file with an exception, an error goes to standard error, and the next file is dumped.

- `job`: the options, the output and the findings of one run.
- `log`, `indexes`, `producers`: the kinds of files. `batches`: the batches of a .log file.
- `decoder`: keys and values of `__consumer_offsets`. `lines`: how a line is printed, as text or JSON.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from logfs.errors import InvalidStore, LogfsError
from logfs.log.disk.bucket_path import BucketPath, as_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.cli.dump.job import DumpJob

_INT32_MAX = 2**31 - 1
_EPILOG = """\
The exit code is 0, or 1 for an invalid batch, bytes that are not a batch, an index entry that does not fit the log,
or a file that cannot be read. kafka-dump-log itself returns 0 unless it fails with an exception.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the files, and the options of kafka-dump-log under Kafka's names."""
    parser.add_argument("names", nargs="*", metavar="FILE", help="a file of a partition directory")
    parser.add_argument(
        "--files",
        action="extend",
        type=_list,
        default=[],
        metavar="FILE,…",
        help="more files, in the syntax of Kafka's tool",
    )
    parser.add_argument(
        "--deep-iteration", action="store_true", help="also print a line for each record"
    )
    parser.add_argument(
        "--print-data-log", action="store_true", help="also print keys and values of records"
    )
    parser.add_argument(
        "--offsets-decoder",
        action="store_true",
        help="print keys and values, decoded as those of __consumer_offsets",
    )
    parser.add_argument(
        "--skip-record-metadata",
        action="store_true",
        help="print only keys and values of records, not their other fields",
    )
    parser.add_argument(
        "--verify-index-only", action="store_true", help="check index entries without printing them"
    )
    parser.add_argument(
        "--index-sanity-check",
        action="store_true",
        help="check only the format of an index, not its entries against the log",
    )
    parser.add_argument(
        "--max-bytes",
        type=_size,
        default=_INT32_MAX,
        metavar="N",
        help="read at most N bytes of a .log file",
    )
    parser.add_argument(
        "--max-message-size",
        type=_size,
        default=5 * 1024 * 1024,
        metavar="N",
        help="the largest batch that an index may point to (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per line, with header values"
    )
    parser.epilog = _EPILOG
    parser.set_defaults(usage_error=parser.error)


def _list(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= _INT32_MAX):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of bytes below 2^31")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Dump each file, then print the findings of all files. Return 1 after an error, or if a finding is an error."""
    from logfs.cli.dump.job import DumpJob

    names = arguments.names + arguments.files
    if not names:
        arguments.usage_error("give FILE… or --files FILE,…")
    for name in names:
        if isinstance(as_path(name), BucketPath):
            raise InvalidStore(
                f"{name}: dump reads only local files: mount the bucket, and give a file below segments/"
            )
    job = DumpJob(arguments)
    for name in names:
        _dump(name, job)
    job.findings.print(job.lines)
    return 1 if job.wrong or job.findings.wrong else 0


def _dump(name: str, job: DumpJob) -> None:
    """Dump one file. Report an error in it to standard error, so that the other files are dumped, too."""
    job.lines.say(f"Dumping {name}", file=name)
    dump = _by_suffix().get(name.rpartition(".")[2])
    if dump is None:
        job.complain(f"Ignoring unknown file {name}")
        return
    try:
        dump(name, job)
    except BrokenPipeError:
        # The reader of the output has exited, which is not an error of the dumped file.
        raise
    except OSError as error:
        job.fail(f"{error.filename or name}: {error.strerror or error}")
    except LogfsError as error:
        job.fail(f"{name}: {error}")


def _by_suffix() -> dict[str, Callable[[str, DumpJob], None]]:
    from logfs.cli.dump import indexes, log, producers

    return {
        "log": log.dump,
        "checkpoint": log.dump,
        "index": indexes.dump_offset_index,
        "timeindex": indexes.dump_time_index,
        "txnindex": producers.dump_aborted,
        "snapshot": producers.dump_snapshot,
    }
