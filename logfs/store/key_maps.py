"""Background updates of the key maps that are in use, and the progress of reading logs for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logfs.errors import LogfsError
from logfs.store.upkeep import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.store.store import Store

logger = logging.getLogger(__name__)


def keep_up(store: Store) -> None:
    """Extend each recently used key map to the end of its log. May take long; an error is logged."""
    for name, partition in list(store.partitions.items()):
        for keys in partition.key_indexes():
            try:
                keys.keep_up(store.clock())
            except (LogfsError, OSError) as error:
                logger.error("%s: its key map cannot be updated: %s", name, error)


def readings(store: Store) -> Iterator[Work]:
    """Yield the logs that are being read for their keys, with the progress."""
    for name, partition in sorted(store.partitions.items()):
        for keys in partition.key_indexes():
            progress = keys.progress
            if progress is not None:
                yield Work("reading keys of", name, store.clock(), "", *progress)
