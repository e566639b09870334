"""The total boundary: nothing but an errno, and nothing of the wrong type, leaves a handler.

pyfuse3 catches `FUSEError` alone, and hands whatever a handler returns to C: any other exception, or a None where
bytes belong, ends the mount for everybody. So every handler of `Operations` is wrapped, those a later version of it
may add included.
"""

from __future__ import annotations

import errno
import functools
import inspect
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import pyfuse3
import trio

from logfs.log.timing import Durations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Class = TypeVar("_Class", bound=type)


class Requests:
    """The requests of one kind: how long they took, and which errno how many of them ended with."""

    __slots__ = ("errors", "times")

    def __init__(self) -> None:
        self.times = Durations()
        self.errors: Counter[int] = Counter()


# By the name of the handler. One process has one mount, for that is all that pyfuse3 can serve.
REQUESTS: dict[str, Requests] = {}

# What each handler must return; None for those whose answer carries nothing.
RETURNS: dict[str, type | tuple[type, ...]] = {
    "access": bool,
    "create": tuple,
    "getattr": pyfuse3.EntryAttributes,
    "getxattr": bytes,
    "link": pyfuse3.EntryAttributes,
    "listxattr": (list, tuple),
    "lookup": pyfuse3.EntryAttributes,
    "mkdir": pyfuse3.EntryAttributes,
    "mknod": pyfuse3.EntryAttributes,
    "open": pyfuse3.FileInfo,
    "opendir": int,
    "poll": int,
    "read": bytes,
    "readlink": bytes,
    "setattr": pyfuse3.EntryAttributes,
    "statfs": pyfuse3.StatvfsData,
    "symlink": pyfuse3.EntryAttributes,
    "write": int,
}

# Nobody waits for an answer to these, and pyfuse3 lets even a `FUSEError` through to its loop, which ends with it.
_UNANSWERED = frozenset({"forget"})


def guarded(operations: _Class) -> _Class:
    """Wrap every handler of an `Operations` class, inherited ones too.

    The class says by `failed(handler name, arguments, error)` which errno an error becomes.
    """
    for name, handler in inspect.getmembers(operations, inspect.iscoroutinefunction):
        if not name.startswith("_") and hasattr(pyfuse3.Operations, name):
            setattr(operations, name, _guard(name, handler))
    return operations


def _guard(name: str, handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    expected = RETURNS.get(name, type(None))
    requests = REQUESTS.setdefault(name, Requests())
    note, now_ns = requests.times.note, time.perf_counter_ns

    @functools.wraps(handler)
    async def reply(self: Any, *arguments: Any) -> Any:
        began = now_ns()
        try:
            result = await handler(self, *arguments)
            if isinstance(result, expected) and _can_be_sent(name, result):
                note(now_ns() - began)
                return result
            error: Exception = TypeError(f"{name} returned {result!r}")
        except trio.Cancelled:
            raise
        except Exception as caught:
            error = caught
        number = error.errno if isinstance(error, pyfuse3.FUSEError) else None
        number = number or _errno(self, name, arguments, error)
        note(now_ns() - began)
        requests.errors[number] += 1
        if name in _UNANSWERED:
            return None
        raise pyfuse3.FUSEError(number)

    return reply


def _can_be_sent(name: str, result: Any) -> bool:
    """Whether C can take an answer of the right type: what is in it is pyfuse3's to convert, outside of `reply`."""
    if name == "create":
        kinds = (pyfuse3.FileInfo, pyfuse3.EntryAttributes)
        return tuple(map(type, result)) == kinds
    if isinstance(result, (list, tuple)):
        return all(isinstance(item, bytes) for item in result)
    if isinstance(result, int):
        return 0 <= result < (2**63 if name == "opendir" else 2**31)
    return True


def _errno(operations: Any, name: str, arguments: tuple[Any, ...], error: Exception) -> int:
    try:
        number = int(operations.failed(name, arguments, error))
    except Exception:
        return errno.EIO
    # What the kernel does not know as an errno it would not pass on.
    return number if number in errno.errorcode else errno.EIO
