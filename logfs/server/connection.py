"""One connection of a client: its requests, one after the other, and the answers in the same order."""

from __future__ import annotations

import logging
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from logfs.errors import Corrupt
from logfs.format.messages.requests import (
    API_VERSIONS,
    encode_response,
    parse_header,
    parse_request,
    response_header,
    versions_of,
)
from logfs.server.apis import APIS, is_answered, unsupported_versions
from logfs.server.broker import Address, CloseConnection, Request
from logfs.server.fetch import FileRange

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from logfs.server.broker import Broker

logger = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
# The options of a socket for the time that a read or a write may take: a `struct timeval` in C.
_TIME = struct.Struct("@ll")
# The most bytes of a request (Kafka's socket.request.max.bytes).
_MOST_REQUEST_BYTES = 100 << 20
# How long a client may send nothing between two requests (Kafka's connections.max.idle.ms), in seconds.
_IDLE_SECONDS = 600
# How long one read within a request, and one write of an answer, may take, in seconds.
_STALLED_SECONDS = 30


class _Closed(Exception):
    """Raised where the connection ends: the reason, or "" if the client has closed it between two requests."""


class Connection:
    """A connection of a client. `run` answers its requests until the client, an error or `close` ends it.

    `budget` takes the size of a request and returns a context manager, in which the request is in memory.
    """

    def __init__(
        self,
        broker: Broker,
        opened: socket.socket,
        client: str,
        stopping: threading.Event,
        budget: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        self._broker = broker
        self._socket = opened
        self._client = client
        self._stopping = stopping
        self._budget = budget
        self._address = Address(*opened.getsockname()[:2])
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._limit(socket.SO_SNDTIMEO, _STALLED_SECONDS)

    def close(self) -> None:
        """End the connection; may be called by any thread, and more than once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The client has ended the connection already.
            return

    def run(self) -> None:
        """Answer requests until the connection ends. A wrong request ends it, and the reason is logged."""
        with self._socket:
            try:
                while not self._stopping.is_set():
                    self._limit(socket.SO_RCVTIMEO, _IDLE_SECONDS)
                    (size,) = _SIZE.unpack(self._received(_SIZE.size, is_begun=False))
                    if not 0 <= size <= _MOST_REQUEST_BYTES:
                        raise _Closed(f"a request of {size} bytes: at most {_MOST_REQUEST_BYTES}")
                    self._limit(socket.SO_RCVTIMEO, _STALLED_SECONDS)
                    with self._budget(size):
                        self._answer(self._received(size))
            except (_Closed, CloseConnection, Corrupt) as reason:
                if str(reason):
                    logger.warning("client %s: %s; the connection is closed", self._client, reason)
            except OSError as error:
                logger.debug("client %s: %s", self._client, error)
            except Exception:
                logger.exception(
                    "client %s: unexpected error; the connection is closed", self._client
                )

    def _limit(self, option: int, seconds: int) -> None:
        """Limit the time of each read (`SO_RCVTIMEO`) or write (`SO_SNDTIMEO`) of the socket."""
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIME.pack(seconds, 0))

    def _received(self, size: int, *, is_begun: bool = True) -> memoryview:
        """Return the next `size` bytes. `is_begun` says that the client has sent a part of a request before."""
        data = memoryview(bytearray(size))
        done = 0
        while done < size:
            try:
                count = self._socket.recv_into(data[done:])
            except BlockingIOError:
                raise _Closed("sent only a part of a request" if is_begun or done else "") from None
            if not count:
                raise _Closed("closed the connection within a request" if is_begun or done else "")
            done += count
        return data

    def _answer(self, data: memoryview) -> None:
        header = parse_header(data)
        key, version = header.api_key, header.version
        if not is_answered(self._broker, key):
            raise _Closed(f"request {key} is not answered here")
        known = versions_of(key)
        if known.lowest <= version <= known.highest:
            fields = parse_request(key, version, data, header.size_bytes)
            handler = APIS[key].handler
        elif key == API_VERSIONS:
            version, fields, handler = 0, {}, unsupported_versions
        else:
            raise _Closed(
                f"request {key} has version {version}, but {known.lowest} to {known.highest} are answered"
            )
        request = Request(version, fields, self._address, self._stopping)
        found = handler(self._broker, request)
        if found is None:
            return
        answer = encode_response(key, version, found)
        self._send([response_header(key, version, header.correlation_id), *answer])

    def _send(self, parts: list[Any]) -> None:
        """Send an answer: its length, and its parts. Ranges of files go from the page cache to the socket."""
        pieces = list(_joined([_SIZE.pack(sum(map(len, parts))), *parts]))
        for number, piece in enumerate(pieces, 1):
            if isinstance(piece, FileRange):
                self._send_file(piece)
            else:
                more = socket.MSG_MORE if number < len(pieces) else 0
                try:
                    self._socket.sendall(piece, more)
                except BlockingIOError:
                    raise _Closed("does not read the answer") from None

    def _send_file(self, piece: FileRange) -> None:
        position, left = piece.position, piece.size_bytes
        while left:
            try:
                done = os.sendfile(self._socket.fileno(), piece.file.fd, position, left)
            except BlockingIOError:
                raise _Closed("does not read the answer") from None
            if not done:
                # The length is promised already, so the answer cannot be completed.
                raise _Closed(f"{piece.file.path} was cut while it was sent")
            position, left = position + done, left - done


def _joined(parts: list[Any]) -> Iterator[Any]:
    """Yield `parts` with neighbouring bytes joined into one."""
    data = bytearray()
    for part in parts:
        if isinstance(part, FileRange):
            if data:
                yield data
                data = bytearray()
            yield part
        else:
            data += part
    if data:
        yield data
