"""The ratios as horizontal bars in an SVG, written by hand: the project does not depend on a plot library."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness import Result

_ROW = 26
_LEFT = 450
_WIDTH = 360
_TOP = 56


def bars(results: list[Result]) -> str:
    """Return an SVG with a bar for each row.

    A full bar is as good as the peer (or the allowance). The line is the floor, or the target if there is no floor.
    """
    shown = [result for result in results if result.ratio is not None]
    height = _TOP + _ROW * len(shown) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 250}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="20" font-size="15">logfs against its peers: how much of the peer\'s speed</text>',
        '<text x="12" y="40" fill="#666">full width: as fast as the peer; the mark: the floor, '
        "or the target where there is none</text>",
    ]
    for number, result in enumerate(shown):
        parts += _bar(result, _TOP + number * _ROW)
    return "\n".join([*parts, "</svg>", ""])


def _bar(result: Result, y: int) -> list[str]:
    assert result.ratio is not None
    good = 1 / result.ratio if result.at_most else result.ratio
    limit = result.floor if result.floor is not None else result.target
    colour = "#c0392b" if result.verdict.isupper() else "#2e7d5b"
    parts = [
        f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(result.what)}</text>',
        f'<rect x="{_LEFT}" y="{y + 3}" width="{_WIDTH}" height="18" fill="#eee"/>',
        f'<rect x="{_LEFT}" y="{y + 3}" width="{_WIDTH * min(good, 1):.0f}" height="18" fill="{colour}"/>',
        f'<text x="{_LEFT + _WIDTH + 8}" y="{y + 16}">{result.ratio:.2f}: {escape(result.measured)}</text>',
    ]
    if limit:
        at = _LEFT + _WIDTH * min(1 / limit if result.at_most else limit, 1)
        parts.append(f'<path d="M{at:.0f} {y} v24" stroke="black" stroke-width="2"/>')
    return parts
