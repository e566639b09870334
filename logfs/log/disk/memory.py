"""How the C library keeps memory."""

from __future__ import annotations

from contextlib import suppress

# From <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Each arena reserves 64 MiB of addresses, and glibc makes up to eight for each processor, whatever is used of them.
_ARENAS = 4


def keep_memory() -> None:
    """Have glibc reuse freed buffers of this process instead of returning them to the kernel after each use.

    By default glibc creates a new mapping for each buffer of 128 KiB or more, and the page faults of a new mapping
    cost more than the copy into it. The threads share a few arenas, because the addresses of many do not fit into a
    limit of the address space (RLIMIT_AS) of a gigabyte. For programs of logfs alone: a library must not decide this
    for its caller. Without mallopt (musl) this does nothing, and nothing is lost.
    """
    import ctypes

    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)
