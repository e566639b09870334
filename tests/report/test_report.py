"""`logfs report`: the page shows what the logs have, what is wrong with them, and nothing of anybody else."""

from __future__ import annotations

import html
import re
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.cli import main
from logfs.format.batches.record import Record
from logfs.log.scan.segment_stats import width_for
from logfs.report.contents import read_report
from logfs.store.admin.requests import retention_plans
from logfs.store.store import Store
from tests.support.batches import NOW
from tests.support.requirements import need_root
from tests.support.stores import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

HOUR_MS = 3_600_000
HOSTILE = "<script>alert(1)</script>\n\N{SNOWMAN}"


class Shown(HTMLParser):
    """The parts of a page: the text of each section by its heading, the names of elements, and tips of bars."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {"": ""}
        self.elements: list[str] = []
        self.tips: list[str] = []
        self._heading, self._element = "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self._element = tag

    def handle_data(self, data: str) -> None:
        if self._element == "h2" and data.strip():
            self._heading = data
            self.sections[data] = ""
        elif self._element == "title" and "records" in data:
            self.tips.append(data)
        self.sections[self._heading] += f" {data}"
        self._element = "" if data.strip() else self._element

    def row(self, heading: str, first: str) -> str:
        """Return the text after a first cell in the table of a section, with single blanks."""
        text = " ".join(self.sections[heading].split())
        assert first in text, text
        return text.split(first, 1)[1]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with a topic for retention, a compacted topic, and groups, one with a hostile name."""
    path = tmp_path / "log"
    with Store(path, clock=Clock()) as store:
        store.settings.set_topic("orders", "retention.ms", str(36_500 * 24 * HOUR_MS))
        store.settings.set_topic("orders", "segment.bytes", "10000")
        store.settings.set_topic("users", "cleanup.policy", "compact")
        orders, users = store.create("orders-0"), store.create("users-0")
        for hour in range(10):
            time = NOW - (10 - hour) * HOUR_MS
            orders.append([Record(b"x" * 100, timestamp=time + n) for n in range(100)])
        users.append([Record(b"v", key=b"k%d" % (n % 7), timestamp=NOW) for n in range(70)])
        users.append([Record(None, key=b"k1", timestamp=NOW)])
        store.groups.commit("billing", "orders-0", 900)
        store.groups.commit(HOSTILE, "users-0", 71)
    return path


def shown(log_dir: Path, *words: str, code: int = 0) -> Shown:
    """Write a report, and return its parts."""
    output = log_dir.parent / "report.html"
    assert main(["report", str(log_dir), "-o", str(output), *words]) == code
    return Shown(output.read_text())


def test_the_numbers_are_those_of_the_logs(log_dir: Path) -> None:
    """Sizes, offsets, records by time, lags, keys, tombstones, and when retention may drop the oldest segment."""
    page = shown(log_dir)
    head = " ".join(page.sections[""].split())
    assert "1,073 records" in head  # with those of the groups
    assert "sound the audit found no error" in head
    assert page.row("Size", "orders-0").startswith(" 1")
    assert "0 to 1,000" in page.row("Size", "orders-0")
    assert page.row("Consumer groups", "billing orders-0").startswith(" 100 900")
    assert page.row("Consumer groups", "users-0").startswith(" 0 71")
    assert page.row("Keys and compression", "users-0").startswith(" 71 7 0 1 none")
    assert "36,500 d" in page.row("Retention", "orders-0")
    assert "may be deleted after" in page.row("Retention", "orders-0")
    assert "Damage" not in page.sections
    assert main(["config", str(log_dir), "--topic", "orders", "retention.ms=1000"]) == 0
    assert "KiB may be dropped now" in shown(log_dir).row("Retention", "orders-0")


@pytest.mark.parametrize("words", [(), ("--quick",)])
def test_every_record_is_in_a_bar(log_dir: Path, words: tuple[str, ...]) -> None:
    """The bars of all topics have as many records as the logs; a quick report counts by the indexes alone."""
    page = shown(log_dir, *words)
    counts = [int(re.findall(r": ([\d,]+) records", tip)[0].replace(",", "")) for tip in page.tips]
    # Each record is in the drawing of all topics, and in that of its own.
    assert sum(counts) == 2 * 1073
    assert ("not checked" in page.sections[""]) == bool(words)
    assert ("Keys and compression" in page.sections) == (not words)


