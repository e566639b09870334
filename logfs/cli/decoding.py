"""Decodes keys and values of records by schemas, before the records are filtered and printed."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import TYPE_CHECKING

from logfs.cli.common import not_empty
from logfs.errors import InvalidUsage, NotDecodable, Unsupported
from logfs.format.batches.record import Record
from logfs.format.text.envelope import JsonText

if TYPE_CHECKING:
    import argparse
    from typing import Self

    from logfs.format.base.names import TopicPartition
    from logfs.log.read.merge import Chunk
    from logfs.schema.decoder import Decoder

    Place = tuple[TopicPartition, int]

_FIELDS = ("value", "key")
# How many different reasons for failures are printed, each for the first record that has it. Failures with further
# reasons are only counted.
_MOST_TOLD = 20


def add_schemas(parser: argparse.ArgumentParser) -> None:
    """Add the options `--schemas` and `--decode`, which `RecordDecoder.of` reads."""
    parser.add_argument(
        "--schemas",
        type=not_empty,
        metavar="PLACE",
        help="decode Avro, Protobuf and JSON in Confluent's framing to JSON, by the schemas of a registry "
        "(http://…), a directory with files such as 7.avsc, or the topic _schemas of a log directory",
    )
    parser.add_argument(
        "--decode",
        type=not_empty,
        metavar="FIELDS",
        help="the fields to decode: value (the default), key, or key,value",
    )


class RecordDecoder:
    """Decodes the value, the key or both of records, as the options select, and counts what cannot be decoded."""

    def __init__(self, decoder: Decoder, fields: set[str]) -> None:
        self._decoder = decoder
        self._fields = fields
        self._failed: Counter[str] = Counter()
        self._told: set[str] = set()
        self._is_frozen = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self | None:
        """Return the decoder for the options of `add_schemas`; None if `--schemas` is not given.

        Raises `InvalidUsage` if `--decode` names an unknown field or is given without `--schemas`, and `Unsupported`
        if the libraries are not installed. Raises `SchemasUnavailable` if `--schemas` names no source of schemas, and
        the errors of `logfs.open` if it names a log directory that cannot be opened.
        """
        fields = set((arguments.decode or _FIELDS[0]).split(","))
        if not fields <= {*_FIELDS}:
            raise InvalidUsage(f"--decode {arguments.decode}: give value, key, or key,value")
        if arguments.schemas is None:
            if arguments.decode is not None:
                raise InvalidUsage("--decode needs --schemas PLACE: give it, or leave out --decode")
            return None
        try:
            from logfs.schema.decoder import Decoder
            from logfs.schema.open_schemas import open_schemas

            return cls(Decoder(open_schemas(arguments.schemas)), fields)
        except ImportError as error:
            raise _not_installed(error) from None

    def decoded(
        self, chunk: Chunk, partition: TopicPartition, *, is_counted: bool = True
    ) -> list[Record]:
        """Return the records of a chunk, with the selected keys and values decoded.

        The chunk is a list of records, or `Columns`; `partition` is the partition of its records. A field that cannot
        be decoded stays as it is. With `is_counted`, such a failure is counted, and its reason is printed if it is a
        new one. Pass False for a chunk that will be decoded again, so that no failure counts twice. Raises
        `SchemasUnavailable` if the schemas cannot be read, and `Unsupported` if a package is not installed.
        """
        if not self._is_frozen:
            # Exempt the objects of the loaded modules from garbage collection: scanning them again and again would
            # take half of the time of decoding.
            gc.freeze()
            self._is_frozen = True
        records = chunk if isinstance(chunk, list) else list(chunk.records())
        return [self.record(record, partition, is_counted=is_counted) for record in records]

    def record(
        self, record: Record, partition: TopicPartition, *, is_counted: bool = True
    ) -> Record:
        """Return a record of `partition` with the selected fields decoded.

        A field that cannot be decoded stays as it is. With `is_counted`, such a failure is counted, and its reason is
        printed if it is a new one. Raises `SchemasUnavailable` if the schemas cannot be read, and `Unsupported` if a
        package is not installed.
        """
        key, value = record.key, record.value
        place = (partition, record.offset) if is_counted else None
        if key is not None and "key" in self._fields:
            key = self._field("key", key, place)
        if value is not None and "value" in self._fields:
            value = self._field("value", value, place)
        return Record(
            value, key, record.headers, record.timestamp, record.offset, record.timestamp_type
        )

    def report(self) -> None:
        """Print to standard error how many keys and values could not be decoded, and reset these counts."""
        for field in _FIELDS:
            if count := self._failed[field]:
                what, verb = (field, "is") if count == 1 else (f"{field}s", "are")
                print(
                    f"logfs: {count} {what} could not be decoded, and {verb} shown as stored",
                    file=sys.stderr,
                )
        self._failed.clear()

    def _field(self, field: str, data: bytes, place: Place | None) -> bytes:
        """Return `data` decoded, or unchanged if that fails. A failure is counted unless `place` is None.

        `data` is the key or the value of a record, as `field` says. `place` is the record's partition and offset.
        """
        try:
            return JsonText(self._decoder.decode(data))
        except NotDecodable as error:
            if place is not None:
                self._failed[field] += 1
                self._tell(place, f"the {field} is shown as stored: {error}")
            return data
        except ImportError as error:
            raise _not_installed(error) from None

    def _tell(self, place: Place, reason: str) -> None:
        """Print to standard error why a field of the record at `place` was not decoded.

        Each reason is printed only once, and at most `_MOST_TOLD` reasons are printed.
        """
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            sys.stdout.flush()
            partition, offset = place
            print(f"logfs: {partition.directory} offset {offset}: {reason}", file=sys.stderr)


def _not_installed(error: ImportError) -> Unsupported:
    return Unsupported(
        f"--schemas: {error.name} is not installed: install the wheel with its extra, logfs[schema]"
    )
