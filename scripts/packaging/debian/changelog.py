"""Prints docs/changelog.md as a Debian changelog: an entry for each version, with the time of SOURCE_DATE_EPOCH.

The headings below that of a version become `[ HEADING ]`, as usual in Debian, and links become their text. The
argument is the maintainer, as `NAME <ADDRESS>`.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from email.utils import formatdate
from pathlib import Path

ROOT = Path(__file__).parents[3]
LINE = 80


def main() -> None:
    """Print the entries, the newest first."""
    text = (ROOT / "docs/changelog.md").read_text()
    maintainer = sys.argv[1]
    date = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    for heading, body in re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        print(f"logfs ({heading}) unstable; urgency=medium\n")
        items = re.findall(r"^(- |### )(.*?)(?=^- |^### |\Z)", body, re.M | re.S)
        for number, (mark, item) in enumerate(items):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(item.split()))
            if mark == "### ":
                print("\n" * bool(number) + f"  [ {words} ]")
                continue
            print(
                textwrap.fill(words, LINE, initial_indent="  * ", subsequent_indent="    ",
                              break_long_words=False, break_on_hyphens=False)
            )  # fmt: skip
        print(f"\n -- {maintainer}  {date}\n")


if __name__ == "__main__":
    main()
