"""Values as Confluent's own serializers write them (confluent-kafka 2.16.1), their schemas, and places of schemas."""

from __future__ import annotations

import base64
import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import orjson

from logfs.format.batches.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from logfs.store.store import Store

MONEY_AVRO = (
    '{"type":"record","name":"Money","namespace":"com.acme","fields":[{"name":"units","type":"long"},'
    '{"name":"currency","type":{"type":"enum","name":"Currency","symbols":["EUR","USD"]}}]}'
)
ORDER_AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "com.acme",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "who", "type": ["null", "string"]},
            {"name": "total", "type": "com.acme.Money"},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "blob", "type": "bytes"},
            {"name": "ratio", "type": "double"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "more", "type": {"type": "map", "values": ["null", "int"]}},
        ],
    }
)
MONEY_PROTO = """syntax = "proto3";
package acme;
message Money { int64 units = 1; string currency = 2; }
"""
SHOP_PROTO = """syntax = "proto3";
package shop;
import "acme/money.proto";
import "google/protobuf/timestamp.proto";
message Order {
  enum Kind { SALE = 0; RETURN = 1; }
  message Line { string sku = 1; int32 count = 2; }
  int64 id = 1;
  string who = 2;
  acme.Money total = 3;
  google.protobuf.Timestamp at = 4;
  bytes blob = 5;
  double ratio = 6;
  repeated string tags = 7;
  Kind kind = 8;
  optional string note = 9;
  repeated Line lines = 10;
}
message Refund { int64 order = 1; }
"""


class Registered(NamedTuple):
    """A schema as a registry has it; `references` are (name, subject, version)."""

    number: int
    subject: str
    version: int
    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...] = ()


REGISTERED = (
    Registered(1, "money", 1, "AVRO", MONEY_AVRO),
    Registered(2, "orders-value", 1, "AVRO", ORDER_AVRO, (("com.acme.Money", "money", 1),)),
    Registered(3, "strings-value", 1, "AVRO", '"string"'),
    Registered(4, "json-value", 1, "JSON", '{"title":"T","type":"object"}'),
    Registered(5, "acme/money.proto", 1, "PROTOBUF", MONEY_PROTO),
    Registered(
        6,
        "shop-value",
        1,
        "PROTOBUF",
        SHOP_PROTO,
        (("acme/money.proto", "acme/money.proto", 1),),
    ),
)


class Vector(NamedTuple):
    """A value, and the JSON that it decodes to."""

    data: bytes
    decoded: Any


def _vector(text: str, decoded: Any) -> Vector:
    return Vector(base64.b64decode(text), decoded)


_ORDER = {
    "id": 7,
    "who": "Zoë",
    "total": {"units": 1250, "currency": "EUR"},
    "price": "12.50",
    "at": "2021-11-28T11:53:20Z",
    "day": "2021-11-28",
    "uid": "12345678-1234-5678-1234-567812345678",
    "blob": "AP8=",
    "ratio": "Infinity",
    "tags": ["a", "b"],
    "more": {"x": 1, "y": None},
}
VECTORS = {
    "avro": _vector(
        "AAAAAAIOAghab8OrxBMABATigN6j5qxfnqgCSDEyMzQ1Njc4LTEyMzQtNTY3OC0xMjM0LTU2NzgxMjM0NTY3OAQA/wAAAAAAAPB/BAJhAmIA"
        "BAJ4AgICeQAA",
        _ORDER,
    ),
    "avro with nulls": _vector(
        "AAAAAAIOAMQTAAQE4oDeo+asX56oAkgxMjM0NTY3OC0xMjM0LTU2NzgtMTIzNC01Njc4MTIzNDU2NzgEAP8AAAAAAADgPwAA",
        {**_ORDER, "who": None, "ratio": 0.5, "tags": [], "more": {}},
    ),
    "avro string": _vector("AAAAAAMKaGVsbG8=", "hello"),
    "json": _vector("AAAAAAR7ImEiOjEuNSwiYiI6IsOpIn0=", {"a": 1.5, "b": "é"}),
    "protobuf": _vector(
        "AAAAAAYACAcSBFpvw6saCAjiCRIDRVVSIgYIsNuNjQYqAgD/MQAAAAAAAPh/OgFhOgFiQAE=",
        {
            "id": "7",
            "who": "Zoë",
            "total": {"units": "1250", "currency": "EUR"},
            "at": "2021-11-28T11:53:20Z",
            "blob": "AP8=",
            "ratio": "NaN",
            "tags": ["a", "b"],
            "kind": "RETURN",
            "lines": [],
        },
    ),
    "protobuf, a nested message": _vector("AAAAAAYEAAAKAXgQAw==", {"sku": "x", "count": 3}),
    "protobuf, the second message": _vector("AAAAAAYCAggJ", {"order": "9"}),
}


