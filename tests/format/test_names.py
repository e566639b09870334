"""Names of Kafka's files and directories: they are parsed, and names that only look like them are refused."""

from __future__ import annotations

import re
import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import InvalidName
from logfs.format.base.names import (
    DirectoryKind,
    TopicPartition,
    check_partition,
    check_topic,
    classify_directory,
    deleted_directory,
    file_name,
    parse_directory,
    parse_file_name,
    parse_stem,
    stem,
)
from tests.support.examples import examples

UUID_HEX = uuid.UUID(int=0x00112233445566778899AABBCCDDEEFF).hex
topics = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249).filter(
    lambda name: name not in {".", ".."}
)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


@pytest.mark.parametrize(
    ("offset", "name"),
    [
        (0, "00000000000000000000"),
        (1234, "00000000000000001234"),
        (2**63 - 1, "09223372036854775807"),
    ],
)
def test_stems_are_twenty_digits(offset: int, name: str) -> None:
    """An offset in a file's name is padded with zeros to twenty digits."""
    assert stem(offset) == name


@given(st.integers(0, 2**63 - 1), st.sampled_from([".log", ".index.deleted", ".snapshot", ""]))
@examples(1)
def test_stems_round_trip(offset: int, suffix: str) -> None:
    """The offset of a file name is read back from it, whatever the suffixes."""
    assert parse_stem(stem(offset) + suffix) == offset


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("7.log", 7),
        ("0000001.log", 1),
        ("-5.log", -5),
        ("+5.log", 5),
        ("-9223372036854775808.log", -(2**63)),
        ("0" * 5000 + "3.log", 3),
    ],
)
def test_stems_need_no_padding(name: str, offset: int) -> None:
    """Any signed 64-bit decimal before the first dot is read, as in Kafka."""
    assert parse_stem(name) == offset


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "foo.log",
        "1 .log",
        "1_000.log",
        "٣.log",
        "9223372036854775808.log",
        "-9223372036854775809.log",
        "1" * 5000,
        "--1.log",
        "1\n.log",
    ],
)
def test_other_stems_are_invalid(name: str) -> None:
    """A stem that is not a signed 64-bit decimal in ASCII digits is refused."""
    with pytest.raises(InvalidName):
        parse_stem(name)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_offsets_outside_the_range_have_no_stem(offset: int) -> None:
    """`stem` refuses an offset that a log cannot have."""
    with pytest.raises(InvalidName, match=f"offset {offset} is not in"):
        stem(offset)


@pytest.mark.parametrize("name", ["a", "orders", "A.b_c-9", "...", "x" * 249, "-", "__x"])
def test_topics_that_kafka_allows(name: str) -> None:
    """A topic name is 1 to 249 ASCII letters, digits, dots, underscores and dashes."""
    check_topic(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("x" * 250, "has 250"),
        ("a/b", "'/'"),
        ("a b", "' '"),
        ("a\n", "'\\n'"),
        ("a\0", "'\\x00'"),
        ("zürich", "'ü'"),
    ],
)
def test_other_topics_are_invalid_for_a_reason(name: str, reason: str) -> None:
    """Every other name is refused, and the error has the reason."""
    with pytest.raises(InvalidName, match=re.escape(reason)):
        check_topic(name)


@pytest.mark.parametrize("number", [-1, 2**31])
def test_partitions_are_31_bit_numbers(number: int) -> None:
    """A partition number is in 0..2^31-1."""
    check_partition(0)
    check_partition(2**31 - 1)
    with pytest.raises(InvalidName, match=f"partition {number} is not in"):
        check_partition(number)


@given(partitions)
@examples(1)
def test_directories_round_trip(partition: TopicPartition) -> None:
    """The partition of a directory is read back from the directory's name."""
    assert parse_directory(partition.directory) == partition
    assert classify_directory(partition.directory) == (DirectoryKind.NORMAL, partition)


@given(st.text("ab-.01+ ٣", max_size=12))
@examples(2)
def test_one_partition_has_one_directory(name: str) -> None:
    """Any text that is parsed as a partition is exactly the name of that partition's directory."""
    try:
        assert parse_directory(name).directory == name
    except InvalidName:
        pass


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "orders-",
        "-0",
        "orders-01",
        "orders-+1",
        "orders-٣",
        "orders-1 ",
        "orders-1\n",
        "orders-2147483648",
        "orders-x",
        "a/b-0",
        "..-0",
        "remote-log-index-cache",
    ],
)
def test_other_directories_are_invalid(name: str) -> None:
    """A name that is not a topic, a dash and a canonical number is refused."""
    with pytest.raises(InvalidName):
        parse_directory(name)


