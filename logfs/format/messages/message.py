"""The message types that Kafka defines by schema files: keys and values of internal topics, requests, responses.

A table of `Field`s describes a message (kafka-storage 12). The bytes of a message are a version (int16) and the
fields. Strings have an int16 length, bytes and arrays an int32 length; -1 is null. In a flexible version a length is
an unsigned varint of the length plus one, 0 for null, and each struct ends with tagged fields. The names and the
order of the fields are Kafka's, so `plain(message.fields)` equals the JSON that Kafka's tools print.
"""

from __future__ import annotations

import base64
import struct
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt, Unsupported
from logfs.format.base.varint import encode_unsigned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The greatest possible version (an int16), and a greater number for messages that have no flexible version.
_LAST = 2**15 - 1
NEVER_FLEXIBLE = _LAST + 1

_INTEGERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
}
_INT8, _INT16, _INT32 = (_INTEGERS[name] for name in ("int8", "int16", "int32"))
_FALSE, _TRUE = b"\0", b"\1"
_UUID_BYTES = 16


class Field(NamedTuple):
    """One field of a message.

    `type` is the name of an integer type, `bool`, `string`, `bytes`, `records`, `uuid` or `struct`, with `[]` in
    front for an array. `records` are bytes, too: record batches. `fields` are those of a struct. Messages of the
    versions `first` to `last` have the field; for other versions `default` is the value to assume. A field with a
    `tag` of 0 or more is a tagged field, which is left out if its value is the default, both in the bytes and in a
    parsed message.
    """

    name: str
    type: str
    first: int = 0
    last: int = _LAST
    nullable: bool = False
    default: Any = None
    tag: int = -1
    fields: Sequence[Field] = ()


