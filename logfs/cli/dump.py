"""`logfs dump`: what kafka-dump-log prints of .log, .index and .timeindex files (kafka-storage 13)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logfs.errors import Corrupt, InvalidName

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from logfs.format.batch import Batch, Header
    from logfs.format.record import Record
    from logfs.log.index import SparseIndex
    from logfs.log.segment import Segment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files and how deep to look."""
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a file of a partition directory"
    )
    parser.add_argument("--deep-iteration", action="store_true", help="a line for each record, too")
    parser.add_argument("--print-data-log", action="store_true", help="keys and values, too")
    parser.add_argument(
        "--verify-index-only", action="store_true", help="check index entries against the log"
    )
    parser.add_argument(
        "--index-sanity-check", action="store_true", help="check an index by itself"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line, with header values"
    )


def run(arguments: argparse.Namespace) -> int:
    """Dump each file."""
    dumps = {".log": _dump_log, ".index": _dump_index, ".timeindex": _dump_time_index}
    code = 0
    for path in arguments.files:
        dump = dumps.get(path.suffix)
        if dump is None:
            raise InvalidName(f"{path}: give .log, .index or .timeindex files")
        if not arguments.json:
            print(f"Dumping {path}")
        code |= dump(_segment(path), path, arguments)
    return code


def _segment(path: Path) -> Segment:
    from logfs.format import names
    from logfs.format.text import NO_TEXT
    from logfs.log.files import ReadOnlyDisk
    from logfs.log.index import TimeEntry
    from logfs.log.segment import Segment, Tip

    base_offset = names.parse_stem(path.name)
    segment = Segment(ReadOnlyDisk(), path.parent.absolute(), base_offset)
    if not segment.path.exists():
        raise FileNotFoundError(
            2, "the .log file of the same name must be there", str(segment.path)
        )
    size = segment.path.stat().st_size
    segment.resume(Tip(size, base_offset, NO_TEXT), TimeEntry(-1, base_offset))
    return segment


def _dump_log(segment: Segment, path: Path, arguments: argparse.Namespace) -> int:
    """Every batch by its length field, valid or not, as Kafka's tool does."""
    deep = arguments.deep_iteration or arguments.print_data_log
    if not arguments.json:
        print(f"Log starting offset: {segment.base_offset}")
    position = 0
    size = segment.size_bytes
    jumps = []
    last: int | None = None
    while (batch := _batch_at(segment, position)) is not None:
        header = batch.header
        _print(_batch_fields(batch, position), _batch_line, arguments)
        if deep:
            try:
                for record in batch.records():
                    if last is not None and record.offset != last + 1:
                        jumps.append((last, record.offset))
                    last = record.offset
                    _print(_record_fields(header, record), _record_line(arguments), arguments)
            except Corrupt as error:
                print(f"logfs: {path}: {error}", file=sys.stderr)
        position += header.size_bytes
    if position < size:
        print(f"Found {size - position} invalid bytes at the end of {path.name}")
    if jumps:
        print(f"Non-consecutive offsets in {path}", file=sys.stderr)
        for before, after in jumps:
            print(f"  {before} is followed by {after}", file=sys.stderr)
    return 1 if position < size else 0


def _print(fields: dict[str, Any], line: Any, arguments: argparse.Namespace) -> None:
    if arguments.json:
        import orjson

        print(orjson.dumps(fields).decode())
    else:
        print(line(fields))


def _batch_fields(batch: Batch, position: int) -> dict[str, Any]:
    header = batch.header
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
        "position": position,
        header.timestamp_type.label: header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": header.codec.kafka_name,
        "crc": header.crc,
        "isvalid": batch.is_valid,
    }


def _batch_line(fields: dict[str, Any]) -> str:
    horizon = fields["deleteHorizonMs"]
    shown = {
        **fields,
        "deleteHorizonMs": "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]",
    }
    return " ".join(f"{name}: {_java(value)}" for name, value in shown.items())


