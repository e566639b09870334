"""Control records: Kafka's transaction markers are read and written exactly."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.messages.control import ControlType, EndTransactionMarker, parse_control_key
from tests.support.examples import examples

# The keys and values of the golden vectors E-abort and E-commit.
GOLDEN = [
    (ControlType.ABORT, "00000000", "000000000009"),
    (ControlType.COMMIT, "00000001", "000000000009"),
]


@pytest.mark.parametrize(("control_type", "key", "value"), GOLDEN)
def test_markers_are_kafkas_bytes(control_type: ControlType, key: str, value: str) -> None:
    """The golden markers are parsed, and encoded to the same bytes."""
    marker = EndTransactionMarker.parse(bytes.fromhex(key), bytes.fromhex(value))
    assert marker == (control_type, 9)
    assert (marker.key().hex(), marker.value().hex()) == (key, value)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "ABORT"),
        (1, "COMMIT"),
        (2, "LEADER_CHANGE"),
        (3, "SNAPSHOT_HEADER"),
        (4, "SNAPSHOT_FOOTER"),
        (5, "KRAFT_VERSION"),
        (6, "KRAFT_VOTERS"),
    ],
)
def test_every_type_is_known(number: int, name: str) -> None:
    """The types of control records have Kafka's numbers."""
    assert parse_control_key(struct.pack(">hh", 0, number)).name == name


@pytest.mark.parametrize("number", [-32768, -1, 7, 32767])
def test_other_types_are_unknown(number: int) -> None:
    """A type of a later release is no error, because a reader must skip it."""
    assert parse_control_key(struct.pack(">hh", 0, number)) is ControlType.UNKNOWN


@pytest.mark.parametrize("key", [b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_bad_keys_are_corrupt(key: bytes) -> None:
    """A key with fewer than four bytes or a negative version is refused."""
    with pytest.raises(Corrupt, match="control record key"):
        parse_control_key(key)


@pytest.mark.parametrize("value", [b"", bytes(5), b"\xff\xff\0\0\0\0"])
def test_bad_values_are_corrupt(value: bytes) -> None:
    """A value with fewer than six bytes or a negative version is refused."""
    with pytest.raises(Corrupt, match="end transaction marker"):
        EndTransactionMarker.parse(bytes(4), value)


def test_later_versions_are_read() -> None:
    """A higher version only adds fields, so the known fields are read."""
    marker = EndTransactionMarker.parse(struct.pack(">hhq", 3, 1, 0), struct.pack(">hiq", 9, 7, 0))
    assert marker == (ControlType.COMMIT, 7)


def test_only_two_types_end_a_transaction() -> None:
    """The value of a control record of another type is not parsed as a marker."""
    with pytest.raises(Corrupt, match="LEADER_CHANGE does not end a transaction"):
        EndTransactionMarker.parse(struct.pack(">hh", 0, 2), bytes(6))


@given(st.binary(max_size=12), st.binary(max_size=12))
@examples(1)
def test_any_bytes_are_read_or_corrupt(key: bytes, value: bytes) -> None:
    """Random keys and values are parsed as a marker or raise `Corrupt`, and no other error."""
    try:
        EndTransactionMarker.parse(key, value)
    except Corrupt:
        pass
