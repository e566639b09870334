"""The metrics of a mount over HTTP, for Prometheus (`logfs mount --metrics-listen`)."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from logfs.mount.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    # A function that returns the metrics: as OpenMetrics if its argument is true, else in Prometheus' text format.
    Metrics = Callable[[bool], bytes]

logger = logging.getLogger(__name__)

_PATH = "/metrics"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
# A client must send its request and receive the answer within this time.
_SECONDS = 5.0
# The most open connections. Further clients wait in the kernel, where they use no descriptor that a log may need.
_CONNECTIONS = 8
_MOST_HEADER_BYTES = 16 << 10
# The pause after a connection could not be accepted.
_PAUSE_SECONDS = 0.1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 stands for any free port. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=_CONNECTIONS)
    except OSError as error:
        # Python adds the address in brackets to the reason. Cut it off, because the message below has the address.
        reason = str(error.strerror).partition(" (")[0]
        raise OSError(error.errno, reason, f"--metrics-listen {host}:{port}") from None
    host, port = found.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logger.info("metrics: http://%s:%d%s", shown, port, _PATH)
    return found


async def serve(listening: socket.socket, metrics: Metrics) -> None:
    """Answer HTTP requests on the socket `listening` with the metrics, until cancelled.

    `metrics`, which is called in a worker thread, must return the metrics: as OpenMetrics if its argument is true,
    else in Prometheus' text format. An error on a connection ends only this connection.
    """
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    free = trio.Semaphore(_CONNECTIONS)
    async with listener, trio.open_nursery() as nursery:
        while True:
            await free.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:
                # The cause may be that no descriptor is free, or that the client has closed the connection.
                free.release()
                logger.warning("metrics: a connection cannot be accepted: %s", error)
                await trio.sleep(_PAUSE_SECONDS)
            else:
                nursery.start_soon(_serve_client, stream, free, metrics)


async def _serve_client(stream: trio.SocketStream, free: trio.Semaphore, metrics: Metrics) -> None:
    try:
        with trio.move_on_after(_SECONDS), suppress(trio.BrokenResourceError):
            async with stream:
                await stream.send_all(await _answer(await _read_header(stream), metrics))
    except OSError as error:
        logger.warning("metrics: a request cannot be answered: %s", error)
    finally:
        free.release()


async def _read_header(stream: trio.SocketStream) -> bytes:
    """Return the header of a request, with the empty line that ends it, and perhaps more bytes of the request.

    The empty line is missing if the client closes the connection before it, or sends 16 KiB without it.
    """
    header = b""
    while b"\r\n\r\n" not in header and len(header) < _MOST_HEADER_BYTES:
        received = await stream.receive_some()
        if not received:
            break
        header += received
    return header


async def _answer(header: bytes, metrics: Metrics) -> bytes:
    """Return the whole HTTP response to a request.

    GET of `/metrics` gets the metrics, and HEAD only their header. Any other request gets an error.
    """
    first, *lines = header.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    path, _, version = rest.partition(" ")
    if "" not in lines or not version.startswith("HTTP/1."):
        return _response("400 Bad Request", "not an HTTP request\n")
    if method not in ("GET", "HEAD"):
        return _response("405 Method Not Allowed", "use GET\n", "Allow: GET, HEAD\r\n")
    if path.partition("?")[0] != _PATH:
        return _response("404 Not Found", f"the metrics are at {_PATH}\n")
    accepted = [line.lower() for line in lines if line.lower().startswith("accept:")]
    as_openmetrics = any(_OPENMETRICS in line for line in accepted)
    try:
        content = await run_in_thread(metrics, as_openmetrics)
    except Exception as error:
        # The error is unexpected, and must not end the mount.
        logger.exception("metrics: the metrics cannot be made; the client gets the status 500")
        return _response("500 Internal Server Error", f"{error!r}\n")
    kind = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8" if as_openmetrics else _TEXT
    answer = _response("200 OK", content, kind=kind)
    return answer.removesuffix(content) if method == "HEAD" else answer


def _response(status: str, content: str | bytes, more: str = "", *, kind: str = _TEXT) -> bytes:
    body = content.encode() if isinstance(content, str) else content
    header = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
    return f"{header}Connection: close\r\n\r\n".encode() + body
