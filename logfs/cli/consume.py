"""`logfs consume`: read partitions as a member of a consumer group, and commit offsets."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import threading
import time
from bisect import bisect
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, NamedTuple

from logfs.cli.common import add_isolation, add_target, ask, group_name, not_empty, warn
from logfs.cli.human_times import moment
from logfs.cli.output import Printer, add_form
from logfs.cli.output_pipe import OutputPipe, pause
from logfs.cli.reading import OpenLogs
from logfs.cli.selection import EARLIEST, LATEST, add_filter
from logfs.errors import InvalidName, InvalidUsage, NotWritable, StoreLocked
from logfs.store.admin.requests import CommitOffsets
from logfs.store.group_members import GroupMember, Place
from logfs.store.reached_offset import ReachedOffset

if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from typing import Self

    from logfs.cli.reading import OpenLog
    from logfs.log.read.reader import Reader

# How long to pause if no partition has a new record.
_POLL_SECONDS = 0.2
# The time between two commits; at the end, also how long to wait for the reader of the output.
_COMMIT_SECONDS = 1.0
# A partition is consumed in batches, which are ranges of offsets. This is the largest number of offsets in a batch
# without --exec.
_PRINTED = 10_000
# The default of --batch: the largest number of offsets in a batch with --exec.
_EXECUTED = 1000
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET, the group, where to begin and to end, a command, filters, and the output's form."""
    add_target(parser, topics=True)
    parser.add_argument("-g", "--group", required=True, type=group_name, help="the consumer group")
    parser.add_argument(
        "--from",
        dest="begin",
        default=EARLIEST,
        type=not_empty,
        metavar="N|T",
        help="where to begin in a partition for which the group has no offset: earliest (the default), latest, an "
        "offset, or @TIME",
    )
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="end after N records")
    parser.add_argument(
        "--idle-exit",
        type=float,
        metavar="SECONDS",
        help="end when no record has come for so long; 0 ends as soon as all records are read",
    )
    parser.add_argument(
        "--exec",
        metavar="COMMAND",
        help="run a shell command for each batch, with its records on standard input; commit if it succeeds",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=_EXECUTED,
        metavar="N",
        help=f"the most records that --exec gets at a time ({_EXECUTED})",
    )
    add_filter(parser)
    add_isolation(parser)
    add_form(parser)


def run(arguments: argparse.Namespace) -> int:
    """Consume records until a limit is reached, a signal arrives, or the command of `--exec` fails.

    The exit code is 1 if the command failed, or if a record was missed: it could not be read, was deleted before it
    was read, or was left out after a truncation. After a signal, the exit code is 128 plus the signal's number.
    Raises `NotWritable` for a bucket, `InvalidUsage` for an option out of range, and the errors of `OpenLogs` and
    `GroupMember`.
    """
    for option, count in (("-n", arguments.lines), ("--batch", arguments.batch)):
        if count is not None and count < 1:
            raise InvalidUsage(f"{option} {count}: give a number of records, at least 1")
    if arguments.idle_exit is not None and not arguments.idle_exit >= 0:
        raise InvalidUsage(f"--idle-exit {arguments.idle_exit}: give seconds, 0 or more")
    with OpenLogs(arguments.target, arguments.isolation, groups=True) as opened:
        # All members of a group must lock a file in the same log directory, but may name the log directories in
        # different orders. So take the log directory whose path sorts first.
        home = min(opened.log_dirs)
        if opened.store.disk.is_remote:
            raise NotWritable(
                f"{home}: nothing can be committed in a bucket; use 'logfs cat', or 'logfs tail -f'"
            )
        with _Consumer(opened, home, arguments) as consumer, _Signals() as signals:
            try:
                consumer.consume(signals)
            finally:
                if not signals.is_second:
                    consumer.finish()
    return signals.exit_code or (0 if consumer.is_whole else 1)


