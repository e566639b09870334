"""The command line. No other package uses argv, the standard streams or exit codes.

Each command is one file, imported only when the command runs, so that `logfs --help` starts fast. A command module
has `add_arguments(parser)` and `run(arguments) -> int`, which returns the exit code: 0 for success, 1 for an error in
the data or the system, 2 for wrong usage. `umount` also returns 3. `consume` returns 128 plus the number of the
signal that ends it, and `top` 143 after SIGTERM.

After Ctrl-C, `mount -f`, `serve`, `top` and `volume-plugin` return 0. The other commands that do not write to log
directories (`_READ_ONLY`) are killed by the signal, and a shell reports 130 for them. All other commands return 130.

Commands share `common` (arguments, opening a store, tables, errors), `service_manager` (messages to systemd) and
`watch` (the snapshots that `status` and `top` show). `cat`, `tail` and `consume` also share `selection` (which
records are printed), `human_times` (parses times), `reading` (the partitions of a TARGET), `scanning` (reads records,
and skips damage), `decoding` (decodes keys and values by schemas) and `output` (the form of the output). `tail` and
`consume` share `output_pipe` (what the reader of a pipe has taken, and whether it has exited). `dump` is a folder
with a module for each kind of file, and `spark` a folder with a module for each job.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import os
import re
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

COMMANDS = {
    "mount": "mount log directories as a filesystem",
    "umount": "unmount, and wait until the store is safely closed",
    "status": "show the state of mounts or of a log directory",
    "top": "show a live table of partitions",
    "create": "create a partition",
    "delete": "delete a partition or a topic",
    "undelete": "bring a deleted partition or topic back",
    "delete-records": "make the records below an offset unreadable",
    "retain": "drop the segments eligible for deletion, or list them with the reasons",
    "compact": "keep only the newest record of each key",
    "tier": "copy sealed segments into an object store, or list what would be copied",
    "move": "move a partition to another log directory",
    "describe": "print sizes and offsets of partitions",
    "append": "append lines or JSON envelopes",
    "cat": "print records by offset, time, range or key",
    "tail": "print the last records, and follow",
    "consume": "read as a member of a consumer group, and commit offsets",
    "dump": "print the contents of .log, .snapshot and index files, as kafka-dump-log does",
    "report": "draw sizes, rates, retention, lags, keys and damage on an HTML page",
    "check": "audit log directories without changing them",
    "recover": "run recovery now, as after a crash",
    "reindex": "rebuild all indexes of a partition",
    "config": "show or change settings",
    "spark": "verify, reindex, compact, export, import and count with Spark",
    "serve": "let Kafka's clients read log directories or a bucket",
    "mirror": "follow topics of a Kafka cluster, batch by batch",
    "push": "send topics into a Kafka cluster, batch by batch",
    "promote": "make a mirrored topic an ordinary one, open to appends",
    "groups": "show the committed offsets and the lag of consumer groups",
    "volume-plugin": "serve log directories as volumes of Docker and Podman",
    "completion": "print a script that completes commands in a shell",
}

# Commands that Ctrl-C may kill at once: they do not write to log directories. `serve` and `volume-plugin` set their
# own handlers.
_READ_ONLY = frozenset(
    {
        "cat",
        "check",
        "describe",
        "dump",
        "report",
        "serve",
        "status",
        "tail",
        "umount",
        "volume-plugin",
        "completion",
    }
)
# The exit code that a shell reports for a command killed by SIGINT.
_INTERRUPTED = 130
# The delay before a Ctrl-C that Python has discarded is sent again (`_resend_lost_ctrl_c`).
_AGAIN_SECONDS = 0.02
# The error handler for text that the encoding of a standard stream cannot represent.
_PRINTABLE = "logfs.printable"

_EPILOG = """\
A TARGET is a partition: its directory (LOGDIR/orders-0), or LOGDIR… and its name. Some commands also take a
topic. While log directories are mounted, all commands work except recover, reindex, mirror, 'spark reindex' and
'spark compact'. While a broker uses them, only commands that read work. 'logfs COMMAND --help' shows details.
"""


# A URL that may contain a password. Messages show only its scheme, which is group 1 of the match.
_SECRET = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:[/\\]+)(\S*[@?#%]\S*|\S*;\S+)")


def without_secrets(message: str) -> str:
    """Return a message without the passwords of URLs: http://user:secret@host becomes http://***.

    `***` replaces all of a URL after the scheme if a password may be in it: if it has `@`, `?`, `#` or `%`, or a `;`
    before its last character.
    """
    return _SECRET.sub(r"\1***", message)


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages hide the passwords in URLs, and suggest an option in place of an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Print a usage error, and exit with code 2."""
        from logfs.errors import did_you_mean

        wrong = re.match(r"unrecognized arguments: (--[a-z-]+)", message)
        hint = did_you_mean(wrong[1], self._option_string_actions) if wrong else ""
        super().error(without_secrets(message) + hint)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `argv` defaults to the arguments of the process."""
    _open_standard_streams()
    _buffer_output()
    codecs.register_error(_PRINTABLE, _escape_unprintable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PRINTABLE)
    words = list(sys.argv[1:] if argv is None else argv)
    # numpy's linear algebra, which logfs does not use, otherwise starts a thread for each processor when loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if argv is None:
        sys.unraisablehook = _resend_lost_ctrl_c
    try:
        return _choose("logfs", "Kafka's log, as files.", COMMANDS, __name__, words)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit:
        # argparse has printed a help, the version, or an error.
        try:
            sys.stdout.flush()
        except OSError as error:
            _discard(sys.stdout)
            if not isinstance(error, BrokenPipeError):
                print(f"logfs: standard output: {error.strerror}", file=sys.stderr)
            return 1
        raise
    finally:
        try:
            sys.stderr.flush()
        except OSError:
            # The flush fails on a full disk, for example. At exit Python would flush again, fail, and exit with 120
            # instead of the command's code.
            _discard(sys.stderr)


def _resend_lost_ctrl_c(lost: sys.UnraisableHookArgs) -> None:
    """Send SIGINT again if its `KeyboardInterrupt` was raised while an object was freed.

    Python discards exceptions that are raised while it frees an object, so this Ctrl-C would have no effect. This
    function is set as `sys.unraisablehook`. It passes any other exception to Python's default hook.
    """
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


def _open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that the caller has closed.

    Otherwise the next file that the process opens would get the descriptor of the stream, and printed text would be
    written into that file. For standard output, /dev/null is opened read-only, so that a write fails (EBADF). Other
    programs also fail if their standard output is closed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The kernel assigns the lowest free descriptor, which is that of the closed stream.
            flags = os.O_RDONLY if name == "stdout" else os.O_RDWR
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _buffer_output() -> None:
    """Give standard output and standard error a line buffer if `python -u` or PYTHONUNBUFFERED has disabled it.

    Without a buffer, a full disk may cut a write short without an error. `print` also writes the newline in a second
    call, so another thread or process may write before the newline.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.RawIOBase):
            buffered = os.fdopen(stream.fileno(), "w", encoding=stream.encoding, closefd=False)
            buffered.reconfigure(line_buffering=True)
            setattr(sys, name, buffered)


