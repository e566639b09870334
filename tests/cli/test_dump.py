"""`logfs dump`, line by line: the output of kafka-dump-log for the same files, and the same as JSON.

`tests/kafka/test_dump.py` compares many more files with the tool itself.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.cli.dump.lines import java_text
from logfs.format.batches.compression import Codec
from tests.support.dump_cases import (
    DATA,
    DEEP,
    NOT_UTF8,
    PLAIN,
    PRODUCERS,
    RECORDS,
    SANITY,
    SIZE,
    TWO,
    VERIFY,
    T,
    batch,
    cases,
    dump,
    message,
    patched,
    wrapper,
)

if TYPE_CHECKING:
    from pathlib import Path

CASES = cases()
LOG = f"{0:020}.log"
# The tool's text for NOT_UTF8: one U+FFFD for each encoded surrogate, whole or cut.
SHOWN = "x" + "\ufffd" * 5 + "|" + "\ufffd" * 2 + "y"


def printed(
    directory: Path, name: str, data: bytes, *options: str
) -> tuple[int, list[str], list[str]]:
    """Return the exit code, lines and error lines of a dump of a file, without the name of its directory."""
    path = directory / name
    path.write_bytes(data)
    code, out, err = dump(path, *options)
    lines = out.replace(f"{directory}/", "").splitlines()
    assert lines[0] == f"Dumping {name}"
    return code, lines[1:], err.replace(f"{directory}/", "").splitlines()


def case(directory: Path, name: str) -> tuple[int, list[str], list[str]]:
    """Return the same for a case of tests/support/dump_cases.py."""
    found = CASES[name]
    for file, data in found.files.items():
        (directory / file).write_bytes(data)
    return printed(directory, found.dumped, found.files[found.dumped], *found.options)


def objects(path: Path, *options: str) -> list[dict[str, Any]]:
    """Return the objects that --json prints for a file."""
    return [orjson.loads(line) for line in dump(path, "--json", *options).out.splitlines()]


BATCH = (
    "baseOffset: 0 lastOffset: 5 count: 6 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
    "partitionLeaderEpoch: -1 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
    f"position: 0 CreateTime: {T} size: {len(PLAIN)} magic: 2 compresscodec: none "
    f"crc: {int.from_bytes(PLAIN[17:21])} isvalid: true"
)
METADATA = [
    f"| offset: 0 CreateTime: {T} keySize: 1 valueSize: 1 sequence: -1 headerKeys: []",
    f"| offset: 1 CreateTime: {T} keySize: -1 valueSize: -1 sequence: -1 headerKeys: []",
    f"| offset: 2 CreateTime: {T} keySize: 0 valueSize: 0 sequence: -1 headerKeys: []",
    f"| offset: 3 CreateTime: {T} keySize: 1 valueSize: {len(NOT_UTF8)} sequence: -1 headerKeys: []",
    "| offset: 4 CreateTime: -1 keySize: 1 valueSize: 7 sequence: -1 headerKeys: [h,h,bé,]",
    f"| offset: 5 CreateTime: {T - 5} keySize: 1 valueSize: 1 sequence: -1 headerKeys: [\ufffd]",
]
PAYLOADS = [
    "key: k payload: a",
    "",
    "key:  payload: ",
    f"key: \ufffd payload: {SHOWN}",
    "key: k payload: é\n😀",
    "key: k payload: v",
]


@pytest.mark.parametrize(
    ("options", "records"),
    [
        ((), []),
        ((DEEP,), METADATA),
        (
            (DATA,),
            [
                f"{m} {p}".rstrip(" ") if not p else f"{m} {p}"
                for m, p in zip(METADATA, PAYLOADS, strict=True)
            ],
        ),
        ((DATA, "--skip-record-metadata"), [p and f"| {p}" for p in PAYLOADS]),
        ((DEEP, "--skip-record-metadata"), [""] * 6),
    ],
)
def test_batches_and_records(options: tuple[str, ...], records: list[str], tmp_path: Path) -> None:
    """A batch is one line, and so is each record.

    Records are shown with their keys and values, if they have any, or with nothing but these.
    """
    expected = ["Log starting offset: 0", BATCH, *"\n".join(records).split("\n")]
    if not records:
        expected.pop()
    assert printed(tmp_path, LOG, PLAIN, *options) == (0, expected, [])


def test_the_files_option_of_kafkas_tool(tmp_path: Path) -> None:
    """--files takes a list with commas, any number of times, beside file names."""
    paths = [tmp_path / f"{n:020}.log" for n in range(3)]
    for path in paths:
        path.touch()
    given = dump("--files", f"{paths[0]},{paths[1]}", paths[2])
    assert sorted(given.out.splitlines()) == sorted(
        line
        for n, path in enumerate(paths)
        for line in (f"Dumping {path}", f"Log starting offset: {n}")
    )


def test_producers_and_kinds_of_batches(tmp_path: Path) -> None:
    """Sequences wrap around, LogAppendTime is every record's time, and a delete horizon is shown."""
    _, lines, _ = case(tmp_path, f"log producers {(DEEP,)}")
    assert " baseSequence: 2147483645 lastSequence: 2 producerId: 5 producerEpoch: 2 " in lines[1]
    assert [line.split("sequence: ")[1].split()[0] for line in lines[2:6]] == [
        "2147483645",
        "2147483646",
        "2147483647",
        "0",
    ]
    assert " isTransactional: true " in lines[8]
    _, lines, _ = case(tmp_path, f"log kinds {(DEEP,)}")
    assert f" LogAppendTime: {T + 7} size: " in lines[1]
    assert lines[6].startswith(f"| offset: 4 LogAppendTime: {T + 7} keySize: ")
    assert " deleteHorizonMs: OptionalLong[777] " in lines[8]
    assert lines[15].startswith("baseOffset: 12 lastOffset: 15 count: 0 ")


