"""Schemas, and what the places that have them have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"

MOST_BYTES = 16 << 20
"""The most bytes that a schema may have."""


class Schema(NamedTuple):
    """A schema: its kind (AVRO, PROTOBUF or JSON), its text, and the schemas that it refers to.

    `references` has the texts of all of these, also of those that they refer to. The keys are the names by which the
    texts refer to each other: full names of types in Avro, paths of files in Protobuf.
    """

    kind: str
    text: str
    references: Mapping[str, str]


class Schemas(Protocol):
    """A place that has schemas by their ids. One thread may use it at a time."""

    def find(self, number: int) -> Schema | None:
        """Return the schema with an id; None if there is none, at present. Raises `SchemasUnavailable`."""

    def close(self) -> None:
        """Release connections and files."""
