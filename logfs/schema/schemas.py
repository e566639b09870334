"""A schema, and the interface of all sources of schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"

MOST_BYTES = 16 << 20
"""The most bytes that a schema may have."""


class Schema(NamedTuple):
    """A schema: its type `kind` (AVRO, PROTOBUF or JSON), its text, and the schemas that it refers to.

    `references` has the texts of all schemas that it refers to, directly or indirectly. The keys are the names that
    the references use: full names of types in Avro, paths of files in Protobuf.
    """

    kind: str
    text: str
    references: Mapping[str, str]


def parse_references(found: Mapping[str, Any]) -> Sequence[tuple[str, str, int]]:
    """Return the (name, subject, version) of each reference in a schema from a registry.

    `found` is the registry's JSON object for the schema. Raises `TypeError`, `KeyError` or `ValueError` if its
    references are malformed.
    """
    return [
        (str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in found.get("references") or ()
    ]


class Schemas(Protocol):
    """A source of schemas: a registry, a directory of schema files, or a log directory. Not thread-safe."""

    def find(self, number: int) -> Schema | None:
        """Return the schema with the id `number`, or None if the source has no such schema now.

        Raises `SchemasUnavailable` if the source cannot be read.
        """

    def close(self) -> None:
        """Release connections and files."""
