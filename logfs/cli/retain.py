"""`logfs retain`: drop the segments eligible for deletion, or only list them with the reasons."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from logfs.cli.common import (
    add_json,
    add_log_dirs,
    ask,
    log_dirs_of,
    print_json,
    recovery_progress,
)

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, and `--dry-run`, which only lists what would be dropped."""
    add_log_dirs(parser)
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="only list what would be dropped; works while a mount or a broker uses the log directories",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Drop the segments eligible for deletion, unless `--dry-run` is given, and print each with the reason.

    For each partition, also print the oldest segment that is kept, and why. The exit code is 1 if a log directory has
    failed.
    """
    from logfs.store.admin.requests import Retain, retention_plans
    from logfs.store.store import Store

    log_dirs = log_dirs_of(arguments.log_dirs, for_writing=not arguments.dry_run)
    if not arguments.dry_run:
        done = ask(log_dirs, Retain(list(map(str, log_dirs))))
        show = _print_json if arguments.json else partial(_explain, will="is")
        show(done["partitions"])
        return int(done["failed"])
    with Store(log_dirs, read_only=True, progress=recovery_progress(), create=False) as store:
        plans = retention_plans(store, store)
        show = _print_json if arguments.json else partial(_explain, will="would be")
        show(plans)
        return int(bool(store.registry.failed))


def _explain(plans: list[dict[str, Any]], will: str) -> None:
    for plan in plans:
        print(plan["name"])
        for kind, what in (("expired", ""), ("released", " here, and stays in the object store")):
            for file, first, following, size, reason in plan[kind]:
                print(
                    f"  {file} ({first}..{following}, {size} bytes) {will} dropped{what}: {reason}"
                )
        if plan["stays"]:
            print(f"  {plan['oldest']} stays: {plan['stays']}")


_SEGMENT = ("file", "firstOffset", "nextOffset", "sizeBytes", "reason")


def _print_json(plans: list[dict[str, Any]]) -> None:
    for plan in plans:
        print_json(
            {
                "partition": plan["name"],
                "dropped": [dict(zip(_SEGMENT, row, strict=True)) for row in plan["expired"]],
                "released": [dict(zip(_SEGMENT, row, strict=True)) for row in plan["released"]],
                "oldest": plan["oldest"],
                "stays": plan["stays"],
            }
        )
