"""`logfs mirror`: copy topics of a Kafka cluster into a log directory, and follow their changes."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logfs.cli.common import (
    add_log_dirs,
    log_dirs_of,
    not_empty,
    recovery_progress,
    regular_expression,
)
from logfs.log.disk.memory import keep_memory

if TYPE_CHECKING:
    import argparse
    import re

    from logfs.mirror.mirror import MirrorProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the cluster, the topics, the connection's properties, `--once`, and the log directories."""
    parser.add_argument(
        "--from",
        dest="servers",
        required=True,
        type=not_empty,
        metavar="HOST:PORT",
        help="one broker of the cluster or several, separated by commas",
    )
    add_source(parser)
    parser.add_argument(
        "--once", action="store_true", help="stop at the present ends of the topics"
    )
    add_log_dirs(parser)


def add_source(parser: argparse.ArgumentParser, verb: str = "mirror") -> None:
    """Add the options that select topics and configure the connection.

    `verb` says in the help text what is done with the topics, such as "push".
    """
    parser.add_argument(
        "--topics",
        metavar="REGEX",
        help=f"{verb} the topics whose whole names match (default: all but Kafka's own)",
    )
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="properties of the connection to the cluster: TLS, SASL, timeouts",
    )


def source_of(arguments: argparse.Namespace) -> tuple[re.Pattern[str], dict[str, Any]]:
    """Return the pattern that the names of the wanted topics match, and the options of the connection.

    Raises `InvalidName` for a malformed regular expression, `InvalidSetting` for a wrong option, and `OSError` if the
    file with the options cannot be read.
    """
    from logfs.cluster.options import read_options

    wanted = ".*" if arguments.topics is None else arguments.topics
    return regular_expression("--topics", wanted), read_options(arguments.command_config)


def run(arguments: argparse.Namespace) -> int:
    """Mirror topics until Ctrl-C; with `--once`, end after the batches that the cluster has at the start.

    With `--once`, returns 1 if `Mirror.progress` has problems at the end, such as a topic that cannot be mirrored,
    else 0. Raises `KeyboardInterrupt` at Ctrl-C, and the errors of `source_of`, of opening a store and of `Mirror`.
    """
    from logfs.cluster.cluster import Cluster
    from logfs.mirror.mirror import Mirror
    from logfs.store.store import Store

    keep_memory()
    logging.basicConfig(level=logging.WARNING, format="logfs mirror: %(message)s", force=True)
    topics, options = source_of(arguments)
    log_dirs = log_dirs_of(arguments.log_dirs, may_be_empty=True, for_writing=True)
    shown = _Shown()
    # Connect once before the store is opened, so that no new store is created if the cluster cannot be reached.
    Cluster(arguments.servers, options).close()
    with (
        Store(log_dirs, progress=recovery_progress()) as store,
        Mirror(store, arguments.servers, topics, options) as mirror,
    ):

        def tick(progress: MirrorProgress) -> None:
            shown.update(progress)
            store.upkeep()

        try:
            if arguments.once:
                mirror.run_once(tick)
            else:
                mirror.run(tick)
        finally:
            shown.close()
        return int(bool(mirror.progress().problems))


class _Shown:
    """A line on the terminal that shows the progress of a mirror."""

    def __init__(self) -> None:
        self._bar: Any = None

    def update(self, progress: MirrorProgress) -> None:
        """Draw the line with the numbers of `progress`. Do nothing if standard error is not a terminal."""
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(unit="B", unit_scale=True, bar_format="{desc}{n_fmt}, {rate_fmt}")
        self._bar.set_description_str(
            f"{progress.partitions} partitions, {progress.lag} offsets behind, ", refresh=False
        )
        self._bar.update(progress.fetched_bytes - self._bar.n)

    def close(self) -> None:
        """Move to the next line, so that the last progress line stays on the terminal."""
        if self._bar is not None:
            self._bar.close()
