"""`logfs mount --metrics-listen`: the metrics over HTTP, as Prometheus and careless clients ask for them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.command_line import call
from tests.support.mounts import Mount
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount that serves its metrics at a free port, with one partition."""
    need_fuse()
    root = tmp_path_factory.mktemp("metrics")
    log = root / "log"
    mount = Mount(root / "mnt", [log], ["--metrics-listen", "0"]).start()
    (mount.partition("orders-0") / "append").write_text("one\ntwo\n")
    yield mount
    mount.stop()
    assert_clean(log)


def address(mount: Mount) -> str:
    """Return the URL of the metrics, which the daemon logs."""
    return re.findall(r"metrics: (http://127\.0\.0\.1:\d+/metrics)$", mount.log.read_text(), re.M)[
        -1
    ]


def ask(mount: Mount, data: bytes) -> bytes:
    """Send bytes to the server, and return all that it answers."""
    port = int(address(mount).rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65536), b""))


def names(text: str) -> list[str]:
    return re.findall(r"^# HELP (\S+)", text, re.MULTILINE)


def test_a_scrape_has_what_the_file_has(mount: Mount) -> None:
    with urllib.request.urlopen(address(mount), timeout=60) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answer.read().decode()
    assert names(text) == names((mount.path / ".logfs/metrics").read_text())
    assert 'kafka_log_log_logendoffset{topic="orders",partition="0"} 2\n' in text


def test_a_client_that_accepts_openmetrics_gets_it(mount: Mount) -> None:
    """Prometheus' strict parser reads all of it, and finds the names of the text format."""
    request = urllib.request.Request(address(mount), headers={"Accept": OPENMETRICS})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1")
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    told = {f"{found.name}_total" if found.type == "counter" else found.name for found in families}
    assert told == set(names((mount.path / ".logfs/metrics").read_text()))
    samples = {sample.name: sample.value for found in families for sample in found.samples}
    assert samples["kafka_server_brokertopicmetrics_messagesin_total"] == 2


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found", b"the metrics are at /metrics\n"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found", b"the metrics are at /metrics\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"use GET\n"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200 OK", b""),
        (b"\x16\x03\x01\r\n\r\n", b"400 Bad Request", b"not an HTTP request\n"),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 20_000, b"400 Bad Request", b"not an HTTP request\n"),
    ],
)  # fmt: skip
def test_other_requests_are_refused(
    mount: Mount, request_: bytes, status: bytes, body: bytes
) -> None:
    header, _, content = ask(mount, request_).partition(b"\r\n\r\n")
    assert header.startswith(b"HTTP/1.1 " + status)
    assert content == body


def test_a_query_is_ignored(mount: Mount) -> None:
    assert b"200 OK" in ask(mount, b"GET /metrics?collect=all HTTP/1.1\r\n\r\n")


def test_clients_that_send_nothing_keep_no_other_out(mount: Mount) -> None:
    """More of them than the server takes at a time; the mount serves files meanwhile."""
    with ExitStack() as stack:
        port = int(address(mount).rpartition(":")[2].partition("/")[0])
        for _ in range(12):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert (mount.path / "orders-0/records").read_text() == "one\ntwo\n"
        with urllib.request.urlopen(address(mount), timeout=60) as answer:
            assert answer.status == 200


def test_an_address_that_cannot_be_used_is_an_error_before_the_mount(
    mount: Mount, tmp_path: Path
) -> None:
    taken = address(mount).partition("//")[2].partition("/")[0]
    (tmp_path / "mnt").mkdir()
    for where, reason in (
        (taken, "Address already in use"),
        ("192.0.2.1:9308", "Cannot assign requested address"),
    ):
        words = ["mount", "--metrics-listen", where, tmp_path / "log", tmp_path / "mnt"]
        done = subprocess.run(
            [sys.executable, "-m", "logfs", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert f"logfs: --metrics-listen {where}: {reason}\n" in done.stderr


@pytest.mark.parametrize("text", ["", "host", "127.0.0.1:", "1:x", "65536", "-1"])
def test_an_address_has_a_port(tmp_path: Path, text: str) -> None:
    done = call("mount", f"--metrics-listen={text}", tmp_path / "log", tmp_path)
    assert done.returncode == 2
    assert b"is not [ADDRESS:]PORT, such as 9308" in done.stderr
