"""`logfs config`: show or change settings of a store or a topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logfs.cli.common import (
    add_json,
    ask,
    log_dirs_of,
    not_empty,
    parse_changes,
    path_argument,
    print_json,
    split_topic,
)
from logfs.errors import InvalidUsage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from logfs.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, a topic, and the settings to show or set."""
    parser.add_argument("--topic", help="settings of this topic; without it, of the store")
    add_json(parser)
    parser.add_argument(
        "words",
        nargs="+",
        type=not_empty,
        metavar="LOGDIR | NAME[=VALUE]",
        help="the log directories, or LOGDIR/TOPIC; then the settings: show NAME, or set it; an empty VALUE restores "
        "the default; without any NAME, show all",
    )


def run(arguments: argparse.Namespace) -> int:
    """Set each NAME=VALUE. Then print the effective value of each NAME, and its source.

    If the arguments have neither NAME=VALUE nor NAME, print the values of all settings.
    """
    from logfs.store.admin.requests import Configure, check_topic
    from logfs.store.store import Store

    settings = [word for word in arguments.words if _is_setting(word)]
    words = [word for word in arguments.words if not _is_setting(word)]
    directories: Sequence[Path] = list(map(path_argument, words))
    if not directories:
        raise InvalidUsage(f"{settings[0]}: give the log directories before the settings")
    if not arguments.topic:
        directories, arguments.topic = split_topic(directories)
    changed = [word for word in settings if "=" in word]
    log_dirs = log_dirs_of(
        directories,
        may_be_empty=bool(changed) and not arguments.topic,
        for_writing=bool(changed),
    )
    # Check the changes before an empty directory becomes a store.
    changes = parse_changes(changed, of_topic=bool(arguments.topic))
    if changes:
        if arguments.topic:
            # Check that the topic exists before any lock is taken.
            with Store(log_dirs, read_only=True, only="") as store:
                check_topic(store, arguments.topic)
        ask(log_dirs, Configure(dict(changes), arguments.topic or ""))
    shown = [word for word in settings if "=" not in word]
    if shown or not changes:
        with Store(log_dirs, read_only=True, only="") as store:
            if arguments.topic:
                check_topic(store, arguments.topic)
            _show(store, arguments.topic, shown, as_json=arguments.json)
    return 0


def _is_setting(word: str) -> bool:
    """Whether a word, NAME or NAME=VALUE, is a setting, and not the path of a log directory.

    A word with a slash in NAME is a path. Other words with `=` are settings. A word without `=` is a path if
    this path exists. If not, the word is a setting if it contains a dot, or is the name of a topic setting.
    """
    from logfs.setting import TOPIC_SETTINGS

    name, equals, _ = word.partition("=")
    if "/" in name:
        return False
    return bool(equals) or (("." in name or name in TOPIC_SETTINGS) and not Path(name).exists())


def _show(store: Store, topic: str | None, names: list[str], *, as_json: bool) -> None:
    from logfs import config, setting

    known, setting_of = setting.BROKER_SETTINGS, setting.broker_setting
    if topic:
        known, setting_of = setting.TOPIC_SETTINGS, setting.topic_setting
    broker = store.settings.broker_overrides
    overrides = store.settings.topic_overrides(topic) if topic else {}
    for name in names:
        setting_of(name)
    for name in names or known:
        if topic:
            value = config.value_in_force(name, overrides, broker)
            source = config.describe_source(name, overrides, broker)
        else:
            value = config.broker_value_in_force(name, broker)
            source = f"broker {name}" if name in broker else "default"
        if as_json:
            print_json({"name": name, "value": value, "source": source})
        else:
            print(f"{name}={value}  # {source}")
