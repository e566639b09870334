"""The decorators of all compiled loops, and the types of their arrays."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numba
from numba.core import cgutils, config
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Int64s = NDArray[np.int64]
    Int32s = NDArray[np.int32]
    Int8s = NDArray[np.int8]
    Words = NDArray[np.uint64]

# The directory that contains the package `logfs`.
_ROOT = Path(__file__).parents[3]
# An import of modules or names of logfs in source code: `from PACKAGE import NAMES`, or `import PACKAGE`.
_IMPORT = re.compile(
    rb"^[ \t]*(?:from|import)[ \t]+(logfs[\w.]*)(?:[ \t]+import[ \t]+(\([^)]*\)|.*))?", re.MULTILINE
)
_NAME = re.compile(rb"\w+")


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with numba to run without the GIL, and cache the code on disk for later processes."""
    return _compiled(function)


def inlined_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function as a kernel, and inline it into each kernel that calls it.

    Like every kernel, it runs without the GIL, and its code is cached on disk. Use this for a function with array
    arguments that an inner loop calls: without inlining, the call itself takes about as long as copying 100 bytes.
    """
    return _compiled(function, inline="always")


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Any
    try:
        compiled = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:
        # Neither the module's `__pycache__` nor the user's cache is writable: a service may have no home directory.
        has_cache = _use_temporary_cache()
        compiled = numba.njit(nogil=True, cache=has_cache, **options)(function)
        if not has_cache:
            return cast("Callable[..., Any]", compiled)
    module = Path(inspect.getfile(function))
    # Replace numba's own stamp of the sources, which covers only the kernel's file: after a change of a module that
    # this file imports, numba would run outdated code from its cache.
    compiled._cache._cache_file._source_stamp = _digest(module)
    _take_from_installation(module, Path(compiled.stats.cache_path))
    return cast("Callable[..., Any]", compiled)


@cache
def _use_temporary_cache() -> bool:
    """Let numba cache in the directory `logfs-kernels-UID` below the temporary directory, and return True.

    Return False if the directory cannot be made, belongs to another user, or has a mode other than 0700. In the last
    two cases, another user could put code into the directory.
    """
    path = Path(tempfile.gettempdir(), f"logfs-kernels-{os.geteuid()}")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return False
    if status.st_uid != os.geteuid() or status.st_mode != stat.S_IFDIR | 0o700:
        return False
    config.CACHE_DIR = str(path)  # type: ignore[attr-defined]
    return True


@cache
def _digest(module: Path) -> str:
    """Return a hash of the source of a module and of all modules of logfs that it imports, directly or indirectly."""
    known: dict[Path, bytes] = {}
    todo = [module]
    while todo:
        path = todo.pop()
        if path not in known:
            known[path], imports = _source(path)
            todo += imports
    return hashlib.sha256(b"".join(known[path] for path in sorted(known))).hexdigest()


@cache
def _source(path: Path) -> tuple[bytes, list[Path]]:
    """Return a hash of a source file, and the paths of the source files of logfs that it may import.

    For `from logfs.a import b`, these are the paths at which `logfs.a` and `logfs.a.b` could be, because `b` may be a
    module. Some of the paths do not exist. The hash and the list are empty if the source file is missing.
    """
    if not path.is_file():
        return b"", []
    source = path.read_bytes()
    imports = []
    for package, names in _IMPORT.findall(source):
        place = _ROOT.joinpath(*package.decode().split("."))
        for each in (place, *(place / name.decode() for name in set(_NAME.findall(names)))):
            imports += [each.with_suffix(".py"), each / "__init__.py"]
    return hashlib.sha256(source).digest(), imports


@cache
def _take_from_installation(module: Path, user_cache: Path) -> None:
    """Copy a module's compiled kernels from the `__pycache__` beside the module to `user_cache`.

    `module` is the module's source file, `user_cache` the directory in which numba caches for this user. Only files
    that are missing or older in `user_cache` are copied, and none if NUMBA_CACHE_DIR is set. Without the copies,
    users who cannot write into the installation would have to compile all kernels again. numba ignores a copied file
    that was made on another processor, by another version of numba or from other sources.
    """
    installed = module.parent / "__pycache__"
    # Copy nothing into NUMBA_CACHE_DIR: whoever sets this variable may also set NUMBA_BOUNDSCHECK, and a cached file
    # does not record with which value it was compiled.
    if user_cache == installed or os.environ.get("NUMBA_CACHE_DIR"):
        return
    # An index (.nbi) must not arrive before its data (.nbc). In sorted order the data come first.
    for source in sorted(installed.glob(f"{module.stem}.*.nb[ci]")):
        target = user_cache / source.name
        try:
            if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
                unfinished = target.with_name(f"{target.name}.{os.getpid()}")
                shutil.copy2(source, unfinished)
                unfinished.replace(target)
        except OSError:
            # Without the copies, numba compiles the kernels.
            return


def _copy_bytes(
    typing_context: Any, out: Any, position: Any, data: Any, start: Any, length: Any
) -> tuple[Any, Callable[..., Any]]:
    """Return the signature and the code generator of the intrinsic `copy_bytes`, which copies bytes with memcpy.

    All arguments are those that numba passes: its typing context, and the types of the arguments of `copy_bytes`.
    """
    signature = numba.void(out, numba.int64, data, numba.int64, numba.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, position, source, start, length = arguments
        to_type, _, source_type, _, _ = signature.args
        into = context.make_array(to_type)(context, builder, to)
        taken = context.make_array(source_type)(context, builder, source)
        if config.BOUNDSCHECK:  # type: ignore[attr-defined]
            one = context.get_constant(numba.int64, 1)
            with builder.if_then(builder.icmp_signed(">=", length, one)):
                for array, first in ((into, position), (taken, start)):
                    last = builder.sub(builder.add(first, length), one)
                    for index in (first, last):
                        cgutils.do_boundscheck(context, builder, index, array.nitems)  # type: ignore[no-untyped-call]
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder,
            builder.gep(into.data, [position]),
            builder.gep(taken.data, [start]),
            length,
            1,
        )
        return context.get_dummy_value()

    return signature, generate


copy_bytes: Callable[..., None] = intrinsic(_copy_bytes)
"""In a kernel, copy_bytes(out, position, data, start, length) copies data[start : start + length] to `out`.

Both are uint8 arrays, and the bytes do not overlap. The bounds are checked only with NUMBA_BOUNDSCHECK, like those of
an index. The copy calls memcpy. A loop takes twice as long for the values of records, because the compiler assumes
that the arrays may overlap.
"""
