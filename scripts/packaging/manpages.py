"""Manual pages from the parser of the command line: logfs(1), and logfs-COMMAND(1) for each command."""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path

from argparse_manpage.manpage import Manpage

import logfs
from logfs.cli import COMMANDS, whole_parser

_MORE = """\
Each command has a page of its own, such as logfs-mount(1), and tells its options by --help. The documentation is in
README.md and docs/ of the source.
"""


def main() -> int:
    """Write the pages into the directory that the first argument names, and print how many."""
    if len(sys.argv) != 2:
        print("usage: scripts/man DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    pages = manual_pages()
    for name, text in pages.items():
        directory.joinpath(f"{name}.1").write_text(text)
    print(f"{len(pages)} manual pages in {directory}")
    return 0


def manual_pages() -> dict[str, str]:
    """Return the pages by name, such as `logfs-mount`."""
    parser = whole_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    pages = {"logfs": _overview()}
    for name, each in commands.choices.items():
        pages[f"logfs-{name}"] = _page(each, f"logfs-{name}", COMMANDS[name])
    return pages


def _overview() -> str:
    """Return the page that lists the commands."""
    parser = argparse.ArgumentParser(
        prog="logfs", usage="logfs [--version] COMMAND …", description=_MORE, add_help=False
    )
    group = parser.add_argument_group("commands")
    for name, text in COMMANDS.items():
        group.add_argument(f"--{name}", action="store_true", help=f"{text}: logfs-{name}(1)")
    page = _page(parser, "logfs", "Kafka's log, as files")
    # The library knows options and arguments, but no plain list.
    return re.sub(r"\\fB\\-\\-([a-z\\-]+)\\fR", r"\\fB\1\\fR", page)


def _page(parser: argparse.ArgumentParser, name: str, text: str) -> str:
    # The pager breaks lines, and not at hyphens.
    parser.formatter_class = partial(argparse.HelpFormatter, width=10_000)  # type: ignore[assignment]
    page = Manpage(parser, format="single-commands-section")
    page.prog = name
    page.description = text
    page.source = f"logfs {logfs.__version__}"
    page.manual = "logfs"
    # The same source gives the same page on any day.
    page.date = logfs.__version__
    return str(page)


if __name__ == "__main__":
    sys.exit(main())
