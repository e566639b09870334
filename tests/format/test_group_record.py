"""The records of `__consumer_offsets`: golden vectors, client libraries' encoders, round trips, malformed bytes."""

from __future__ import annotations

import base64
import re
import warnings
from functools import partial
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt, Unsupported
from logfs.format.messages.group_record import (
    OffsetCommit,
    OffsetKey,
    coordinator_partition,
    java_string_hash,
    key_view,
    offset_key,
    parse_key,
    parse_value,
    value_view,
)
from logfs.format.messages.group_schema import KEYS, VALUES
from logfs.format.messages.message import Message
from tests.support.group_records import encode_group_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.format.messages.message import Field

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aiokafka.protocol import types as aio
    from kafka.protocol.schemas import StructField

T = 1_700_000_000_000
GOLDEN_KEY = bytes.fromhex("0001 0002 6731 0001 74 00000003")
GOLDEN_VALUES = {
    0: "0000 000000000000004d 0002 6d64 0000018bcfe56800",
    1: "0001 000000000000004d 0002 6d64 0000018bcfe56800 0000018bcfe56be8",
    3: "0003 000000000000004d 00000005 0002 6d64 0000018bcfe56800",
    4: "0004 000000000000004d 00000005 03 6d64 0000018bcfe56800 00",
}
GOLDEN_GROUP = bytes.fromhex(
    "0003 0008 636f6e73756d6572 00000002 0005 72616e6765 0002 6d31 0000000000000005 00000001"
    "0002 6d31 ffff 0001 63 0002 2f68 0000000a 00000014 00000001 01 00000002 0203"
)
MEMBER = {
    "memberId": "m1",
    "groupInstanceId": None,
    "clientId": "c",
    "clientHost": "/h",
    "rebalanceTimeout": 10,
    "sessionTimeout": 20,
    "subscription": b"\1",
    "assignment": b"\2\3",
}
GROUP = {
    "protocolType": "consumer",
    "generation": 2,
    "protocol": "range",
    "leader": "m1",
    "currentStateTimestamp": 5,
    "members": [MEMBER],
}
# The same messages in the form of Kafka's own schemas, for kafka-python's encoder.
COMMIT_SCHEMA = {
    "name": "OffsetCommitValue",
    "validVersions": "0-4",
    "flexibleVersions": "4+",
    "type": "data",
    "fields": [
        {"name": "offset", "type": "int64", "versions": "0+"},
        {"name": "leaderEpoch", "type": "int32", "versions": "3+"},
        {"name": "metadata", "type": "string", "versions": "0+"},
        {"name": "commitTimestamp", "type": "int64", "versions": "0+"},
        {"name": "expireTimestamp", "type": "int64", "versions": "1"},
    ],
}
MEMBER_FIELDS = [
    {"name": "memberId", "type": "string", "versions": "0+"},
    {"name": "groupInstanceId", "type": "string", "versions": "3+", "nullableVersions": "3+"},
    {"name": "clientId", "type": "string", "versions": "0+"},
    {"name": "clientHost", "type": "string", "versions": "0+"},
    {"name": "rebalanceTimeout", "type": "int32", "versions": "1+"},
    {"name": "sessionTimeout", "type": "int32", "versions": "0+"},
    {"name": "subscription", "type": "bytes", "versions": "0+"},
    {"name": "assignment", "type": "bytes", "versions": "0+"},
]
GROUP_SCHEMA = {
    "name": "GroupMetadataValue",
    "validVersions": "0-4",
    "flexibleVersions": "4+",
    "type": "data",
    "fields": [
        {"name": "protocolType", "type": "string", "versions": "0+"},
        {"name": "generation", "type": "int32", "versions": "0+"},
        {"name": "protocol", "type": "string", "versions": "0+", "nullableVersions": "0+"},
        {"name": "leader", "type": "string", "versions": "0+", "nullableVersions": "0+"},
        {"name": "currentStateTimestamp", "type": "int64", "versions": "2+"},
        {
            "name": "members",
            "type": "[]MemberMetadata",
            "versions": "0+",
            "fields": MEMBER_FIELDS,
        },
    ],
}
VERSIONS = st.integers(0, 4)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
COMMITS = st.builds(OffsetCommit, INT64, TEXT, INT64, INT32, INT64)
MEMBERS = st.fixed_dictionaries(
    {
        "memberId": TEXT,
        "groupInstanceId": st.none() | TEXT,
        "clientId": TEXT,
        "clientHost": TEXT,
        "rebalanceTimeout": INT32,
        "sessionTimeout": INT32,
        "subscription": st.binary(max_size=20),
        "assignment": st.binary(max_size=20),
    }
)
GROUPS = st.fixed_dictionaries(
    {
        "protocolType": TEXT,
        "generation": INT32,
        "protocol": st.none() | TEXT,
        "leader": st.none() | TEXT,
        "currentStateTimestamp": INT64,
        "members": st.lists(MEMBERS, max_size=3),
    }
)


