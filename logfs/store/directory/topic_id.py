"""The id of a topic, which is stored in the directory of each partition of the topic (kafka-storage 1.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logfs.errors import Corrupt, LogDirFailed
from logfs.format.base import names
from logfs.format.files import checkpoint

if TYPE_CHECKING:
    import uuid
    from pathlib import Path

    from logfs.log.disk.disk import Disk

logger = logging.getLogger(__name__)


def read_topic_id(disk: Disk, directory: Path) -> uuid.UUID | None:
    """Return the topic id in a partition's directory (kafka-storage 1.5); None if it is missing or unreadable.

    If the file is damaged or cannot be read, a warning is logged. Raises `LogDirFailed` if the log directory has
    failed.
    """
    path = directory / names.PARTITION_METADATA
    try:
        return checkpoint.parse_partition_metadata(disk.read_file(path))
    except FileNotFoundError:
        return None
    except LogDirFailed:
        raise
    except (Corrupt, OSError) as error:
        logger.warning("%s: the topic id cannot be read: %s", path, error)
        return None


def write_topic_id(disk: Disk, directory: Path, topic_id: uuid.UUID) -> None:
    """Write the topic id into a partition's directory, durably."""
    disk.replace_file(
        directory / names.PARTITION_METADATA, checkpoint.format_partition_metadata(topic_id)
    )
