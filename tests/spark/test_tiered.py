"""Tiered logs in Spark: tasks read remote segments straight from the object store, with the same rows and offsets."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import logfs
from logfs.store.store import Store
from tests.spark.streaming import streamed
from tests.support.object_server import BUCKET, ObjectServer, object_server
from tests.support.stores import set_topic

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

ORDER = ("partition", "offset")


@pytest.fixture
def server(aws_files: Path) -> Iterator[ObjectServer]:
    """An S3 server that this process and Spark's workers find through the files of Amazon's tools."""
    with object_server() as server:
        (aws_files / "credentials").write_text(
            "[default]\naws_access_key_id = AKIATESTTESTTESTTEST\n"
            "aws_secret_access_key = secret-of-the-tests\n"
        )
        (aws_files / "config").write_text(
            f"[default]\nregion = us-east-1\nendpoint_url = {server.endpoint}\n"
        )
        yield server
    for path in aws_files.iterdir():
        path.unlink()


def load(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("logfs").option("subscribe", "orders").load(str(path))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_a_tiered_log_reads_as_before(
    spark: SparkSession,
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
) -> None:
    """Batches, filters, splits, streams, `stats` and `verify`; a segment that leaves after the plan is read, too.

    Each server has a bucket of its own: the workers keep what they know of one.
    """
    from logfs.spark import jobs

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log_dir, plain = tmp_path / "log", tmp_path / "plain"
    with Store(log_dir) as store:
        store.settings.set_broker("remote.storage.url", f"s3://{BUCKET}/spark-{layout}")
        store.settings.set_broker("remote.storage.prefix", "tiered-")
        store.settings.set_broker("remote.storage.layout", layout)
        set_topic(
            store,
            "orders",
            segment_bytes=4000,
            index_interval_bytes=500,
            remote_storage_enable="true",
            local_retention_bytes=5000,
            file_delete_delay_ms=0,
        )
        for number in range(2):
            partition = store.create(f"orders-{number}")
            for first in range(0, 600, 20):
                partition.append(
                    [logfs.Record(b"value %d" % n, b"%d" % n) for n in range(first, first + 20)]
                )
    shutil.copytree(log_dir, plain)
    wanted = load(spark, plain).orderBy(*ORDER).collect()
    assert len(wanted) == 1200
    # Planned while all segments are local, and read when most are not.
    planned = load(spark, log_dir).orderBy(*ORDER)
    with Store(log_dir) as store:
        for name in ("orders-0", "orders-1"):
            store.tier(name)
        store.retain()
        assert store["orders-0"].segments[0].is_tiered
    before = len(server.gets())
    assert planned.collect() == wanted
    assert len(server.gets()) > before
    assert load(spark, log_dir).orderBy(*ORDER).collect() == wanted
    some = "partition = 1 AND offset >= 117 AND offset < 130"
    found = load(spark, log_dir).where(some).orderBy(*ORDER).collect()
    assert [row.offset for row in found] == [*range(117, 130)]
    small = spark.read.format("logfs").options(subscribe="orders", minPartitions="20")
    assert small.load(str(log_dir)).orderBy(*ORDER).collect() == wanted
    found = streamed(spark, log_dir, f"tiered_{layout}").orderBy(*ORDER).collect()
    assert found == wanted
    counted = jobs.stats(spark, log_dir, topics=["orders"])
    expected = jobs.stats(spark, plain, topics=["orders"])
    assert [each.counts.records for each in counted.topics] == [
        each.counts.records for each in expected.topics
    ]
    report = jobs.verify(spark, log_dir)
    assert report.records >= 1200
    assert not report.findings
    # The bucket alone, with a damaged log: the driver audits the partition again, as `logfs check` does.
    key = min(
        key for key in server.stored_keys() if f"spark-{layout}" in key and key.endswith("log")
    )
    server.put(key, bytes(len(server.backend.get_object(BUCKET, key).value)))
    report = jobs.verify(spark, f"s3://{BUCKET}/spark-{layout}/tiered-")
    assert {"orders-0" in str(each.path) for each in report.errors} == {True}


def test_a_deleted_object_is_a_loss(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query of a tiered log does not pass over the records of an object that somebody has deleted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket, log_dir = tmp_path / "bucket", tmp_path / "log"
    bucket.mkdir()
    with Store(log_dir) as store:
        store.settings.set_broker("remote.storage.url", f"file://{bucket}")
        set_topic(
            store,
            "orders",
            segment_bytes=2000,
            remote_storage_enable="true",
            local_retention_bytes=100,
            file_delete_delay_ms=0,
        )
        partition = store.create("orders-0")
        for first in range(0, 600, 20):
            partition.append([b"value %d" % n for n in range(first, first + 20)])
        store.tier("orders-0")
        store.retain()
        lost = partition.segments[1]
        assert lost.is_tiered
    (deleted,) = bucket.rglob(f"{lost.base_offset:020}-*.log")
    deleted.unlink()
    with pytest.raises(PySparkException, match="are no longer in the object store"):
        load(spark, log_dir).collect()
    reading = spark.read.format("logfs").options(subscribe="orders", failOnDataLoss="false")
    found = {row.offset for row in reading.load(str(log_dir)).collect()}
    assert found == {*range(600)} - {*range(lost.base_offset, lost.next_offset)}
