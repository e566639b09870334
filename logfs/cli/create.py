"""`logfs create`: make a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, target
from logfs.errors import InvalidSetting, PartitionExists

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET and settings."""
    add_target(parser)
    parser.add_argument(
        "-c",
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the topic, e.g. compression.type=zstd; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Make it, with its topic's settings."""
    from logfs.cli.common import recovery_progress
    from logfs.format import names
    from logfs.store.store import Store

    wanted = target(arguments.target)
    topic = names.parse_directory(wanted.name).topic
    with Store(wanted.log_dirs, only=wanted.name, progress=recovery_progress()) as store:
        if wanted.name in store or wanted.name in store.offline:
            # Said before anything is changed: the settings are the whole topic's.
            raise PartitionExists(f"{wanted.name}: the partition exists")
        for setting in arguments.config:
            name, equals, value = setting.partition("=")
            if not equals:
                raise InvalidSetting(f"{setting!r}: give a setting as NAME=VALUE")
            store.settings.set_topic(topic, name, value)
        partition = store.create(wanted.name)
        print(partition.directory)
    return 0