def _record_fields(header: Header, record: Record) -> dict[str, Any]:
    from logfs.format.batch import NO_SEQUENCE, increment_sequence
    from logfs.format.control import ControlType, EndTransactionMarker, parse_control_key

    sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        sequence = increment_sequence(header.base_sequence, record.offset - header.base_offset)
    fields: dict[str, Any] = {
        "offset": record.offset,
        record.timestamp_type.label: record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": sequence,
        "headerKeys": [name for name, _ in record.headers],
    }
    if header.is_control:
        kind = parse_control_key(record.key or b"")
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            marker = EndTransactionMarker.parse(record.key or b"", record.value or b"")
            fields["endTxnMarker"] = kind.name
            fields["coordinatorEpoch"] = marker.coordinator_epoch
        else:
            fields["controlType"] = f"{kind.name}({int(kind)})"
        return fields
    fields["headers"] = [[name, _text(value)] for name, value in record.headers]
    fields["key"] = _text(record.key)
    fields["payload"] = _text(record.value)
    return fields


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _record_line(arguments: argparse.Namespace) -> Any:
    def line(fields: dict[str, Any]) -> str:
        shown = {**fields, "headerKeys": f"[{','.join(fields['headerKeys'])}]"}
        data = {name: shown.pop(name, None) for name in ("headers", "key", "payload")}
        if arguments.print_data_log:
            shown |= {name: data[name] for name in ("key", "payload") if data[name] is not None}
        return "| " + " ".join(f"{name}: {_java(value)}" for name, value in shown.items())

    return line


def _java(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _goes_on(index: SparseIndex, path: Path, arguments: argparse.Namespace) -> bool:
    """What both kinds of index begin with; whether their entries are wanted."""
    if arguments.index_sanity_check:
        index.check_sane()
        print(f"{path} passed sanity check.")
        return False
    if not len(index) and not arguments.json:
        print(f"{path} is empty.")
    return True


def _dump_index(segment: Segment, path: Path, arguments: argparse.Namespace) -> int:
    index = segment.offset_index
    if not _goes_on(index, path, arguments):
        return 0
    mismatches = []
    for number, entry in enumerate(index):
        if number and entry.offset == segment.base_offset:
            break
        if arguments.verify_index_only:
            batch = _batch_at(segment, entry.position)
            found = -1 if batch is None else batch.header.last_offset
            if found != entry.offset:
                mismatches.append((entry.offset, found))
        else:
            _print(
                {"offset": entry.offset, "position": entry.position},
                lambda f: f"offset: {f['offset']} position: {f['position']}",
                arguments,
            )
    if mismatches:
        print(f"Mismatches in :{path.absolute()}", file=sys.stderr)
        for indexed, found in mismatches:
            print(f"  Index offset: {indexed}, log offset: {found}", file=sys.stderr)
    return 1 if mismatches else 0


def _dump_time_index(segment: Segment, path: Path, arguments: argparse.Namespace) -> int:
    index = segment.time_index
    if not _goes_on(index, path, arguments):
        return 0
    problems = []
    previous = -1
    for number, entry in enumerate(index):
        if number and entry.offset == segment.base_offset:
            break
        if arguments.verify_index_only:
            problems += list(_time_problems(segment, path, entry.timestamp, entry.offset, previous))
            previous = entry.timestamp
        else:
            _print(
                {"timestamp": entry.timestamp, "offset": entry.offset},
                lambda f: f"timestamp: {f['timestamp']} offset: {f['offset']}",
                arguments,
            )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _time_problems(
    segment: Segment, path: Path, timestamp: int, offset: int, previous: int
) -> Iterator[str]:
    found = segment.find_batch(offset)
    if found is None or found.header.last_offset != offset:
        last = -1 if found is None else found.header.last_offset
        yield "The following indexed offsets are not found in the log."
        yield f"Indexed offset: {offset}, found log offset: {last}"
        return
    largest = max((record.timestamp or -1 for record in found.records()), default=-1)
    if largest != timestamp:
        yield f"Found timestamp mismatch in :{path.absolute()}"
        yield f"  Index timestamp: {timestamp}, log timestamp: {largest}"
    if timestamp <= previous:
        yield f"Found out of order timestamp in :{path.absolute()}"
        yield f"  Index timestamp: {timestamp}, Previously indexed timestamp: {previous}"


def _batch_at(segment: Segment, position: int) -> Batch | None:
    """The batch of any magic at a position; None if it is not there whole, or of an old format and invalid."""
    from logfs.format.legacy import SMALLEST_BYTES, parse_batch

    data = segment.read(position, SMALLEST_BYTES)
    if len(data) < SMALLEST_BYTES:
        return None
    try:
        return parse_batch(segment.read(position, int.from_bytes(data[8:12], "big") + 12))
    except Corrupt:
        return None
