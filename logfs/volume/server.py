"""The requests of container engines: JSON over HTTP on a Unix socket (Docker's volume plugin protocol, version 1)."""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING, Any

import orjson

from logfs.errors import InvalidName, InvalidStore, LogfsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.volume.driver import VolumeDriver, VolumeStatus

logger = logging.getLogger(__name__)

# The most bytes of the body of a request.
_MOST_BYTES = 1 << 20
_TYPE = "application/vnd.docker.plugins.v1.1+json"
# The first descriptor that systemd passes to a service with a socket.
_PASSED = 3


class VolumeServer(ThreadingMixIn, UnixStreamServer):
    """Passes the requests of container engines to a driver, with one thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, driver: VolumeDriver, path: Path) -> None:
        """Listen on the socket `path`, which only its owner may use, or on the socket that systemd has passed.

        A socket file without a listening process is replaced. Raises `InvalidStore` if a process listens on it, and
        `OSError`.
        """
        self.driver = driver
        self._made: Path | None = None
        super().__init__(str(path), _Request, bind_and_activate=False)
        if os.environ.get("LISTEN_PID") == str(os.getpid()):
            self.socket.close()
            self.socket = socket.socket(fileno=_PASSED)
            return
        try:
            self._bind(path)
        except BaseException:
            self.socket.close()
            raise

    def _bind(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as other:
            try:
                other.connect(str(path))
            except ConnectionRefusedError:
                # A file that is not a socket refuses the connection, too.
                if not path.is_socket():
                    raise InvalidStore(f"{path}: is not a socket; give another --socket") from None
                path.unlink()
            except FileNotFoundError:
                pass
            else:
                raise InvalidStore(
                    f"{path}: another process serves this socket; stop it, or use another --socket"
                )
        before = os.umask(0o177)
        try:
            self.server_bind()
        finally:
            os.umask(before)
        self._made = path
        self.server_activate()

    def server_close(self) -> None:
        """Close the socket, and remove the socket file if this object has made it (and not systemd)."""
        super().server_close()
        if self._made is not None:
            self._made.unlink(missing_ok=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection: Podman, for example, closes it without reading the answer. Log other errors."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("unexpected error in a request")


class _Request(BaseHTTPRequestHandler):
    """Answers the requests that arrive on one connection of a container engine."""

    protocol_version = "HTTP/1.1"
    server: VolumeServer

    def do_POST(self) -> None:
        """Answer a request. An error is answered with the status 500 and its message in `Err`."""
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if not 0 <= size <= _MOST_BYTES:
                raise InvalidName(f"Content-Length is {size}, but must be in 0..{_MOST_BYTES}")
            asked = orjson.loads(self.rfile.read(size) or b"{}")
            verb = _VERBS.get(self.path)
            if verb is None or not isinstance(asked, dict):
                raise InvalidName(f"{self.path}: no such request, or its body is not a JSON object")
            answer = verb(self.server.driver, asked)
        except OSError as error:
            self._refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            return
        except (LogfsError, ValueError) as error:
            self._refuse(str(error))
            return
        if self.path in _CHANGES:
            logger.info("%s %s %s", self.path, asked.get("Name", ""), asked.get("ID", ""))
        self._answer(200, {"Err": "", **answer})

    def _refuse(self, reason: str) -> None:
        logger.warning("%s: %s", self.path, reason)
        self._answer(500, {"Err": reason})

    def _answer(self, status: int, content: dict[str, object]) -> None:
        data = orjson.dumps(content)
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Type", _TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Log nothing: `do_POST` logs changes and errors."""

    def address_string(self) -> str:
        """Return a fixed name for the client, because a Unix socket has no address."""
        return "engine"


def _text(asked: dict[str, Any], field: str) -> str:
    value = asked.get(field)
    if not isinstance(value, str) or not value:
        raise InvalidName(f"the request has no {field}")
    return value


def _options(asked: dict[str, Any]) -> dict[str, str]:
    given = asked.get("Opts") or {}
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise InvalidName("the request has malformed Opts: give an object of strings")
    return given


def _shown(status: VolumeStatus) -> dict[str, object]:
    told = status.options.to_json().items()
    # Leave out options that are not set. A number is always set, even if it is 0, the id of root.
    options = {name: value for name, value in told if value or type(value) is int}
    if status.options.mode is not None:
        options["mode"] = f"{status.options.mode:04o}"
    shown = {**options, "users": status.users}
    return {"Name": status.name, "Mountpoint": status.mountpoint, "Status": shown}


def _activate(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    return {"Implements": ["VolumeDriver"]}


def _capabilities(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    return {"Capabilities": {"Scope": "local"}}


def _create(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    driver.create(_text(asked, "Name"), _options(asked))
    return {}


def _remove(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    driver.remove(_text(asked, "Name"))
    return {}


def _mount(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    return {"Mountpoint": driver.mount(_text(asked, "Name"), _text(asked, "ID"))}


def _unmount(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    driver.unmount(_text(asked, "Name"), _text(asked, "ID"))
    return {}


def _path(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    return {"Mountpoint": driver.status(_text(asked, "Name")).mountpoint}


def _get(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    return {"Volume": _shown(driver.status(_text(asked, "Name")))}


def _list(driver: VolumeDriver, asked: dict[str, Any]) -> dict[str, object]:
    return {"Volumes": [_shown(each) for each in driver.volumes()]}


_VERBS: dict[str, Callable[[VolumeDriver, dict[str, Any]], dict[str, object]]] = {
    "/Plugin.Activate": _activate,
    "/VolumeDriver.Capabilities": _capabilities,
    "/VolumeDriver.Create": _create,
    "/VolumeDriver.Remove": _remove,
    "/VolumeDriver.Mount": _mount,
    "/VolumeDriver.Unmount": _unmount,
    "/VolumeDriver.Path": _path,
    "/VolumeDriver.Get": _get,
    "/VolumeDriver.List": _list,
}
# The requests that change volumes or mounts: these are logged.
_CHANGES = frozenset(f"/VolumeDriver.{verb}" for verb in ("Create", "Remove", "Mount", "Unmount"))
