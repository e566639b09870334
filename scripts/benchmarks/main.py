"""scripts/bench: run the rows, print the table, write the JSON and the bars."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from chart import bars
from harness import GIB, HERE, Bench, Failed, Result, as_json, from_json, machine, say, table

sys.path.insert(0, str(HERE.parent.parent))

import kafka_rows  # noqa: F401  (its rows)
import kafka_starting  # noqa: F401  (its rows)
import keys  # noqa: F401  (its rows)
import latency  # noqa: F401  (its rows)
import mirroring  # noqa: F401  (its rows)
import pipeline  # noqa: F401  (its rows)
import scanning  # noqa: F401  (its rows)
import small_spark  # noqa: F401  (its rows)
import small_writes  # noqa: F401  (its rows)
import starting  # noqa: F401  (its rows)
import tiered  # noqa: F401  (its rows)
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
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(arguments.scratch).free / GIB
    print(f"scratch space: up to {room} GiB, {free:.0f} GiB are free", file=sys.stderr)
    if free < room:
        print("not enough: give another place by --scratch, or use --quick", file=sys.stderr)
        return 2
    results = _earlier(arguments.json, quick=arguments.quick)
    if results is None:
        print(f"{arguments.json} has results of other sizes: give another file", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(arguments.scratch, quick=arguments.quick)
    try:
        described = machine(bench.root)
        for name in names:
            results[name] = _measured(bench, name)
            every = list(itertools.chain(*results.values()))
            if arguments.json:
                content = as_json(every, described, quick=arguments.quick)
                arguments.json.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    finally:
        bench.clean()
    print(", ".join(f"{key} {value}" for key, value in described.items()))
    print()
    print(table(every))
    if arguments.svg:
        arguments.svg.write_text(bars(every))
    now = [result for name in names for result in results[name]]
    below = [result.name for result in now if result.verdict.isupper()]
    if below:
        print(f"below the floor: {', '.join(below)}")
    return 2 if any(result.failed for result in now) else 1 if below else 0


def _measured(bench: Bench, name: str) -> list[Result]:
    """Run a row, and print how long it took."""
    start = time.perf_counter()
    say(name)
    try:
        results = ROWS[name](bench)
    except Exception as error:
        if not isinstance(error, Failed):
            traceback.print_exc()
        results = [Result(name, name, None, f"FAILED: {error}", "-", failed=True)]
    for result in results:
        result.row = name
    say("")
    print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return results


def _earlier(path: Path | None, *, quick: bool) -> dict[str, list[Result]] | None:
    """Return the results that a file has, by row, in the order of the rows; None if their sizes were others."""
    results: dict[str, list[Result]] = {name: [] for name in ROWS}
    if path is not None and path.exists():
        content = json.loads(path.read_text())
        if content["quick"] != quick:
            return None
        for result in from_json(content):
            results.setdefault(result.row, []).append(result)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows; all of them without")
    parser.add_argument("--list", action="store_true", help="show the rows")
    parser.add_argument(
        "--quick", action="store_true", help=f"smaller sizes, {QUICK_ROOM_GIB} GiB of scratch space"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results; rows of an earlier run that are not measured again stay in the file",
    )
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
