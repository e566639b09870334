"""A network between two parties that breaks when a test says so: a TCP proxy on a loopback port."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

_PIECE = 1 << 16


class Proxy:
    """Forwards connections to an address. A context manager, which ends all of them."""

    def __init__(self) -> None:
        """Listen on a free port, `address`. `target` must be set before anybody connects."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections, and accept no more."""
        # Ends the wait for the next connection, too.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.resume()
        self.cut()

    def cut(self) -> None:
        """Break all connections, whatever is on its way."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def stop(self) -> None:
        """Forward nothing, until `resume`; connections stay."""
        self._flows.clear()

    def resume(self) -> None:
        """Forward again, first what has come meanwhile."""
        self._flows.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Forward one connection in both directions until either side, or a cut, ends it."""
        host, _, port = self.target.partition(":")
        with near, suppress(OSError), socket.create_connection((host, int(port))) as far:
            with self._lock:
                self._open += [near, far]
            back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
            back.start()
            self._forward(near, far)
            back.join()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._flows.wait()
                sink.sendall(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
