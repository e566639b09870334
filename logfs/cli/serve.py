"""`logfs serve`: let Kafka's clients read log directories."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, address_argument, log_dirs_of
from logfs.cli.service_manager import notify
from logfs.log.disk.memory import keep_memory

if TYPE_CHECKING:
    import argparse

_ADDRESS = ("127.0.0.1", 9092)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the address, and the log directories or a bucket."""
    parser.add_argument(
        "--listen",
        type=address_argument,
        default=_ADDRESS,
        metavar="[ADDRESS:]PORT",
        help="an address of the loopback interface, 127.0.0.1:9092 by default; 0 is any free port",
    )
    add_log_dirs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer Kafka's clients until SIGTERM or Ctrl-C. The log directories are opened read-only.

    Prints the address as the first line. Raises the errors of `log_dirs_of`, of `Store` and of `Server`.
    """
    from logfs.server.server import Server
    from logfs.store.store import Store

    keep_memory()
    logging.basicConfig(level=logging.WARNING, format="logfs serve: %(message)s", force=True)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with (
        Store(log_dirs_of(arguments.log_dirs), read_only=True, lazy=True) as store,
        Server(store, *arguments.listen) as server,
    ):
        print(f"bootstrap.servers={server.address}", flush=True)
        notify("READY=1")
        stopped.wait()
    return 0
