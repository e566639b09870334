"""The tests of the compiled kernels once more, with every index of every kernel checked by numba."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

# Whatever calls kernels on bytes that a test makes up.
COVERING = (
    "tests/format/test_batch_kernels.py",
    "tests/format/test_hostile_headers.py",
    "tests/format/test_columnar_encoder.py",
    "tests/format/test_envelope_parser.py",
    "tests/log/test_offset_map.py",
)
# A kernel that reads behind its array must raise here, or the checks are off and the run below shows nothing.
CANARY = """
import sys
import numpy as np
import pytest
from logfs.format.kernels import batch_kernels
try:
    batch_kernels.get_varint(np.full(3, 255, np.uint8), 0, 9, 5)
except IndexError:
    sys.exit(pytest.main(sys.argv[1:]))
sys.exit("kernels are compiled without bounds checks")
"""


def test_kernels_stay_in_bounds(pytestconfig: pytest.Config) -> None:
    """No kernel reads or writes outside its arrays in any test of kernels."""
    # Compiled code does not tell whether it has the checks, so it has a cache of its own.
    cache = pytestconfig.cache
    assert cache is not None
    environment = os.environ | {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(cache.mkdir("numba-bounds")),
    }
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-c", CANARY, *options, *COVERING],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
