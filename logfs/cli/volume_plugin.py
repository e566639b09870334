"""`logfs volume-plugin`: serve log directories as volumes of Docker and Podman."""

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
    """Add the arguments: the socket, the directory for the plugin's state, and the parent of new log directories."""
    parser.add_argument(
        "--socket",
        type=path_argument,
        default=SOCKET,
        metavar="PATH",
        help=f"the socket for container engines, {SOCKET} by default; a socket passed by systemd has precedence",
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
        help=f"the parent of the log directories of volumes without the option logdir, {LOGS} by default",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve volumes to container engines until SIGTERM or Ctrl-C. The volumes stay mounted after that.

    Raises the errors of `VolumeDriver` and `VolumeServer`: `Corrupt`, `InvalidStore` and `OSError`.
    """
    from logfs.volume.driver import VolumeDriver
    from logfs.volume.server import VolumeServer

    logging.basicConfig(level=logging.INFO, format="logfs volume-plugin: %(message)s", force=True)
    # Resolve symlinks, because the driver compares these paths with the resolved paths of log directories.
    driver = VolumeDriver(arguments.state.resolve(), arguments.logs.resolve())
    with VolumeServer(driver, arguments.socket.absolute()) as server:

        def stop(*_: object) -> None:
            # Call `shutdown` in a thread: it waits for the end of `serve_forever`, which is suspended while this
            # handler runs.
            threading.Thread(target=server.shutdown).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        logging.info("listening on %s", server.socket.getsockname())
        notify("READY=1")
        server.serve_forever()
    return 0
