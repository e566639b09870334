"""The batches and records of a .log file, or of a .checkpoint file, which is a KRaft metadata snapshot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logfs.cli.dump.batches import LogFile, is_valid, records
from logfs.cli.dump.decoder import decode_group_record
from logfs.cli.dump.job import NON_CONSECUTIVE
from logfs.cli.dump.lines import DELETED
from logfs.errors import InvalidName
from logfs.format.base import names, varint
from logfs.format.batches.batch import MAGIC, NO_SEQUENCE, increment_sequence
from logfs.format.messages import control
from logfs.format.messages.control import ControlType, EndTransactionMarker
from logfs.format.messages.message import plain

if TYPE_CHECKING:
    from logfs.cli.dump.batches import Shown
    from logfs.cli.dump.job import DumpJob
    from logfs.format.batches.batch import Batch, Header
    from logfs.format.batches.record import Record

_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


def dump(name: str, job: DumpJob) -> None:
    """Dump every batch of the .log or .checkpoint file `name`, valid or not, and its records if they are requested.

    `job` has the options, and collects the findings. Each batch begins where the length field of the batch before it
    says: there is no search for the next valid batch after damage. Raises `InvalidName` if the name is not that of
    such a file, `Corrupt` for an impossible length or malformed records, and `OSError` if the file cannot be read.
    """
    _say_where_it_starts(Path(name).name, job)
    log = LogFile(name)
    end = 0
    last_offset = -1
    for position, batch in log.batches(end=job.max_bytes):
        _batch_line(position, batch, job)
        end = position + batch.header.size_bytes
        if not job.with_records:
            continue
        for shown in records(batch):
            record = shown.record
            if record.offset != last_offset + 1:
                job.findings.add(
                    NON_CONSECUTIVE, name, offset=last_offset, nextOffset=record.offset
                )
            last_offset = record.offset
            _record_line(batch.header, shown, job)
    rest = log.size_bytes - end
    if rest and job.max_bytes is None:
        job.wrong = True
        job.lines.say(
            f"Found {rest} invalid bytes at the end of {Path(name).name}", invalidBytes=rest
        )


def _say_where_it_starts(name: str, job: DumpJob) -> None:
    if not name.endswith(".checkpoint"):
        offset = names.parse_stem(name)
        job.lines.say(f"Log starting offset: {offset}", logStartingOffset=offset)
        return
    snapshot = _SNAPSHOT.fullmatch(name)
    if snapshot is None:
        raise InvalidName("a snapshot must be named OFFSET-EPOCH.checkpoint, with 20 and 10 digits")
    offset, epoch = int(snapshot[1]), int(snapshot[2])
    job.lines.say(
        f"Snapshot end offset: {offset}, epoch: {epoch}", snapshotEndOffset=offset, epoch=epoch
    )


def _batch_line(position: int, batch: Batch, job: DumpJob) -> None:
    header = batch.header
    job.lines.add({"offset": header.last_offset} if header.magic < MAGIC else _head(header))
    valid = is_valid(batch)
    job.wrong |= not valid
    job.lines.add(
        {
            "position": position,
            header.timestamp_type.label: header.max_timestamp,
            "size": header.size_bytes,
            "magic": header.magic,
            "compresscodec": header.codec.kafka_name,
            "crc": header.crc,
            "isvalid": valid,
        }
    )
    job.lines.end()


def _head(header: Header) -> dict[str, Any]:
    return {
        "baseOffset": header.base_offset,
        "lastOffset": varint.wrap(header.last_offset),
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
    }


def _record_line(header: Header, shown: Shown, job: DumpJob) -> None:
    record = shown.record
    headers = [(name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers]
    if job.with_metadata:
        job.lines.add(_metadata(header, shown, [name for name, _ in headers]), mark="| ")
        if header.is_control:
            job.lines.add(_control(record))
    if job.with_data and not header.is_control:
        if job.lines.json:
            job.lines.add({"headers": headers})
        job.lines.add(_data(record, job), mark="| ")
    job.lines.end()


def _metadata(header: Header, shown: Shown, header_names: list[bytes]) -> dict[str, Any]:
    record = shown.record
    fields = {
        "offset": record.offset,
        header.timestamp_type.label: shown.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
    }
    if header.magic < MAGIC:
        return fields | {"isValid": shown.is_valid, "crc": shown.crc}
    sequence = header.base_sequence
    if sequence != NO_SEQUENCE:
        # kafka-dump-log computes the difference in 32 bits, which wrap around.
        delta = (record.offset - header.base_offset + 2**31) % 2**32 - 2**31
        sequence = increment_sequence(sequence, delta)
    return fields | {"sequence": sequence, "headerKeys": header_names}


def _control(record: Record) -> dict[str, Any]:
    """Return the fields of a control record. Raises `Corrupt` if its key or value is malformed."""
    key, value = record.key or b"", record.value or b""
    kind = control.parse_control_key(key)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        marker = EndTransactionMarker.parse(key, value)
        return {"endTxnMarker": kind.name, "coordinatorEpoch": marker.coordinator_epoch}
    if kind is ControlType.UNKNOWN:
        _, number = control.KEY.unpack_from(key)
        return {"controlType": f"{kind.name}({number})"}
    schema = control.MESSAGES[kind]
    found = schema.parse_leniently(value)
    return {schema.what: {"version": found.version, **plain(found.fields)}}


def _data(record: Record, job: DumpJob) -> dict[str, Any]:
    if not job.decode_offsets:
        return {"key": record.key, "payload": record.value}
    key, payload = decode_group_record(record)
    if payload == DELETED and job.lines.json:
        payload = None
    return {"key": key, "payload": payload}
