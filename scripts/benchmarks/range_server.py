"""A server of files that answers as an object store does, late: ranged GETs of the files below a directory.

    range_server.py DIRECTORY MILLISECONDS BYTES_PER_SECOND

It prints its port. Every answer comes that much later, and all together at that rate, as over a network; 0 is no
limit. It runs until its standard input ends.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT, DELAY, RATE = Path(sys.argv[1]), float(sys.argv[2]) / 1000, int(sys.argv[3])
PIECE_BYTES = 1 << 20


class Link:
    """The network: when it will have sent all that it was given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def send(self, size: int) -> None:
        """Wait until the link has room for so many bytes more."""
        if not RATE:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / RATE
            wait = self._free_at - time.monotonic()
        time.sleep(max(wait, 0))


LINK = Link()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection; the path is /BUCKET/KEY."""

    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def do_GET(self) -> None:
        """Send the range of a file that was asked for."""
        path = ROOT / self.path.split("?")[0].lstrip("/").partition("/")[2]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        time.sleep(DELAY)
        size = path.stat().st_size
        first, last = (int(wanted[1]), min(int(wanted[2]), size - 1)) if wanted else (0, size - 1)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
        self.send_header("ETag", '"0"')
        self.end_headers()
        with path.open("rb") as file:
            while first <= last:
                size = min(last + 1 - first, PIECE_BYTES if RATE else last + 1)
                LINK.send(size)
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, size)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
