"""Kafka's generated messages, by tables of their fields: what is in a key or value of an internal topic.

A message is a version (int16) and its fields (kafka-storage 12). Strings have an int16 length, bytes and arrays an
int32 one, -1 for null. In a flexible version lengths are unsigned varints, one more than the length, 0 for null; and
each struct ends with tagged fields. Names and order are Kafka's: what is read is also what its tools print as JSON.
"""

from __future__ import annotations

import base64
import struct
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LAST = 2**15 - 1
NEVER_FLEXIBLE = _LAST + 1

_INTEGERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
}
_INT16, _INT32 = _INTEGERS["int16"], _INTEGERS["int32"]
_UUID_BYTES = 16


class Field(NamedTuple):
    """One field. `type` is an integer's, `string`, `bytes`, `uuid` or `struct`, with `[]` in front for an array.

    `fields` are a struct's. Versions `first` to `last` have it; a `tag` of 0 or more makes it a tagged field, which
    is left out where it has its default. `default` stands for it in other versions.
    """

    name: str
    type: str
    first: int = 0
    last: int = _LAST
    nullable: bool = False
    default: Any = None
    tag: int = -1
    fields: Sequence[Field] = ()


class Message(NamedTuple):
    """A parsed message: its version (of a key: its type), and its fields by Kafka's names.

    A field is an int, str, bytes, UUID, None, a mapping of fields, or a list of such.
    """

    version: int
    fields: Mapping[str, Any]


class Schema(NamedTuple):
    """The fields of a message, its newest version, and the first that is flexible."""

    what: str
    fields: Sequence[Field]
    newest: int = _LAST
    flexible: int = NEVER_FLEXIBLE

    def parse(self, data: bytes) -> Message:
        """Read a message, all of it. Raises `Corrupt`, and `Unsupported` for a version of a later release."""
        version = parse_version(data, self.what)
        if version < 0:
            raise Corrupt(f"{self.what}: there is no version {version}")
        if version > self.newest:
            raise Unsupported(f"{self.what}: version {version} is newer than {self.newest}")
        reader = _Reader(data, self.what, version, flexible=version >= self.flexible)
        return Message(version, reader.all(self.fields))

    def encode(self, version: int, values: Mapping[str, Any]) -> bytes:
        """A message's bytes, without tagged fields; values that the version lacks are left out.

        Raises `struct.error` for a value that does not fit its type.
        """
        flexible = version >= self.flexible
        return _INT16.pack(version) + _encode_struct(self.fields, version, values, flexible)

    def defaults(self) -> dict[str, Any]:
        """What stands for each field in versions that lack it."""
        return {field.name: field.default for field in self.fields}


def parse_version(data: bytes, what: str) -> int:
    """The version, or a key's type, that a message begins with. Raises `Corrupt`."""
    if len(data) < _INT16.size:
        raise Corrupt(f"{what}: {len(data)} bytes are too few")
    (version,) = _INT16.unpack_from(data)
    return int(version)


def plain(value: Any) -> Any:
    """Fields as data for JSON: bytes as base64, UUIDs as Kafka prints them."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, dict):
        return {name: plain(field) for name, field in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


class _Reader:
    """Reads fields one after the other; `Corrupt` where they do not fit the bytes."""

    def __init__(self, data: bytes, what: str, version: int, *, flexible: bool) -> None:
        self._data = data
        self._what = what
        self._version = version
        self._flexible = flexible
        self._position = _INT16.size

    def all(self, fields: Sequence[Field]) -> dict[str, Any]:
        """All fields, and nothing behind them."""
        found = self._struct(fields)
        left = len(self._data) - self._position
        if left:
            raise self._nonsense(f"{left} bytes follow the last field")
        return found

    def _struct(self, fields: Sequence[Field]) -> dict[str, Any]:
        here = [field for field in fields if field.first <= self._version <= field.last]
        found = {field.name: self._field(field) for field in here if field.tag < 0}
        if self._flexible:
            found.update(self._tagged({field.tag: field for field in here if field.tag >= 0}))
        return found

    def _tagged(self, fields: Mapping[int, Field]) -> Iterator[tuple[str, Any]]:
        """The tagged fields that are there; those of a later release are stepped over."""
        for _ in range(self._varint()):
            field, size = fields.get(self._varint()), self._varint()
            end = self._position + size
            if field is None:
                self._take(size)
                continue
            yield field.name, self._field(field)
            if self._position != end:
                raise self._nonsense(f"{field.name} does not fit its {size} bytes")

    def _field(self, field: Field) -> Any:
        if not field.type.startswith("[]"):
            return self._value(field, field.type)
        size = self._length(field, _INT32)
        if size is None:
            return None
        if size > len(self._data) - self._position:
            raise self._nonsense(f"{size} {field.name} do not fit")
        return [self._value(field, field.type[2:]) for _ in range(size)]

    def _value(self, field: Field, kind: str) -> Any:
        if kind in _INTEGERS:
            return self._integer(_INTEGERS[kind])
        if kind == "uuid":
            return uuid.UUID(bytes=self._take(_UUID_BYTES))
        if kind == "struct":
            # Only what may be null has a byte that tells whether it is.
            there = not field.nullable or self._integer(_INTEGERS["int8"]) > 0
            return self._struct(field.fields) if there else None
        size = self._length(field, _INT16 if kind == "string" else _INT32)
        if size is None:
            return None
        data = self._take(size)
        if kind == "bytes":
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._nonsense(f"{field.name} is not UTF-8") from None

    def _length(self, field: Field, layout: struct.Struct) -> int | None:
        size = self._varint() - 1 if self._flexible else self._integer(layout)
        if size < -1 or (size == -1 and not field.nullable):
            raise self._nonsense(f"{field.name} has length {size}")
        return None if size == -1 else size

    def _integer(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def _varint(self) -> int:
        result = 0
        for shift in range(0, 35, 7):
            (byte,) = self._take(1)
            result |= (byte & 127) << shift
            if byte < 128:
                return result
        raise self._nonsense(f"no length ends before byte {self._position}")

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise self._nonsense(f"{size} bytes at byte {self._position} do not fit")
        data = self._data[self._position : end]
        self._position = end
        return data

    def _nonsense(self, reason: str) -> Corrupt:
        return Corrupt(
            f"{self._what}: {reason}, in {len(self._data)} bytes of version {self._version}"
        )


def _encode_struct(
    fields: Sequence[Field], version: int, values: Mapping[str, Any], flexible: bool
) -> bytes:
    out = bytearray()
    for field in fields:
        if field.first <= version <= field.last and field.tag < 0:
            out += _encode_field(field, version, values[field.name], flexible)
    return bytes(out) + (b"\0" if flexible else b"")


def _encode_field(field: Field, version: int, value: Any, flexible: bool) -> bytes:
    if field.type in _INTEGERS:
        return _INTEGERS[field.type].pack(value)
    size, data = -1, b""
    if field.type == "[]struct":
        size = len(value)
        data = b"".join(_encode_struct(field.fields, version, item, flexible) for item in value)
    elif value is not None:
        data = value.encode() if isinstance(value, str) else value
        size = len(data)
    if flexible:
        return _encode_varint(size + 1) + data
    return (_INT16 if field.type == "string" else _INT32).pack(size) + data


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