def in_snake_case(item: object) -> object:
    """Return the same fields with kafka-python's names."""
    if isinstance(item, dict):
        return {re.sub("[A-Z]", r"_\g<0>", k).lower(): in_snake_case(v) for k, v in item.items()}
    return [in_snake_case(one) for one in item] if isinstance(item, list) else item


def outside(schema: dict, version: int, item: dict) -> bytes:
    """Return a value as kafka-python encodes it."""
    flexible, fields = version >= 4, in_snake_case(item)
    body = StructField(schema).encode(fields, version=version, compact=flexible, tagged=flexible)
    return version.to_bytes(2) + body


def commit_fields(commit: OffsetCommit) -> dict:
    """Return a commit's fields with Kafka's names."""
    names = ("offset", "metadata", "commitTimestamp", "leaderEpoch", "expireTimestamp")
    return dict(zip(names, commit, strict=True))


def test_the_golden_key() -> None:
    """The key of a commit is parsed, and encoded to the same bytes."""
    key = parse_key(GOLDEN_KEY)
    assert key is not None
    assert offset_key(key) == OffsetKey("g1", "t", 3)
    assert OffsetKey("g1", "t", 3).encode() == GOLDEN_KEY


@pytest.mark.parametrize("version", GOLDEN_VALUES)
def test_the_golden_values(version: int) -> None:
    """Every version of a commit's value is parsed, and encoded to the same bytes."""
    data = bytes.fromhex(GOLDEN_VALUES[version])
    value = parse_value(1, data)
    assert value is not None
    assert value.version == version
    expected = OffsetCommit(
        77,
        "md",
        T,
        5 if version >= 3 else -1,
        T + 1000 if version == 1 else -1,
    )
    commit = OffsetCommit.of(value)
    assert commit == expected
    assert commit.encode(version) == data


def test_the_version_of_an_encoded_commit() -> None:
    """A commit is encoded in version 3, and in version 1 only if it expires, as in Kafka."""
    assert OffsetCommit(77, "md", T, 5).encode() == bytes.fromhex(GOLDEN_VALUES[3])
    assert OffsetCommit(77, "md", T, 5, T + 1000).encode() == bytes.fromhex(GOLDEN_VALUES[1])


def test_the_golden_group() -> None:
    """A classic group's metadata is parsed field by field, and encoded to the same bytes."""
    assert parse_value(2, GOLDEN_GROUP) == Message(3, GROUP)
    assert encode_group_metadata(GROUP) == GOLDEN_GROUP


def test_views_equal_those_of_kafka_dump_log() -> None:
    """The views of keys and values are kafka-dump-log's JSON, to the character."""
    key, commit = parse_key(GOLDEN_KEY), parse_value(1, OffsetCommit(77, "md", 5, 5).encode())
    group = parse_value(2, GOLDEN_GROUP)
    assert key is not None
    assert commit is not None
    assert group is not None
    assert orjson.dumps(key_view(key)) == (
        b'{"type":"1","data":{"group":"g1","topic":"t","partition":3}}'
    )
    assert orjson.dumps(value_view(commit)) == (
        b'{"version":"3","data":{"offset":77,"leaderEpoch":5,"metadata":"md","commitTimestamp":5}}'
    )
    member = value_view(group)["data"]["members"][0]
    assert (member["subscription"], member["assignment"]) == ("AQ==", "AgM=")
    assert list(member) == list(MEMBER)


