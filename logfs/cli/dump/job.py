"""One run of `logfs dump`: its options, its output, and its findings."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.cli.dump.lines import Lines
from logfs.format.base import varint

if TYPE_CHECKING:
    import argparse

# The default of `--max-bytes`. No .log file is larger, so it means no limit.
_ALL_BYTES = 2**31 - 1


class DumpJob:
    """One run of `logfs dump`: options, output and findings.

    `wrong` is True after an error that is printed at once, such as a batch with a wrong CRC. The errors in `findings`
    do not set it.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.decode_offsets: bool = arguments.offsets_decoder
        self.with_data: bool = arguments.print_data_log or self.decode_offsets
        self.with_records: bool = arguments.deep_iteration or self.with_data
        self.with_metadata: bool = not arguments.skip_record_metadata
        self.with_entries: bool = not arguments.verify_index_only
        self.sanity_only: bool = arguments.index_sanity_check
        self.max_bytes: int | None = arguments.max_bytes
        if self.max_bytes == _ALL_BYTES:
            self.max_bytes = None
        self.max_batch_bytes: int = arguments.max_message_size
        self.lines = Lines(json=arguments.json)
        self.findings = DumpFindings()
        self.wrong = False

    def fail(self, message: str) -> None:
        """Print `message`, the reason why the dump of a file ends early, to standard error, and set `wrong`.

        "logfs: " is printed before the message. An incomplete line of standard output is ended first.
        """
        self.lines.abandon()
        self.complain(f"logfs: {message}")

    def complain(self, message: str) -> None:
        """Flush standard output, print a line to standard error, and set `wrong`."""
        self.wrong = True
        self.lines.flush()
        print(message, file=sys.stderr)


class DumpFinding(NamedTuple):
    """A kind of finding, such as index entries that do not match the log.

    `heading` and `line` are format strings for the text output. `heading` is printed once above the findings of this
    kind in one file, with the file's path. `line` is printed for each finding, with its numbers. `name` is the name
    of the kind in the JSON output. `wrong` is True if findings of this kind are errors.
    """

    heading: str
    line: str
    name: str
    wrong: bool = True


MISMATCH = DumpFinding(
    "Mismatches in :{}", "  Index offset: {indexOffset}, log offset: {logOffset}", "mismatch"
)
TIMESTAMP_MISMATCH = DumpFinding(
    "Found timestamp mismatch in :{}",
    "  Index timestamp: {indexTimestamp}, log timestamp: {logTimestamp}",
    "timestampMismatch",
)
OUT_OF_ORDER = DumpFinding(
    "Found out of order timestamp in :{}",
    "  Index timestamp: {indexTimestamp}, Previously indexed timestamp: {previousTimestamp}",
    "outOfOrder",
)
NOT_FOUND = DumpFinding(
    "The following indexed offsets are not found in :{}",
    "Indexed offset: {indexOffset}, found log offset: {logOffset}",
    "notFound",
)
# Not an error: compaction leaves gaps between offsets, and kafka-dump-log also reports the first record of a file
# unless its offset is 0.
NON_CONSECUTIVE = DumpFinding(
    "Non-consecutive offsets in {}",
    "  {offset} is followed by {nextOffset}",
    "nonConsecutive",
    wrong=False,
)
_KINDS = (MISMATCH, TIMESTAMP_MISMATCH, OUT_OF_ORDER, NOT_FOUND, NON_CONSECUTIVE)


class DumpFindings:
    """The findings in all files. As in kafka-dump-log, they are collected and printed at the end, kind by kind."""

    def __init__(self) -> None:
        self._found: dict[tuple[DumpFinding, str], list[dict[str, int]]] = {}

    @property
    def wrong(self) -> bool:
        """Whether at least one of the findings is an error."""
        return any(kind.wrong for kind, _ in self._found)

    def add(self, kind: DumpFinding, name: str, **values: int) -> None:
        """Add a finding of the given kind in the file `name`.

        `values` are the numbers for the placeholders in the kind's format string `line`. They wrap around at 64 bits,
        as in kafka-dump-log.
        """
        wrapped = {word: varint.wrap(value) for word, value in values.items()}
        self._found.setdefault((kind, name), []).append(wrapped)

    def print(self, lines: Lines) -> None:
        """Print the findings to standard error, each kind and file under its heading.

        If `lines` prints JSON, the findings are printed through it instead, without headings.
        """
        lines.flush()
        for kind in _KINDS:
            for name in [name for found, name in self._found if found is kind]:
                values = _in_order(kind, self._found[kind, name])
                if lines.json:
                    for each in values:
                        lines.say("", **{"file": name, "finding": kind.name, **each})
                    continue
                text = [kind.heading.format(_absolute(name))]
                text += [kind.line.format(**each) for each in values]
                print(*text, sep="\n", file=sys.stderr)


def _absolute(name: str) -> str:
    """Return the absolute path as Java makes it: `.` and `..` are not resolved."""
    return os.path.join(Path.cwd(), name).replace("//", "/")


def _in_order(kind: DumpFinding, values: list[dict[str, int]]) -> list[dict[str, int]]:
    """Return the findings of one kind in the order in which kafka-dump-log prints them.

    `MISMATCH` findings are sorted by their first number, descending, and `NON_CONSECUTIVE` findings ascending. Of
    several findings with the same first number, only the last is returned: kafka-dump-log keeps them in maps. Other
    kinds of findings are returned as they are.
    """
    if kind is not MISMATCH and kind is not NON_CONSECUTIVE:
        return values
    by_first = {next(iter(each.values())): each for each in values}
    return [by_first[first] for first in sorted(by_first, reverse=kind is MISMATCH)]
