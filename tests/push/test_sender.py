"""The sender of a push: what its threads meet comes out in the thread that waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.cluster.cluster import Outgoing, RemoteTopic
from logfs.push.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Sequence


class BrokenCluster:
    """A cluster to which nothing can be sent, for no known reason."""

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
