"""Records printed by a format string: one by one, and whole columns at a time."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import InvalidName
from logfs.format.base.names import TopicPartition
from logfs.format.batches.batch import Batch, assign_offset
from logfs.format.batches.record import Record
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.format.text.format_string import FormatString
from tests.format.test_rendering import FORMATS, RECORDS

ORDERS = TopicPartition("orders", 3)
FORMS = st.lists(
    st.sampled_from(
        [
            *(f"%{letter}" for letter in "skhoTtpSKn%"),
            *("\\n", "\\t", "\\0", "\\\\", "%T{%F %T}", "%T{}", "%T{%f}"),
        ]
    )
    | st.text("ab \\é", max_size=4),
    max_size=9,
).map("".join)
RECORD = Record(b"value", None, [("a", b"1"), ("b", None), ("", b"")], 1_638_100_400_000, 7)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%o %T %s\\n", b"7 1638100400000 value\n"),
        ("%t-%p%n", b"orders-3\n"),
        ("[%k] %K %S", b"[] -1 5"),
        ("%h", b"a=1,b=NULL,="),
        ("%%s %%", b"%s %"),
        ("\\n\\t\\r\\0\\\\ \\x", b"\n\t\r\0\\ \\x"),
        ("%T{%F %H:%M:%S.%f}|", b"2021-11-28 11:53:20.000000|"),
        ("%T{}", b"2021-11-28T11:53:20.000Z"),
        ("%T{%%o} %o", b"%o 7"),
        ("", b""),
        ("no token", b"no token"),
    ],
)
def test_tokens(form: str, expected: bytes) -> None:
    """Each token is replaced; everything else stands for itself."""
    assert FormatString(form.encode(), ORDERS).format(RECORD) == expected


def test_a_time_has_its_milliseconds() -> None:
    """Also as microseconds, as strftime writes them."""
    record = Record(b"", timestamp=1_638_100_400_123)
    assert (
        FormatString(b"%T{%S.%f} %T{}", ORDERS).format(record)
        == b"20.123000 2021-11-28T11:53:20.123Z"
    )


@pytest.mark.parametrize("form", ["%x", "%o %", "%%%é", "%\n"])
def test_unknown_letters(form: str) -> None:
    """They are an error that lists the letters."""
    with pytest.raises(InvalidName, match="the tokens are %s %k"):
        FormatString(form.encode(), ORDERS)


@given(FORMS, RECORDS, FORMATS, st.integers(0, 2**62))
def test_columns_are_printed_as_their_records(
    form: str, records: list[Record], batch_format: BatchFormat, base: int
) -> None:
    """The text of columns is that of their records, one after the other."""
    (new,) = build_records(records, batch_format, 9).batches
    assign_offset(new.data, base, 0)
    batch = Batch.parse(new.data)
    printed = FormatString(form.encode(), ORDERS)
    expected = b"".join(map(printed.format, batch.records()))
    text, ends = printed.render(batch.columns())
    assert text.tobytes() == expected
    assert ends.tolist() == [*accumulate(len(printed.format(r)) for r in batch.records())]


def test_no_records_have_no_text() -> None:
    """Columns without rows give nothing, whatever the format string."""
    (new,) = build_records([Record(b"v")], BatchFormat(), 9).batches
    columns = Batch.parse(new.data).columns().select(slice(0, 0))
    text, ends = FormatString(b"%o literal %T{}", ORDERS).render(columns)
    assert (text.tobytes(), ends.tolist()) == (b"", [])
