"""docs/spark.md: its examples are one program, which runs as it stands in a fresh home."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from logfs.spark.known_names import OPTIONS
from logfs.store.store import Store
from tests.spark.conftest import need_iceberg, need_spark
from tests.support.stores import assert_clean

GUIDE = Path(__file__).parents[2] / "docs/spark.md"


@pytest.mark.timeout(600)
def test_every_example_runs_as_it_stands(tmp_path: Path) -> None:
    """The examples run from top to bottom in an empty home, print what the text says, and leave what it says."""
    need_spark()
    need_iceberg()
    examples = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    program = tmp_path / "guide.py"
    program.write_text("\n".join(examples))
    # A session without a master takes a home of Spark for one that may name a master.
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYSPARK_") and name != "SPARK_HOME"
    }
    # Spark listens on the loopback interface only.
    environment = {**own, "HOME": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "replaced a previously registered" not in done.stderr
    shown = done.stdout
    assert "value 0" in shown
    assert re.search(r"\|\s+0\|\s+7\|", shown), "from offset 23 on"
    assert "20 late ones" in shown
    assert "0 offsets behind" in shown
    assert "\n0 new records" in shown
    assert "62 rows" in shown
    home = tmp_path / "logfs-guide"
    assert_clean(home / "log")
    with Store(home / "log", read_only=True) as store:

        def values(topic: str, count: int = 2) -> list[bytes | None]:
            return [
                record.value
                for number in range(count)
                for record in store[f"{topic}-{number}"].read()
            ]

        assert len(values("orders")) == 62
        # The batch, the stream, and one of the two calls with the same transaction.
        answers = values("answers")
        assert (answers.count(b"seen value 7"), answers.count(b"value 7")) == (2, 4)
        for number in range(2):
            orders, copies = store[f"orders-{number}"].read(), store[f"copies-{number}"].read()
            assert list(orders) == list(copies)
        newest = {record.key: record.value for record in store["counts-0"].read()}
        assert newest == {b"0": b"30", b"1": b"32"}
        users = [(record.key, record.value) for record in store["users-0"].read()]
        assert users == [(b"7", b"alice"), (b"9", b"bob")]
        lake = store.groups.committed("lake", "orders-1")
        assert lake is not None
        assert lake.offset == 32


def test_every_option_is_in_the_guide() -> None:
    """The guide tells of every option that a read or a write may have."""
    options = GUIDE.read_text().split("## Options")[1].split("## What is a loss")[0]
    documented = set(re.findall(r"`([a-zA-Z]+)`", options))
    assert documented >= set(OPTIONS)
