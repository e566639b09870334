"""Prints lines of named fields to standard output: as text like kafka-dump-log, or as one JSON object per line."""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import orjson

from logfs.format.text import envelope

if TYPE_CHECKING:
    from collections.abc import Mapping

DELETED = "<DELETE>"
"""The tool's text for a null value of a decoded record; the JSON output has null instead."""

# The fields that kafka-dump-log prints as Java's `OptionalLong`.
_OPTIONAL = frozenset({"deleteHorizonMs", "currentTxnFirstOffset"})
# The fields of control records after whose names kafka-dump-log prints no colon.
_BARE = frozenset({"SnapshotHeader", "SnapshotFooter", "KRaftVersion", "KRaftVoters"})


class Lines:
    """Lines of fields on standard output: as text or, with `json`, as JSON objects.

    In the text output a line is written field by field, as in kafka-dump-log. If the next field cannot be read, the
    fields before it are still printed. The value of a field is an int, str or bool, bytes (text in any encoding), a
    list of bytes, a mapping, or None for no value.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._out = sys.stdout.buffer
        self._fields: dict[str, Any] = {}
        self._begun = False

    def add(self, fields: Mapping[str, Any], mark: str = "") -> None:
        """Add fields, by name, to the current line.

        If the line is still empty, `mark`, such as "| ", is written before the fields. The JSON output has no marks.
        """
        if self.json:
            self._fields |= fields
            return
        words = [text for name, value in fields.items() if (text := _words(name, value))]
        if words:
            line = f"{' ' if self._begun else mark}{' '.join(words)}"
            self._out.write(line.encode("utf-8", "surrogateescape"))
            self._begun = True

    def end(self) -> None:
        """End the current line. The JSON output leaves out a line without fields."""
        if self.json:
            if self._fields:
                fields = {name: _unicode(value) for name, value in self._fields.items()}
                self._out.write(orjson.dumps(fields, default=_data) + b"\n")
            self._fields = {}
        else:
            self._out.write(b"\n")
        self._begun = False

    def say(self, text: str, **fields: Any) -> None:
        """Write one whole line: `text`, or in the JSON output an object with `fields`."""
        if self.json:
            self._fields = fields
            self.end()
        else:
            self._out.write(f"{text}\n".encode("utf-8", "surrogateescape"))

    def abandon(self) -> None:
        """End a line that an error left incomplete. The text output keeps its fields; the JSON output drops them."""
        self._fields = {}
        if self._begun:
            self.end()

    def flush(self) -> None:
        """Flush standard output, before something is printed to standard error."""
        self._out.flush()


def _words(name: str, value: Any) -> str:
    if name in _OPTIONAL:
        value = "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    elif value is None:
        return ""
    elif isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, bytes):
        value = java_text(value)
    elif isinstance(value, list):
        value = f"[{','.join(map(java_text, value))}]"
    elif isinstance(value, dict):
        value = _java_json(value)
    return f"{name} {value}" if name in _BARE else f"{name}: {value}"


def _unicode(value: Any) -> Any:
    """Return a str that UTF-8 cannot encode, such as some paths, as bytes. Return any other value unchanged."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return os.fsencode(value)
    return value


def _data(value: Any) -> Any:
    """Return bytes as JSON: a string, or an object with base64 if the bytes are not UTF-8.

    orjson calls this function for values that it cannot write. Raises `TypeError` for a type other than bytes.
    """
    if isinstance(value, bytes):
        return orjson.Fragment(envelope.text(value))
    raise TypeError(type(value))


def java_text(data: bytes) -> str:
    """Decode UTF-8 as Java does: one U+FFFD for a malformed sequence, where Python sometimes writes several."""
    return data.decode("utf-8", "logfs.java")


def _java_replacement(error: UnicodeError) -> tuple[str, int]:
    """Return U+FFFD, and the position after the malformed character. This is an error handler for `codecs`.

    For an encoded surrogate, such as the bytes ED A0 80, Java writes one U+FFFD. Python would write one per byte.
    """
    assert isinstance(error, UnicodeDecodeError)
    lead, second, third = (*error.object[error.start : error.start + 3], 0, 0)[:3]
    if lead == 0xED and 0xA0 <= second <= 0xBF:
        return "\ufffd", error.start + (3 if 0x80 <= third <= 0xBF else 2)
    return "\ufffd", error.end


codecs.register_error("logfs.java", _java_replacement)

_ESCAPE = re.compile(r"(\\.)((?<=u)00..)?")


def _java_json(value: Mapping[str, Any]) -> str:
    """Return JSON as Kafka's library writes it: with upper-case hex digits in escapes such as \\u001F."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPE.sub(lambda match: match[1] + (match[2] or "").upper(), text)
