"""Reads schemas from a directory, in which `7.avsc`, `7.proto` or `7.json` is the schema with the id 7.

The schemas may refer to other `.avsc` and `.proto` files in the directory. The file `com.acme.Money.avsc` defines the
type `com.acme.Money`, and `import "money/money.proto"` imports the file `money/money.proto`.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

from logfs.errors import SchemasUnavailable
from logfs.schema.schemas import AVRO, JSON, MOST_BYTES, PROTOBUF, Schema

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = {".avsc": AVRO, ".proto": PROTOBUF, ".json": JSON}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


class SchemaFiles:
    """A source of schemas: a directory of files. `find` reads the files, so files can be added at any time."""

    def __init__(self, directory: Path) -> None:
        """Use the schemas in `directory`. Raises `SchemasUnavailable` if the directory has none or cannot be read."""
        self._directory = directory
        try:
            has_any = any(
                path.suffix in _KINDS and _NUMBER.fullmatch(path.stem)
                for path in directory.iterdir()
            )
        except OSError as error:
            raise SchemasUnavailable(
                f"{directory}: the schemas cannot be read: {error.strerror}"
            ) from None
        if not has_any:
            raise SchemasUnavailable(
                f"{directory}: has no schemas: name the file of each by its id: 7.avsc, 7.proto or 7.json"
            )

    def __str__(self) -> str:
        return str(self._directory)

    def find(self, number: int) -> Schema | None:
        for suffix, kind in _KINDS.items():
            path = self._directory / f"{number}{suffix}"
            if path.exists():
                return Schema(kind, _text(path), self._references(suffix))
        return None

    def close(self) -> None:
        """Do nothing, because no file stays open after a read."""

    def _references(self, suffix: str) -> dict[str, str]:
        """Return the texts of all files that a schema can refer to, by the names that references use.

        `suffix` is that of the schema's own file, such as ".avsc".
        """
        if suffix == ".json":
            return {}
        found = {}
        for path in sorted(self._directory.rglob(f"*{suffix}")):
            name = path.relative_to(self._directory).as_posix()
            if not _NUMBER.fullmatch(path.stem):
                found[name if suffix == ".proto" else path.stem] = _text(path)
        return found


def _text(path: Path) -> str:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            raise SchemasUnavailable(
                f"{path}: is not a regular file of at most {MOST_BYTES >> 20} MiB"
            )
        return path.read_text("utf-8")
    except OSError as error:
        raise SchemasUnavailable(f"{path}: the schema cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SchemasUnavailable(f"{path}: the schema is not UTF-8") from None