@pytest.mark.parametrize("kind", [*range(3, 9), *range(10, 16), 17, *range(19, 24)])
def test_keys_of_other_kinds_are_recognised(kind: int) -> None:
    """The keys of the newer protocols hold a group, and those of some kinds a member."""
    members = (5, 7, 8, 10, 13, 14, 19, 21, 22)
    data = kind.to_bytes(2) + b"\0\2g1" + (b"\0\2m1" if kind in members else b"")
    key = parse_key(data)
    assert key is not None
    assert offset_key(key) is None
    expected = {"groupId": "g1"} | ({"memberId": "m1"} if kind in members else {})
    assert key_view(key) == {"type": str(kind), "data": expected}


def view(kind: int, value: str) -> dict:
    """Return what a dump prints of a value, which is given in hex and has version 0."""
    found = parse_value(kind, bytes.fromhex(value))
    assert found is not None
    assert found.version == 0
    assert VALUES[kind].encode(0, found.fields) == bytes.fromhex(value)
    return value_view(found)["data"]


def test_values_of_the_newer_protocol() -> None:
    """Epochs, members and assignments of Kafka 4.4.0 are shown as it printed them, with and without tagged fields."""
    uuid, text = "dceac0164d69478a8383679de445cf3f", "3OrAFk1pR4qDg2ed5EXPPw"
    assert view(3, "0000 00000002 01 00 08 cbd9d567d6ce83fc") == {
        "epoch": 2,
        "metadataHash": -3757737772101762052,
    }
    assert view(3, "0000 00000002 00") == {"epoch": 2}
    member = "0000 00 00 02 63 0b 2f3132372e302e302e31 02 07 6f7264657273 01 000493e0 00"
    expected = {
        "instanceId": None,
        "rackId": None,
        "clientId": "c",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": ["orders"],
        "subscribedTopicRegex": "",
        "rebalanceTimeoutMs": 300000,
        "serverAssignor": None,
    }
    assert view(5, member + "00") == expected
    assert view(5, member + "01 00 01 00") == {**expected, "classicMemberMetadata": None}
    assert view(5, member + "01 00 0c 01 00000005 02 02 78 02 ff 00 00")[
        "classicMemberMetadata"
    ] == {"sessionTimeoutMs": 5, "supportedProtocols": [{"name": "x", "metadata": "/w=="}]}
    assert view(6, "0000 00000002 01 00 08 000001a1fbe24ffe") == {
        "assignmentEpoch": 2,
        "assignmentTimestamp": 1795227275262,
    }
    assert view(7, f"0000 02 {uuid} 03 00000000 00000001 00 00") == {
        "topicPartitions": [{"topicId": text, "partitions": [0, 1]}]
    }
    assigned = f"{uuid} 03 00000000 00000001 01 00 09 03 00000002 00000002"
    assert view(8, f"0000 00000002 00000000 00 02 {assigned} 01 00") == {
        "memberEpoch": 2,
        "previousMemberEpoch": 0,
        "state": 0,
        "assignedPartitions": [{"topicId": text, "partitions": [0, 1], "assignmentEpochs": [2, 2]}],
        "partitionsPendingRevocation": [],
    }


