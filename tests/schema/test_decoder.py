"""Values that Confluent's serializers wrote, decoded by the schemas of each kind of place."""

from __future__ import annotations

import base64
import datetime
import errno
import fractions
import io
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import fastavro
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import NotDecodable, SchemasUnavailable
from logfs.format.batches.record import Record
from logfs.schema.decoder import Decoder, schema_of
from logfs.schema.open_schemas import open_schemas
from logfs.schema.schema_files import SchemaFiles
from logfs.schema.schemas import Schema
from logfs.store.store import Store
from tests.support.schemas import (
    MONEY_AVRO,
    MONEY_PROTO,
    ORDER_AVRO,
    SHOP_PROTO,
    VECTORS,
    Registered,
    RegistryServer,
    append_schemas,
    write_files,
)
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same schemas in a directory, in a log directory, and in a registry."""
    base = tmp_path_factory.mktemp("schemas")
    with Store(base / "log") as store:
        append_schemas(store)
    with RegistryServer() as server:
        yield {
            "files": write_files(base / "files"),
            "log": str(base / "log"),
            "registry": f"{server.url}/",
        }
    assert_clean(base / "log")


def framed(number: int, data: bytes) -> bytes:
    """Return data as a serializer frames them."""
    return struct.pack(">bI", 0, number) + data


@pytest.mark.parametrize("place", ["files", "log", "registry"])
def test_the_values_of_confluents_serializers(places: dict[str, str], place: str) -> None:
    """Each value decodes to the same JSON, on one line, wherever its schema is."""
    schemas = open_schemas(places[place])
    decoder = Decoder(schemas)
    for name, vector in VECTORS.items():
        text = decoder.decode(vector.data)
        assert b"\n" not in text
        assert orjson.loads(text) == vector.decoded, name
    with pytest.raises(NotDecodable, match=r"the schema 99 is not in .+"):
        decoder.decode(framed(99, b"x"))
    schemas.close()


@pytest.mark.parametrize("change", ["truncated", "created again"])
def test_the_topic_of_schemas_is_replaced_and_grows_past_its_end(
    tmp_path: Path, change: str
) -> None:
    """Schemas are found that lie before the end of an earlier look, because the log has been replaced since."""
    with Store(tmp_path) as store:
        store.create("_schemas-0").append([Record(None, b"{}")] * 20)
    schemas = open_schemas(str(tmp_path))
    assert schemas.find(1) is None
    with Store(tmp_path) as store:
        if change == "truncated":
            store["_schemas-0"].truncate(0)
        else:
            store.deleter.delete("_schemas-0")
        append_schemas(store)
        store["_schemas-0"].append([Record(None, b"{}")] * 30)
    found = schemas.find(1)
    assert found is not None
    assert found.text == MONEY_AVRO
    schemas.close()
    assert_clean(tmp_path)


def test_the_topic_of_schemas_is_deleted(tmp_path: Path) -> None:
    """Schemas that were read stay known; another one is unavailable."""
    with Store(tmp_path) as store:
        append_schemas(store)
    schemas = open_schemas(str(tmp_path))
    assert schemas.find(1) is not None
    with Store(tmp_path) as store:
        store.deleter.delete("_schemas-0")
    assert schemas.find(1) is not None
    with pytest.raises(SchemasUnavailable, match="has no topic _schemas"):
        schemas.find(1_000_000)
    schemas.close()


@pytest.mark.parametrize("value", [b"null", b"[]", b'"text"', b"{", b"{}", b'{"subject":1}', b""])
def test_records_that_are_no_schemas_are_passed_over(tmp_path: Path, value: bytes) -> None:
    """A record of `_schemas` that no registry would write keeps no other schema from being found."""
    with Store(tmp_path) as store:
        store.create("_schemas-0").append([Record(value, b'{"keytype":"SCHEMA"}')])
        append_schemas(store)
    schemas = open_schemas(str(tmp_path))
    assert schemas.find(1) is not None
    schemas.close()


INT, STRING = '"int"', '"string"'


@pytest.mark.parametrize(
    ("registered", "decoded"),
    [
        ([("orders-value", INT), (":.staging:users-value", STRING)], b"1"),
        ([(":.staging:users-value", STRING), ("orders-value", INT)], b"1"),
        ([(":.staging:users-value", STRING), (":.:orders-value", INT)], b"1"),
        ([("a", STRING), ("orders-value", INT)], b"1"),
        ([(":.staging:a", STRING), (":.staging:b", INT)], b"1"),
        ([(":.staging:a", INT)], b"1"),
        ([(":.staging:a", INT), (":.test:a", STRING)], None),
        ([("orders-value", INT), (":.staging:a", STRING), (":.test:a", STRING)], b"1"),
    ],
)
def test_ids_in_contexts(
    tmp_path: Path, registered: list[tuple[str, str]], decoded: bytes | None
) -> None:
    """An id names the schema of the default context; without one, that of the only context that has the id."""
    with Store(tmp_path) as store:
        append_schemas(store, [Registered(1, each, 1, "AVRO", text) for each, text in registered])
    schemas = open_schemas(str(tmp_path))
    decoder, value = Decoder(schemas), framed(1, b"\2")
    if decoded is None:
        with pytest.raises(NotDecodable, match="the schema 1 is not in"):
            decoder.decode(value)
    else:
        assert decoder.decode(value) == decoded
    schemas.close()
    assert_clean(tmp_path)


def test_the_default_context_gets_an_id_later(tmp_path: Path) -> None:
    """Each look for an id finds a schema of the default context that came after those of other contexts."""
    with Store(tmp_path) as store:
        append_schemas(store, [Registered(1, ":.staging:a", 1, "AVRO", STRING)])
        schemas = open_schemas(str(tmp_path))
        assert schemas.find(1) == Schema("AVRO", STRING, {})
        append_schemas(store, [Registered(1, "orders-value", 1, "AVRO", INT)])
        assert schemas.find(1) == Schema("AVRO", INT, {})
        schemas.close()
    assert_clean(tmp_path)


@pytest.mark.parametrize(
    ("parent", "reference", "text"),
    [
        ("users-value", "money", "default"),
        (":.:users-value", "money", "default"),
        ("users-value", ":.:money", "default"),
        ("users-value", ":.staging:money", "staging"),
        (":.staging:users-value", "money", "staging"),
        (":.staging:users-value", ":.staging:money", "staging"),
        (":.staging:users-value", ":.:money", "default"),
        (":.test:users-value", "money", "default"),
    ],
)
def test_references_in_contexts(tmp_path: Path, parent: str, reference: str, text: str) -> None:
    """A reference without a context is of the schema's own context, or else of the default context."""
    with Store(tmp_path) as store:
        append_schemas(
            store,
            [
                Registered(1, "money", 1, "AVRO", "default"),
                Registered(1, ":.staging:money", 1, "AVRO", "staging"),
                Registered(2, parent, 1, "AVRO", "parent", (("Money", reference, 1),)),
            ],
        )
    schemas = open_schemas(str(tmp_path))
    found = schemas.find(2)
    assert found is not None
    assert found.references == {"Money": text}
    schemas.close()


