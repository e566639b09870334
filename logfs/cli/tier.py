"""`logfs tier`: copy the sealed segments of tiered topics into their object store now, and tidy up there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, log_dirs_of, progress_bar, recovery_progress

if TYPE_CHECKING:
    import argparse

    from logfs.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, the partitions, and `--dry-run`, which only lists what would be copied."""
    add_log_dirs(parser)
    parser.add_argument(
        "-p",
        "--partition",
        action="append",
        metavar="NAME",
        help="only this partition; may be given several times (default: all of tiered topics)",
    )
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="copy nothing; works beside a mount",
    )


def run(arguments: argparse.Namespace) -> int:
    """Copy what is due in each partition, then drop local segments and delete remote ones as retention asks.

    A mount does the same in the background. The exit code is 1 if a log directory has failed, or a partition is
    offline. Raises `InvalidSetting` for a partition whose topic is not tiered, and `RemoteStorageError`.
    """
    from logfs.store.store import Store

    log_dirs = log_dirs_of(arguments.log_dirs)
    with Store(
        log_dirs, read_only=arguments.dry_run, progress=recovery_progress(), create=False
    ) as store:
        names = arguments.partition or [
            name for name in store if store[name].config.remote_storage_enable
        ]
        for name, reason in sorted(store.offline.items()):
            print(f"{name}: offline: {reason}")
        if not names and not store.offline:
            print("no topic is tiered: set remote.storage.enable to true for one")
        for name in names:
            _tier(store, name, dry_run=arguments.dry_run)
        if not arguments.dry_run:
            dropped = store.retain(names)
            deleted = store.remote_log_manager.deleted_segments
            print(f"dropped {dropped} segments here, and deleted {deleted} in the object store")
        return int(bool(store.failed or store.offline))


def _tier(store: Store, name: str, *, dry_run: bool) -> None:
    manager = store.remote_log_manager
    plan = manager.plan(name)
    if dry_run:
        for segment in plan.segments:
            print(f"{name}: {segment.path.name} ({segment.size_bytes} bytes) would be copied")
        print(f"{name}: {len(plan.segments)} segments; the next one stays: {plan.stays}")
        return
    # Each byte is sent once, and read back once.
    with progress_bar(f"copying {name}", 2 * plan.size_bytes) as bar:
        done = manager.copy(name, progress=bar.update)
    print(
        f"{name}: {done.segments} segments of {done.size_bytes} bytes copied; the next one stays: "
        f"{plan.stays}"
    )
