"""The listening socket, the threads, and the limits of a server of Kafka's protocol."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from logfs.errors import InvalidName
from logfs.locks import Level, make_lock
from logfs.server.broker import WAITING_SECONDS, Broker
from logfs.server.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from logfs.store.store import Store

logger = logging.getLogger(__name__)

# The most connections at a time. Each has a thread and a descriptor.
_CONNECTIONS = 2000
_BACKLOG = 128
# The most bytes of requests that are in memory at a time.
_MOST_REQUEST_BYTES = 256 << 20
# How long `close` waits for the threads of connections.
_CLOSING_SECONDS = 5.0
# The pause after a connection could not be accepted.
_PAUSE_SECONDS = 0.1


class Server:
    """Answers Kafka's clients from an open store, in threads of its own. A context manager, which calls `close`.

    `address` is where it listens, as clients take it (`bootstrap.servers`), such as "127.0.0.1:9092". The store must
    stay open until the server is closed. Its upkeep remains with the caller.
    """

    address: str

    def __init__(self, store: Store, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on an address of the loopback interface, and begin to answer; port 0 stands for any free port.

        Raises `InvalidName` for another address, because clients are neither authenticated nor encrypted. Raises
        `OSError` if the address cannot be used, for example because another process listens there.
        """
        self._broker = Broker(store)
        self._stopping = threading.Event()
        self._budget = _Budget(_MOST_REQUEST_BYTES)
        self._free = threading.Semaphore(_CONNECTIONS)
        self._connections: dict[threading.Thread, Connection] = {}
        self._listening = _listen(host, port)
        host, port = self._listening.getsockname()[:2]
        self.address = f"{bracketed(host)}:{port}"
        self._threads = [threading.Thread(target=self._accept, name="serve-accept", daemon=True)]
        if store.read_only:
            self._threads.append(
                threading.Thread(target=self._refresh, name="serve-refresh", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop: accept no more connections, end those that there are, and wait for their threads."""
        self._stopping.set()
        self._broker.wake()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in list(self._connections.values()):
            connection.close()
        for thread in [*self._threads, *self._connections]:
            thread.join(_CLOSING_SECONDS)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            self._free.acquire()
            try:
                opened, client = self._listening.accept()
            except OSError as error:
                self._free.release()
                if not self._stopping.is_set():
                    # The cause may be that no descriptor is free, or that the client has closed the connection.
                    logger.warning("a connection cannot be accepted: %s", error)
                    self._stopping.wait(_PAUSE_SECONDS)
                continue
            self._begin(opened, f"{bracketed(client[0])}:{client[1]}")

    def _begin(self, opened: socket.socket, client: str) -> None:
        """Answer a client in a thread of its own."""
        try:
            connection = Connection(
                self._broker, opened, client, self._stopping, self._budget.taken
            )
            thread = threading.Thread(
                target=self._run, args=(connection,), name=f"serve-{client}", daemon=True
            )
            self._connections[thread] = connection
            thread.start()
        except (OSError, RuntimeError) as error:
            # The client has gone, or the process may not have another thread.
            logger.warning("client %s: cannot be answered: %s", client, error)
            opened.close()
            self._free.release()

    def _run(self, connection: Connection) -> None:
        try:
            connection.run()
        finally:
            self._connections.pop(threading.current_thread(), None)
            self._free.release()

    def _refresh(self) -> None:
        """Bring the store up to date with what other processes write, while a client waits for it."""
        while not self._stopping.wait(WAITING_SECONDS):
            self._broker.refresh_awaited()


class _Budget:
    """The bytes of requests that are in memory. A request that does not fit waits for others to be answered."""

    def __init__(self, limit: int) -> None:
        self._left = self._limit = limit
        self._changed = threading.Condition(make_lock(Level.BUDGET))

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Have `size` bytes of the budget during the `with` block."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()


def _listen(host: str, port: int) -> socket.socket:
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise InvalidName(
            f"{bracketed(host)}:{port}: clients would be neither authenticated nor encrypted; give an address of the "
            "loopback interface, such as 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # Python adds the address in brackets to the reason. Cut it off: the error has the address as its file name.
        reason = str(error.strerror).partition(" (")[0]
        raise OSError(error.errno, reason, f"{bracketed(host)}:{port}") from None


def bracketed(host: str) -> str:
    """Return a numeric address as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