def test_a_few_odd_times_hide_nothing(log_dir: Path) -> None:
    """A record of 1970 and one of the far future: the bars of all others stay, and the two are told."""
    before = shown(log_dir).tips
    with Store(log_dir, clock=Clock()) as store:
        store.settings.set_topic("odd", "message.timestamp.after.max.ms", str(2**63 - 1))
        odd = store.create("odd-0")
        for time in (0, 2**50):
            odd.append([Record(b"x", timestamp=time)])
    page = shown(log_dir)
    assert page.tips[: len(before) // 2] == before[: len(before) // 2]
    assert "2 at other times" in page.sections["Records over time"]


def test_a_full_disk_keeps_the_old_page(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the page, and nothing is left beside it."""
    need_root()
    small = log_dir.parent / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], check=True)
    try:
        page = small / "page.html"
        page.write_text("the old page")
        assert main(["report", str(log_dir), "-o", str(page)]) == 1
        assert capsys.readouterr().err == f"logfs: {page}: No space left on device\n"
        assert page.read_text() == "the old page"
        assert [each.name for each in small.iterdir()] == ["page.html"]
    finally:
        subprocess.run(["umount", small], check=True)


def test_damage_is_shown(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1, the page names the file, and everything else is there."""
    log = log_dir / "orders-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    page = shown(log_dir, code=1)
    assert str(log) in page.sections["Damage"]
    assert "1 error found by the audit" in " ".join(page.sections[""].split())
    assert "users-0" in page.sections["Size"]
    assert "wrote" in capsys.readouterr().out


def test_a_page_needs_nothing_else_and_runs_nothing(log_dir: Path) -> None:
    """Names are text, whatever is in them; there is no script, and nothing is loaded."""
    page = shown(log_dir)
    assert not {"script", "iframe", "img", "b-script"} & {*page.elements}
    text = (log_dir.parent / "report.html").read_text()
    assert html.escape("<script>") in text
    assert not re.search(r"(src|href)=\"(?!data:,)", text)
    assert "http:" not in text
    assert "https:" not in text


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store without partitions has a page that says so; standard output takes it, too."""
    with Store(tmp_path / "log"):
        pass
    assert main(["report", str(tmp_path / "log"), "-o", "-"]) == 0
    assert "There are no partitions yet." in capsys.readouterr().out


def test_a_report_changes_nothing_beside_a_writer(log_dir: Path) -> None:
    """The holder of the log directory goes on, and the report shows what it has appended."""
    with Store(log_dir, clock=Clock()) as store:
        store["users-0"].append([Record(b"late", key=b"k", timestamp=NOW)])
        before = {path: path.stat().st_mtime_ns for path in log_dir.rglob("*")}
        page = shown(log_dir)
        assert before == {path: path.stat().st_mtime_ns for path in log_dir.rglob("*")}
    assert "0 to 72" in page.row("Size", "users-0")


def shrink(log_dir: Path) -> None:
    """Delete the older half of the records of orders-0, and the files of their segments."""
    with Store(log_dir, clock=Clock()) as store:
        store.settings.set_topic("orders", "file.delete.delay.ms", "0")
        store.delete_records("orders-0", 500)
        store.retain(["orders-0"])
        store.upkeep()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_report_goes_on_when_segments_leave_a_log(log_dir: Path, is_deleted: bool) -> None:
    """It has the numbers of the log as it is then; a partition that was deleted is a problem, the others stay."""
    left = iter([True])

    def interfere(size: int) -> None:
        if next(left, False):
            if is_deleted:
                with Store(log_dir, clock=Clock()) as store:
                    store.delete("orders-0")
            else:
                shrink(log_dir)

    report = read_report([log_dir], full=True, progress=interfere)
    found = {each.name: each for each in report.partitions}
    assert {*found} >= {"users-0"}
    if is_deleted:
        assert "orders-0" not in found
        assert len(report.problems) == 1
        assert report.problems[0].startswith("orders-0: ")
    else:
        assert not report.problems
        assert (found["orders-0"].log_start_offset, found["orders-0"].log_end_offset) == (500, 1000)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_would_be_dropped_is_told_while_segments_leave_a_log(
    log_dir: Path, is_deleted: bool
) -> None:
    """The plans of `retain --dry-run` are those of the logs as they are then, without deleted partitions."""
    with Store(log_dir, clock=Clock()) as store:
        store.settings.set_topic("orders", "retention.ms", "1000")
    with Store(log_dir, read_only=True, clock=Clock()) as store:
        names = [*store]
        if is_deleted:
            with Store(log_dir, clock=Clock()) as writer:
                writer.delete("orders-0")
        else:
            shrink(log_dir)
        plans = {plan["name"]: plan for plan in retention_plans(store, names)}
    assert [*plans] == [name for name in names if name != "orders-0" or not is_deleted]


@pytest.mark.parametrize("look", ["light", "dark"])
def test_a_browser_shows_the_page(
    log_dir: Path, browser: Browser, look: str, tmp_path: Path
) -> None:
    """Nothing is on the console, nothing else is loaded, colours follow the system, and a phone shows all of it."""
    shown(log_dir)
    address = (log_dir.parent / "report.html").as_uri()
    page = browser.new_page(color_scheme=look, viewport={"width": 390, "height": 844})
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url))
    page.goto(address)
    assert [each for each in told if not each.startswith("data:")] == [address]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour)[:3])) > 600) == (look == "light")
    # The drawing of all topics, and that of each of three.
    assert [each.bounding_box()["height"] > 20 for each in page.locator("svg").all()] == [True] * 4
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    page.close()


@given(st.integers(0, 2**45), st.integers(0, 2**45))
def test_at_most_200_buckets_cover_a_span(first_ms: int, span_ms: int) -> None:
    """Wherever the span begins, and whatever its length."""
    width = width_for(span_ms)
    assert (first_ms + span_ms) // width - first_ms // width + 1 <= 200
