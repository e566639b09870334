"""Entry point of the `logfs` command and of `python -m logfs`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the `logfs` command with the arguments in `sys.argv`, and return its exit code."""
    # Let Ctrl-C end the process silently during the import of `logfs.cli`: Python's own handler would print a
    # traceback.
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from logfs.cli import main as run

    if is_heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
