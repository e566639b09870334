"""How many examples Hypothesis tries in a test."""

from __future__ import annotations

from hypothesis import settings


def examples(share: float) -> settings:
    """Return the settings of a test that tries `share` times as many examples as the profile says.

    The profiles are in tests/conftest.py: the suite tries the same few examples in each run, a deep campaign many.
    """
    return settings(max_examples=max(int(share * settings().max_examples), 1))
