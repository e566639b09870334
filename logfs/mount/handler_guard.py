"""The error boundary: a handler returns a value of the right type or raises an errno, and nothing else.

pyfuse3 catches only `FUSEError`, and passes to C whatever a handler returns. Any other exception, or None in place of
bytes, would end the mount for all users. `guarded` therefore wraps every handler of `Operations`, also those that a
later version of pyfuse3 may add.
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

from logfs.log.disk.latency_histogram import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Class = TypeVar("_Class", bound=type)


class RequestCounts:
    """The requests to one handler: `times` counts all requests by duration, `errors` the failed requests by errno."""

    __slots__ = ("errors", "times")

    def __init__(self) -> None:
        self.times = LatencyHistogram()
        self.errors: Counter[int] = Counter()


# The counts of each handler by its name. They belong to one mount, because pyfuse3 serves one mount in a process.
REQUESTS: dict[str, RequestCounts] = {}

# The type that each handler must return. Handlers that are not listed return None.
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

# The handlers of requests that have no answer. pyfuse3 does not catch their errors, so even a `FUSEError` would end
# the mount.
_UNANSWERED = frozenset({"forget"})


def guarded(operations: _Class) -> _Class:
    """Wrap every handler of an `Operations` class, including inherited ones, and return the class.

    The method `failed(handler name, arguments, error)` of the class must return the errno for an error.
    """
    for name, handler in inspect.getmembers(operations, inspect.iscoroutinefunction):
        if not name.startswith("_") and hasattr(pyfuse3.Operations, name):
            setattr(operations, name, _guard(name, handler))
    return operations


def _guard(name: str, handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    expected = RETURNS.get(name, type(None))
    requests = REQUESTS.setdefault(name, RequestCounts())
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
    """Whether pyfuse3 can convert the answer `result` of the handler `name` to C. The caller has checked its type.

    pyfuse3 converts the answer after the wrapped handler has returned, when an error cannot be caught any more.
    """
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
    # Answer with EIO in place of a number that no caller can interpret.
    return number if number in errno.errorcode else errno.EIO