def test_control_records(tmp_path: Path) -> None:
    """Markers show the coordinator epoch, KRaft's control records their content, and others their number."""
    code, lines, err = case(tmp_path, f"log control {(DEEP,)}")
    assert (code, err) == (0, [])
    voters = '[{"voterId":1,"voterDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA"'
    assert [line.split("headerKeys: [] ")[1] for line in lines if line[0] == "|"] == [
        "endTxnMarker: ABORT coordinatorEpoch: 9",
        "endTxnMarker: COMMIT coordinatorEpoch: 9",
        "controlType: UNKNOWN(77)",
        'LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":1}],"grantingVoters":[]}',
        'SnapshotHeader {"version":0,"lastContainedLogTimestamp":0}',
        'SnapshotFooter {"version":1}',
        'KRaftVersion {"version":0,"kRaftVersion":1}',
        f'KRaftVoters {{"version":0,"voters":{voters},'
        '"endpoints":[{"name":"NAME","host":"host","port":29093}],'
        '"kRaftVersionFeature":{"minSupportedVersion":0,"maxSupportedVersion":1}}]}',
    ]


def test_old_formats(tmp_path: Path) -> None:
    """A message of magic 0 or 1 is a batch of itself, or a wrapper whose records have CRCs of their own."""
    old = message(3, b"k", b"v", 0)
    packed = wrapper(8, Codec.GZIP, message(0, None, b"a"), message(2, b"k", b"b"))
    code, lines, err = printed(tmp_path, LOG, old + packed, DATA)
    crc = [
        int.from_bytes(data[12:16])
        for data in (old, packed, message(0, None, b"a"), message(2, b"k", b"b"))
    ]
    assert lines[1:] == [
        "offset: 3 position: 0 NoTimestampType: -1 size: 28 magic: 0 compresscodec: none "
        f"crc: {crc[0]} isvalid: true",
        f"| offset: 3 NoTimestampType: -1 keySize: 1 valueSize: 1 isValid: true crc: {crc[0]} key: k payload: v",
        f"offset: 8 position: 28 CreateTime: {T + 99} size: {len(packed)} magic: 1 compresscodec: gzip "
        f"crc: {crc[1]} isvalid: true",
        f"| offset: 6 CreateTime: {T} keySize: -1 valueSize: 1 isValid: true crc: {crc[2]} payload: a",
        f"| offset: 8 CreateTime: {T} keySize: 1 valueSize: 1 isValid: true crc: {crc[3]} key: k payload: b",
    ]
    assert code == 0
    assert err == [
        f"Non-consecutive offsets in {LOG}",
        "  -1 is followed by 3",
        "  3 is followed by 6",
        "  6 is followed by 8",
    ]


