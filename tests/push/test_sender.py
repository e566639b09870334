"""The sender of a push: what its threads meet comes out in the thread that waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.cluster.cluster import Fetched, Outgoing, RemoteTopic, Wanted
from logfs.errors import ClusterError
from logfs.push.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Sequence


class BrokenCluster:
    """A cluster to which nothing can be sent, for no known reason."""

    servers = "127.0.0.1:9092"

    def topics(self) -> list[RemoteTopic]:
        """Return one topic."""
        return [RemoteTopic("orders", None, {0: (0, 0)})]

    def produce(self, node: int, batches: Sequence[Outgoing]) -> list[object]:
        """Fail in a way that nothing foresees."""
        raise KeyError("a bug")

    def close(self) -> None:
        """Do nothing: there is no connection."""


def test_an_unexpected_error_of_a_sender_ends_the_push() -> None:
    """An error of no known kind in a thread that sends is raised, and not taken for a lost answer."""
    with Sender(BrokenCluster) as sender, pytest.raises(KeyError):  # type: ignore[arg-type]
        sender.send([Outgoing("orders", 0, b"batch", 0, 1)])


class AnsweringCluster(BrokenCluster):
    """A cluster that answers each fetch with an error."""

    def __init__(self, error: int) -> None:
        self.error = error

    def fetch(self, node: int, wanted: Sequence[Wanted], *, wait_ms: int) -> list[Fetched]:
        """Return the error for one partition."""
        return [Fetched("orders", 0, self.error, b"", 0, 0, None)]


def test_only_deleted_records_count_as_a_deleted_batch() -> None:
    """An answer that the offset is out of range tells that the batch was deleted; another error is an error."""
    with Sender(lambda: AnsweringCluster(1)) as sender:  # type: ignore[arg-type,return-value]
        assert sender.last_batch(("orders", 0), 5) == b""
    with (
        Sender(lambda: AnsweringCluster(56)) as sender,  # type: ignore[arg-type,return-value]
        pytest.raises(ClusterError, match="orders-0: the batch before offset 5 cannot be read"),
    ):
        sender.last_batch(("orders", 0), 5)
