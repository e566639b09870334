"""What one run of the command works with: options, the lines it prints, and what it has found wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.cli.dump.lines import Lines
from logfs.format import varint

if TYPE_CHECKING:
    import argparse

# Beyond everything that a file can hold.
_ALL_BYTES = 2**31 - 1


class Job:
    """One run of the command."""

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
        self.findings = Findings()
        self.wrong = False

    def fail(self, message: str) -> None:
        """A file that cannot be told of any further: a line may have been begun."""
        self.lines.abandon()
        self.complain(f"logfs: {message}")

    def complain(self, message: str) -> None:
        """A line on standard error, in its place among the others."""
        self.wrong = True
        self.lines.flush()
        print(message, file=sys.stderr)


class Finding(NamedTuple):
    """A kind of finding: its heading, its line, the name of its data, and whether something is wrong then."""

    heading: str
    line: str
    name: str
    wrong: bool = True


MISMATCH = Finding(
    "Mismatches in :{}", "  Index offset: {indexOffset}, log offset: {logOffset}", "mismatch"
)
TIMESTAMP_MISMATCH = Finding(
    "Found timestamp mismatch in :{}",
    "  Index timestamp: {indexTimestamp}, log timestamp: {logTimestamp}",
    "timestampMismatch",
)
OUT_OF_ORDER = Finding(
    "Found out of order timestamp in :{}",
    "  Index timestamp: {indexTimestamp}, Previously indexed timestamp: {previousTimestamp}",
    "outOfOrder",
)
NOT_FOUND = Finding(
    "The following indexed offsets are not found in :{}",
    "Indexed offset: {indexOffset}, found log offset: {logOffset}",
    "notFound",
)
# Compaction leaves such gaps; and the tool counts each segment from -1 on.
NON_CONSECUTIVE = Finding(
    "Non-consecutive offsets in {}",
    "  {offset} is followed by {nextOffset}",
    "nonConsecutive",
    wrong=False,
)
_KINDS = (MISMATCH, TIMESTAMP_MISMATCH, OUT_OF_ORDER, NOT_FOUND, NON_CONSECUTIVE)


class Findings:
    """What the tool keeps for itself until it is through with all files, and then tells kind by kind."""

    def __init__(self) -> None:
        self._found: dict[tuple[Finding, str], list[dict[str, int]]] = {}

    @property
    def wrong(self) -> bool:
        """Whether any finding means that something is wrong."""
        return any(kind.wrong for kind, _ in self._found)

    def add(self, kind: Finding, name: str, **values: int) -> None:
        """Note one finding in a file; numbers wrap around, as the tool's do."""
        wrapped = {word: varint.wrap(value) for word, value in values.items()}
        self._found.setdefault((kind, name), []).append(wrapped)

    def print(self, lines: Lines) -> None:
        """The headings and lines on standard error; as data they are lines like all others."""
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
    """A path as Java makes it absolute: `.` and `..` stay."""
    return os.path.join(Path.cwd(), name).replace("//", "/")


def _in_order(kind: Finding, values: list[dict[str, int]]) -> list[dict[str, int]]:
    """The tool keeps two kinds in sorted maps by their first number, where a later one replaces an earlier one."""
    if kind is not MISMATCH and kind is not NON_CONSECUTIVE:
        return values
    by_first = {next(iter(each.values())): each for each in values}
    return [by_first[first] for first in sorted(by_first, reverse=kind is MISMATCH)]
