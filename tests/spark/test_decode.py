"""`logfs.spark.decode`: values of Confluent's serializers as JSON, by the schemas of each kind of place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException
from pyspark.sql.functions import col, get_json_object

import logfs
import logfs.spark
from logfs.store.store import Store
from tests.support.schemas import VECTORS, RegistryServer, append_schemas, write_files
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """A log directory with the values, some that cannot be decoded, and the topic `_schemas`."""
    with Store(tmp_path / "log") as store:
        append_schemas(store)
        values = [vector.data for vector in VECTORS.values()]
        store.create("orders-0").append(
            [
                logfs.Record(value)
                for value in (*values, b"plain", None, b"\0\0\0\0\x63x", b"\0\xff\xff\xff\xffx")
            ]
        )
    return str(tmp_path / "log")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("place", ["files", "log", "registry"])
def test_values_decode_in_the_executors(
    spark: SparkSession, orders: str, tmp_path: Path, place: str
) -> None:
    """Each value is its JSON; what cannot be decoded has an error, a null has neither."""
    with RegistryServer() as server:
        places = {"files": write_files(tmp_path / "files"), "log": orders, "registry": server.url}
        read = spark.read.format("logfs").option("subscribe", "orders").load(orders)
        decoded = read.select(
            "offset", logfs.spark.decode(col("value"), places[place]).alias("decoded")
        )
        rows = [row.decoded for row in decoded.sort("offset").collect()]
        found = [json.loads(row.json) for row in rows[: len(VECTORS)]]
        assert found == [vector.decoded for vector in VECTORS.values()]
        assert [row.schema_id for row in rows[: len(VECTORS)]] == [2, 2, 3, 4, 6, 6, 6]
        plain, null, missing, negative = rows[len(VECTORS) :]
        assert (negative.schema_id, negative.error) == (None, plain.error)
        assert (plain.schema_id, plain.json) == (None, None)
        assert "does not begin" in plain.error
        assert tuple(null) == (None, None, None)
        assert (missing.schema_id, missing.json) == (99, None)
        assert "the schema 99 is not in" in missing.error
        units = decoded.select(get_json_object("decoded.json", "$.total.units").alias("units"))
        assert units.where("units = '1250'").count() == 3
    assert_clean(tmp_path / "log")


def test_a_registry_that_does_not_answer_fails_the_query(spark: SparkSession, orders: str) -> None:
    """A query without its schemas is an error, and has no values that look as if they could not be decoded."""
    with RegistryServer() as server:
        url = server.url
    read = spark.read.format("logfs").option("subscribe", "orders").load(orders)
    with pytest.raises(PythonException, match=r"schemas/ids/\d: the request failed"):
        read.select(logfs.spark.decode("value", url)).collect()
