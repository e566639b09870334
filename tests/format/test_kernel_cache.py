"""The cache of compiled kernels: it is used while no source of a kernel has changed, whichever file that is in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import logfs
from logfs.format.kernels import kernel
from tests.support.examples import drawn

# A kernel whose constant and whose inner loop are in other files.
FILES = {
    "base/probe_base.py": "BASE = 1\n",
    "base/probe_rows.py": "from logfs.format.base import probe_base\n\nCOLUMN = probe_base.BASE + 1\n",
    "kernels/probe_part.py": """
from logfs.format.kernels.kernel import inlined_kernel

@inlined_kernel
def part(value):
    return value * 10
""",
    "kernels/probe.py": """
from logfs.format.base.probe_rows import COLUMN
from logfs.format.kernels.kernel import kernel
from logfs.format.kernels.probe_part import (
    part,
)

@kernel
def probe(value):
    return part(value) + COLUMN
""",
}
PROBE = "from logfs.format.kernels.probe import probe; print(probe(1))"
# One of the real kernels, which is compiled within a second.
VARINT = """
import numpy
from logfs.format.kernels.batch_kernels import get_varint
print(get_varint(numpy.array([2], numpy.uint8), 0, 1, 10)[0])
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the sources of the package, with the files above, and without compiled code."""
    root = tmp_path / "logfs"
    source = Path(logfs.__file__).parent
    shutil.copytree(source, root, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        (root / "format" / name).write_text(text)
    return root


def run(package: Path, program: str) -> tuple[str, bool]:
    """Return the last line that a program prints, and whether it has compiled anything."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "PYTHONPATH": str(package.parent), "NUMBA_DEBUG_CACHE": "1"},
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1], "[cache] data saved" in done.stdout


def edit(path: Path, old: str, new: str) -> None:
    """Change a source, and keep its size and its modification time, as an unlucky update does."""
    status, text = path.stat(), path.read_text()
    assert old in text
    assert len(old) == len(new)
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    # Python would take the old code of the module, too.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def test_a_kernel_is_compiled_again_when_another_file_changes(package: Path) -> None:
    """A constant, one that another constant is made of, and an inner loop count as soon as they have changed."""
    assert run(package, PROBE) == ("12", True)
    edit(package / "format/base/probe_base.py", "BASE = 1", "BASE = 5")
    assert run(package, PROBE) == ("16", True)
    edit(package / "format/base/probe_rows.py", "+ 1", "+ 3")
    assert run(package, PROBE) == ("18", True)
    edit(package / "format/kernels/probe_part.py", "* 10", "* 20")
    assert run(package, PROBE) == ("28", True)
    assert run(package, PROBE) == ("28", False)


# Files whose code is in the kernels of batches, and others.
PARTS = ("base/batch_rows.py", "kernels/json_kernels.py", "kernels/kernel.py")
OTHERS = ("kernels/text_kernels.py", "encoding/batch_builder.py")


def test_the_sources_of_the_kernels_of_batches(package: Path) -> None:
    """The cache knows all files whose code is in these kernels, and no others."""
    assert run(package, VARINT) == ("1", True)
    for name in (*drawn(OTHERS, 1), *drawn(PARTS, 1)):
        with (package / "format" / name).open("a") as file:
            file.write("\n# changed\n")
        assert run(package, VARINT) == ("1", name in PARTS), name


def test_the_temporary_cache_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that others may write to, or a link, is not used: they could put other code there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kernel.config, "CACHE_DIR", "")
    path = tmp_path / f"logfs-kernels-{os.geteuid()}"
    use = kernel._use_temporary_cache.__wrapped__
    (tmp_path / "other").mkdir(mode=0o700)
    path.symlink_to(tmp_path / "other")
    assert not use()
    path.unlink()
    path.mkdir()
    path.chmod(0o777)
    assert not use()
    assert kernel.config.CACHE_DIR == ""
    path.chmod(0o700)
    assert use()
    assert str(path) == kernel.config.CACHE_DIR