def test_a_registry_is_asked_once(places: dict[str, str]) -> None:
    """The schema, and each schema that it refers to, are asked for once, however many values there are."""
    with RegistryServer() as server:
        decoder = Decoder(open_schemas(server.url))
        for _ in range(10):
            decoder.decode(VECTORS["protobuf"].data)
            with pytest.raises(NotDecodable):
                decoder.decode(framed(99, b"x"))
        assert server.asked == [
            "/schemas/ids/6",
            "/subjects/acme%2Fmoney.proto/versions/1",
            "/schemas/ids/99",
        ]


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_what_is_cut_does_not_decode(places: dict[str, str], name: str) -> None:
    """A value cut anywhere, or with a byte more, is an error of one kind, or another valid value."""
    decoder = Decoder(open_schemas(places["files"]))
    data = VECTORS[name].data
    for end in range(len(data)):
        if "protobuf" in name:
            # Protobuf cannot tell a message that is cut between two fields.
            try:
                decoder.decode(data[:end])
            except NotDecodable:
                continue
        else:
            with pytest.raises(NotDecodable):
                decoder.decode(data[:end])
    if "protobuf" not in name:
        with pytest.raises(NotDecodable):
            decoder.decode(data + b"x")


@given(number=st.sampled_from([2, 3, 4, 6]), data=st.binary(max_size=60))
def test_any_bytes(places: dict[str, str], number: int, data: bytes) -> None:
    """Bytes decode to JSON, or raise `NotDecodable`."""
    decoder = _shared(places["files"])
    try:
        text = decoder.decode(framed(number, data))
    except NotDecodable:
        return
    orjson.loads(text)
    assert b"\n" not in text


