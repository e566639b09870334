"""The decorator of all compiled loops, and the types of their arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Int64s = NDArray[np.int64]
    Int32s = NDArray[np.int32]
    Words = NDArray[np.uint64]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop to run without the GIL, and cache the result beside the module for later processes."""
    return _compiled(function)


def inlined_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of a loop as `kernel` does, and copy it into each kernel that calls it.

    A call that passes arrays costs about as much as copying 100 bytes.
    """
    return _compiled(function, inline="always")


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:
        # Neither this directory nor the user's cache is writable: every process compiles for itself.
        compiled = numba.njit(nogil=True, **options)(function)
    return compiled
