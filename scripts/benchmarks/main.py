"""scripts/bench: run the rows, print the table, write the JSON and the bars."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from chart import bars
from harness import GIB, HERE, Bench, Failed, Result, as_json, machine, say, table

sys.path.insert(0, str(HERE.parent.parent))

import kafka_rows  # noqa: F401  (its rows)
import kafka_starting  # noqa: F401  (its rows)
import keys  # noqa: F401  (its rows)
import latency  # noqa: F401  (its rows)
import pipeline  # noqa: F401  (its rows)
import scanning  # noqa: F401  (its rows)
import small_writes  # noqa: F401  (its rows)
import starting  # noqa: F401  (its rows)
import upkeep  # noqa: F401  (its rows)
from rows import ROWS

ROOM_GIB = 15
QUICK_ROOM_GIB = 3


def main() -> int:
    """Parse the arguments, run the rows, print the table; return 1 if a row is below its floor, 2 if one failed."""
    arguments = _parser().parse_args()
    if arguments.list:
        for name, function in ROWS.items():
            print(f"{name:14} {function.__doc__}")
        return 0
    names = arguments.names or list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        print(f"no such row: {', '.join(unknown)}; --list shows them", file=sys.stderr)
        return 2
    room = QUICK_ROOM_GIB if arguments.quick else ROOM_GIB
    free = shutil.disk_usage(arguments.scratch).free / GIB
    print(f"scratch space: up to {room} GiB, {free:.0f} GiB are free", file=sys.stderr)
    if free < room:
        print("not enough: give another place by --scratch, or use --quick", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(arguments.scratch, quick=arguments.quick)
    results: list[Result] = []
    failed = 0
    try:
        described = machine(bench.root)
        for name in names:
            start = time.perf_counter()
            say(name)
            try:
                found = ROWS[name](bench)
            except Failed as error:
                failed += 1
                found = [Result(name, name, None, f"FAILED: {error}", "-")]
            results += found
            say("")
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    finally:
        bench.clean()
    print(", ".join(f"{key} {value}" for key, value in described.items()))
    print()
    print(table(results))
    if arguments.json:
        content = as_json(results, described, quick=arguments.quick)
        arguments.json.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    if arguments.svg:
        arguments.svg.write_text(bars(results))
    below = [result.name for result in results if result.verdict.isupper()]
    if below:
        print(f"below the floor: {', '.join(below)}")
    return 2 if failed else 1 if below else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows; all of them without")
    parser.add_argument("--list", action="store_true", help="show the rows")
    parser.add_argument(
        "--quick", action="store_true", help=f"smaller sizes, {QUICK_ROOM_GIB} GiB of scratch space"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the ratios")
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help=f"where to work, up to {ROOM_GIB} GiB; plain files are measured on the same disk",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
