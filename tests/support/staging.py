"""Staging of batches, as by a task of a data pipeline, for the tests of commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.encoding.batch_builder import build_records
from logfs.log.append.staged_batches import StagedWriter
from logfs.log.append.validator import batch_format
from logfs.log.disk.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.format.batches.record import Record
    from logfs.format.files.commit_file import StagedFile


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