def write_files(directory: Path) -> str:
    """Write the schemas as files, and return the directory."""
    endings = {"AVRO": "avsc", "PROTOBUF": "proto", "JSON": "json"}
    (directory / "acme").mkdir(parents=True)
    for each in REGISTERED:
        (directory / f"{each.number}.{endings[each.kind]}").write_text(each.text)
    (directory / "com.acme.Money.avsc").write_text(MONEY_AVRO)
    (directory / "acme/money.proto").write_text(MONEY_PROTO)
    return str(directory)


def append_schemas(store: Store, registered: Sequence[Registered] = REGISTERED) -> None:
    """Append schemas to the topic `_schemas`, as Confluent's registry does."""
    key = {"keytype": "SCHEMA", "magic": 1}
    records = [Record(None, b'{"keytype":"NOOP","magic":0}')]
    for each in registered:
        where = {"subject": each.subject, "version": each.version}
        value: dict[str, Any] = {**where, "id": each.number, "schema": each.text, "deleted": False}
        if each.kind != "AVRO":
            value["schemaType"] = each.kind
        if each.references:
            value["references"] = [
                dict(zip(("name", "subject", "version"), reference, strict=True))
                for reference in each.references
            ]
        records.append(Record(orjson.dumps(value), orjson.dumps({**key, **where})))
    name = "_schemas-0"
    (store[name] if name in store else store.create(name)).append(records)


class RegistryServer:
    """A server with the interface of a schema registry, on the loopback.

    `answers` maps a path to a status and a body that are answered instead; `asked` has the paths in their order.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.credentials: list[str | None] = []
        self.is_dripping = self.is_endless = False
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> RegistryServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body for a path."""
        if path in self.answers:
            return self.answers[path]
        words = [unquote(word) for word in path.strip("/").split("/")]
        for each in REGISTERED:
            if words in (
                ["schemas", "ids", str(each.number)],
                ["subjects", each.subject, "versions", str(each.version)],
            ):
                return 200, orjson.dumps(_as_answer(each))
        return 404, b'{"error_code":40403,"message":"Schema not found"}'


def _as_answer(each: Registered) -> Mapping[str, Any]:
    found: dict[str, Any] = {"schema": each.text}
    if each.kind != "AVRO":
        found["schemaType"] = each.kind
    if each.references:
        found["references"] = [
            {"name": name, "subject": subject, "version": version}
            for name, subject, version in each.references
        ]
    return found


class _Handler(BaseHTTPRequestHandler):
    registry: RegistryServer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.registry.asked.append(path)
        self.registry.credentials.append(self.headers.get("Authorization"))
        status, body = self.registry.answer(path)
        if self.registry.is_dripping or self.registry.is_endless:
            self._go_on()
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _go_on(self) -> None:
        """Answer without an end, until the server or the client ends."""
        self.send_response(200)
        self.end_headers()
        part = b" " if self.registry.is_dripping else bytes(1 << 20)
        with suppress(OSError):
            while self.registry.is_dripping or self.registry.is_endless:
                self.wfile.write(part)
                self.wfile.flush()
                time.sleep(0.05)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
