"""The failures that a campaign finds: each with a way to repeat it. All are reported by kind at the end."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 3
# A campaign ends after this number of failures: either the campaign itself or the code under test is broken.
_MOST = 100


class Findings:
    """The failures of a campaign, by kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[str]] = {}

    @property
    def are_too_many(self) -> bool:
        """Whether there are too many failures to continue."""
        return sum(map(len, self.kinds.values())) >= _MOST

    @contextmanager
    def collect(self, where: str) -> Iterator[None]:
        """Keep an `AssertionError` or `TimeoutError` of the block, and continue after the block."""
        try:
            yield
        except (AssertionError, TimeoutError) as error:
            self.add(where, str(error) or repr(error))

    def add(self, where: str, what: str) -> None:
        """Keep a failure. Its kind is the first line of `what` without numbers and paths."""
        kind = re.sub(r"'[^']*'|\"[^\"]*\"|/[^ :]*|\(.*|0x[0-9a-f]+", "_", what.split("\n")[0])
        kind = re.sub(r"[0-9]+", "N", kind)[:160]
        self.kinds.setdefault(kind, []).append(f"{where}: {what}")

    def report(self) -> None:
        """Fail the test if there are failures, and print some examples of each kind."""
        if not self.kinds:
            return
        lines = [f"{sum(map(len, self.kinds.values()))} failures of {len(self.kinds)} kinds"]
        for kind, examples in sorted(self.kinds.items(), key=lambda item: -len(item[1])):
            lines.append(f"{len(examples)} x {kind}")
            lines += [f"    {example[:6000]}" for example in examples[:_SHOWN]]
        # Flush at once: the next test may take long.
        print("\n".join(lines), flush=True)
        pytest.fail(lines[0], pytrace=False)
