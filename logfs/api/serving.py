"""An open store as a broker for Kafka's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.server.server import Server

if TYPE_CHECKING:
    from logfs.api.store import Store


def serve(store: Store, host: str = "127.0.0.1", port: int = 0) -> Server:
    """Let Kafka's clients use an open store; return the server, a context manager that stops at its end.

    Clients reach it at `Server.address`. Port 0 stands for any free port. The store must stay open until the server
    is closed. Raises `InvalidName` for an address that is not one of the loopback interface, `StoreClosed`, and
    `OSError` if the address cannot be used.
    """
    return Server(store._engine, host, port)