def test_subscriptions_and_assignments_of_a_classic_group() -> None:
    """A classic group's subscriptions and assignments are decoded, unless they are empty or of another protocol."""
    subscription = "0003 00000001 0001 74 ffffffff 00000000 ffffffff ffff"
    assignment = "0001 00000001 0001 74 00000002 00000000 00000001 00000001 05"
    member = {
        **MEMBER,
        "subscription": bytes.fromhex(subscription),
        "assignment": bytes.fromhex(assignment),
    }
    views = {}
    for kind in ("consumer", "connect"):
        data = encode_group_metadata({**GROUP, "protocolType": kind, "members": [member]})
        value = parse_value(2, data)
        assert value is not None
        (views[kind],) = value_view(value)["data"]["members"]
    assert views["consumer"]["subscription"] == {
        "topics": ["t"],
        "userData": None,
        "ownedPartitions": [],
        "generationId": -1,
        "rackId": None,
    }
    assert views["consumer"]["assignment"] == {
        "assignedPartitions": [{"topic": "t", "partitions": [0, 1]}],
        "userData": "BQ==",
    }
    assert views["connect"]["assignment"] == base64.b64encode(member["assignment"]).decode()


@pytest.mark.parametrize("kind", [9, 18, 24, 1000, 32767, 65535])
def test_kinds_of_later_releases_are_skipped(kind: int) -> None:
    """A key of an unknown type is no error, and is parsed as None."""
    assert parse_key(kind.to_bytes(2) + b"whatever") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\1",
        GOLDEN_KEY[:-1],
        GOLDEN_KEY + b"\0",
        b"\0\1\xff\xff" + GOLDEN_KEY[6:],  # a null group
        b"\0\1\0\2\xff\xff" + GOLDEN_KEY[6:],  # not UTF-8
    ],
)
def test_malformed_keys_are_refused(data: bytes) -> None:
    """Bytes that are no key are refused."""
    with pytest.raises(Corrupt, match="group record's key"):
        parse_key(data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (1, b""),
        (1, b"\xff\xff"),
        (1, b"\0\3"),
        (1, bytes.fromhex(GOLDEN_VALUES[3])[:-1]),
        (1, bytes.fromhex(GOLDEN_VALUES[3]) + b"\0"),
        (1, bytes.fromhex(GOLDEN_VALUES[4])[:-1]),
        (1, bytes.fromhex("0004 000000000000004d 00000005 ffffffffffff 6d64 0000018bcfe56800 00")),
        (2, GOLDEN_GROUP[:-1]),
        (2, GOLDEN_GROUP[:38] + b"\x7f\xff\xff\xff" + GOLDEN_GROUP[42:]),
    ],
)
def test_malformed_values_are_refused(kind: int, data: bytes) -> None:
    """Bytes that are no value of the key's type are refused."""
    with pytest.raises(Corrupt, match=r"offset commit|group metadata"):
        parse_value(kind, data)


def test_values_of_later_releases() -> None:
    """An unknown version raises `Unsupported`, which names the version."""
    with pytest.raises(Unsupported, match="version 5"):
        parse_value(1, b"\0\5whatever")


def test_unknown_tagged_fields_are_skipped() -> None:
    """A flexible value may have tagged fields of a later release, which are skipped."""
    data = bytes.fromhex(GOLDEN_VALUES[4])[:-1] + b"\2\1\1x\x81\1\2yz"
    value = parse_value(1, data)
    assert value is not None
    assert OffsetCommit.of(value) == OffsetCommit(77, "md", T, 5)


@given(st.binary(max_size=60), st.integers(0, 9))
def test_any_bytes_are_parsed_or_refused(data: bytes, kind: int) -> None:
    """Any bytes are parsed or raise `Corrupt` or `Unsupported`, and no other error."""
    for parse in (parse_key, lambda data: parse_value(kind, data)):
        try:
            parse(data)
        except (Corrupt, Unsupported):
            continue


@given(TEXT, TEXT, st.integers(0, 2**31 - 1))
def test_keys_round_trip(group: str, topic: str, partition: int) -> None:
    """A key is parsed as it was encoded, and has the bytes that aiokafka encodes."""
    key = OffsetKey(group, topic, partition)
    data = key.encode()
    found = parse_key(data)
    assert found is not None
    assert offset_key(found) == key
    schema = aio.Schema(
        ("type", aio.Int16),
        ("group", aio.String("utf-8")),
        ("topic", aio.String("utf-8")),
        ("partition", aio.Int32),
    )
    assert data == schema.encode((1, group, topic, partition))


