"""Messages to the service manager that has started a command (systemd's sd_notify)."""

from __future__ import annotations

import os
import socket


def notify(*states: str) -> None:
    """Send states such as `READY=1` to the service manager; do nothing if NOTIFY_SOCKET is not set.

    The environment variable NOTIFY_SOCKET has the path of the manager's datagram socket; a path that begins with `@`
    is an abstract socket address. Raises `OSError`.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.connect(address)
        manager.sendall("\n".join(states).encode())
