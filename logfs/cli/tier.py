"""`logfs tier`: copy sealed segments of tiered topics into the object store, and delete expired ones there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, ask, log_dirs_of, recovery_progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, partitions, whether to take the bucket over, and `--dry-run`."""
    add_log_dirs(parser)
    parser.add_argument(
        "-p",
        "--partition",
        action="append",
        metavar="NAME",
        help="only this partition; may be given several times (default: all partitions of tiered topics)",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--take-over",
        action="store_true",
        help="first become the owner of the bucket, in place of a store that is no longer used",
    )
    either.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="only list what would be copied; works while a mount uses the log directories",
    )


def run(arguments: argparse.Namespace) -> int:
    """Copy sealed segments that are not in the object store yet. Then apply retention to local and remote segments.

    With `--dry-run`, only list the segments that would be copied. With `--take-over`, first make this store the owner
    of the bucket. A mount copies and applies retention in the background. The exit code is 1 if a log directory has
    failed, or a partition is offline. Raises `InvalidSetting` for a partition whose topic is not tiered,
    `NotWritable` if the bucket belongs to another store, and `RemoteStorageError` if the object store fails.
    """
    from logfs.store.admin.requests import Tier

    log_dirs = log_dirs_of(arguments.log_dirs, for_writing=not arguments.dry_run)
    names = arguments.partition or []
    if arguments.dry_run:
        return _list(log_dirs, names)
    request = Tier(list(map(str, log_dirs)), names, arguments.take_over)
    done = ask(log_dirs, request, title="copying")
    _print_offline(done["offline"], done["partitions"])
    for each in done["partitions"]:
        print(
            f"{each['name']}: {each['segments']} segments ({each['bytes']} bytes) copied; the next one is not "
            f"copied: {each['stays']}"
        )
    print(
        f"dropped {done['dropped']} segments here, and deleted {done['deleted']} in the object store"
    )
    return int(bool(done["failed"] or done["offline"]))


def _list(log_dirs: list[Path], names: list[str]) -> int:
    from logfs.store.admin.requests import tiered_partitions
    from logfs.store.store import Store

    with Store(log_dirs, read_only=True, progress=recovery_progress(), create=False) as store:
        chosen = names or tiered_partitions(store, store)
        _print_offline({name: str(why) for name, why in sorted(store.offline.items())}, chosen)
        for name in chosen:
            plan = store.remote_log_manager.plan(name)
            for segment in plan.segments:
                print(f"{name}: {segment.path.name} ({segment.size_bytes} bytes) would be copied")
            print(
                f"{name}: {len(plan.segments)} segments; the next one is not copied: {plan.stays}"
            )
        return int(bool(store.registry.failed or store.offline))


def _print_offline(offline: dict[str, str], chosen: Sequence[object]) -> None:
    for name, reason in offline.items():
        print(f"{name}: offline: {reason}")
    if not chosen and not offline:
        print("no topic is tiered: set remote.storage.enable to true for one")