def _escape_unprintable(error: UnicodeError) -> tuple[bytes, int]:
    """Return the bytes to print for characters that an encoding lacks, and the position after these characters.

    This is an error handler for `codecs`. A surrogate stands for a byte of a file name, and becomes that byte; any
    other character becomes an escape such as `\\u2026`.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    told = b""
    for letter in error.object[error.start : error.end]:
        is_byte = 0xDC80 <= ord(letter) <= 0xDCFF
        told += letter.encode("ascii", "surrogateescape" if is_byte else "backslashreplace")
    return told, error.end


def _choose(
    prog: str, description: str, commands: dict[str, str], package: str, words: list[str]
) -> int:
    """Run the command that the first word names, and return the exit code.

    `commands` maps the names of the commands to one-line descriptions, and `package` is the package with their
    modules. `words` are the arguments after `prog`: "logfs" or, for a subcommand, "logfs spark". The help shows
    `prog` and `description`. If the module of a command has `COMMANDS`, as that of `spark` has, the second word names
    the subcommand. For an unknown command, prints an error and exits with code 2.
    """
    if words and words[0] in commands:
        name, text = words[0], _sentence(commands[words[0]])
        path = _module_of(package, name)
        with _ended_by_ctrl_c():
            module = importlib.import_module(path)
        if hasattr(module, "COMMANDS"):
            return _choose(f"{prog} {name}", text, module.COMMANDS, path, words[1:])
        with _ended_by_ctrl_c():
            parser = _Parser(prog=f"{prog} {name}", description=text, epilog=_EPILOG)
            module.add_arguments(parser)
            for word in words[1:]:
                if word.startswith("-") and word.endswith("=--"):
                    # argparse would read `--option=--` as an option without a value, and store an empty list.
                    parser.error(f"argument {word.removesuffix('=--')}: '--' is not a value")
            parsed = parser.parse_intermixed_args(_joined(words[1:]))
            if name in _READ_ONLY:
                return _run(module, parsed)
            # Import most of what the command needs here, where Ctrl-C still ends the process at once.
            importlib.import_module("logfs.store.store")
        return _run(module, parsed)
    parser = _Parser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_list_of(commands) + "\n" + _EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"logfs {_version()}")
    parser.add_argument("command", metavar="COMMAND", help="one of these:")
    parser.parse_args(words[:1] or ["--help"])
    from logfs.errors import did_you_mean

    hint = did_you_mean(words[0], commands)
    parser.error(f"there is no command {words[0]!r}{hint}; '{prog} --help' lists all")


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser with all commands, from which completion and manual pages are made.

    This imports every command. To start fast, a command itself runs with a parser of its own.
    """
    parser = argparse.ArgumentParser(prog="logfs", description="Kafka's log, as files.")
    parser.add_argument("--version", action="version", version=f"logfs {_version()}")
    _add_commands(parser, COMMANDS, __name__)
    return parser


