"""The requests of Kafka's clients and their responses: the bytes of each, and the versions that there are.

`requests.txt` has the fields of all messages, made by `scripts/kafka-requests` from the schemas in Kafka's client
library. A message is parsed and encoded by a `MessageSchema`, which is made at its first use.
"""

from __future__ import annotations

import struct
import uuid
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base.varint import decode_unsigned, encode_unsigned
from logfs.format.messages.message import NEVER_FLEXIBLE, Field, MessageSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The key, the version and the correlation id of a request, and the length of the client's id.
_HEADER = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")
_LAST = 2**15 - 1
API_VERSIONS = 18
"""The API key of the request with which a client asks for the versions. Its response never has a flexible header."""


class Versions(NamedTuple):
    """The lowest and the highest version of a message, and its first flexible version."""

    lowest: int
    highest: int
    flexible: int


class RequestHeader(NamedTuple):
    """The header of a request. `client_id` is None if the client gives none; `size_bytes` is the header's length."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    size_bytes: int


def parse_header(data: memoryview) -> RequestHeader:
    """Return the header at the start of a request.

    The header is flexible if the request is flexible in this version. Of an API key or a version that `requests.txt`
    lacks, it is taken as flexible if the highest known version is. Raises `Corrupt` if the header is malformed.
    """
    if len(data) < _HEADER.size:
        raise Corrupt(f"a request of {len(data)} bytes is shorter than its header")
    api_key, version, correlation_id, size = _HEADER.unpack_from(data)
    end = _HEADER.size + max(size, 0)
    if size < -1 or end > len(data):
        raise Corrupt(f"the client id of a request has {size} bytes, and the request {len(data)}")
    try:
        client_id = None if size < 0 else str(data[_HEADER.size : end], "utf-8")
    except UnicodeDecodeError:
        raise Corrupt("the client id of a request is not UTF-8") from None
    known = _sections().get(("request", api_key))
    if known is not None and version >= known.versions.flexible:
        end = _skip_tags(data, end)
    return RequestHeader(api_key, version, correlation_id, client_id, end)


def _skip_tags(data: memoryview, position: int) -> int:
    """Return the position after the tagged fields at `position`. Raises `Corrupt`."""
    count, position = decode_unsigned(data, position)
    for _ in range(count):
        _, position = decode_unsigned(data, position)
        size, position = decode_unsigned(data, position)
        position += size
    if position > len(data):
        raise Corrupt("a tagged field of a request's header ends after the request")
    return position


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Return the header of a response to a request of the given key, version and correlation id."""
    head = _CORRELATION.pack(correlation_id)
    is_flexible = version >= _sections()["response", api_key].versions.flexible
    return head + encode_unsigned(0) if is_flexible and api_key != API_VERSIONS else head


def versions_of(api_key: int) -> Versions:
    """Return the versions of a request. Raises `KeyError` for a key that `requests.txt` lacks."""
    return _sections()["request", api_key].versions


def parse_request(api_key: int, version: int, data: memoryview, position: int) -> Mapping[str, Any]:
    """Return the fields of a request, which begin at `position` in `data`. Fields that it lacks have their defaults.

    Record batches are views of `data`. Raises `Corrupt` if the request is malformed.
    """
    return message_schema("request", api_key, version).parse_body(data, version, position).fields


def encode_response(api_key: int, version: int, fields: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a response without its header: bytes, and the values of `records` fields, as they are.

    Fields that are not in `fields` get their defaults.
    """
    return message_schema("response", api_key, version).encode_parts(version, fields)


class _Section(NamedTuple):
    """One message of `requests.txt`: its name, its versions, and the lines with its fields."""

    name: str
    versions: Versions
    lines: Sequence[str]


@cache
def _sections() -> Mapping[tuple[str, int], _Section]:
    """Return the messages by kind ("request" or "response") and API key."""
    text = resources.files(__package__).joinpath("requests.txt").read_text()
    found = {}
    for block in text.rstrip("\n").split("\n\n"):
        head, *lines = block.split("\n")
        kind, api_key, name, valid, *more = head.split()
        flexible = _span(more[1])[0] if more else NEVER_FLEXIBLE
        found[kind, int(api_key)] = _Section(name, Versions(*_span(valid), flexible), lines)
    return found


def _span(text: str) -> tuple[int, int]:
    """Return the first and the last version of a text such as "3-8", "3+" or "3"."""
    first, dash, last = text.rstrip("+").partition("-")
    return int(first), int(last) if dash else _LAST if text.endswith("+") else int(first)


@cache
def message_schema(kind: str, api_key: int, version: int) -> MessageSchema:
    """Return the schema of one version of a message: `kind` is "request" or "response"."""
    section = _sections()[kind, api_key]
    lines = [(len(line) - len(line.lstrip()), line.split()) for line in section.lines]
    return MessageSchema(
        f"{section.name} {kind}",
        tuple(_fields(lines, 0, len(lines), version)),
        section.versions.highest,
        section.versions.flexible,
        fill=True,
    )


def _fields(
    lines: Sequence[tuple[int, Sequence[str]]], start: int, end: int, version: int
) -> Iterator[Field]:
    """Yield the fields of the struct whose lines are [start, end) of `lines`: pairs (indentation, words)."""
    at = start
    while at < end:
        depth, words = lines[at]
        after = at + 1
        while after < end and lines[after][0] > depth:
            after += 1
        members = tuple(_fields(lines, at + 1, after, version))
        yield _field(words, members, version)
        at = after


def _field(words: Sequence[str], members: Sequence[Field], version: int) -> Field:
    name, kind, valid, *more = words
    default: Any = _DEFAULTS.get(kind, () if kind.startswith("[]") else None)
    nullable, tag = False, -1
    options = iter(more)
    for option in options:
        value = next(options)
        if option == "null":
            first, last = _span(value)
            nullable = first <= version <= last
        elif option == "tag":
            first, last = _span(next(options))
            tag = int(value) if first <= version <= last else -1
        else:
            default = _parsed(kind, value)
    first, last = _span(valid)
    return Field(name, kind, first, last, nullable, default, tag, members)


def _parsed(kind: str, text: str) -> Any:
    if text == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    return int(text, 0) if "int" in kind else text.replace("-", "", 1)


_DEFAULTS = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "int64": 0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": uuid.UUID(int=0),
}
