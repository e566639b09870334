"""`logfs volume-plugin`: log directories as volumes of Docker and Podman."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.cli.common import path_argument
from logfs.cli.service_manager import notify

if TYPE_CHECKING:
    import argparse

SOCKET = Path("/run/logfs/volumes.sock")
STATE = Path("/var/lib/logfs-volumes")
LOGS = Path("/var/lib/logfs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the socket, and where the plugin keeps its state and logs."""
    parser.add_argument(
        "--socket",
        type=path_argument,
        default=SOCKET,
        metavar="PATH",
        help=f"the socket for container engines, {SOCKET} by default; one from systemd has precedence",
    )
    parser.add_argument(
        "--state",
        type=path_argument,
        default=STATE,
        metavar="DIR",
        help=f"the directory of the table of volumes and of the mountpoints, {STATE} by default",
    )
    parser.add_argument(
        "--logs",
        type=path_argument,
        default=LOGS,
        metavar="DIR",
        help=f"where the log directory of a volume without the option logdir is made, {LOGS} by default",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C. The volumes stay mounted. Raises `Corrupt`, `InvalidStore` and `OSError`."""
    from logfs.volume.driver import VolumeDriver
    from logfs.volume.server import VolumeServer

    logging.basicConfig(level=logging.INFO, format="logfs volume-plugin: %(message)s", force=True)
    # The driver compares these paths with the paths of log directories, which have no symlinks.
    driver = VolumeDriver(arguments.state.resolve(), arguments.logs.resolve())
    with VolumeServer(driver, arguments.socket.absolute()) as server:

        def stop(*_: object) -> None:
            # `shutdown` waits for `serve_forever`, which this handler interrupts.
            threading.Thread(target=server.shutdown).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        logging.info("listening on %s", server.socket.getsockname())
        notify("READY=1")
        server.serve_forever()
    return 0
