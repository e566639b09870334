"""Plots the result of `stats`: records over time, and the bytes of each topic with and without compression."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import LogfsError
from logfs.format.base.quantities import format_duration

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes

    from logfs.spark.jobs.stats import Stats, TopicStats

FORMATS = (".png", ".svg", ".pdf")
# The most topics in the chart of records over time: more colours are hard to tell apart. The chart of bytes has all.
_MOST_TOPICS = 8
# The midnight after 9999-12-31, the last day that `datetime` can represent.
_END_MS = 253_402_300_800_000


def plot(found: Stats, path: str | os.PathLike[str]) -> None:
    """Plot the counts in `found` to the file `path`.

    The suffix of the file's name selects the format: .png, .svg or .pdf. Raises `LogfsError` for any other suffix,
    and if matplotlib is not installed. Raises `OSError`.
    """
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError:
        raise LogfsError(
            "a plot needs matplotlib: install the wheel with its extra, logfs[spark]"
        ) from None
    if Path(path).suffix not in FORMATS:
        raise LogfsError(f"{path}: give a name that ends in {', '.join(FORMATS)}")
    topics = sorted(found.topics, key=lambda each: -each.counts.records)
    figure = Figure(figsize=(10, 3.4 + 0.35 * max(len(topics), 2)), layout="constrained")
    above, below = figure.subplots(2, height_ratios=(3, 0.35 * max(len(topics), 2) + 0.4))
    _draw_times(above, found, topics)
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    above.xaxis.set_major_locator(locator)
    above.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    _draw_bytes(below, topics)
    for axes in (above, below) if topics else ():
        # Place the legend above the bars, so that it does not hide any bar.
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize="small", frameon=False
        )
    figure.savefig(path, dpi=150)


def _draw_times(axes: Axes, found: Stats, topics: list[TopicStats]) -> None:
    """Draw the number of records in each time bucket as a bar, stacked by topic. The first topic is the lowest.

    Only the first `_MOST_TOPICS` of `topics` are drawn.
    """
    drawn = topics[:_MOST_TOPICS]
    # Leave out times that the axis cannot show: those before 1970 and after 9999.
    times = sorted({time for each in drawn for time in each.counts.times if 0 <= time < _END_MS})
    moments = [datetime.fromtimestamp(time / 1000, UTC) for time in times]
    width_days = found.bucket_ms / 86_400_000
    heights = [0] * len(times)
    for each in drawn:
        records = [each.counts.times[time] for time in times]
        axes.bar(
            moments,  # type: ignore[arg-type]
            records,
            width=width_days,
            bottom=heights,
            align="edge",
            label=each.topic,
        )
        heights = [below + more for below, more in zip(heights, records, strict=True)]
    axes.set_ylabel(f"records in {format_duration(found.bucket_ms)}")
    axes.set_xlabel("time (UTC)")


def _draw_bytes(axes: Axes, topics: list[TopicStats]) -> None:
    names = [f"{each.topic} ({each.compression:.1f}x)" for each in topics]
    rows = range(len(topics))
    mib = 1 << 20
    axes.barh(
        rows,
        [each.counts.plain_bytes / mib for each in topics],
        color="0.85",
        label="without compression",
    )
    axes.barh(rows, [each.counts.log_bytes / mib for each in topics], height=0.5, label="on disk")
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlabel("MiB of .log")
