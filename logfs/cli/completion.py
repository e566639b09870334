"""`logfs completion`: print the script with which a shell completes commands, options, paths, groups and settings."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidUsage, LogfsError

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
_DIRECTORIES = re.compile("LOGDIR|TARGET|MOUNTPOINT|DIR")
_FILES = re.compile("FILE|MAP")
# The environment variable in which a completion script passes the words of the command line, one per line, to `logfs
# completion --groups`.
_WORDS = "LOGFS_COMPLETED_WORDS"
# For each shell, the function or command that completes a group's name. This is the value of an argument's attribute
# `complete`, which shtab reads. The code in `preamble` defines the functions.
_GROUPS = {
    "bash": "_logfs_groups",
    "zsh": "_logfs_groups",
    "fish": f"({_WORDS}=(commandline -opc | string collect) logfs completion --groups 2>/dev/null)",
    "preamble": {
        "bash": f"""
_logfs_groups() {{
  local IFS=$'\\n'
  compgen -W "$({_WORDS}="${{COMP_WORDS[*]}}" logfs completion --groups 2>/dev/null)" -- "$1"
}}""",
        "zsh": f"""
_logfs_groups() {{
  compadd -- ${{(f)"$({_WORDS}="${{(F)words}}" logfs completion --groups 2>/dev/null)"}}
}}""",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the shell, and `--groups`, with which the shell's script asks for the names of groups."""
    parser.add_argument("shell", nargs="?", choices=SHELLS, help="the shell that the script is for")
    parser.add_argument("--groups", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Print the completion script or, with `--groups`, the names of groups, one per line.

    Raises `InvalidUsage` if neither a shell nor `--groups` is given, and `LogfsError` if shtab, which generates the
    script, is not installed.
    """
    if arguments.groups:
        for group in _groups(os.environ.get(_WORDS, "").splitlines()):
            print(group)
        return 0
    if arguments.shell is None:
        raise InvalidUsage(f"give the shell: one of {', '.join(SHELLS)}")
    print(script_for(arguments.shell))
    return 0


def _groups(words: list[str]) -> list[str]:
    """Return the groups that have committed offsets in the log directories that a command line names.

    `words` are the words of the command line, beginning with the program.
    """
    from logfs.cli.common import log_dirs_of, split_name, with_whole_store
    from logfs.store.store import Store

    found: set[str] = set()
    for word in map(os.path.expanduser, words[1:]):
        with suppress(LogfsError, OSError):
            log_dirs = log_dirs_of(split_name([Path(word)])[0])
            # Open no partitions (`only=""`). The store loads those of `__consumer_offsets` in any case.
            with Store(with_whole_store(log_dirs), read_only=True, only="") as store:
                found |= {each.group for each in store.groups}
    return sorted(found)


def _settings() -> dict[str, object]:
    """Return, for each shell, code that completes the words of `logfs config`: directories and names of settings."""
    from logfs.setting import BROKER_SETTINGS, TOPIC_SETTINGS

    names = " ".join(sorted({*TOPIC_SETTINGS, *BROKER_SETTINGS}))
    return {
        "bash": "_logfs_settings",
        "zsh": "_logfs_settings",
        "fish": f"(__fish_complete_directories; string split ' ' '{names}')",
        "preamble": {
            "bash": f"""
_logfs_settings() {{
  compgen -d -S / -- "$1"
  compgen -W "{names}" -- "$1"
}}""",
            "zsh": f"""
_logfs_settings() {{
  _alternative 'directories:directory:_files -/' 'settings:setting:({names})'
}}""",
        },
    }


def script_for(shell: str) -> str:
    """Return the completion script for a shell of `SHELLS`. Raises `LogfsError` if shtab is not installed."""
    try:
        import shtab
    except ImportError as error:
        raise LogfsError(f"completion needs shtab ({error}): pip install shtab") from None
    from logfs.cli import whole_parser

    parser = whole_parser()
    for action in _actions(parser):
        # The name that the help gives an argument's value, such as LOGDIR or FILE, tells whether the value is a path.
        name = str(action.metavar or action.dest)
        if "-g" in action.option_strings:
            action.complete = _GROUPS  # type: ignore[attr-defined]
        elif name == "LOGDIR | NAME[=VALUE]":
            action.complete = _settings()  # type: ignore[attr-defined]
        elif _DIRECTORIES.search(name):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif _FILES.search(name):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = str(shtab.complete(parser, shell))
    # In zsh, "(*):" would complete only the first of several words.
    return script.replace('  "(*):', '  "*:') if shell == "zsh" else script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
