"""How many examples a test tries: of those that Hypothesis makes, and of like cases that could all be tried."""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hypothesis import settings

from tests.support.requirements import DEEP

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

SEED = "LOGFS_SEED"


def examples(share: float) -> settings:
    """Return the settings of a test that tries `share` times as many examples as the profile says.

    The profiles are in tests/conftest.py. The suite tries few examples, others for each commit; a campaign many.
    """
    return settings(max_examples=max(int(share * settings().max_examples), 1))


def seed_of(variable: str = SEED) -> int:
    """Return the seed in a variable of the environment, or one that changes by commit; 0 outside of a clone."""
    found = os.environ.get(variable) or os.environ.get(SEED)
    return int(found) if found else _commit() % 1_000_000


@functools.cache
def _commit() -> int:
    if shutil.which("git") is None:
        return 0
    at = Path(__file__).parent
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or "0", 16)


def drawn(cases: Iterable[T], count: int) -> list[T]:
    """Return `count` of the cases, in their order; all of them in a deep campaign, or if there are no more.

    The seed changes by commit, so that the suite tries all cases over some commits. A failing run prints it.
    """
    found = list(cases)
    if DEEP or len(found) <= count:
        return found
    places = random.Random(f"{seed_of()} {len(found)} {count}").sample(range(len(found)), count)
    return [found[place] for place in sorted(places)]