def test_damage(tmp_path: Path) -> None:
    """Invalid batches and bytes are reported with exit code 1; the printed part of a line that fails is kept."""
    code, lines, err = printed(tmp_path, LOG, PLAIN + PLAIN[:50])
    assert (code, lines[-1], err) == (1, f"Found 50 invalid bytes at the end of {LOG}", [])
    code, lines, err = printed(tmp_path, LOG, patched(PLAIN, 17, ">I", 1))
    assert (code, lines[1].rsplit(" ", 3)[1:], err) == (1, ["1", "isvalid:", "false"], [])
    code, lines, err = printed(tmp_path, LOG, batch(RECORDS, attributes=6) + PLAIN)
    assert (code, lines[1]) == (1, BATCH.split(" position")[0])
    assert err == [f"logfs: {LOG}: batch 0: unknown codec 6"]
    code, lines, err = printed(tmp_path, LOG, patched(TWO, 57, ">i", 3), DEEP)
    assert (code, len(lines), len(err)) == (1, 4, 1)


def test_a_broken_file_does_not_hide_the_next(tmp_path: Path) -> None:
    """Kafka's tool ends at the first file that it cannot read; logfs names that file and dumps the others."""
    good = tmp_path / LOG
    good.write_bytes(PLAIN)
    done = dump(tmp_path / f"{9:020}.log", tmp_path / "notes.txt", tmp_path / "x.index", good)
    assert done.code == 1
    assert BATCH in done.out
    assert [line.split(": ")[-1] for line in done.err.splitlines()] == [
        "No such file or directory",
        f"Ignoring unknown file {tmp_path}/notes.txt",
        "No such file or directory",
    ]


def test_findings_come_last(tmp_path: Path) -> None:
    """Entries are printed first, then the findings.

    Mismatches are in descending order of offsets, other findings in the order in which they were found.
    """
    index = f"{100:020}.index"
    code, lines, err = case(tmp_path, "index mismatch ()")
    assert lines[:2] == ["offset: 109 position: 0", f"offset: 102 position: {SIZE}"]
    assert code == 1
    assert err == [
        f"Mismatches in :{index}",
        "  Index offset: 150, log offset: 105",
        "  Index offset: 109, log offset: 101",
        "  Index offset: 103, log offset: 101",
        "  Index offset: 102, log offset: 101",
    ]
    code, lines, err = case(tmp_path, f"timeindex not found {(VERIFY,)}")
    assert (code, lines) == (1, [])
    assert err == [
        f"Found out of order timestamp in :{100:020}.timeindex",
        f"  Index timestamp: {T + 7}, Previously indexed timestamp: {T + 50}",
        f"The following indexed offsets are not found in :{100:020}.timeindex",
        "Indexed offset: 102, found log offset: 103",
        "Indexed offset: 112, found log offset: -1",
    ]


