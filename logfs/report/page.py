"""The page of a report: one HTML file that contains its style and drawings, and needs no script and no network."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Unsupported
from logfs.format.base.quantities import (
    format_count,
    format_duration,
    format_size,
    format_time,
)
from logfs.store.observe.check import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.report.contents import ReportContents

# The most rows in each table, the most topics with a chart of their own, and the most findings shown.
_MOST_ROWS = 200
_MOST_TOPICS = 40
_MOST_FINDINGS = 500
# The size of a chart of records over time, in SVG units.
_WIDTH, _HEIGHT = 720, 96


class Bar(NamedTuple):
    """A bar of a chart: its upper left corner and size in SVG units, and the text of its tooltip."""

    x: float
    y: float
    width: float
    height: float
    text: str


class Drawing(NamedTuple):
    """A bar chart of records over time. `first` and `last` label the ends of the time axis.

    `most`, `records` and `outside` are numbers of records as text. `most` counts the records in the highest bar,
    `records` counts all, and `outside` counts those outside of the time axis or without a time ("" for none).
    """

    title: str
    bars: Sequence[Bar]
    first: str
    last: str
    most: str
    records: str
    outside: str


def render(report: ReportContents, version: str) -> str:
    """Return the page as HTML; `version` is that of logfs. Raises `Unsupported` if Jinja is not installed."""
    try:
        import jinja2
    except ImportError as error:
        raise Unsupported(
            f"a report needs Jinja ({error}): install the wheel as logfs[report]"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("logfs.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "size": format_size,
        "number": format_count,
        "time": format_time,
        "span": format_duration,
        "printable": _printable,
    }
    by_size = sorted(report.partitions, key=lambda each: (-each.size_bytes, each.name))
    lags = sorted(report.lags, key=lambda each: (-(each.lag or 0), each.group, each.partition))
    findings = report.findings or ()
    errors = [each for each in findings if each.severity is Severity.ERROR]
    return environment.get_template("page.html").render(
        report=report,
        version=version,
        partitions=by_size[:_MOST_ROWS],
        lags=lags[:_MOST_ROWS],
        errors=errors,
        findings=findings[:_MOST_FINDINGS],
        drawings=_drawings(report),
        topics=len({each.topic for each in report.partitions}),
        width=_WIDTH,
        height=_HEIGHT,
        bucket=format_duration(report.bucket_ms),
        total_bytes=sum(each.size_bytes for each in by_size),
        records=sum(sum(each.values()) for each in report.times.values()),
        largest=max([each.size_bytes for each in by_size], default=0) or 1,
        counted=[(each, each.counts) for each in by_size if each.counts is not None][:_MOST_ROWS],
        retained=[each for each in by_size if each.stays or each.expired_bytes][:_MOST_ROWS],
    )


def _drawings(report: ReportContents) -> list[Drawing]:
    """Return a chart of all topics together and, if there are several, one for each of the largest topics.

    The largest are those with the most records. The list is empty if no time is known.
    """
    if report.first_ms < 0:
        return []
    bucket_ms = report.bucket_ms
    first, last = (time - time % bucket_ms for time in (report.first_ms, report.last_ms))
    whole: Counter[int] = sum(report.times.values(), start=Counter())
    by_records = sorted(report.times, key=lambda topic: -sum(report.times[topic].values()))
    drawings = [_drawing("all topics", whole, first, last, bucket_ms)]
    if len(by_records) > 1:
        drawings += [
            _drawing(topic, report.times[topic], first, last, bucket_ms)
            for topic in by_records[:_MOST_TOPICS]
        ]
    return drawings


def _drawing(title: str, times: Counter[int], first: int, last: int, bucket_ms: int) -> Drawing:
    known = {time: count for time, count in sorted(times.items()) if first <= time <= last}
    outside = sum(times.values()) - sum(known.values())
    most = max(known.values(), default=0)
    step = _WIDTH / ((last - first) // bucket_ms + 1)
    bars = []
    for time, count in known.items():
        height = max(_HEIGHT * count / most, 1.0)
        text = f"{format_time(time)}: {format_count(count)} records"
        x = (time - first) // bucket_ms * step
        bars.append(
            Bar(
                round(x, 2),
                round(_HEIGHT - height, 2),
                round(max(step - 0.5, 0.5), 2),
                round(height, 2),
                text,
            )
        )
    return Drawing(
        title,
        bars,
        format_time(first),
        format_time(last + bucket_ms),
        format_count(most),
        format_count(sum(times.values())),
        format_count(outside) if outside else "",
    )


def _printable(text: object) -> str:
    """Return text as valid UTF-8: bytes of file names that are not UTF-8 become escapes."""
    return str(text).encode("utf-8", "backslashreplace").decode()
