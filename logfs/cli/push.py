"""`logfs push`: send topics into a Kafka cluster, with the same batches and offsets if possible."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logfs.cli.common import add_log_dirs, log_dirs_of, not_empty, path_argument, progress_bar
from logfs.cli.mirror import add_source, source_of
from logfs.log.disk.memory import keep_memory

if TYPE_CHECKING:
    from logfs.push.plan import PushProgress, TopicPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the cluster, the topics, how they are sent, `--dry-run`, and the log directories."""
    parser.add_argument(
        "--to",
        dest="servers",
        required=True,
        type=not_empty,
        metavar="HOST:PORT",
        help="one broker of the cluster or several, separated by commas",
    )
    add_source(parser, "push")
    parser.add_argument(
        "--translate",
        type=path_argument,
        metavar="MAP",
        help="give records new offsets if batches cannot be sent as they are; this file maps old to new offsets",
    )
    parser.add_argument(
        "--replication-factor",
        type=_replicas,
        default=-1,
        metavar="N",
        help="the replicas of new topics (default: the cluster's)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be sent")
    add_log_dirs(parser)


def _replicas(text: str) -> int:
    with suppress(ValueError):
        if 0 < int(text) < 1 << 15:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: give a number of replicas from 1 to 32767")


def run(arguments: argparse.Namespace) -> int:
    """Push topics, and print how much of each was sent. If one of them cannot be pushed, send nothing, and return 1.

    With `--dry-run`, send nothing, and print how many offsets of each topic would be sent. Raises `InvalidName` for a
    malformed regular expression, and the errors of opening a store and of `Push`.
    """
    from logfs.push.push import Push
    from logfs.store.store import Store

    keep_memory()
    logging.basicConfig(level=logging.WARNING, format="logfs push: %(message)s", force=True)
    topics, options = source_of(arguments)
    shown = _Shown()
    with (
        Store(log_dirs_of(arguments.log_dirs), read_only=True) as store,
        Push(
            store,
            arguments.servers,
            topics,
            options,
            map_path=arguments.translate,
            replicas=arguments.replication_factor,
        ) as push,
    ):
        try:
            plans = push.plan(shown.update)
            shown.close()
            refused = [plan for plan in plans if plan.is_refused]
            for plan in refused:
                _tell_reasons(plan, may_translate=arguments.translate is None)
            if refused:
                print("logfs push: nothing was sent", file=sys.stderr)
                return 1
            if not arguments.dry_run:
                push.run(plans, shown.update)
        finally:
            shown.close()
        for plan in plans:
            how = "with new offsets" if plan.is_translated else "as they are"
            of = f"{len(plan.readers)} partition{'s' * (len(plan.readers) > 1)}"
            what = f"{plan.left} offsets" if arguments.dry_run else f"{plan.sent_records} records"
            print(f"{plan.name}: {what} of {of} {how}")
    return 0


def _tell_reasons(plan: TopicPlan, *, may_translate: bool) -> None:
    """Print why a topic cannot be pushed and, if `may_translate`, whether the option `--translate` would help."""
    how = "cannot be pushed" if plan.is_translated else "cannot be pushed as it is"
    print(f"logfs push: {plan.name} {how}:", file=sys.stderr)
    for reason in [*plan.refusals, *(() if plan.is_translated else plan.obstacles)]:
        print(f"  {reason}", file=sys.stderr)
    if may_translate and not plan.refusals:
        print("  --translate MAP gives its records new offsets", file=sys.stderr)


class _Shown:
    """A progress bar on the terminal for the current step of a push."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._work = ""

    def update(self, progress: PushProgress) -> None:
        """Update the bar. If the step has changed, start a new bar."""
        if progress.work != self._work:
            self.close()
            self._work = progress.work
            self._bar = progress_bar(progress.work, progress.total_bytes)
        self._bar.total = progress.total_bytes
        self._bar.update(progress.done_bytes - self._bar.n)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._work = None, ""
