"""The metrics of a mount: the metrics of its store, the durations and errors of requests, and the open files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from logfs.mount.handler_guard import REQUESTS
from logfs.store.observe.metrics import Family, Sample, histogram, metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.mount.errnos import ErrorLog
    from logfs.mount.nodes.base import Context


def metrics_of(context: Context, as_openmetrics: bool = False) -> bytes:
    """Return all metrics of a mount in Prometheus' text format, or as OpenMetrics.

    Raises `WouldBlock` in a thread that must not wait for the disk.
    """
    more = () if context.mirror is None else context.mirror.families()
    own = _families(context.errors)
    return metrics(context.store, [*own, *more], as_openmetrics=as_openmetrics)


def _families(errors: ErrorLog) -> Iterator[Family]:
    """Yield the metrics of the mount that this process serves; `errors` supplies the number of recorded errors.

    Operations that were never called have no metrics.
    """
    seen = {name: requests for name, requests in REQUESTS.items() if sum(requests.times.counts)}
    yield Family(
        "logfs_request_seconds",
        "Seconds that requests of the kernel took, by operation.",
        [
            sample
            for name, requests in seen.items()
            for sample in histogram({"operation": name}, requests.times)
        ],
    )
    yield Family(
        "logfs_request_errors_total",
        "Requests that were answered with an errno, by operation.",
        [
            Sample(count, {"operation": name, "errno": errno.errorcode.get(number, str(number))})
            for name, requests in seen.items()
            for number, count in list(requests.errors.items())
        ],
    )
    text = "Errors returned to callers and recorded in .logfs/errors: all except ENOENT and ESTALE."
    yield Family("logfs_errors_total", text, [Sample(errors.count)])
    text = "Files that are open on the mount."
    yield Family("logfs_open_handles", text, [Sample(_open_handles())])


def _open_handles() -> int:
    """Return the number of open files: the successful opens and creates, minus the releases."""

    def count(name: str) -> int:
        return sum(REQUESTS[name].times.counts)

    failed = REQUESTS["open"].errors.total() + REQUESTS["create"].errors.total()
    return count("open") + count("create") - failed - count("release")
