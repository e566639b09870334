"""A real S3 server on loopback (moto's), which can be told to fail, to be slow, and to send wrong bytes."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

BUCKET = "tiered"
# Where scripts/setup installs moto and what only moto needs.
PACKAGES = str(Path(sys.prefix, "share/moto"))
# What an S3 server answers when it wants fewer requests.
SLOW_DOWN = (
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@dataclass
class Request:
    """One request to the server: its method, the object's key, the range that it asks for, and who sends it.

    `prefix` is that of a listing, and `user` the id of the access key.
    """

    method: str
    key: str
    range: str
    prefix: str = ""
    user: str = ""


# A fault takes a request, and returns what is answered in place of the right answer; None for the right one.
Fault = Callable[[Request], "Answer | None"]


@dataclass
class Answer:
    """What a faulty server answers: after `delay` seconds, `status` if it is set, and the body after `change`.

    With `is_cut`, the connection ends in the middle of the body.
    """

    status: str | None = None
    body: bytes = b""
    change: Callable[[bytes], bytes] | None = None
    delay: float = 0.0
    is_cut: bool = False


@dataclass
class ObjectServer:
    """The server, with what it stores, the requests that it has got, and the fault in force.

    The methods look at what is stored, or change it, without a request.
    """

    endpoint: str
    backend: Any
    requests: list[Request] = field(default_factory=list)
    fault: Fault = lambda request: None

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self.backend.put_object(BUCKET, key, data)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self.backend.delete_object(BUCKET, key)

    def stored(self, key: str) -> bytes:
        """Return the bytes of an object."""
        return bytes(self.backend.get_object(BUCKET, key).value)

    def stored_keys(self) -> list[str]:
        """Return the keys of all objects."""
        return sorted(self.backend.get_bucket(BUCKET).keys)

    def gets(self) -> list[Request]:
        """Return the requests for objects."""
        return [each for each in self.requests if each.method == "GET" and each.key]


class _Faulty:
    """A WSGI application that does to the answers of another one what a fault says."""

    def __init__(self, application: Any, server: ObjectServer) -> None:
        self._application = application
        self._server = server

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        key = environ["PATH_INFO"].removeprefix(f"/{BUCKET}").lstrip("/")
        query = parse_qs(environ.get("QUERY_STRING", ""))
        signed = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2]
        request = Request(
            environ["REQUEST_METHOD"],
            key,
            environ.get("HTTP_RANGE", ""),
            query.get("prefix", [""])[0],
            signed.partition("/")[0],
        )
        self._server.requests.append(request)
        answer = self._server.fault(request)
        if answer is None:
            return list(self._application(environ, start))
        time.sleep(answer.delay)
        if answer.status is not None:
            start(answer.status, [("Content-Length", str(len(answer.body)))])
            return [answer.body]
        return self._changed(answer, environ, start)

    def _changed(
        self, answer: Answer, environ: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        head: list[Any] = []
        body = b"".join(self._application(environ, lambda *told: head.extend(told)))
        if answer.change is not None:
            body = answer.change(body)
        fields = [each for each in head[1] if each[0].lower() != "content-length"]
        start(head[0], [*fields, ("Content-Length", str(len(body)))])
        return [body[: len(body) // 2]] if answer.is_cut else [body]


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Run the server with a bucket; its endpoint and keys are to be put into the environment."""
    if PACKAGES not in sys.path:
        sys.path.append(PACKAGES)
    from moto.backends import get_backend
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.server import create_backend_app
    from werkzeug.serving import make_server

    # One line for each request is too much.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ObjectServer("", get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"])
    if BUCKET not in server.backend.buckets:
        # All servers of a process have the same buckets.
        server.backend.create_bucket(BUCKET, "us-east-1")
    application = _Faulty(create_backend_app("s3"), server)
    http = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        server.endpoint = f"http://127.0.0.1:{http.server_port}"
        yield server
    finally:
        http.shutdown()
        thread.join(10)
        http.server_close()


def environment(server: ObjectServer) -> dict[str, str]:
    """Return the variables by which logfs finds the server."""
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
        "AWS_REGION": "us-east-1",
        # No file of the machine that runs the tests.
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }
