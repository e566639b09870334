"""`logfs dump` prints the same lines as kafka-dump-log, for every kind of file."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.support.dump_cases import DATA, DEEP, OFFSETS, RECORDS, SANITY, VERIFY, T, cases, dump

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.tools import Tools

CASES = cases()
SENT = [*RECORDS[:4], Record(b"v", b"k", [("h", b"v"), ("h", None), ("bé", b"")], T)]


def compare(tools: Tools, path: Path, *options: str) -> None:
    """Dump a file with both tools, and assert that they print the same lines on both streams.

    If Kafka's tool fails, logfs must print the same lines before it fails, too. logfs runs first, because Kafka's
    tool truncates and creates .index files.
    """
    ours = dump(path, *options)
    theirs = tools.dump(path, options=" ".join(options))
    assert ours.out.splitlines() == theirs.out.splitlines()
    said = [line for line in ours.err.splitlines() if not line.startswith("logfs: ")]
    if theirs.code:
        assert ours.code == 1
        assert ours.err.startswith("logfs: "), theirs.err
    else:
        assert said == [line for line in theirs.err.splitlines() if line]
        assert ours.err.count("logfs: ") == 0


@pytest.mark.parametrize("name", CASES)
def test_files_that_are_hard_to_dump(name: str, tools: Tools, tmp_path: Path) -> None:
    """For damaged, unusual and hostile files both tools print the same lines, and then succeed or fail alike."""
    case = CASES[name]
    for file, data in case.files.items():
        (tmp_path / file).write_bytes(data)
    compare(tools, tmp_path / case.dumped, *case.options)


def options_of(path: Path) -> list[tuple[str, ...]]:
    """Return all combinations of options with which a file is dumped."""
    if path.suffix == ".log":
        internal = path.parent.name.startswith("__consumer_offsets")
        return [(), (DEEP,), (DATA,), (DATA, "--skip-record-metadata"), *([(OFFSETS,)] * internal)]
    if path.suffix in (".index", ".timeindex"):
        return [(), (VERIFY,), (SANITY,)]
    return [()]


def compare_all(tools: Tools, directory: Path) -> set[str]:
    """Compare the dumps of every file of a partition that the tool supports, and return the suffixes of the files."""
    kinds = set()
    known = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    for path in sorted(directory.iterdir()):
        if path.suffix in known:
            kinds.add(path.suffix)
            for options in options_of(path):
                compare(tools, path, *options)
    return kinds


def test_dumps_of_files_of_logfs(tools: Tools, tmp_path: Path) -> None:
    """The dumps are equal for every file of a partition with all codecs, several segments, tombstones and headers."""
    with Store(tmp_path / "log") as store:
        store.settings.set_topic("orders", "index.interval.bytes", "100")
        store.settings.set_topic("orders", "segment.bytes", "4096")
        partition = store.create("orders-0")
        for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
            store.settings.set_topic("orders", "compression.type", codec)
            for number in range(20):
                partition.append(
                    [
                        Record(
                            record.value,
                            record.key,
                            record.headers,
                            max(record.timestamp or T, 0) + number,
                        )
                        for record in RECORDS
                    ]
                )
        assert len(partition.segments) > 3
    assert {".log", ".index", ".timeindex"} <= compare_all(tools, tmp_path / "log/orders-0")


def write_transactions(client: Client) -> None:
    """Write committed and aborted transactions of two producers, with committed offsets in them."""
    for name in ("one", "two"):
        with client.producer(transactional_id=name) as producer:
            for end in (producer.commit, producer.abort, producer.commit):
                producer.begin()
                producer.send("orders", SENT[:2], SENT[2:])
                producer.send_offsets(f"group-{name}", ("orders", 0, 3))
                end()


def test_dumps_of_files_of_a_broker(
    make_broker: Callable[..., Broker],
    connect: Callable[[Broker], Client],
    tools: Tools,
    tmp_path: Path,
) -> None:
    """The dumps are equal for every file of a broker, running and stopped: headers, all codecs, transactions, groups,
    snapshots and internal topics.
    """
    broker = make_broker(log_index_interval_bytes=100)
    client = connect(broker)
    client.create_topic("orders")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        client.produce("orders", SENT[:3], SENT[3:], compression_type=codec)
    write_transactions(client)
    client.commit("loose", ("orders", 0, 1, "half"))
    for protocol in ("classic", "consumer"):
        client.join(f"member-{protocol}", ["orders"], 20, protocol)
    # The broker replaces its checkpoints meanwhile.
    shutil.copytree(broker.log_dir, tmp_path / "live", ignore=shutil.ignore_patterns("*.tmp"))
    broker.stop()
    shutil.copytree(broker.log_dir, tmp_path / "stopped")
    for root in (tmp_path / "live", tmp_path / "stopped"):
        kinds = set()
        for directory in filter(os.path.isdir, sorted(root.iterdir())):
            kinds |= compare_all(tools, directory)
    assert kinds == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
