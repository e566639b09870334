"""`logfs retain`: drop the segments eligible for deletion, or only list them with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, log_dirs_of, recovery_progress

if TYPE_CHECKING:
    import argparse

    from logfs.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, and `--dry-run`, which only lists what would be dropped."""
    add_log_dirs(parser)
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="drop nothing; works beside a mount or a broker",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each segment eligible for deletion with the reason, then drop them all, unless `--dry-run` is given.

    For each partition, also print the oldest segment that stays, and why. The exit code is 1 if a log directory has
    failed.
    """
    from logfs.store.store import Store

    log_dirs = log_dirs_of(arguments.log_dirs)
    with Store(
        log_dirs, read_only=arguments.dry_run, progress=recovery_progress(), create=False
    ) as store:
        for name in store:
            _explain(store, name, dry_run=arguments.dry_run)
        if not arguments.dry_run:
            store.retain()
        return int(bool(store.failed))


def _explain(store: Store, name: str, *, dry_run: bool) -> None:
    plan = store.retention_plan(name)
    word = "would be dropped" if dry_run else "is dropped"
    print(name)
    for segment, _, reason in plan.expired:
        offsets = f"{segment.base_offset}..{segment.next_offset}"
        print(f"  {segment.path.name} ({offsets}, {segment.size_bytes} bytes) {word}: {reason}")
    for segment, _, reason in plan.released:
        offsets = f"{segment.base_offset}..{segment.next_offset}"
        print(
            f"  {segment.path.name} ({offsets}, {segment.size_bytes} bytes) {word} here, and is copied: {reason}"
        )
    if plan.stays:
        print(f"  {store[name].segments[len(plan.expired)].path.name} stays: {plan.stays}")
