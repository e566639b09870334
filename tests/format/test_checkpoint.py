"""Kafka's small text files: the exact bytes that are written, and the forms that Kafka reads."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.base.names import TopicPartition
from logfs.format.files.checkpoint import (
    METADATA_TOPIC_ID,
    ZERO_ID,
    format_clean_shutdown,
    format_epochs,
    format_meta_properties,
    format_offsets,
    format_partition_metadata,
    is_reserved,
    parse_clean_shutdown,
    parse_epochs,
    parse_offsets,
    parse_partition_metadata,
    parse_properties,
    random_uuid,
    text_to_uuid,
    uuid_to_text,
)
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
GOLDEN_ID_TEXT = "ABEiM0RVZneImaq7zN3u_w"
PARSERS = [
    parse_offsets,
    parse_epochs,
    parse_partition_metadata,
    parse_properties,
    parse_clean_shutdown,
]

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
int31 = st.integers(0, 2**31 - 1)
int63 = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \t\n\r\f\\=:#!u"))


@given(st.sampled_from(PARSERS), st.binary(max_size=60) | texts.map(str.encode))
@examples(2)
def test_any_bytes_are_read_or_corrupt(parse: Callable[[bytes], object], data: bytes) -> None:
    """Each parser reads random bytes or raises `Corrupt`, and no other error."""
    try:
        parse(data)
    except Corrupt:
        pass


# Checkpoints.


def test_checkpoints_are_kafkas_bytes() -> None:
    """The golden checkpoints are written to the byte, and parsed."""
    assert format_offsets({TopicPartition("t", 0): 42}) == b"0\n1\nt 0 42\n"
    assert parse_offsets(b"0\n1\nt 0 42\n") == {TopicPartition("t", 0): 42}
    assert format_epochs([(0, 0), (5, 1234)]) == b"0\n2\n0 0\n5 1234\n"
    assert parse_epochs(b"0\n2\n0 0\n5 1234\n") == [(0, 0), (5, 1234)]
    assert format_offsets({}) == format_epochs([]) == b"0\n0\n"


@given(st.dictionaries(st.builds(TopicPartition, topics, int31), int63, max_size=5))
@examples(1)
def test_offsets_round_trip(offsets: dict[TopicPartition, int]) -> None:
    """Offsets are read as they were written, and the order of the entries does not change the file."""
    data = format_offsets(offsets)
    assert parse_offsets(data) == offsets
    assert format_offsets(dict(reversed(offsets.items()))) == data


@given(st.lists(st.tuples(int31, int63), max_size=5))
@examples(1)
def test_epochs_round_trip(epochs: list[tuple[int, int]]) -> None:
    """Epochs are read as they were written, in the same order."""
    assert parse_epochs(format_epochs(epochs)) == epochs


@pytest.mark.parametrize("data", [b"", b"0", b"0\n", b"0\n0", b"0\n0\n"])
def test_files_without_entries_are_empty(data: bytes) -> None:
    """Kafka creates the file before it writes it, so an empty file, or one with only a version, has no entries."""
    assert parse_offsets(data) == {}
    assert parse_epochs(data) == []


def test_lines_and_fields_end_as_in_java() -> None:
    """All of Java's line terminators and blanks are accepted, and the last line needs no terminator."""
    expected = {TopicPartition("a", 1): 2, TopicPartition("b", 3): 4}
    assert parse_offsets(b"0\r\n2\ra \t1  2\nb 3 0004") == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"1\n0\n", "line 1: version '1'"),
        (b"\n", "line 1: version ''"),
        (b"0\nx\n", "line 2: entry count 'x'"),
        (b"0\n2\na 0 1\n", "line 2: 2 entries announced, but 1 follow"),
        (b"0\n0\na 0 1\n", "line 2: 0 entries announced, but 1 follow"),
        (b"0\n1\na 0\n", "line 3: 'a 0' does not have 3 fields"),
        (b"0\n1\n a 0 1\n", "line 3: ' a 0 1' does not have 3 fields"),
        (b"0\n1\na 0 1\n\n", "line 4: '' does not have 3 fields"),
        (b"0\n1\na -1 1\n", "line 3: partition '-1'"),
        (b"0\n1\na 2147483648 1\n", "line 3: partition '2147483648'"),
        (b"0\n1\na 0 9223372036854775808\n", "line 3: offset '9223372036854775808'"),
        ("0\n1\na 0 ٣\n".encode(), "line 3: offset '٣'"),
        (b"0\n1\na 0 1_0\n", "line 3: offset '1_0'"),
        (b"0\n1\na 0 " + b"1" * 5000, "line 3: offset '111"),
        (b"0\n1\n\xff 0 1\n", "line 3: not UTF-8"),
        (b"0\n1\n" + bytes(1 << 24), "line 3: zero bytes"),
        ("0\n1\na\u00a00 1\n".encode(), "does not have 3 fields"),
    ],
)
def test_damaged_checkpoints_are_corrupt(data: bytes, reason: str) -> None:
    """A damaged checkpoint is refused, and the error has the line and the reason."""
    with pytest.raises(Corrupt, match=re.escape(reason)):
        parse_offsets(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"0\n1\n0 0 0\n", "line 3: '0 0 0' does not have 2 fields"),
        (b"0\n1\n2147483648 0\n", "line 3: epoch"),
        (b"0\n1\n0 -1\n", "line 3: start offset '-1'"),
    ],
)
def test_damaged_epochs_are_corrupt(data: bytes, reason: str) -> None:
    """A damaged leader-epoch-checkpoint is refused, and the error has the line and the reason."""
    with pytest.raises(Corrupt, match=re.escape(reason)):
        parse_epochs(data)


