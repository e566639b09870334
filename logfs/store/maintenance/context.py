"""The parts of a store that its maintenance uses, and the base class of the maintenance classes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.store.checkpoints import Checkpoints
    from logfs.store.groups import Groups
    from logfs.store.registry import PartitionRegistry
    from logfs.store.staged_commits import Commits
    from logfs.store.tiering.tiered_logs import TieredLogs
    from logfs.store.transactions import Transactions

    # Called with the number of bytes that were processed since the last call.
    Progress = Callable[[int], object]


class MaintenanceContext(NamedTuple):
    """The parts of a store that its maintenance uses."""

    registry: PartitionRegistry
    checkpoints: Checkpoints
    commits: Commits
    tiered: TieredLogs
    groups: Groups
    transactions: Transactions


class Maintenance:
    """The base of the maintenance classes: holds the parts of the store that they use, and stops their work."""

    def __init__(self, context: MaintenanceContext) -> None:
        self._registry, self._checkpoints, self._commits, self._tiered, self._groups, _ = context
        self._stopped = threading.Event()
        # A callback that the owner of the store sets. It is called in any thread after a request, and has to arrange
        # that `run_due` is called soon.
        self.wake: Callable[[], object] = lambda: None

    def stop(self) -> None:
        """Request that the running work ends early, and that no other work begins. Does not wait for the end."""
        self._stopped.set()