@given(COMMITS, VERSIONS)
def test_commits_round_trip(commit: OffsetCommit, version: int) -> None:
    """A commit's value has the bytes that kafka-python encodes, and is parsed to the fields that its version has."""
    data = commit.encode(version)
    fields = commit_fields(commit)
    assert data == outside(COMMIT_SCHEMA, version, fields)
    value = parse_value(0, data)
    assert value is not None
    assert value.fields.items() <= fields.items()
    assert len(value.fields) == {0: 3, 1: 4, 2: 3, 3: 4, 4: 4}[version]
    assert OffsetCommit.of(value).encode(version) == data


def values_of(field: Field, kind: str) -> st.SearchStrategy:
    """Return a strategy for the values that a field of that type may hold."""
    if kind.startswith("[]"):
        return st.lists(values_of(field, kind[2:]), max_size=3)
    if kind == "struct":
        return fields_of(field.fields)
    if kind == "uuid":
        return st.uuids()
    if kind in ("string", "bytes"):
        return TEXT if kind == "string" else st.binary(max_size=20)
    bits = int(kind.lstrip("uint"))
    low = 0 if kind.startswith("u") else -(2 ** (bits - 1))
    return st.integers(low, low + 2**bits - 1)


def fields_of(fields: Sequence[Field]) -> st.SearchStrategy:
    """Return a strategy for a struct: nullable fields may be null, and tagged fields often have their default."""
    found = {}
    for field in fields:
        values = values_of(field, field.type)
        found[field.name] = values | st.none() if field.nullable else values
        if field.tag >= 0:
            found[field.name] |= st.just(field.default)
    return st.fixed_dictionaries(found)


@given(st.sampled_from(sorted(VALUES)), st.data())
def test_every_kind_round_trips(kind: int, data: st.DataObject) -> None:
    """Every kind of key and value, in each version, is read as it was written; tagged defaults are left out."""
    for schema, read in ((KEYS[kind], parse_key), (VALUES[kind], partial(parse_value, kind))):
        version = kind if read is parse_key else data.draw(st.integers(0, schema.newest))
        written = data.draw(fields_of(schema.fields))
        encoded = schema.encode(version, written)
        message = read(encoded)
        assert message is not None
        assert message.version == version
        assert message.fields.keys() == {
            field.name
            for field in schema.fields
            if field.first <= version <= field.last
            and (field.tag < 0 or written[field.name] != field.default)
        }
        assert schema.encode(version, message.fields) == encoded


@given(GROUPS, VERSIONS)
def test_groups_round_trip(group: dict, version: int) -> None:
    """A group's metadata has the bytes that kafka-python encodes, and is parsed to the same fields."""
    data = encode_group_metadata(group, version)
    assert data == outside(GROUP_SCHEMA, version, group)
    value = parse_value(2, data)
    assert value is not None
    assert encode_group_metadata({**group, **value.fields}, version) == data


@pytest.mark.parametrize(
    ("group", "found", "partition"),
    [
        ("", 0, 0),
        ("g1", 3242, 42),
        ("my-group", -1906497762, 12),
        ("console-consumer-1", 35782224, 24),
        # A text that is known for its hash in Java: -2^31 has no positive counterpart.
        ("polygenelubricants", -(2**31), 0),
        # U+1F600 is two UTF-16 code units, D83D and DE00.
        ("\N{GRINNING FACE}", 0xD83D * 31 + 0xDE00, (0xD83D * 31 + 0xDE00) % 50),
    ],
)
def test_the_partition_of_a_group(group: str, found: int, partition: int) -> None:
    """A group's hash is Java's, and its partition, of 50, is Kafka's."""
    assert java_string_hash(group) == found
    assert coordinator_partition(group, 50) == partition