# UUIDs.


def test_uuid_text_is_kafkas() -> None:
    """The text of an id is its 16 bytes in URL-safe base64 without padding."""
    assert uuid_to_text(GOLDEN_ID) == GOLDEN_ID_TEXT
    assert text_to_uuid(GOLDEN_ID_TEXT) == text_to_uuid(GOLDEN_ID_TEXT + "==") == GOLDEN_ID
    assert uuid_to_text(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"


@given(st.uuids())
@examples(1)
def test_uuids_round_trip(value: uuid.UUID) -> None:
    """An id is read as it was written."""
    assert text_to_uuid(uuid_to_text(value)) == value


@pytest.mark.parametrize(
    "text",
    ["", "A" * 21, "A" * 23, "A" * 22 + "=", "A" * 24, "A" * 22 + "\n", "+" * 22, "é" * 22],
)
def test_other_uuid_texts_are_corrupt(text: str) -> None:
    """A text that is not 16 bytes in URL-safe base64 is refused."""
    with pytest.raises(Corrupt, match="is not a Kafka id"):
        text_to_uuid(text)


def test_random_uuids_are_not_reserved_and_begin_with_no_dash() -> None:
    """A new id is drawn again while it is reserved or its text begins with a dash, as in Kafka."""
    dashed = uuid.UUID(bytes=b"\xf8" + bytes(15))
    assert uuid_to_text(dashed).startswith("-")
    draws = iter([ZERO_ID, METADATA_TOPIC_ID, uuid.UUID(int=99), dashed, GOLDEN_ID])
    assert random_uuid(lambda: next(draws)) == GOLDEN_ID
    assert random_uuid() != random_uuid()


def test_a_hundred_ids_are_reserved() -> None:
    """The ids 0 to 99 are reserved for Kafka."""
    assert [number for number in (0, 1, 99, 100) if is_reserved(uuid.UUID(int=number))] == [
        0,
        1,
        99,
    ]


# partition.metadata.


def test_partition_metadata_is_kafkas_bytes() -> None:
    """The golden partition.metadata is written to the byte, without a final newline, and parsed."""
    data = b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w"
    assert format_partition_metadata(GOLDEN_ID) == data
    assert parse_partition_metadata(data) == GOLDEN_ID
    assert (
        parse_partition_metadata(b"version:  7\r\ntopic_id:\tABEiM0RVZneImaq7zN3u_w\n") == GOLDEN_ID
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1: '' is not 'version: <value>'"),
        (b"version: -1\ntopic_id: x", "line 1: version '-1'"),
        (b"version:0\n", "line 1: 'version:0'"),
        (b"version: 0\n", "line 2: '' is not 'topic_id: <value>'"),
        (b"version: 0\ntopic_id: x", "line 2: 'x' is not a Kafka id"),
        (b"version: 0\ntopic_id: " + b"A" * 22, "line 2: the topic id is zero"),
        (b"version: 0\n\xff", "line 2: not UTF-8"),
    ],
)
def test_damaged_partition_metadata_is_corrupt(data: bytes, reason: str) -> None:
    """A damaged partition.metadata is refused, and the error has the line and the reason."""
    with pytest.raises(Corrupt, match=re.escape(reason)):
        parse_partition_metadata(data)


