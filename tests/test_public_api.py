"""The public Python API, promise by promise."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import logfs

if TYPE_CHECKING:
    from pathlib import Path


def test_the_example_of_the_contract(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of the package docstring runs as written; an empty directory becomes a store."""
    log_dir.mkdir()
    with logfs.open(log_dir) as store:
        orders = store.create("orders-0")
        first = orders.append([b"hello", logfs.Record(b"world", key=b"k", headers=[("h", b"1")])])
        for record in orders.read(offset=first):
            print(record.offset, record.timestamp, record.value)
        found = orders.offset_for_time(1638100400000)
        columns = orders.columns(offset=0)
        records = list(orders.read(offset=first))
    assert first == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"0 {records[0].timestamp} b'hello'", f"1 {records[1].timestamp} b'world'"]
    assert isinstance(found, logfs.OffsetAndTimestamp)
    assert found == (0, records[0].timestamp, 0)
    assert isinstance(columns, logfs.Columns)
    assert isinstance(columns.offsets, np.ndarray)
    assert columns.offsets.tolist() == [0, 1]
    assert columns.timestamps.tolist() == [record.timestamp for record in records]
    assert columns.value_lengths.tolist() == [5, 5]
    start = int(columns.value_starts[1])
    assert columns.data[start : start + 5].tobytes() == b"world"
    assert columns.key_lengths.tolist() == [-1, 1]
    assert columns.header_counts.tolist() == [0, 1]


def test_a_store_is_opened_by_any_kind_of_path(tmp_path: Path) -> None:
    """`logfs.open` accepts a log directory as a string or a path, and several log directories as a list."""
    with logfs.open(str(tmp_path / "a"), create=True) as store:
        assert isinstance(store, logfs.Store)
        store.create("t-0")
    with logfs.open([tmp_path / "a", str(tmp_path / "b")], create=True) as store:
        assert list(store) == ["t-0"]


def test_records_are_plain_values(log_dir: Path) -> None:
    """A record has value, key, headers, timestamp, offset and timestamp type, and its fields cannot be assigned."""
    with logfs.open(log_dir, create=True) as store:
        orders = store.create("orders-0")
        orders.append([logfs.Record(None, key=b"k", headers=[("h", None)], timestamp=5)])
        (record,) = orders.read()
    assert (record.value, record.key, list(record.headers)) == (None, b"k", [("h", None)])
    assert (record.timestamp, record.offset) == (5, 0)
    assert record.timestamp_type is logfs.TimestampType.CREATE_TIME
    with pytest.raises(AttributeError):
        record.value = b"other"


def test_reading_has_a_beginning_and_an_end(log_dir: Path) -> None:
    """`read` and `columns` take a start and an end offset, and return all records by default."""
    with logfs.open(log_dir, create=True) as store:
        orders = store.create("orders-0")
        orders.append([b"%d" % n for n in range(10)])
        assert [record.value for record in orders.read()] == [b"%d" % n for n in range(10)]
        assert [record.value for record in orders.read(offset=3, end=5)] == [b"3", b"4"]
        assert orders.columns().offsets.tolist() == list(range(10))
        assert orders.columns(offset=8).offsets.tolist() == [8, 9]
        assert len(orders.columns(offset=10)) == 0


def test_offset_for_time_returns_a_position_or_none(log_dir: Path) -> None:
    """`offset_for_time` returns the earliest offset whose timestamp is at or after a time, or None."""
    with logfs.open(log_dir, create=True) as store:
        orders = store.create("orders-0")
        orders.append([logfs.Record(b"v", timestamp=t) for t in (100, 200)])
        assert orders.offset_for_time(150).offset == 1
        assert orders.offset_for_time(201) is None


def test_errors_share_one_root(log_dir: Path) -> None:
    """Each error is a `LogfsError` with a message, and also the fitting Python error, such as `KeyError`."""
    with logfs.open(log_dir, create=True) as store:
        orders = store.create("orders-0")
        for kind, wrong in (
            (KeyError, lambda: store["orders-9"]),
            (ValueError, lambda: store.create("no partition")),
            (IndexError, lambda: list(orders.read(offset=7))),
            (ValueError, lambda: orders.append([b"x" * 2_000_000])),
            (ValueError, lambda: orders.append([logfs.Record(b"", timestamp=-5)])),
            (ValueError, lambda: store.settings.set_topic("orders", "no.setting", "1")),
        ):
            with pytest.raises(logfs.LogfsError) as caught:
                wrong()
            assert isinstance(caught.value, kind)
            assert str(caught.value)


def test_the_package_lists_its_names() -> None:
    """Every name in `__all__` is an attribute of the package, and an unknown name raises AttributeError."""
    for name in logfs.__all__:
        assert getattr(logfs, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        logfs.nothing  # noqa: B018


def test_star_import_gives_the_names() -> None:
    """A star import in a new interpreter defines every name of `__all__`."""
    code = "from logfs import *; import logfs; assert all(n in globals() for n in logfs.__all__)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_help_shows_the_example() -> None:
    """`help(logfs)` shows what logfs is, its nouns, the example, and what to read next (architecture.md 4.2)."""
    text = logfs.__doc__
    assert text is not None
    for words in ("with logfs.open(", "store.create(", "orders.append(", "docs/architecture.md"):
        assert words in text
    assert len(text.splitlines()) <= 40
