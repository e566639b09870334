"""The wheel and the sdist: the same bytes each time, complete, and installed without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, build
from tests.support.requirements import need

# The tests have a cache directory of their own, but these downloads are those of scripts/setup.
PIP = {"PIP_CACHE_DIR": str(Path.home() / ".cache/pip"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
CONSTRAINTS = ROOT / "scripts/constraints.txt"


@pytest.fixture(scope="module", autouse=True)
def _need_the_package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "-d"]
    done = subprocess.run(
        [*command, tmp_path_factory.mktemp("index"), "-c", CONSTRAINTS, "shtab"], check=False
    )
    need(done.returncode == 0, "no package index answers")


def test_two_builds_are_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Wheel and sdist do not depend on the directory, the time and the time zone of the build, or on the user."""
    build(tmp_path, "wheel", TMPDIR=str(tmp_path), LOGNAME="somebody", TZ="Asia/Tokyo")
    names = {path.name for path in wheel.parent.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert len(names) == 2
    for name in names:
        assert (tmp_path / name).read_bytes() == (wheel.parent / name).read_bytes(), name


def test_the_wheel_has_every_tracked_file_of_the_package(wheel: Path) -> None:
    """Modules and data. `pyspark_logfs` is at the top, where Spark looks for it."""
    command = ["git", "ls-files", "-z", "logfs"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    tracked = {name for name in done.stdout.split("\0") if name and (ROOT / name).exists()}
    wanted = {name.removeprefix("logfs/spark/discovery/") for name in tracked}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == wanted


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """From the sdist alone, without the clone."""
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    code = "from setuptools import build_meta; build_meta.build_wheel('.')"
    epoch = str(int((source / "PKG-INFO").stat().st_mtime))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(source / wheel.name) as ours, zipfile.ZipFile(wheel) as theirs:
        assert {name: ours.read(name) for name in ours.namelist()} == {
            name: theirs.read(name) for name in theirs.namelist()
        }


def pip(python: Path, *words: str | Path, path: Path) -> None:
    """Run pip with nothing on the PATH but an empty directory, so that it finds no compiler."""
    path.mkdir(exist_ok=True)
    environment = {**os.environ, **PIP, "PATH": str(path)}
    environment.pop("CC", None)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, *words],
        env=environment,
        check=True,
    )


def test_the_engine_and_the_command_line_need_no_compiler(wheel: Path, tmp_path: Path) -> None:
    """The wheel is installed into a clean environment from binary wheels alone, and appends and reads a line."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv/bin"
    pip(programs / "python", "--only-binary", ":all:", "--no-compile", wheel, path=tmp_path / "no")
    log = tmp_path / "log"
    log.mkdir()
    for words, text in (
        (["create", log / "orders-0"], ""),
        (["append", log / "orders-0"], "hello\n"),
    ):
        subprocess.run([programs / "logfs", *words], input=text, text=True, check=True)
    command = [programs / "logfs", "cat", log / "orders-0"]
    assert subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout == b"hello\n"


def test_the_extras_need_no_compiler(wheel: Path, tmp_path: Path) -> None:
    """The extras have binary wheels, and can be installed together.

    Left out are `mount`, which needs a compiler, and `spark`: pyspark has no compiled part, and no binary wheel.
    """
    pip(
        Path(sys.executable),
        *("--dry-run", "--ignore-installed", "--only-binary", ":all:"),
        f"{wheel}[mirror,tiered,schema,iceberg]",
        path=tmp_path / "no",
    )
