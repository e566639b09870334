"""The connection to a cluster: addresses that cannot be right are an error at once."""

from __future__ import annotations

import socket

import pytest

from logfs.cluster import cluster as cluster_module
from logfs.cluster.cluster import Cluster
from logfs.errors import ClusterError

KNOWN = {"known", "::1"}


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses to which connections were tried; only the hosts in `KNOWN` exist, one name server is away."""
    tried: list[str] = []

    class Library:
        """Stands for kafka-python, which tries to connect for 30 seconds."""

        class admin:
            @staticmethod
            def KafkaAdminClient(**options: object) -> None:
                tried.append(str(options["bootstrap_servers"]))

    def look_up(host: str, port: object) -> list[object]:
        if host == "unanswered":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host not in KNOWN:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(cluster_module, "kafka_python", lambda: Library)
    return tried


@pytest.mark.parametrize("servers", ["nowhere:9092", "nowhere:9092,neither:9092"])
def test_hosts_that_do_not_exist_are_an_error_at_once(connected: list[str], servers: str) -> None:
    """No connection is tried if no name is known, and the error names the host."""
    with pytest.raises(ClusterError, match=r"no such host \(n.*: Name or service not known\)"):
        Cluster(servers, {})
    assert not connected


@pytest.mark.parametrize("servers", ["known:1", "nowhere:1,known:1", "[::1]:1", "unanswered:1"])
def test_a_host_that_may_exist_is_tried(connected: list[str], servers: str) -> None:
    """One known name is enough, and a name server that does not answer says nothing."""
    Cluster(servers, {})
    assert len(connected) == 1
