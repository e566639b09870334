"""`logfs completion`: print the script with which a shell completes commands, options and paths."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from logfs.errors import LogfsError

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
_DIRECTORIES = re.compile("LOGDIR|TARGET|MOUNTPOINT|DIR")
_FILES = re.compile("FILE|MAP")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")


def run(arguments: argparse.Namespace) -> int:
    """Print the script. Raises `LogfsError` if shtab, which makes it, is not installed."""
    print(script_for(arguments.shell))
    return 0


def script_for(shell: str) -> str:
    """Return the script for a shell of `SHELLS`. Raises `LogfsError` if shtab is not installed."""
    try:
        import shtab
    except ImportError as error:
        raise LogfsError(f"completion needs shtab ({error}): pip install shtab") from None
    from logfs.cli import whole_parser

    parser = whole_parser()
    for action in _actions(parser):
        # The name of an argument's value in the help tells whether it is a path.
        name = str(action.metavar or action.dest)
        if _DIRECTORIES.search(name):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif _FILES.search(name):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
