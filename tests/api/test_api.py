"""The names that `import logfs` gives, what `help` shows of them, and what type checkers say."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import logfs

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]

# The whole public interface. A name that is added here is a promise.
PUBLIC = {
    "Columns": "data header_counts header_ends header_starts key_lengths key_starts of offsets partition "
    "records select timestamp_types timestamps to_arrow to_pandas to_polars topic value_lengths value_starts",
    "Consumer": "close commit group partitions",
    "ConsumerGroups": "commit forget get items keys lag values",
    "ConsumerRecord": "headers key of of_partition offset partition timestamp timestamp_type topic value",
    "Following": "offsets seek",
    "OffsetAndTimestamp": "count index leader_epoch offset timestamp",
    "Partition": "append append_many columns compact delete delete_records flush follow last last_stable_offset "
    "log_end_offset log_start_offset name newest offset_for_time partition read record size_bytes tier topic "
    "truncate",
    "Record": "headers key offset timestamp timestamp_type value",
    "Server": "address close",
    "Store": "close closed consumer create create_topic flush get groups items keys offline retain topic topics "
    "transaction undelete upkeep values",
    "TimestampType": "CREATE_TIME LOG_APPEND_TIME NO_TIMESTAMP_TYPE as_integer_ratio bit_count bit_length conjugate "
    "denominator from_bytes imag numerator real to_bytes",
    "Topic": "append append_many delete flush follow name partitions read settings",
    "TopicSettings": "change clear get items keys pop popitem setdefault update values",
    "Transaction": "abort append append_many commit commit_offsets",
}
ERRORS = (
    "CommitPending Corrupt DamagedRange InvalidName InvalidProducerEpoch InvalidRecord InvalidSetting InvalidStore "
    "InvalidTransactionState LogDirFailed LogfsError NotWritable OffsetOutOfRange OutOfOrderSequence PartitionExists "
    "PartitionFailed PartitionNotEmpty RecordTooLarge RemoteStorageError StoreClosed StoreLocked UnknownGroup "
    "UnknownPartition UnknownSetting Unsupported"
)


def test_the_public_names_are_a_list() -> None:
    """The package has these names, the classes have these attributes, and everything else has an underscore."""
    assert {*logfs.__all__} == {*PUBLIC, *ERRORS.split(), "open", "serve"}
    for name, attributes in PUBLIC.items():
        kind = getattr(logfs, name)
        found = {*dir(kind), *inspect.get_annotations(kind)}
        assert {each for each in found if not each.startswith("_")} == {*attributes.split()}, name
    for name in ERRORS.split():
        assert issubclass(getattr(logfs, name), logfs.LogfsError)
    with pytest.raises(AttributeError, match="nothing"):
        _ = logfs.nothing  # type: ignore[attr-defined]


def test_star_import_gives_the_names() -> None:
    """A star import in a new interpreter defines every name of `__all__`."""
    code = "from logfs import *; import logfs; assert all(n in globals() for n in logfs.__all__)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_shows_what_a_user_needs() -> None:
    """`help(logfs)` shows the example and the classes, each method with its docstring, and nothing internal."""
    text = pydoc.plain(pydoc.render_doc(logfs))
    for words in (
        "with logfs.open(",
        "store.create_topic(",
        "append_many",
        "follow(",
        "docs/python.md",
    ):
        assert words in text
    assert "__getattr__" not in text
    for name in PUBLIC:
        kind = getattr(logfs, name)
        own = {k: v for k, v in vars(kind).items() if not k.startswith("_") and callable(v)}
        assert all(value.__doc__ for value in own.values()), name
    assert len((logfs.__doc__ or "").splitlines()) <= 40


def blocks() -> Sequence[str]:
    """Return the code of docs/python.md, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)


def test_the_page_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of docs/python.md run one after the other, and do what the page says."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks():
        exec(compile(block, "docs/python.md", "exec"), names)
    store = names["store"]
    assert isinstance(store, logfs.Store)
    assert store.closed
    with logfs.open("log", "r") as again:
        assert [each.value for each in again["orders-1"].read(isolation="read_committed")][-1:] == [
            b"out"
        ]
        assert again.groups["billing"]["orders-0"] == names["offset"]


def test_type_checkers_accept_the_page(tmp_path: Path) -> None:
    """mypy and pyright take the page's program in strict mode, and know the type of everything in it."""
    body = "\n".join(blocks()).replace("async def watch():", "async def watch() -> None:")
    program = tmp_path / "page.py"
    program.write_text(
        body + "\nfrom typing import assert_type\n"
        "assert_type(first.append(b''), int)\n"
        "assert_type(list(first.read()), list[logfs.Record])\n"
        "assert_type(next(orders.follow()), logfs.ConsumerRecord)\n"
        "assert_type(store.groups['billing']['orders-0'], int)\n"
        "first.append_many([logfs.Record('value', bytearray(b'key'), {'name': 'header'}), 'value'])\n"
    )
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        f'{{"typeCheckingMode": "strict", "reportUnusedExpression": false, "extraPaths": ["{ROOT}"], '
        f'"venvPath": "{Path(sys.prefix).parent}", "venv": "{Path(sys.prefix).name}"}}'
    )
    for command in (
        [
            "mypy",
            "--strict",
            "--config-file=",
            "--follow-imports=silent",
            f"--cache-dir={ROOT}/build/mypy",
            program,
        ],
        ["basedpyright", "--project", settings, program],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