_decoders: dict[str, Decoder] = {}


def _shared(place: str) -> Decoder:
    if place not in _decoders:
        _decoders[place] = Decoder(open_schemas(place))
    return _decoders[place]


@given(st.binary(max_size=8))
def test_what_is_framed(data: bytes) -> None:
    """A value is framed if it begins with a zero byte, and a number of four bytes that is not negative."""
    number = schema_of(data)
    assert (number is None) == (len(data) < 5 or data[0] != 0 or data[1] > 127)
    assert number is None or framed(number, data[5:]) == data


def test_json_keeps_its_text(places: dict[str, str]) -> None:
    """Numbers keep their digits; line breaks between tokens become spaces; other text is refused."""
    decoder = Decoder(open_schemas(places["files"]))
    text = b'{"a":\r\n 1.10,\n"n":12345678901234567890123}'
    assert decoder.decode(framed(4, text)) == b'{"a":   1.10, "n":12345678901234567890123}'
    for wrong in (b"", b"{", b"{} {}", b"\xff"):
        with pytest.raises(NotDecodable):
            decoder.decode(framed(4, wrong))


class OneSchema:
    """A place with one schema, of any id."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def find(self, number: int) -> Schema | None:
        return self.schema

    def close(self) -> None:
        """Do nothing."""


MONEY = {"units": 1, "currency": "USD"}


@pytest.mark.parametrize(
    ("schema", "data", "decoded"),
    [
        ('"com.acme.Money"', b"\2\2", MONEY),
        ('["null","com.acme.Money"]', b"\2\2\2", MONEY),
        ('["null","com.acme.Money"]', b"\0", None),
        ('{"type":"array","items":"com.acme.Money"}', b"\4\2\2\2\2\0", [MONEY, MONEY]),
        ('{"type":"map","values":"com.acme.Money"}', b"\2\2a\2\2\0", {"a": MONEY}),
        (MONEY_AVRO, b"\2\2", MONEY),
        ('["string","int"]', b"\0\2a", "a"),
        ('{"type":"fixed","name":"F","size":2}', b"ab", "YWI="),
        (
            '{"type":"record","name":"L","fields":[{"name":"n","type":["null","L"]}]}',
            b"\2\0",
            {"n": {"n": None}},
        ),
    ],
)
def test_avro_schemas_of_every_form(schema: str, data: bytes, decoded: object) -> None:
    """A schema need not be a record, whether it refers to others or not."""
    decoder = Decoder(OneSchema(Schema("AVRO", schema, {"com.acme.Money": MONEY_AVRO})))
    assert orjson.loads(decoder.decode(framed(1, data))) == decoded


LINK = '{"type":"record","name":"L","fields":[{"name":"n","type":["null","L"]}]}'
ENDLESS = '{"type":"record","name":"E","fields":[{"name":"n","type":"E"}]}'
NOTHING = '{"type":"record","name":"N","fields":[]}'
INSIDE = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":["null"]}}]}'
)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (LINK, b"\2" * 100_000 + b"\0"),
        (LINK, b"\2" * 1000 + b"\0"),
        (ENDLESS, b""),
        (f'["null",{ENDLESS}]', b"\2"),
        # A billion items without a byte.
        ('{"type":"array","items":"null"}', b"\x80\xa8\xd6\xb9\x07\0"),
        (
            '{"type":"array","items":{"type":"fixed","name":"F","size":0}}',
            b"\x80\xa8\xd6\xb9\x07\0",
        ),
        (
            f'{{"type":"map","values":{{"type":"array","items":{NOTHING}}}}}',
            b"\2\2a\x80\xa8\xd6\xb9\x07\0",
        ),
        (INSIDE, b"\x80\xa8\xd6\xb9\x07\0"),
        ('"string"', b"\x80\xa8\xd6\xb9\x07\0"),
        ('{"type":"array","items":"string"}', b"\x80\xa8\xd6\xb9\x07\0"),
    ],
)
def test_hostile_avro_data(schema: str, data: bytes) -> None:
    """Data that are nested without end, or have more items than bytes, end with an error, and soon."""
    with pytest.raises(NotDecodable):
        Decoder(OneSchema(Schema("AVRO", schema, {}))).decode(framed(1, data))


def test_nested_avro_data() -> None:
    """Values of recursive schemas decode up to a depth that data of people have."""
    text = Decoder(OneSchema(Schema("AVRO", LINK, {}))).decode(framed(1, b"\2" * 80 + b"\0"))
    assert text == b'{"n":' * 81 + b"null" + b"}" * 81


@given(
    unscaled=st.integers(-(1 << 199), (1 << 199) - 1),
    precision=st.integers(1, 50),
    scale=st.integers(0, 50),
    form=st.sampled_from(["bytes", "fixed", "union", "array", "reference"]),
)
def test_avro_decimals(unscaled: int, precision: int, scale: int, form: str) -> None:
    """Decimals have all their digits, also those with more digits than the schema says."""
    scale = min(scale, precision)
    size = 25
    number = unscaled.to_bytes(size, "big", signed=True)
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    counted = {"type": "bytes", **logical}
    fixed = {"type": "fixed", "name": "F", "size": size, **logical}
    framed_bytes = bytes([size * 2]) + number
    schema, data = {
        "bytes": (counted, framed_bytes),
        "fixed": (fixed, number),
        "union": (["null", counted], b"\2" + framed_bytes),
        "array": ({"type": "array", "items": fixed}, b"\2" + number + b"\0"),
        "reference": (["null", "F"], b"\2" + number),
    }[form]
    references = {"F": orjson.dumps(fixed).decode()} if form == "reference" else {}
    decoder = Decoder(OneSchema(Schema("AVRO", orjson.dumps(schema).decode(), references)))
    found = orjson.loads(decoder.decode(framed(1, data)))
    text = found[0] if form == "array" else found
    assert fractions.Fraction(text) == fractions.Fraction(unscaled, 10**scale)
    assert len(text.partition(".")[2]) == scale


@given(micros=st.integers(0, 86_399_999_999))
def test_avro_times(micros: int) -> None:
    """Times have all digits of their fraction."""
    for unit, size in (("micros", 1), ("millis", 1000)):
        kind = "long" if unit == "micros" else "int"
        schema = Schema("AVRO", f'{{"type":"{kind}","logicalType":"time-{unit}"}}', {})
        data = io.BytesIO()
        fastavro.schemaless_writer(data, kind, micros // size)
        text = Decoder(OneSchema(schema)).decode(framed(1, data.getvalue()))
        found = datetime.time.fromisoformat(orjson.loads(text))
        since = datetime.datetime.combine(datetime.date.min, found) - datetime.datetime.min
        assert since == datetime.timedelta(microseconds=micros // size * size)


@given(micros=st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_avro_timestamps(micros: int) -> None:
    """Timestamps have all digits of their fraction, and the time zone UTC."""
    schema = Schema("AVRO", '{"type":"long","logicalType":"timestamp-micros"}', {})
    data = io.BytesIO()
    fastavro.schemaless_writer(data, "long", micros)
    text = Decoder(OneSchema(schema)).decode(framed(1, data.getvalue())).decode()
    assert text.endswith('Z"')
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    expected = epoch + datetime.timedelta(microseconds=micros)
    assert datetime.datetime.fromisoformat(orjson.loads(text)) == expected


@pytest.mark.parametrize("kind", ["fifo", "device", "large", "directory"])
def test_files_that_are_no_schemas(tmp_path: Path, kind: str) -> None:
    """What would not end, or not fit the memory, is refused."""
    path = tmp_path / "3.avsc"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 1 << 32)
    with pytest.raises(SchemasUnavailable, match="is not a regular file of at most"):
        Decoder(SchemaFiles(tmp_path)).decode(VECTORS["avro string"].data)


def test_a_registry_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sends a byte at a time, or bytes without end, is given up."""
    monkeypatch.setattr("logfs.schema.registry._MOST_SECONDS", 1)
    with RegistryServer() as server:
        for drip in (True, False):
            server.is_dripping, server.is_endless = drip, not drip
            with pytest.raises(
                SchemasUnavailable, match=r"no answer in 1 seconds|more than 16 MiB"
            ):
                Decoder(open_schemas(server.url)).decode(VECTORS["avro string"].data)
        server.is_dripping = server.is_endless = False


