"""docs/spark.md: all of its examples run, in their order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.format.batches.record import Record
from logfs.store.store import Store

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[2] / "docs/spark.md"


def test_every_example_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every example of the guide runs, with its paths below a test directory and topics with two partitions."""
    with Store(tmp_path / "logfs") as store:
        for number in range(2):
            partition = store.create(f"orders-{number}")
            partition.append([Record(b"value %d" % n, b"key") for n in range(30)])
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/7.avsc").write_text('"string"')
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for example in examples:
        exec(example.replace("/var/lib", str(tmp_path)), names)
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert names["spark"] is not None
    shown = capsys.readouterr().out
    assert "value 0" in shown
    assert re.search(r"\|\s+0\|\s+7\|", shown), "from offset 23 on"
    assert "20 late ones" in shown
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 60
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 60
    with Store(tmp_path / "logfs", read_only=True) as store:
        answers = [
            record.value for number in range(2) for record in store[f"answers-{number}"].read()
        ]
        for number in range(2):
            orders, copies = store[f"orders-{number}"].read(), store[f"copies-{number}"].read()
            assert list(orders) == list(copies)
        users = [(record.key, record.value) for record in store["users-0"].read()]
        assert users == [(b"7", b"alice"), (b"9", b"bob")]
    # The batch, the stream, and one of the two calls with the same transaction.
    assert len(answers) == 180
    assert answers.count(b"seen value 7") == 2
    assert answers.count(b"value 7") == 4


def test_every_option_is_in_the_guide() -> None:
    """The guide's table has every option that the code reads."""
    code = (Path(__file__).parents[2] / "logfs/spark/options.py").read_text()
    asked = set(
        re.findall(r'"((?:max|min|starting|ending|initial|split|fail|isolation)[A-Z]\w*)"', code)
    )
    asked |= {
        f"{which}{kind}" for which in ("starting", "ending") for kind in ("Timestamp", "Offsets")
    }
    table = GUIDE.read_text().split("## Options")[1].split("## What is a loss")[0]
    documented = set(re.findall(r"`([a-zA-Z]+)`", table))
    assert asked <= documented
