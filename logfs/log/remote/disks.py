"""Which `Disk` reads a log directory: that of the operating system, or that of a bucket."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from logfs.log.disk.bucket_path import BucketPath
from logfs.log.disk.disk import ReadOnlyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.log.disk.disk import Disk
    from logfs.log.remote.bucket_disk import BucketDisk
    from logfs.log.remote.tiered_disk import TieredDisk


def read_only_disk(log_dir: Path) -> Disk:
    """Return a disk that reads a log directory. Calls for one bucket return the same disk, which caches listings.

    The first request raises `InvalidStore` if a bucket cannot be used.
    """
    return _bucket(log_dir) if isinstance(log_dir, BucketPath) else ReadOnlyDisk()


@functools.lru_cache(maxsize=16)
def _bucket(root: BucketPath) -> BucketDisk:
    # `bucket_disk` is imported here, because most processes never read a bucket.
    from logfs.log.remote.bucket_disk import BucketDisk

    return BucketDisk(root)


@functools.lru_cache(maxsize=16)
def tiered_disk(home: Path, prefix: str) -> TieredDisk:
    """Return a `Disk` that reads the remote segments of another process's tiered store.

    `home` and `prefix` are the settings remote.storage.url and remote.storage.prefix of that store. A read of a
    missing object raises `Gone`: only the process that has the segment's metadata can tell whether the object was
    deleted or is lost.
    """
    from logfs.log.remote.chunk_cache import LIMIT_BYTES
    from logfs.log.remote.tiered_disk import TieredDisk

    assert isinstance(home, BucketPath)
    return TieredDisk(home, prefix, lambda _: False, LIMIT_BYTES)