class _Signals:
    """Catches SIGINT, SIGTERM and SIGHUP, so that the consumer ends only after the present batch and its commit.

    A second signal sets `is_second`, and raises `SystemExit` at once, so that there is no last commit. `exit_code` is
    128 plus the number of the first signal, 0 for none. A signal that this process was started to ignore, as SIGHUP
    by `nohup`, stays ignored.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        self.is_second = False

    def __enter__(self) -> Self:
        # Python allows signal handlers in the main thread only. In another thread, do not catch the signals.
        is_main = threading.current_thread() is threading.main_thread()
        self._before = {
            each: signal.signal(each, self._note)
            for each in _ENDING
            if is_main and signal.getsignal(each) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _note(self, number: int, _: object) -> None:
        if self.exit_code:
            self.is_second = True
            raise SystemExit(self.exit_code)
        self.exit_code = 128 + number


class _Printed(NamedTuple):
    """A printed batch: offsets [start, end) of a partition. Its text begins at byte `at` of the output."""

    log: OpenLog
    start: int
    end: int
    at: int


class _Consumer:
    """Consumes the partitions that are assigned to one member of a consumer group.

    In this class, a batch is a range of offsets of one partition, not a record batch: each partition is consumed one
    batch at a time. Without `--exec`, a batch is printed, and kept in a list of printed batches until the reader of
    standard output has taken all of its text.

    `is_whole` is False once the command of `--exec` has failed, or a record was missed: it could not be read, was
    deleted before it was read, or was left out after a truncation.
    """

    def __init__(self, opened: OpenLogs, home: Path, arguments: argparse.Namespace) -> None:
        self._opened = opened
        self._arguments = arguments
        self._group: str = arguments.group
        self._logs: dict[str, OpenLog] = {}
        self._member = GroupMember(home, self._group, self._begin, self._commit)
        self._due = 0.0
        self._pipe = OutputPipe()
        self._printer = Printer(arguments, arguments.lines, self._pipe.out)
        # The printed batches that the reader of the pipe has perhaps not taken completely, in the order of the
        # output.
        self._printed: list[_Printed] = []
        self._reached: dict[str, ReachedOffset] = {}
        self._is_refused = False
        # Whether the last commit failed because another process has locked the log directory.
        self._is_waiting = False
        self.is_whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._member.close()

    def consume(self, signals: _Signals) -> None:
        """Consume batches until a limit (records, idle time) is reached, a signal arrives, or the command fails."""
        idle, since = self._arguments.idle_exit, time.monotonic()
        while not (self._is_refused or self._printer.is_done or signals.exit_code):
            self._join()
            # Consume one batch of each partition.
            places = [*self._member.places]
            taken = [not signals.exit_code and self._take(self._logs[name]) for name in places]
            if any(taken):
                since = time.monotonic()
            elif (
                idle is not None
                and time.monotonic() - since >= idle
                and self._member.has_all([*self._logs])
            ):
                return
            else:
                pause(_POLL_SECONDS)
            if time.monotonic() >= self._due:
                self._forget_taken()
                self._try_to_commit()
                self._due = time.monotonic() + _COMMIT_SECONDS

    def finish(self) -> None:
        """Print how many keys and values could not be decoded, and commit all partitions.

        If the reader of standard output, such as `head`, has exited or exits within a second, only the records that
        it has taken are committed. Raises the errors of `commit`.
        """
        self._printer.finish()
        is_read = self._pipe.await_reader(_COMMIT_SECONDS)
        self._opened.store.refresh()
        self._go_back()
        self._forget_taken()
        if is_read:
            self._printed = [batch for batch in self._printed if not self._is_complete(batch)]
        if self._printed:
            batch = self._printed[0]
            self._printed[0] = batch._replace(start=self._offset_after(batch, self._pipe.taken()))
        self.commit()

    def _forget_taken(self) -> None:
        """Forget the printed batches that the reader of standard output has taken completely."""
        ends = [*(batch.at for batch in self._printed[1:]), self._pipe.written]
        taken = self._pipe.taken()
        self._printed = [
            batch
            for batch, end in zip(self._printed, ends, strict=False)
            if end > taken or not self._is_complete(batch)
        ]

    def _forget_printed(self, log: OpenLog, first: int = 0) -> None:
        """Remove the offsets of a log at and above `first` from the list of printed batches.

        A batch that begins below `first` and ends above it is cut at `first`. By default, all batches of the log are
        removed.
        """
        self._printed = [
            batch._replace(end=min(batch.end, first)) if batch.log is log else batch
            for batch in self._printed
            if batch.log is not log or batch.start < first
        ]

    def _is_complete(self, batch: _Printed) -> bool:
        """Whether all of a batch was written: False if the output's reader exited before the end of the batch."""
        return self._member.places[batch.log.name].taken >= batch.end

    def _offset_after(self, batch: _Printed, taken: int) -> int:
        """Return the largest offset in a batch such that the reader of the output has taken all records below it.

        `taken` is how many bytes of the output the reader has taken. If it has not taken all bytes before the text of
        the batch, the result is the start offset of the batch.
        """

        def is_left(end: int) -> bool:
            text = io.BytesIO()
            printer = Printer(self._arguments, None, text)
            printer.print_logs([batch.log], [(batch.start, end)])
            return batch.at + text.tell() > taken

        ends = range(batch.start, batch.end + 1)
        # `bisect` returns 0 if the reader has not even taken all text before the batch. That text may be of a
        # partition that was released, whose batches are no longer in the list. Print no errors: what cannot be read
        # or decoded was reported when the batch was printed.
        with redirect_stderr(io.StringIO()):
            return batch.start + max(bisect(ends, False, key=is_left) - 1, 0)

    def _try_to_commit(self, name: str | None = None) -> bool:
        """Commit the offset of the partition `name`, or of all partitions if `name` is None, and return True.

        If another process holds the lock of the log directory, return False. Of several such failures in a row, only
        the first prints a warning.
        """
        try:
            self.commit(name)
        except StoreLocked as error:
            if not self._is_waiting:
                warn(
                    f"{error}; until then nothing is committed: if this command ends first, the group reads the "
                    "records since its last commit again"
                )
            self._is_waiting = True
            return False
        self._is_waiting = False
        return True

    def commit(self, name: str | None = None) -> None:
        """Commit the offset of the partition `name`, or of all partitions if `name` is None.

        The commit does not include printed batches that the reader of standard output has perhaps not taken
        completely. Raises `StoreLocked` if another process holds the lock of the log directory.
        """
        taken = {
            each: place.taken for each, place in self._member.places.items() if name in (None, each)
        }
        # The reader of the pipe has perhaps not taken the batches in `_printed`. For a partition with such batches,
        # commit the start offset of the first of them.
        for batch in reversed(self._printed):
            if batch.log.name in taken:
                taken[batch.log.name] = batch.start
        self._member.commit(taken)

    def _join(self) -> None:
        """Release the partitions now assigned to other members, and start to read those assigned to this member."""
        new, deleted = self._opened.look_again()
        for log in deleted:
            warn(f"{log.name}: the partition was deleted; the group goes on without it")
        for log in (*new, *deleted):
            # If a partition was created again, start over with the new one.
            self._forget_printed(log)
            self._member.forget(log.name)
        self._logs = {log.name: log for log in self._opened.logs}
        self._go_back()
        self._member.join([*self._logs], self._release)

    def _go_back(self) -> None:
        """Go back in each log that was truncated below the next offset to consume, and print a warning.

        The member goes back to the offset at which the new records begin or, if this offset is unknown, to the log
        end. If the offset is unknown and the log end is not below the next offset to consume, the member cannot go
        back: it leaves out the new records below the next offset, and `is_whole` becomes False.
        """
        for name, place in [*self._member.places.items()]:
            log = self._logs[name].reader.log
            cut = self._reached[name].truncation_below(log, place.taken)
            if cut is None:
                continue
            at, leaves_out = cut
            if at < place.taken:
                warn(
                    f"{name}: the log was truncated below {place.taken}, which {self._group} has reached: it "
                    f"continues at {at}"
                )
                self._forget_printed(self._logs[name], at)
                self._member.advance(name, at)
            elif leaves_out:
                self.is_whole = False
                warn(
                    f"{name}: the log was truncated below {at}, which {self._group} has reached, and has grown "
                    "again: its new records below that offset are left out"
                )
            self._reached[name] = ReachedOffset(log, at)

    def _release(self, name: str) -> bool:
        # Commit all printed batches, even those that the reader of the pipe has not taken yet. Otherwise the member
        # that gets this partition would print them again.
        printed = self._printed
        self._forget_printed(self._logs[name])
        if self._try_to_commit(name):
            return True
        self._printed = printed
        return False

    def _begin(self, name: str) -> Place:
        """Return where to begin in a partition: at the committed offset or, if there is none, as `--from` says."""
        return self._logs[name].ask(self._place)

    def _place(self, reader: Reader) -> Place:
        # `end` is the log end offset even for read_committed: read_uncommitted members of the group may have
        # committed beyond the last stable offset.
        name, end = reader.name.directory, reader.log.state.log_end_offset
        # Another member may have committed since the last refresh.
        self._opened.store.refresh()
        found = self._opened.store.groups.committed(self._group, name)
        if found is None:
            place = Place(_resolve(self._arguments.begin, reader), -1)
        else:
            place = Place(min(found.offset, end), found.offset)
            if found.offset > end:
                warn(
                    f"{name}: {self._group} has committed {found.offset}, but the log ends at {end}: it continues "
                    "there"
                )
        self._reached[name] = ReachedOffset(reader.log, place.taken)
        return place

    def _take(self, log: OpenLog) -> bool:
        """Print the next batch of a partition or, with `--exec`, run the command for it.

        Return False if the partition has no further offsets, or if the command fails or has failed before.
        """
        place, left = self._member.places[log.name], self._printer.left
        most = _PRINTED if self._arguments.exec is None else self._arguments.batch
        # Only `left` more records may be printed, so take at most `left` offsets: each has at most one record.
        most = most if left is None else min(most, left)
        start = max(place.taken, log.reader.log_start_offset)
        end = min(start + most, log.reader.log_end_offset)
        if self._is_refused:
            return False
        if start > place.taken:
            self._member.advance(log.name, start)
            self.is_whole = False
            warn(
                f"{log.name}: offsets {place.taken} to {start - 1} have left the log (retention or deletion) before "
                "they were read"
            )
        if end <= start:
            return False
        if self._arguments.exec is None:
            self._printed.append(_Printed(log, start, end, self._pipe.written))
            self.is_whole &= self._printer.print_logs([log], [(start, end)])
        elif not self._execute(log, start, end):
            self.is_whole, self._is_refused = False, True
            return False
        self._member.advance(log.name, end)
        self._reached[log.name].advance(log.reader.log, end)
        if self._arguments.exec is not None:
            self._try_to_commit(log.name)
        return True

    def _execute(self, log: OpenLog, start: int, end: int) -> bool:
        """Run the command with the records at the offsets [start, end) on its standard input.

        The command gets only the records that the filter admits. If there are none, it is not run. Return False if
        the command fails.
        """
        records = self._printer.out = io.BytesIO()
        self.is_whole &= self._printer.print_logs([log], [(start, end)])
        if not records.tell():
            return True
        environment = dict(os.environ, LOGFS_PARTITION=log.name, LOGFS_OFFSETS=f"{start}..{end}")
        done = subprocess.run(
            self._arguments.exec, shell=True, check=False, input=records.getvalue(), env=environment
        )
        if done.returncode:
            warn(
                f"{log.name}: offsets {start} to {end - 1} are not committed: the command ended with "
                f"{done.returncode}; the group will read them again"
            )
        return not done.returncode

    def _commit(self, offsets: dict[str, int]) -> None:
        texts = {name: str(offset) for name, offset in offsets.items()}
        # Leave out partitions that were deleted or truncated: they must not keep the group from committing in the
        # others.
        ask(self._opened.log_dirs, CommitOffsets(self._group, texts, skips_missing=True))


def _resolve(text: str, reader: Reader) -> int:
    """Return the offset in a partition that `text`, the value of `--from`, stands for.

    `text` is `earliest`, `latest`, an offset, or a time. Raises `InvalidUsage` if it is none of these.
    """
    if text == EARLIEST:
        return reader.log_start_offset
    if text == LATEST:
        return reader.log_end_offset
    if text.isascii() and text.isdigit():
        return min(max(int(text), reader.log_start_offset), reader.log_end_offset)
    try:
        timestamp = moment(text.removeprefix("@"), time.time_ns() // 1_000_000)
    except InvalidName:
        raise InvalidUsage(
            f"--from {text!r}: give {EARLIEST}, {LATEST}, an offset, or a time such as '@10 minutes ago'"
        ) from None
    found = reader.offset_for_time(timestamp, shown=True)
    return reader.log_end_offset if found is None else found.offset