@pytest.mark.parametrize("compiled", [("main",), ("money",), ("main", "money")])
def test_compiled_protobuf_schemas(tmp_path: Path, compiled: tuple[str, ...]) -> None:
    """A registry may have the descriptor of a file in base64 in place of its text, as some clients register it."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/money.proto").write_text(MONEY_PROTO)
    (tmp_path / "shop.proto").write_text(SHOP_PROTO)
    texts = {"main": SHOP_PROTO, "money": MONEY_PROTO}
    for which in compiled:
        name = {"main": "shop.proto", "money": "acme/money.proto"}[which]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"-o{tmp_path}/set"]
        subprocess.run([*command, name], check=True)
        # The field 1 of a set with one file is the file, after a tag and a length of two bytes at most.
        data = (tmp_path / "set").read_bytes()
        assert data[0] == 10
        texts[which] = base64.b64encode(data[2 if data[1] < 128 else 3 :]).decode()
    decoder = Decoder(
        OneSchema(Schema("PROTOBUF", texts["main"], {"acme/money.proto": texts["money"]}))
    )
    for name in ("protobuf", "protobuf, a nested message", "protobuf, the second message"):
        assert orjson.loads(decoder.decode(VECTORS[name].data)) == VECTORS[name].decoded


@pytest.mark.parametrize(
    "schema",
    [
        Schema("AVRO", "no JSON", {}),
        Schema("AVRO", '{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}', {}),
        Schema("AVRO", '{"type":"array","items":"A"}', {"A": '{"type":"array","items":"A"}'}),
        Schema("AVRO", '["A"]', {"A": '["B"]', "B": '["A"]'}),
        Schema("PROTOBUF", "message", {}),
        Schema("PROTOBUF", 'syntax = "proto3"; import "a.proto";', {}),
        Schema("PROTOBUF", 'syntax = "proto3";', {"../escape.proto": ""}),
        Schema("PROTOBUF", 'syntax = "proto3";', {"/escape.proto": ""}),
        Schema("PROTOBUF", 'syntax = "proto3";', {"a" * 300: ""}),
        Schema("PROTOBUF", 'syntax = "proto3";', {"": ""}),
        Schema("PROTOBUF", 'syntax = "proto3";', {"a": "", "a/b": ""}),
        Schema("PROTOBUF", 'syntax = "proto3";', {"a/b": "", "a": ""}),
        Schema("PROTOBUF", 'syntax = "proto3";', {}),
        Schema("XML", "<a/>", {}),
    ],
)
def test_invalid_schemas(schema: Schema) -> None:
    """A schema that cannot be used is an error about its values, and no other."""
    with pytest.raises(NotDecodable, match=r"schema 1 cannot be used|has no message"):
        Decoder(OneSchema(schema)).decode(framed(1, b"\0\0\0"))


def test_new_schemas_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that was missing is looked for again, in a log that has grown and in a directory with a new file."""
    monkeypatch.setattr("logfs.schema.decoder._ASK_AGAIN_SECONDS", 0.0)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/1.avsc").write_text(MONEY_AVRO)
    with Store(tmp_path / "log") as store:
        store.create("_schemas-0")
        decoders = [Decoder(open_schemas(str(tmp_path / each))) for each in ("files", "log")]
        for decoder in decoders:
            with pytest.raises(NotDecodable, match="3 is not in"):
                decoder.decode(VECTORS["avro string"].data)
        append_schemas(store)
        (tmp_path / "files/3.avsc").write_text('"string"')
        for decoder in decoders:
            assert decoder.decode(VECTORS["avro string"].data) == b'"hello"'
    assert_clean(tmp_path / "log")


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("subprocess.run", subprocess.TimeoutExpired(["protoc"], 60)),
        ("subprocess.run", subprocess.SubprocessError("the child failed")),
        ("subprocess.run", BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")),
        ("subprocess.run", MemoryError()),
        ("tempfile.TemporaryDirectory", FileNotFoundError(errno.ENOENT, "No usable directory")),
        ("pathlib.Path.write_text", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_a_failure_of_the_host_passes(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch, failing: str, error: Exception
) -> None:
    """What fails while a schema is prepared is no fault of the values; they decode once the cause is gone."""

    def fail(*_: object, **__: object) -> None:
        raise error

    decoder = Decoder(open_schemas(places["files"]))
    vector = VECTORS["protobuf"]
    with monkeypatch.context() as patches:
        patches.setattr(failing, fail)
        for _ in range(2):
            with pytest.raises(SchemasUnavailable, match="the schema 6 cannot be used now"):
                decoder.decode(vector.data)
    assert orjson.loads(decoder.decode(vector.data)) == vector.decoded


def test_protoc_without_an_end(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A compiler of Protobuf that takes too long is told as such."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "endless.py").write_text(f"open({str(tmp_path / 'fifo')!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("logfs.schema.protobuf._PROTOC", "endless")
    monkeypatch.setattr("logfs.schema.protobuf._COMPILE_SECONDS", 0.1)
    with pytest.raises(SchemasUnavailable, match=r"protoc took more than 0\.1 seconds"):
        Decoder(open_schemas(places["files"])).decode(VECTORS["protobuf"].data)


def test_a_schema_that_is_mended_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that cannot be used is looked for again, when what it refers to may be there."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    (tmp_path / "2.avsc").write_text(ORDER_AVRO)
    (tmp_path / "6.proto").write_text(SHOP_PROTO)
    decoder = Decoder(open_schemas(str(tmp_path)))
    vectors = {2: VECTORS["avro"], 6: VECTORS["protobuf"]}
    for number, vector in vectors.items():
        with pytest.raises(NotDecodable, match=f"the schema {number} cannot be used"):
            decoder.decode(vector.data)
    (tmp_path / "com.acme.Money.avsc").write_text(MONEY_AVRO)
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/money.proto").write_text(MONEY_PROTO)
    for number, vector in vectors.items():
        with pytest.raises(NotDecodable, match=f"the schema {number} cannot be used"):
            decoder.decode(vector.data)
    clock[0] = 1.5
    for vector in vectors.values():
        assert orjson.loads(decoder.decode(vector.data)) == vector.decoded


def test_what_is_no_place(tmp_path: Path) -> None:
    """What has no schemas is refused with what would be a place."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    with Store(tmp_path / "log") as store:
        store.create("orders-0")
    for name, reason in {
        "none": "is no source of schemas",
        "file": "is no source of schemas",
        "empty": "name the file of each by its id",
        "log": "has no topic _schemas",
    }.items():
        with pytest.raises(SchemasUnavailable, match=reason):
            open_schemas(str(tmp_path / name))
    for url in ("http://", "http://user:word@localhost/", "http://localhost/?key=word"):
        with pytest.raises(SchemasUnavailable) as refused:
            open_schemas(url)
        assert "word" not in str(refused.value).replace("password", "")


def test_a_registry_that_fails() -> None:
    """An error of the registry is not taken for a missing schema; one that comes once is asked again."""
    with RegistryServer() as server:
        for status, body in (
            (500, b"{}"),
            (401, b"{}"),
            (200, b"<html>"),
            (200, b"[]"),
            (200, b"{}"),
            (
                200,
                b'{"schema":"\\"string\\"","references":[{"name":"a","subject":"b","version":1}]}',
            ),
            (200, b'{"schema":"\\"string\\"","references":"abc"}'),
            (200, b'{"schema":"\\"string\\"","references":[{"name":"a","version":"x"}]}'),
            (200, b'{"schema":"\\"string\\"","references":7}'),
        ):
            server.answers["/schemas/ids/3"] = (status, body)
            with pytest.raises(SchemasUnavailable):
                Decoder(open_schemas(server.url)).decode(VECTORS["avro string"].data)
        server.answers.clear()
        decoder = Decoder(open_schemas(server.url))
        assert decoder.decode(VECTORS["avro string"].data) == b'"hello"'
        url = server.url
    with pytest.raises(
        SchemasUnavailable, match=f"{url}/schemas/ids/3: the request failed: .*refused"
    ):
        Decoder(open_schemas(url)).decode(VECTORS["avro string"].data)


def test_credentials_are_those_of_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user and a password come from the file that other programs use, too."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with RegistryServer() as server:
        Decoder(open_schemas(server.url)).decode(VECTORS["avro string"].data)
        assert server.credentials == ["Basic bWU6c2VjcmV0"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that is no text is an error that names it."""
    (tmp_path / "3.avsc").write_bytes(b"\xff")
    with pytest.raises(SchemasUnavailable, match=r"3\.avsc: the schema is not UTF-8"):
        Decoder(SchemaFiles(tmp_path)).decode(VECTORS["avro string"].data)