def test_offsets_that_do_not_fit(tmp_path: Path) -> None:
    """A batch may end beyond the greatest offset: its last offset wraps around, as in Kafka's tool."""
    index = tmp_path / f"{0:020}.index"
    index.write_bytes(struct.pack(">ii", 1, 0))
    batch = bytearray(PLAIN)
    batch[:8] = (-(2**63)).to_bytes(8, "big", signed=True)
    batch[23:27] = (-1).to_bytes(4, "big", signed=True)
    index.with_suffix(".log").write_bytes(batch)
    assert objects(index)[-1]["logOffset"] == 2**63 - 1
    assert dump(index).err.endswith(f"Index offset: 1, log offset: {2**63 - 1}\n")


def test_sanity(tmp_path: Path) -> None:
    """An index that is consistent passes, one that is not is an error, and an empty one is reported as empty."""
    index = f"{100:020}.index"
    assert case(tmp_path, f"index fit {(SANITY,)}") == (0, [f"{index} passed sanity check."], [])
    assert case(tmp_path, f"index empty {(SANITY,)}") == (0, [f"{index} is empty."], [])
    code, lines, (error,) = case(tmp_path, f"index part {(SANITY,)}")
    assert (code, lines) == (1, [])
    assert "not a multiple of 8 bytes" in error


def test_snapshots_and_aborted_transactions(tmp_path: Path) -> None:
    """Producers have their last batch, if they have one; aborted transactions are lines.

    Corrupt snapshots are reported in the words of Kafka's tool.
    """
    assert case(tmp_path, "snapshot good")[1] == [
        "producerId: 5 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 12345 firstSequence: 7 lastSequence: 10 lastOffset: 100 offsetDelta: 3 timestamp: 12345",
        "producerId: 2 producerEpoch: 0 coordinatorEpoch: 4 currentTxnFirstOffset: OptionalLong[90] "
        "lastTimestamp: 777",
        "producerId: 1099511627776 producerEpoch: 0 coordinatorEpoch: 4 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 777 firstSequence: 2147483647 lastSequence: 1 lastOffset: 0 offsetDelta: 2 timestamp: 777",
        "producerId: 9 producerEpoch: 3 coordinatorEpoch: 1 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 5 firstSequence: 2147483647 lastSequence: -1 lastOffset: 20 offsetDelta: 0 timestamp: 5",
    ]
    assert case(tmp_path, "snapshot version 0") == (
        1,
        [],
        ["Snapshot failed schema validation: Snapshot contained an unknown file version 0"],
    )
    code, _, (error,) = case(tmp_path, "snapshot long")
    assert code == 1
    assert error.startswith("Snapshot is corrupt (CRC is no longer valid). Stored crc: ")
    assert case(tmp_path, "txnindex good") == (
        0,
        [
            "version: 0 producerId: 4242 firstOffset: 100 lastOffset: 110 lastStableOffset: 95",
            f"version: 0 producerId: 5 firstOffset: 1 lastOffset: 120 lastStableOffset: {2**62}",
        ],
        [],
    )


def test_offsets_decoder(tmp_path: Path) -> None:
    """Keys and values of __consumer_offsets are JSON, and null is `<DELETE>`.

    What is neither is reported with the reason of Kafka's tool.
    """
    code, lines, err = case(tmp_path, "offsets")
    shown = [line.split("headerKeys: [] ")[1] for line in lines[2:] if line[0] == "|"]
    key = r'key: {"type":"1","data":{"group":"g1","topic":"tä/\u001F","partition":3}} payload: '
    assert (code, err) == (
        0,
        [f"Non-consecutive offsets in {LOG}", f"  {len(shown) - 2} is followed by 100"],
    )
    assert shown[0] == key + (
        r'{"version":"0","data":{"offset":77,"metadata":"m\"d\n\u001F'
        + '\x7f","commitTimestamp":1700000000000}}'
    )
    assert '"commitTimestamp":1700000000000,"expireTimestamp":9}}' in shown[1]
    assert '"leaderEpoch":5,' in shown[4]
    assert '"subscription":"Af8A++8=","assignment":""},' in shown[8]
    assert shown[10] == key + "<DELETE>"
    assert (
        shown[13]
        == "key: Error at offset 13, skipping. Found an unknown record version 3 for 0 type"
    )
    assert shown[19] == "key: Unknown record type 99 at offset 19, skipping."
    assert shown[22].endswith(
        "Could not read record with version 1 from key's buffer due to: null."
    )
    assert shown[-1] == "endTxnMarker: COMMIT coordinatorEpoch: 9"