def test_the_last_dash_separates() -> None:
    """A topic name may have dashes itself, and may look like the name of a directory."""
    assert parse_directory("a-b-0-1") == TopicPartition("a-b-0", 1)
    assert parse_directory("a--1") == TopicPartition("a-", 1)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("-delete", DirectoryKind.DELETED),
        ("-future", DirectoryKind.FUTURE),
        ("-stray", DirectoryKind.STRAY),
    ],
)
def test_directories_that_are_set_aside(suffix: str, kind: DirectoryKind) -> None:
    """A unique id and one of three suffixes mark a directory that is not a live partition."""
    name = f"or.ders-3.{UUID_HEX}{suffix}"
    assert classify_directory(name) == (kind, TopicPartition("or.ders", 3))


@pytest.mark.parametrize(
    "name",
    [
        "orders-0-delete",
        "orders-0.-delete",
        "orders-0.a b-delete",
        ".x-delete",
        "orders.x-delete",
        "orders-00.x-stray",
        "-0.x-future",
    ],
)
def test_bad_directories_that_are_set_aside_are_invalid(name: str) -> None:
    """Such a name without a partition or a unique id is refused."""
    with pytest.raises(InvalidName):
        classify_directory(name)


@given(partitions)
@examples(1)
def test_names_of_deleted_directories_fit_and_round_trip(partition: TopicPartition) -> None:
    """The name of a deleted directory has at most 255 characters; only a topic that is too long for that is cut."""
    name = deleted_directory(partition, UUID_HEX)
    assert len(name) <= 255
    kind, found = classify_directory(name)
    assert kind is DirectoryKind.DELETED
    assert found.partition == partition.partition
    assert partition.topic.startswith(found.topic)
    assert found == partition or len(name) == 255


def test_the_name_of_a_deleted_directory_is_kafkas() -> None:
    """The name of a deleted directory is the partition's, a dot, the id and `-delete`."""
    name = deleted_directory(TopicPartition("orders", 0), UUID_HEX)
    assert name == "orders-0.00112233445566778899aabbccddeeff-delete"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"billing", "billing"),
        ("r\u00e9sum\u00e9 \n".encode(), "r\u00e9sum\u00e9 \n"),
        (b"a/b", "a%2Fb"),
        (b"a\0b", "a%00b"),
        (b"100%", "100%25"),
        (b".", "%2E"),
        (b"..", "%2E."),
        (b".hidden.", "%2Ehidden."),
        (b"", "%"),
        (b"%", "%25"),
        (b"caf\xe9", "caf%E9"),
        (b"x.lag", "x%2Elag"),
        (b"x.lag.lag", "x.lag%2Elag"),
        (b".lag", "%2Elag"),
        (b"x.lags", "x.lags"),
    ],
)
def test_any_bytes_have_a_file_name(data: bytes, name: str) -> None:
    """Bytes that a file name cannot hold are percent-encoded, and so are names that other files have."""
    assert file_name(data, (".lag",)) == name
    assert parse_file_name(name, (".lag",)) == data


@pytest.mark.parametrize(
    "name", ["", ".x", "a/b", "50%", "%2f", "%61", "%C3%A9", "x.lag", "%%", "%2"]
)
def test_bytes_have_one_file_name(name: str) -> None:
    """`parse_file_name` returns None for a name that `file_name` does not return."""
    assert parse_file_name(name, (".lag",)) is None


@given(st.binary(max_size=12) | st.text(alphabet="./%a\0l\u00e9", max_size=8).map(str.encode))
def test_file_names_round_trip(data: bytes) -> None:
    """Any bytes have a valid file name, and are read back from it."""
    name = file_name(data, (".lag", ".json"))
    assert name
    assert not name.startswith(".")
    assert not set("/\0") & set(name)
    assert not name.endswith((".lag", ".json"))
    assert parse_file_name(name, (".lag", ".json")) == data
