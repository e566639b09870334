"""The options of a volume: which log directory, topic or partition it shows, and how."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from logfs.errors import InvalidName, InvalidSetting
from logfs.format.base.names import check_topic, parse_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# The names that Podman allows for volumes. Docker also refuses names of one character.
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_MOST_NAME_BYTES = 255
_YES, _NO = ("", "1", "true", "yes"), ("0", "false", "no")
# The greatest user id or group id. For chown(2), the next number means "no change".
_GREATEST_ID = 2**32 - 2
_TEXTS = ("logdir", "topic", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeOptions:
    """What a volume shows: a whole log directory, or one topic or partition of it.

    `logdir` is an absolute path. At most one of `topic` and `partition` is set; both are "" for the whole log
    directory. With `ro` the log directory is mounted read-only. `uid`, `gid` and `mode` (permission bits) are set on
    the directory that the volume shows or, for a topic, on all of its partitions; None leaves them as they are.
    """

    logdir: str
    topic: str = ""
    partition: str = ""
    ro: bool = False
    uid: int | None = None
    gid: int | None = None
    mode: int | None = None

    @property
    def shown(self) -> str:
        """The path, relative to the mountpoint, of the topic or partition to show; "" for the whole mount."""
        return f"topics/{self.topic}" if self.topic else self.partition

    def to_json(self) -> dict[str, object]:
        """Return the options by name, as values of JSON."""
        return asdict(self)


def parse_options(name: str, given: Mapping[str, str], root: Path) -> VolumeOptions:
    """Return the options of the volume `name`; `given` has their texts, by the names in `VolumeOptions`.

    `ro` is `true` or `false`, or "" for true; `mode` is an octal number. The default of the option `logdir` is
    `root`/`name`. Raises `InvalidName` for an invalid name of a volume, topic or partition, and `InvalidSetting` for
    an invalid option.
    """
    if not _NAME.fullmatch(name) or len(name) > _MOST_NAME_BYTES:
        raise InvalidName(
            f"volume {name!r}: a name begins with a letter or digit, and has up to 255 letters, digits, '_', '.', '-'"
        )
    unknown = given.keys() - VolumeOptions.__dataclass_fields__.keys()
    if unknown:
        known = ", ".join(VolumeOptions.__dataclass_fields__)
        raise InvalidSetting(f"volume {name}: no such option: {min(unknown)}; there are {known}")
    text = {each: given.get(each, "") for each in _TEXTS}
    for each in _TEXTS:
        if each in given and not given[each]:
            raise InvalidSetting(f"volume {name}: {each}: give a value")
    logdir = text["logdir"] or str(root / name)
    if not logdir.isprintable():
        raise InvalidSetting(
            f"volume {name}: logdir={logdir!r}: has control characters; give another path"
        )
    if not os.path.isabs(logdir):
        raise InvalidSetting(f"volume {name}: logdir={logdir}: give an absolute path")
    if text["topic"] and text["partition"]:
        raise InvalidSetting(f"volume {name}: give topic or partition, not both")
    if text["topic"]:
        check_topic(text["topic"])
    if text["partition"]:
        parse_directory(text["partition"])
    options = VolumeOptions(
        logdir=os.path.realpath(logdir),
        topic=text["topic"],
        partition=text["partition"],
        ro="ro" in given and _flag(name, "ro", given["ro"]),
        uid=_number(name, "uid", given, 10, _GREATEST_ID),
        gid=_number(name, "gid", given, 10, _GREATEST_ID),
        mode=_number(name, "mode", given, 8, 0o777),
    )
    changes = [each for each in ("uid", "gid", "mode") if each in given]
    if options.ro and changes:
        raise InvalidSetting(
            f"volume {name}: {changes[0]}: a read-only volume changes no owner and no mode; leave out "
            f"{changes[0]} or ro"
        )
    return options


def _flag(name: str, option: str, value: str) -> bool:
    if value.lower() not in (*_YES, *_NO):
        raise InvalidSetting(f"volume {name}: {option}={value}: give true or false")
    return value.lower() in _YES


def _number(
    name: str, option: str, given: Mapping[str, str], base: int, greatest: int
) -> int | None:
    if option not in given:
        return None
    digits = "0-7" if base == 8 else "0-9"
    if re.fullmatch(f"[{digits}]{{1,10}}", given[option]):
        number = int(given[option], base)
        if number <= greatest:
            return number
    what = "an octal number up to 777" if base == 8 else f"a number up to {greatest}"
    raise InvalidSetting(f"volume {name}: {option}={given[option]}: give {what}")