def test_json_of_a_log(tmp_path: Path) -> None:
    """A line is an object; bytes that are not UTF-8 are base64, headers have values, a missing horizon is null."""
    path = tmp_path / LOG
    path.write_bytes(PLAIN + b"z")
    file, start, head, *records, rest = objects(path, DATA)
    assert (file, start, rest) == (
        {"file": str(path)},
        {"logStartingOffset": 0},
        {"invalidBytes": 1},
    )
    assert (head["deleteHorizonMs"], head["isvalid"], head["crc"]) == (
        None,
        True,
        int.from_bytes(PLAIN[17:21]),
    )
    coded = {"base64": base64.b64encode(NOT_UTF8).decode()}
    assert records[0] == {
        "offset": 0,
        "CreateTime": T,
        "keySize": 1,
        "valueSize": 1,
        "sequence": -1,
        "headerKeys": [],
        "headers": [],
        "key": "k",
        "payload": "a",
    }
    assert (records[1]["key"], records[1]["payload"]) == (None, None)
    assert (records[3]["key"], records[3]["payload"]) == ({"base64": "/g=="}, coded)
    assert records[4]["headers"] == [["h", "v"], ["h", None], ["bé", ""], ["", coded]]
    assert records[5]["headerKeys"] == [{"base64": "/w=="}]
    assert "headers" not in objects(path, DEEP)[3]


def test_json_of_the_rest(tmp_path: Path) -> None:
    """Decoded offsets are objects, deletions null; the numbers of findings and entries have names."""

    def of(name: str) -> list[dict[str, Any]]:
        case(tmp_path, name)
        return objects(tmp_path / CASES[name].dumped, *CASES[name].options)[1:]

    records = of("offsets")[2:]
    assert records[3]["payload"]["data"]["leaderEpoch"] == 5
    assert records[10]["key"]["data"] == {"group": "g1", "topic": "tä/\x1f", "partition": 3}
    assert records[10]["payload"] is None
    assert records[19]["key"] == "Unknown record type 99 at offset 19, skipping."
    first, *_, last = of("index mismatch ()")
    assert first == {"offset": 109, "position": 0}
    assert (last["finding"], last["indexOffset"], last["logOffset"]) == ("mismatch", 102, 101)
    assert of(f"index fit {(SANITY,)}") == [{"passedSanityCheck": True}]
    assert of("index empty ()") == [{"isEmpty": True}]
    first, second, *_ = of("snapshot good")
    assert (first["currentTxnFirstOffset"], second["currentTxnFirstOffset"]) == (None, 90)
    assert first["producerId"] == PRODUCERS[0].producer_id
    assert of("txnindex good")[0]["lastStableOffset"] == 95


@pytest.mark.parametrize("name", CASES)
def test_json_of_every_case(name: str, tmp_path: Path) -> None:
    """Each line is an object, the exit code is that of the text, and no exception escapes, whatever the file."""
    code, _, _ = case(tmp_path, name)
    done = dump(tmp_path / CASES[name].dumped, *CASES[name].options, "--json")
    assert done.code == code
    assert all(type(orjson.loads(line)) is dict for line in done.out.splitlines())


@given(st.text(), st.binary(max_size=6))
def test_java_text(text: str, rest: bytes) -> None:
    """UTF-8 is decoded as it is; other bytes are never an error, and their text is never longer than Python's."""
    assert java_text(text.encode("utf-8", "ignore")) == text.encode("utf-8", "ignore").decode()
    assert len(java_text(rest)) <= len(rest.decode("utf-8", "replace"))
