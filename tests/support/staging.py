"""Staged batches, as of a task of a data pipeline, and their commit through a mount."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from logfs.errors import LogfsError, RequestInterrupted
from logfs.format.encoding.batch_builder import build_records
from logfs.log.append.staged_batches import StagedWriter
from logfs.log.append.validator import batch_format
from logfs.log.disk.disk import Disk
from logfs.mount.errnos import errno_of
from logfs.store.admin import client
from logfs.store.admin.client import NoAnswer
from logfs.store.admin.requests import Commit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.format.batches.record import Record
    from logfs.format.files.commit_file import StagedFile
    from logfs.store.admin.requests import Answer


def stage(
    directory: Path,
    config: LogConfig,
    writer: str,
    sequence: int,
    records: Sequence[Record],
    *,
    now_ms: int,
    per_batch: int = 2,
    disk: Disk | None = None,
) -> StagedFile:
    """Stage records for the partition of a directory, `per_batch` in each batch; return the closed file."""
    staged = StagedWriter(disk or Disk(), directory, writer, sequence)
    form = batch_format(config)
    form = form._replace(timestamp_type=form.timestamp_type.CREATE_TIME)
    for first in range(0, len(records), per_batch):
        built = build_records(records[first : first + per_batch], form, now_ms)
        assert built.refused is None
        for batch in built.batches:
            staged.write(batch)
    return staged.close()


def commit_through(
    mountpoint: Path, writer: str, sequence: int, staged: Sequence[StagedFile]
) -> Answer:
    """Have a mount commit staged files, and return its answer. Errors are those of calls to a mount: `OSError`."""
    try:
        return client.ask(mountpoint, Commit(writer, sequence, tuple(staged)))
    except (RequestInterrupted, NoAnswer) as error:
        raise OSError(errno.ENOTCONN, str(error)) from None
    except LogfsError as error:
        raise OSError(errno_of(error), str(error)) from None
