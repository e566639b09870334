"""What a campaign finds: every failure is kept with what repeats it, and told together with its like at the end."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 3
# After so many a campaign ends: it is broken itself, or what it attacks is.
_MOST = 100


class Findings:
    """The failures of a campaign, by their kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[str]] = {}

    @property
    def are_too_many(self) -> bool:
        """Whether there is no sense in going on."""
        return sum(map(len, self.kinds.values())) >= _MOST

    @contextmanager
    def collect(self, where: str) -> Iterator[None]:
        """Keep an `AssertionError` or `TimeoutError` of the block, and go on after it."""
        try:
            yield
        except (AssertionError, TimeoutError) as error:
            self.add(where, str(error) or repr(error))

    def add(self, where: str, what: str) -> None:
        """Keep a failure; its kind is its text without numbers and paths."""
        kind = re.sub(r"'[^']*'|\"[^\"]*\"|/[^ :]*|\(.*|0x[0-9a-f]+", "_", what.split("\n")[0])
        kind = re.sub(r"[0-9]+", "N", kind)[:160]
        self.kinds.setdefault(kind, []).append(f"{where}: {what}")

    def report(self) -> None:
        """Fail if there are any, with some examples of each kind."""
        if not self.kinds:
            return
        lines = [f"{sum(map(len, self.kinds.values()))} failures of {len(self.kinds)} kinds"]
        for kind, examples in sorted(self.kinds.items(), key=lambda item: -len(item[1])):
            lines.append(f"{len(examples)} x {kind}")
            lines += [f"    {example[:1500]}" for example in examples[:_SHOWN]]
        # At once, for the test that follows may take long.
        print("\n".join(lines), flush=True)
        pytest.fail(lines[0], pytrace=False)
