"""Memory: settings of the C library's allocator, and filesystems that are in memory."""

from __future__ import annotations

from contextlib import suppress

# Parameters of mallopt(3), from <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# The maximum number of malloc arenas. Each reserves 64 MiB of addresses even if it is nearly empty, and by default
# glibc makes up to 8 arenas per processor.
_ARENAS = 4
# The types of tmpfs and ramfs in statfs(2), from <linux/magic.h>.
_IN_MEMORY = frozenset({0x01021994, 0x858458F6})
# More bytes than a `struct statfs` has. It begins with the type, a long.
_STATFS_BYTES = 256


def keep_memory() -> None:
    """Have glibc reuse freed buffers of this process instead of returning them to the kernel after each use.

    By default glibc creates a new mapping for each buffer of 128 KiB or more, and the page faults of a new mapping
    cost more than the copy into it. The threads share a few arenas, because many arenas would not fit into an address
    space that is limited to 1 GiB (RLIMIT_AS). Only the programs of logfs call this function: a library must not
    decide this for its caller. Without mallopt (musl) the function does nothing.
    """
    import ctypes

    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def is_in_memory(fd: int) -> bool:
    """Whether a file is on a tmpfs or a ramfs, so that reading it waits for no disk."""
    import ctypes

    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).fstatfs(fd, status):
        return False
    return ctypes.c_ulong.from_buffer(status).value in _IN_MEMORY
