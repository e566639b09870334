"""numpy as `np`, imported when it is first used.

Importing numpy takes longer than all other work of a short command such as `logfs tail -n 1`, which uses no array. So
the modules that such a command imports use this `np`. Compiled kernels need numpy itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["np"]


class _LazyModule:
    """A stand-in for a module. The module is imported when one of its attributes is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self._name)
        # From now on, the attributes are found without this method.
        self.__dict__.update(vars(module))
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as np
else:
    np = _LazyModule("numpy")