# meta.properties.


def test_meta_properties_are_sorted_lines() -> None:
    """A meta.properties file has one line for each key, sorted by key."""
    properties = {
        "version": "1",
        "node.id": "3",
        "directory.id": GOLDEN_ID_TEXT,
        "cluster.id": "MkU3OEVBNTcwNTJENDM2Qg",
    }
    assert format_meta_properties(properties) == (
        b"cluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"
        b"directory.id=ABEiM0RVZneImaq7zN3u_w\n"
        b"node.id=3\n"
        b"version=1\n"
    )


def test_javas_meta_properties_are_read() -> None:
    """A file by Java's own writer is read, with its comments and its hash order."""
    data = (
        b"#\n#Tue Nov 14 22:13:20 UTC 2023\nnode.id=1\ndirectory.id=ABEiM0RVZneImaq7zN3u_w\n"
        b"version=1\ncluster.id=a\\=\\=\n"
    )
    assert parse_properties(data) == {
        "node.id": "1",
        "directory.id": GOLDEN_ID_TEXT,
        "version": "1",
        "cluster.id": "a==",
    }


@given(st.dictionaries(texts, texts, max_size=4))
@examples(2)
def test_properties_round_trip(properties: dict[str, str]) -> None:
    """Keys and values of any characters are read as they were written."""
    assert parse_properties(format_meta_properties(properties)) == properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("  \n\t\n", {}),
        ("# a=b\n ! a=b\\\nc=d", {"c": "d"}),
        ("a=b", {"a": "b"}),
        ("a : b ", {"a": "b "}),
        ("a\tb c", {"a": "b c"}),
        ("a==b", {"a": "=b"}),
        ("a = : b", {"a": ": b"}),
        ("  a", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=1\ra=2\r\nb=3", {"a": "2", "b": "3"}),
        (r"a\=\:\ \#=\!\"x", {"a=: #": '!"x'}),
        (r"a=\t\n\r\f\\", {"a": "\t\n\r\f\\"}),
        (r"\u0061=\u00FCx", {"a": "üx"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ("a=b\\\n   c\\\r\n# d", {"a": "bc# d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("\\", {}),
        ("a\x1cb\u2028c=ü", {"a\x1cb\u2028c": "ü"}),
    ],
)
def test_properties_follow_javas_grammar(text: str, properties: dict[str, str]) -> None:
    """Comments, separators, escapes and continued lines are read as Java reads them."""
    assert parse_properties(text.encode()) == properties


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a=b\nc=\\u12", "line 2: \\u without four hex digits"),
        (b"a=\\ud83d", "line 1: an escape \\uD800 to \\uDFFF without its other half"),
        (b"a=b\nc=\xff", "line 2: not UTF-8"),
    ],
)
def test_damaged_properties_are_corrupt(data: bytes, reason: str) -> None:
    """A damaged properties file is refused, and the error has the line and the reason."""
    with pytest.raises(Corrupt, match=re.escape(reason)):
        parse_properties(data)


# .kafka_cleanshutdown.


def test_the_clean_marker_is_kafkas_bytes() -> None:
    """The golden clean-shutdown marker is written to the byte, and parsed."""
    assert format_clean_shutdown() == b'{"version":0,"brokerEpoch":-1}'
    assert format_clean_shutdown(12) == b'{"version":0,"brokerEpoch":12}'
    assert parse_clean_shutdown(format_clean_shutdown(12)) == 12


@pytest.mark.parametrize(
    ("data", "epoch"),
    [
        (b"", -1),
        (b'{"version":0,"brokerEpoch":-1}', -1),
        (b'{"new": [1], "brokerEpoch": 5, "version": 0}\n', 5),
    ],
)
def test_other_clean_markers_are_read(data: bytes, epoch: int) -> None:
    """The empty marker of an older release has no epoch, and new fields of a later release are ignored."""
    assert parse_clean_shutdown(data) == epoch


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"brokerEpoch":"1"}',
        b'{"brokerEpoch":true}',
        b'{"brokerEpoch":-2}',
        b'{"brokerEpoch":9223372036854775808}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_damaged_clean_markers_are_corrupt(data: bytes) -> None:
    """A marker without a readable epoch is refused, and the error has the line."""
    with pytest.raises(Corrupt, match="line 1: "):
        parse_clean_shutdown(data)