def _add_commands(parser: argparse.ArgumentParser, commands: dict[str, str], package: str) -> None:
    added = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, text in commands.items():
        each = added.add_parser(name, help=text, description=_sentence(text))
        path = _module_of(package, name)
        module = importlib.import_module(path)
        if hasattr(module, "COMMANDS"):
            each.add_argument("--version", action="version", version=f"logfs {_version()}")
            _add_commands(each, module.COMMANDS, path)
        else:
            module.add_arguments(each)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _module_of(package: str, command: str) -> str:
    return f"{package}.{command.replace('-', '_')}"


def _joined(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with `-o -3..` joined to `-o-3..`, and `--offset -3..` to `--offset=-3..`.

    argparse would take a range of offsets that begins with `-`, such as `-3..`, for an option.
    """
    joined: list[str] = []
    for word in words:
        if re.match(r"-[0-9]+\.\.", word) and joined and joined[-1] in ("-o", "--offset"):
            option = joined.pop()
            word = f"{option}{'=' if option == '--offset' else ''}{word}"
        joined.append(word)
    return joined


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once while the context is active.

    Python's own handler raises `KeyboardInterrupt`. During an import, this exception may crash the process.
    """
    is_heeded = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    )
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _list_of(commands: dict[str, str]) -> str:
    return "".join(f"  {name:16}{text}\n" for name, text in commands.items())


def mount_helper() -> int:
    """Run `mount.logfs`, the program that mount(8) calls for an fstab line of type `logfs`, and return its exit code.

    mount(8) calls it as `mount.logfs LOGDIR[,LOGDIR…] MOUNTPOINT [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, also
    for `-o remount`. With `-f` (fake) nothing is mounted. With the option `nofail`, a log directory whose disk is
    missing is no error.
    """
    parser = argparse.ArgumentParser(prog="mount.logfs")
    parser.add_argument("log_dirs")
    parser.add_argument("mountpoint")
    parser.add_argument("-o", dest="options", action="append", default=[])
    for flag in "sfnv":
        parser.add_argument(f"-{flag}", action="store_true")
    for option in "tN":
        parser.add_argument(f"-{option}")
    parsed = parser.parse_args()
    if parsed.f:
        return 0
    # For a remount, mount(8) passes every flag that is to be set. So clear noexec and nodiratime first; the options
    # that follow can set them again.
    options = ["-oexec,diratime", *(f"-o{option}" for option in parsed.options)]
    # The first argument is one path, which may contain a comma, or a list of paths separated by commas.
    if os.path.isdir(parsed.log_dirs) or "," not in parsed.log_dirs:
        log_dirs = [parsed.log_dirs]
    else:
        log_dirs = parsed.log_dirs.split(",")
        options.append(f"--source={parsed.log_dirs}")
    words = {word for option in parsed.options for word in option.split(",")}
    # `mount` creates a missing log directory in a directory that exists. A URL of a bucket is no absolute path.
    needed = [
        path if "ro" in words else os.path.dirname(path) for path in log_dirs if os.path.isabs(path)
    ]
    if "nofail" in words and not all(map(os.path.isdir, needed)):
        return 0
    return main(["mount", *options, "--", *log_dirs, parsed.mountpoint])


def _run(module: ModuleType, parsed: argparse.Namespace) -> int:
    from logfs.errors import InvalidUsage, LogfsError

    try:
        code = int(module.run(parsed))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output, such as `head`, has exited. Print no message.
        _discard(sys.stdout)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        try:
            sys.stdout.flush()
        except OSError:
            where = where or "standard output: "
            _discard(sys.stdout)
        code, reason = 1, f"{where}{error.strerror or error}"
    except LogfsError as error:
        code, reason = 2 if isinstance(error, InvalidUsage) else 1, str(error)
    # Keep the message on one line: a file name may contain newlines.
    print("logfs:", without_secrets(reason).replace("\n", "\\n"), file=sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null after a failed write, so that Python's flush at exit does not fail, too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _version() -> str:
    import logfs

    return logfs.__version__