class Malformed(Corrupt):
    """Raised for bytes that are not a valid message.

    `reason` is the text that Kafka's tools print for this error, such as `null` if bytes are missing. For some errors
    it is a text of logfs instead.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Message(NamedTuple):
    """A parsed message: its version (for a key: its type), and its fields by Kafka's names.

    A field is an int, str, bytes, UUID, None, a mapping of fields, or a list of these.
    """

    version: int
    fields: Mapping[str, Any]


class MessageSchema(NamedTuple):
    """The fields of a message, its newest version, and its first flexible version.

    `what` names the message in errors. With `fill`, a parsed message also has the fields that its bytes lack, with
    their defaults.
    """

    what: str
    fields: Sequence[Field]
    newest: int = _LAST
    flexible: int = NEVER_FLEXIBLE
    fill: bool = False

    def parse(self, data: bytes) -> Message:
        """Return the message in `data`. No bytes may follow the message.

        Raises `Corrupt` if the message is malformed, and `Unsupported` for a version of a later release.
        """
        return self.parse_body(data, parse_version(data, self.what), _INT16.size)

    def parse_body(self, data: bytes | memoryview, version: int, position: int = 0) -> Message:
        """Return the message of version `version` whose fields begin at `position` and end at the end of `data`.

        The values of `records` fields are slices of `data`: views, without a copy, if `data` is a view. Raises
        `Corrupt` for a negative version or malformed fields, and `Unsupported` for a version of a later release.
        """
        if version < 0:
            raise Corrupt(f"{self.what}: there is no version {version}")
        if version > self.newest:
            raise Unsupported(
                f"{self.what}: version {version} is newer than {self.newest}, the newest that this logfs reads"
            )
        flexible = version >= self.flexible
        reader = _MessageReader(
            data, self.what, version, flexible=flexible, position=position, fill=self.fill
        )
        return Message(version, reader.all(self.fields))

    def parse_leniently(self, data: bytes) -> Message:
        """Return the message that Kafka's tools would parse from `data`.

        An unknown version is read as the nearest known one, bytes after the last field are ignored, and text that
        is not UTF-8 is decoded with surrogate escapes. The result has the version that is in `data`. Raises
        `Malformed` for any other error in the bytes.
        """
        version = parse_version(data, self.what)
        known = min(max(version, 0), self.newest)
        reader = _MessageReader(
            data, self.what, known, flexible=known >= self.flexible, strict=False
        )
        return Message(version, reader.members(self.fields))

    def encode(self, version: int, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of a message: `version`, and the fields of that version, from `values` by name.

        Raises `struct.error` for a value that does not fit its type.
        """
        return _INT16.pack(version) + self.encode_body(version, values)

    def encode_body(self, version: int, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of a message without its version: the fields of `version`, from `values` by name.

        A field that `values` lacks has its default. Raises `struct.error` for a value that does not fit its type.
        """
        return b"".join(self.encode_parts(version, values))

    def encode_parts(self, version: int, values: Mapping[str, Any]) -> list[Any]:
        """Return the parts of the bytes that `encode_body` would return: bytes, and the values of `records` fields.

        A value of a `records` field may be any object that has a length in bytes, such as a range of a file. It is
        not copied. Raises `struct.error` for a value that does not fit its type.
        """
        out: list[Any] = []
        _encode_struct(out, self.fields, version, values, version >= self.flexible)
        return out

    def defaults(self) -> dict[str, Any]:
        """Return the default of each field by name: the value to assume for a version that lacks the field."""
        return {field.name: field.default for field in self.fields}


def parse_version(data: bytes, what: str) -> int:
    """Return the version of a message, or the type of a key: the first two bytes of `data`.

    Raises `Malformed` if `data` is too short. `what` names the message in the error.
    """
    if len(data) < _INT16.size:
        raise Malformed(f"{what}: {len(data)} bytes are too few for a version", "null")
    (version,) = _INT16.unpack_from(data)
    return int(version)


def plain(value: Any) -> Any:
    """Return the fields of a message, or the value of one field, as data for JSON.

    Bytes become base64, and UUIDs become text in Kafka's form.
    """
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, dict):
        return {name: plain(field) for name, field in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


class _MessageReader:
    """Reads the fields of a message in order. Its methods raise `Malformed` if the bytes do not match the fields.

    `what` names the message in errors, and `position` is where the fields begin in `data`. If `strict` is false, text
    that is not UTF-8 is decoded with surrogate escapes instead of raising an error. `fill` is that of the schema.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        what: str,
        version: int,
        *,
        flexible: bool,
        strict: bool = True,
        position: int = _INT16.size,
        fill: bool = False,
    ) -> None:
        self._data = data
        self._fill = fill
        self._what = what
        self._version = version
        self._flexible = flexible
        self._errors = "strict" if strict else "surrogateescape"
        self._position = position

    def all(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Read those of `fields` that the message's version has, and return their values by name.

        Tagged fields that have their default value are left out. Raises `Malformed` if bytes follow the last field.
        """
        found = self.members(fields)
        left = len(self._data) - self._position
        if left:
            raise self._nonsense(f"{left} bytes follow the last field")
        return found

    def members(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Read those of `fields` that the message's version has, and return their values by name.

        Tagged fields that have their default value are left out. Bytes may follow the last field.
        """
        here = [field for field in fields if field.first <= self._version <= field.last]
        found = {field.name: self._field(field) for field in here if field.tag < 0}
        if self._flexible:
            tagged = dict(self._tagged({field.tag: field for field in here if field.tag >= 0}))
            found |= {
                field.name: tagged[field.name]
                for field in here
                if tagged.get(field.name, field.default) != field.default
            }
        if self._fill:
            return {field.name: field.default for field in fields} | found
        return found

    def _tagged(self, fields: Mapping[int, Field]) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of each tagged field that is present. Unknown tags, of a later release, are skipped."""
        for _ in range(self._varint()):
            field, size = fields.get(self._varint()), self._varint()
            end = self._position + size
            if field is None:
                self._sized(size)
                continue
            yield field.name, self._field(field)
            if self._position != end:
                raise self._nonsense(f"tagged field {field.name} is not {size} bytes long")

    def _field(self, field: Field) -> Any:
        if not field.type.startswith("[]"):
            return self._value(field, field.type)
        size = self._length(field, _INT32)
        if size is None:
            return None
        left = len(self._data) - self._position
        if size > left:
            raise self._nonsense(
                f"Tried to allocate a collection of size {size}, but there are only {left} bytes remaining."
            )
        item = field._replace(nullable=False)
        return [self._value(item, field.type[2:]) for _ in range(size)]

    def _value(self, field: Field, kind: str) -> Any:
        if kind in _INTEGERS:
            return self._integer(_INTEGERS[kind])
        if kind == "bool":
            return self._take(1) != _FALSE
        if kind == "uuid":
            return uuid.UUID(bytes=bytes(self._take(_UUID_BYTES)))
        if kind == "struct":
            # Only a nullable struct begins with a byte, which is positive if the struct is not null.
            there = not field.nullable or self._integer(_INT8) > 0
            return self.members(field.fields) if there else None
        size = self._length(field, _INT16 if kind == "string" else _INT32)
        if size is None:
            return None
        data = self._sized(size)
        if kind == "records":
            return data
        if kind == "bytes":
            return bytes(data)
        try:
            return str(data, "utf-8", self._errors)
        except UnicodeDecodeError:
            raise self._nonsense(f"{field.name} is not UTF-8") from None

    def _length(self, field: Field, layout: struct.Struct) -> int | None:
        size = self._varint() - 1 if self._flexible else self._integer(layout)
        if size < 0 and not field.nullable:
            raise self._nonsense(f"non-nullable field {field.name} was serialized as null")
        return None if size < 0 else size

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
        raise self._nonsense(f"the varint before byte {self._position} has more than 5 bytes")

    def _sized(self, size: int) -> bytes | memoryview:
        left = len(self._data) - self._position
        if size > left:
            raise self._nonsense(
                f"Error reading byte array of {size} byte(s): only {left} byte(s) available"
            )
        return self._take(size)

    def _take(self, size: int) -> bytes | memoryview:
        end = self._position + size
        if end > len(self._data):
            raise self._nonsense(
                f"a field of {size} bytes at byte {self._position} ends after the last byte", "null"
            )
        data = self._data[self._position : end]
        self._position = end
        return data

    def _nonsense(self, what: str, reason: str | None = None) -> Malformed:
        where = f"in {len(self._data)} bytes of version {self._version}"
        return Malformed(f"{self._what}: {what}, {where}", reason or what)


def _encode_struct(
    out: list[Any],
    fields: Sequence[Field],
    version: int,
    values: Mapping[str, Any],
    flexible: bool,
) -> None:
    tagged = []
    for field in fields:
        if not field.first <= version <= field.last:
            continue
        value = values.get(field.name, field.default)
        if field.tag < 0:
            _encode_field(out, field, version, value, flexible)
        elif value != field.default:
            data: list[Any] = []
            _encode_field(data, field, version, value, flexible)
            size = sum(map(len, data))
            tagged.append((field.tag, [encode_unsigned(field.tag), encode_unsigned(size), *data]))
    if flexible:
        out.append(encode_unsigned(len(tagged)))
        for _, data in sorted(tagged):
            out += data


def _encode_field(out: list[Any], field: Field, version: int, value: Any, flexible: bool) -> None:
    if not field.type.startswith("[]"):
        _encode_value(out, field, field.type, version, value, flexible)
    elif value is None:
        out.append(_encode_length(-1, _INT32, flexible))
    else:
        out.append(_encode_length(len(value), _INT32, flexible))
        item, kind = field._replace(nullable=False), field.type[2:]
        for each in value:
            _encode_value(out, item, kind, version, each, flexible)


def _encode_value(
    out: list[Any], field: Field, kind: str, version: int, value: Any, flexible: bool
) -> None:
    if kind in _INTEGERS:
        out.append(_INTEGERS[kind].pack(value))
    elif kind == "bool":
        out.append(_TRUE if value else _FALSE)
    elif kind == "uuid":
        out.append(value.bytes)
    elif kind == "struct":
        if value is None:
            out.append(_INT8.pack(-1 if field.tag < 0 else 0))
            return
        if field.nullable:
            out.append(_INT8.pack(1))
        _encode_struct(out, field.fields, version, value, flexible)
    else:
        layout = _INT16 if kind == "string" else _INT32
        if value is None:
            out.append(_encode_length(-1, layout, flexible))
            return
        data = value.encode() if isinstance(value, str) else value
        out += (_encode_length(len(data), layout, flexible), data)


def _encode_length(size: int, layout: struct.Struct, flexible: bool) -> bytes:
    return encode_unsigned(size + 1) if flexible else layout.pack(size)
