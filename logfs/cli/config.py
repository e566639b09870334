"""`logfs config`: show or change settings of a store or a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import ask, log_dirs_of, parse_changes, path_argument
from logfs.errors import InvalidSetting

if TYPE_CHECKING:
    import argparse

    from logfs.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, a topic, and the settings to show or set."""
    parser.add_argument(
        "log_dir", type=path_argument, metavar="LOGDIR[,LOGDIR…]", help="the log directories"
    )
    parser.add_argument("--topic", help="settings of this topic; without it, of the store")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="NAME[=VALUE]",
        help="show NAME, or set it; an empty VALUE restores the default; without any NAME, show all",
    )


def run(arguments: argparse.Namespace) -> int:
    """Set each NAME=VALUE, then show each NAME with its value in force and source; without settings, show all."""
    from logfs.store.admin.requests import Configure, check_topic
    from logfs.store.store import Store

    words = [word for word in arguments.settings if "=" in word]
    # Before an empty directory becomes a store.
    changes = parse_changes(words, of_topic=bool(arguments.topic))
    log_dirs = log_dirs_of(
        str(arguments.log_dir).split(","), may_be_empty=bool(changes) and not arguments.topic
    )
    if changes:
        if arguments.topic:
            # Check the topic first: if it does not exist, no lock is taken.
            with Store(log_dirs, read_only=True, only="") as store:
                check_topic(store, arguments.topic)
        ask(log_dirs, Configure(dict(changes), arguments.topic or ""))
    shown = [word for word in arguments.settings if "=" not in word]
    if shown or not changes:
        with Store(log_dirs, read_only=True, only="") as store:
            if arguments.topic:
                check_topic(store, arguments.topic)
            _show(store, arguments.topic, shown)
    return 0


def _show(store: Store, topic: str | None, names: list[str]) -> None:
    from logfs import config, setting

    broker = store.settings.broker_overrides
    overrides = store.settings.topic_overrides(topic) if topic else {}
    known = setting.TOPIC_SETTINGS if topic else setting.BROKER_SETTINGS
    for name in names:
        if name not in known:
            raise InvalidSetting(f"{name}: no such setting; 'logfs config' without names lists all")
    for name in names or known:
        if topic:
            value = config.value_in_force(name, overrides, broker)
            source = config.describe_source(name, overrides, broker)
        else:
            value = config.broker_value_in_force(name, broker)
            source = f"broker {name}" if name in broker else "default"
        print(f"{name}={value}  # {source}")
