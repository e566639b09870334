"""`--schemas`: what `cat`, `tail` and `consume` show of values that Confluent's serializers wrote."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import pytest

import logfs
from logfs.store.store import Store
from tests.support.command_line import call, fails, misused, ok
from tests.support.schemas import VECTORS, RegistryServer, append_schemas, write_files
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.mounts import Mount

STRING = VECTORS["avro string"].data
# Values that are shown as they are stored, and the reasons.
RAW = {b"plain": "does not begin", b"\0\0\0\0\x63x": "schema 99 is not in", STRING[:-1]: "fit"}


@pytest.fixture
def target(log_dir: Path) -> Iterator[str]:
    """A partition with each value, under a key that is a string of Avro; then a null; and the topic `_schemas`."""
    with Store(log_dir) as store:
        append_schemas(store)
        records = [logfs.Record(each.data, STRING, [("n", b"1")]) for each in VECTORS.values()]
        store.create("orders-0").append([*records, logfs.Record(None, b"key")])
    yield f"{log_dir}/orders-0"
    assert_clean(log_dir)


def test_all_values(log_dir: Path, target: str, tmp_path: Path) -> None:
    """Lines and envelopes have the JSON, wherever the schemas are; keys are decoded only if that is asked for."""
    with RegistryServer() as server:
        for place in (log_dir, write_files(tmp_path / "files"), server.url):
            lines = ok("cat", target, "--schemas", place).splitlines()
            assert lines.pop() == ""
            assert [orjson.loads(line) for line in lines] == [
                each.decoded for each in VECTORS.values()
            ]
    shown = [
        orjson.loads(line) for line in ok("cat", target, "--schemas", log_dir, "-J").splitlines()
    ]
    assert [each["value"] for each in shown] == [
        *(each.decoded for each in VECTORS.values()),
        None,
    ]
    assert shown[0]["key"] == STRING.decode()
    last = ok(
        "tail", "-n", "2", target, "--schemas", log_dir, "--decode", "value", "-J"
    ).splitlines()
    assert [orjson.loads(line) for line in last] == shown[-2:]
    both = ["--schemas", str(log_dir), "--decode", "key,value"]
    one = call("cat", target, *both, "-o", "3", "-F", "%k %s %S %h\n")
    assert one.stdout == '"hello" {"a":1.5,"b":"é"} 18 n=1\n'.encode()
    assert one.stderr == b""
    keys = call("cat", target, *both[:2], "--decode", "key", "-F", "%k,")
    assert keys.stdout == b'"hello",' * len(VECTORS) + b"key,"
    assert b"1 key could not be decoded" in keys.stderr


def test_the_filters_see_what_is_shown(log_dir: Path, target: str) -> None:
    """A regular expression is searched in the JSON, a key is compared with the decoded key."""
    schemas = ("--schemas", str(log_dir))
    assert ok("cat", target, *schemas, "--grep", '"kind":"RETURN"', "-F", "%o\n") == "4\n"
    assert ok("tail", "-n", "1", target, *schemas, "--grep", '"units"', "-F", "%o\n") == "4\n"
    assert ok("cat", target, "--grep", '"kind"') == ""
    done = call("cat", target, *schemas, "--decode", "key", "-k", '"hello"', "-F", "%o ")
    assert done.stdout == b"0 1 2 3 4 5 6 "


def test_what_cannot_be_decoded_is_shown_and_counted(log_dir: Path, target: str) -> None:
    """It is shown as it is stored, each reason once with its first record, and at the end how many there are."""
    with Store(log_dir, create=False) as store:
        store["orders-0"].append([*RAW, *RAW])
    done = call("cat", target, "-o", "8..", "--schemas", log_dir)
    assert done.returncode == 0
    assert done.stdout == b"".join(value + b"\n" for value in (*RAW, *RAW))
    *told, total = done.stderr.decode().splitlines()
    for offset, (line, reason) in enumerate(zip(told, RAW.values(), strict=True), 8):
        assert line.startswith(f"logfs: orders-0 offset {offset}: the value is shown as stored: ")
        assert reason in line
    assert total == "logfs: 6 values could not be decoded, and are shown as stored"
    shown = call("cat", target, "-o", "8", "--schemas", log_dir, "-J")
    assert orjson.loads(shown.stdout)["value"] == "plain"
    # What is read twice to find the last records is counted once.
    last = call("tail", target, "-n", "100", "--schemas", log_dir, "--grep", "hello|plain")
    assert "logfs: 6 values" in last.stderr.decode()


def test_the_schemas_of_a_mount(make_mount_of_target: Mount) -> None:
    """A mountpoint is a place of schemas, and has records to decode."""
    path = make_mount_of_target.path
    assert ok("cat", path / "orders-0", "--schemas", path, "-o", "2") == '"hello"\n'


@pytest.fixture
def make_mount_of_target(target: str, request: pytest.FixtureRequest) -> Mount:
    """A mount of the log directory."""
    mount: Mount = request.getfixturevalue("make_mount")()
    return mount


def test_consume_decodes(log_dir: Path, target: str) -> None:
    """Members print and pass on what is decoded."""
    schemas = ("--schemas", str(log_dir), "--idle-exit", "0")
    assert ok("consume", target, "-g", "a", *schemas, "-n", "3").splitlines()[2] == '"hello"'
    assert ok("consume", target, "-g", "b", *schemas, "--exec", "wc -l").strip() == "8"


def test_wrong_options(log_dir: Path, target: str, tmp_path: Path) -> None:
    """Each says what to give; a registry that does not answer is an error, and not a value that is not decoded."""
    assert "is no source of schemas" in fails("cat", target, "--schemas", tmp_path / "none")
    assert "give value, key" in misused("cat", target, "--schemas", log_dir, "--decode", "headers")
    assert "needs --schemas" in misused("cat", target, "--decode", "value")
    with RegistryServer() as server:
        url = server.url
    refused = fails("cat", target, "--schemas", url)
    assert f"{url}/schemas/ids/2: the request failed: Connection refused" in refused
    secret = url.replace("//", "//me:secret@")
    assert "secret" not in fails("cat", target, "--schemas", secret)


def test_without_the_libraries(log_dir: Path, target: str) -> None:
    """An error says what to install, and nothing else needs the libraries."""
    hide = (
        "import sys; sys.modules.update(dict.fromkeys(['fastavro', 'requests', 'google.protobuf', 'grpc_tools']));"
        "from logfs.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", hide, "cat", target]
    done = subprocess.run([*words, "--schemas", log_dir], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"logfs[schema]" in done.stderr
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
