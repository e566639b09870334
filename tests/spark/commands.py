"""Run several commands `logfs spark …` in one process, whose JVM they share: `python -m tests.spark.commands JSON`.

Each command has a session of its own. The start of a JVM takes longer than all that a command does here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.cli import main
from tests.spark.program import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAMS = ("stdout", "stderr")


def run(directory: Path, *commands: Sequence[object]) -> list[subprocess.CompletedProcess[str]]:
    """Run the commands one after the other, and return how each has ended. Their outputs are files in `directory`."""
    wanted = [["spark", *map(str, words)] for words in commands]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.commands", json.dumps(wanted), directory],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return [
        subprocess.CompletedProcess(
            words, int(code), *((directory / f"{number}.{name}").read_text() for name in STREAMS)
        )
        for number, (words, code) in enumerate(zip(wanted, done.stdout.split(), strict=True))
    ]


def run_all() -> None:
    """Run the commands, and print their exit codes at the end."""
    commands, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    own = os.dup(1)
    codes: list[object] = []
    for number, words in enumerate(commands):
        for target, name in enumerate(STREAMS, 1):
            file = os.open(directory / f"{number}.{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(file, target)
            os.close(file)
        try:
            codes.append(main(words))
        except SystemExit as error:
            # argparse exits so if an argument is refused.
            codes.append(error.code)
        sys.stdout.flush()
    os.write(own, " ".join(map(str, codes)).encode())


if __name__ == "__main__":
    run_all()
