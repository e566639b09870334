"""CRC-32C, the checksum of record batches (kafka-storage 2.1), by the package crc32c."""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _load() -> object:
        """Load only the extension module `_crc32c` of the package, or the whole package if it has no such module.

        The package itself asks `importlib.metadata` for its version, which takes 45 ms of processor time: as long as
        a third of a short command.
        """
        package = importlib.util.find_spec("crc32c")
        if package is not None:
            found = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
            if found is not None and found.loader is not None:
                module = importlib.util.module_from_spec(found)
                found.loader.exec_module(module)
                return module
        import crc32c as module

        return module

    crc32c = _load().crc32c

__all__ = ["crc32c"]
