"""A file with the volumes and the ids of their users, so that the next process of the plugin knows both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logfs.errors import Corrupt
from logfs.volume.options import VolumeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.disk.disk import Disk


class Volume(NamedTuple):
    """A volume: its name, its options, and the ids of its users (containers, or commands of the engine)."""

    name: str
    options: VolumeOptions
    ids: frozenset[str] = frozenset()


class VolumeTable:
    """The volumes by name. A change is durable in the file when `put` or `remove` returns.

    Only one thread at a time may use a table.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        """Read the table from the file `path`, if it exists. Raises `Corrupt` for a malformed file, and `OSError`."""
        self._disk = disk
        self._path = path
        self._volumes: dict[str, Volume] = {}
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        try:
            self._volumes = {
                name: _volume(name, each) for name, each in orjson.loads(content).items()
            }
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise Corrupt(
                f"{path}: is not the table of volumes ({error}); restore it, or move it away and create the volumes "
                "again"
            ) from None

    def __iter__(self) -> Iterator[Volume]:
        return iter(list(self._volumes.values()))

    def find(self, name: str) -> Volume | None:
        """Return the volume `name`; None if it does not exist."""
        return self._volumes.get(name)

    def put(self, volume: Volume) -> None:
        """Add a volume, or replace the volume with the same name. Raises `OSError`."""
        if self._volumes.get(volume.name) != volume:
            self._write({**self._volumes, volume.name: volume})

    def remove(self, name: str) -> None:
        """Remove the volume `name`, if it exists. Raises `OSError`."""
        self._write({each.name: each for each in self if each.name != name})

    def _write(self, volumes: dict[str, Volume]) -> None:
        """Write `volumes` to the file, then keep them in this object. An `OSError` leaves this object unchanged."""
        content = {
            name: {"options": each.options.to_json(), "ids": sorted(each.ids)}
            for name, each in volumes.items()
        }
        data = orjson.dumps(content, option=orjson.OPT_INDENT_2)
        self._disk.replace_file(self._path, data)
        self._volumes = volumes


def _volume(name: str, content: dict[str, Any]) -> Volume:
    return Volume(name, VolumeOptions(**content["options"]), frozenset(content["ids"]))
