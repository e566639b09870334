"""`logfs` for a cluster that has no trouble that could pass: `python -m tests.kafka.impatient push …`.

A push waits 0.2 s instead of 2 s, twice, until no earlier request can be on its way any more, and a mirror gives up
after errors of 3 s instead of 30 s.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from logfs import cli
from tests.support import spawner


def run(command: str, servers: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run `logfs push` or `logfs mirror` in a process of its own, and return how it has ended."""
    told = [command, "--to" if command == "push" else "--from", servers, *map(str, words)]
    with tempfile.TemporaryDirectory() as name:
        output, errors = Path(name, "stdout"), Path(name, "stderr")
        child = spawner.shared().program(__name__, *told, output=output, errors=errors)
        try:
            code = child.wait(120)
        finally:
            child.close()
        return subprocess.CompletedProcess(told, code, output.read_text(), errors.read_text())


def main() -> int:
    """Run the command of the arguments."""
    from logfs.mirror import mirror
    from logfs.push import sender

    sender._QUIET_SECONDS, sender._PAUSE_SECONDS = 0.2, 0.05
    mirror._GIVE_UP_SECONDS = 3.0
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
