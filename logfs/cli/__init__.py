"""The command line: argv, environment, standard streams and exit codes live here alone.

One file a command, imported when it is called, so that `logfs --help` costs nothing. A command module has
`add_arguments(parser)` and `run(arguments) -> int`. Exit codes: 0 done, 1 something is wrong with the data or the
world, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

COMMANDS = {
    "mount": "mount log directories as a filesystem",
    "umount": "unmount, and wait until everything is safely closed",
    "status": "what a mount or a log directory is doing",
    "top": "a live table of partitions",
    "create": "make a partition",
    "delete": "delete a partition",
    "delete-records": "make the records below an offset unreadable",
    "retain": "drop the segments that have had their time, or tell which and why",
    "compact": "keep only the newest record of each key",
    "move": "take a partition to another log directory",
    "describe": "sizes and offsets of partitions",
    "append": "append lines or JSON envelopes",
    "cat": "print records by offset, time, range or key",
    "tail": "print the last records, and follow",
    "dump": "print what is in .log, .snapshot and index files, as kafka-dump-log does",
    "check": "audit everything, and change nothing",
    "recover": "check and repair what a crash left, now",
    "reindex": "make all indexes of a partition anew",
    "config": "show or change settings",
    "spark": "verify, rebuild, compact, export, import and count with Spark",
    "groups": "what consumer groups have committed, and how far behind they are",
}

_EPILOG = """\
A TARGET is a partition: its directory (LOGDIR/orders-0), or LOGDIR… and its name. Reading commands work beside a
mount or a broker; the others need the directory for themselves. 'logfs COMMAND --help' tells more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return _choose("logfs", "Kafka's log, as files.", COMMANDS, __name__, words)


def _choose(
    prog: str, description: str, commands: dict[str, str], package: str, words: list[str]
) -> int:
    """Run the command that the first word names; one that has `COMMANDS` of its own leaves the choice to the next."""
    if words and words[0] in commands:
        name, text = words[0], commands[words[0]]
        text = f"{text[0].upper()}{text[1:]}."
        path = f"{package}.{name.replace('-', '_')}"
        module = importlib.import_module(path)
        if hasattr(module, "COMMANDS"):
            return _choose(f"{prog} {name}", text, module.COMMANDS, path, words[1:])
        parser = argparse.ArgumentParser(prog=f"{prog} {name}", description=text, epilog=_EPILOG)
        module.add_arguments(parser)
        return _run(module, parser.parse_intermixed_args(words[1:]))
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_list_of(commands) + "\n" + _EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"logfs {_version()}")
    parser.add_argument("command", choices=commands, metavar="COMMAND", help="one of these:")
    parser.parse_args(words[:1] or ["--help"])
    return 2


def _list_of(commands: dict[str, str]) -> str:
    return "".join(f"  {name:16}{text}\n" for name, text in commands.items())


def mount_helper() -> int:
    """`mount.logfs`, what mount(8) runs for an fstab line of type `logfs`.

    It is called as `mount.logfs LOGDIR[,LOGDIR…] MOUNTPOINT [-sfnv] [-o OPTIONS]`.
    """
    parser = argparse.ArgumentParser(prog="mount.logfs")
    parser.add_argument("log_dirs")
    parser.add_argument("mountpoint")
    parser.add_argument("-o", dest="options", action="append", default=[])
    for flag in "sfnv":
        parser.add_argument(f"-{flag}", action="store_true")
    parser.add_argument("-t")
    parsed = parser.parse_args()
    options = [f"-o{option}" for option in parsed.options]
    return main(["mount", *options, *parsed.log_dirs.split(","), parsed.mountpoint])


def _run(module: ModuleType, parsed: argparse.Namespace) -> int:
    from logfs.errors import LogfsError

    try:
        code = int(module.run(parsed))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does: nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"logfs: {where}{error.strerror or error}", file=sys.stderr)
    except LogfsError as error:
        print(f"logfs: {error}", file=sys.stderr)
    return 1


def _version() -> str:
    import logfs

    return logfs.__version__
