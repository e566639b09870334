"""The checksum of batches, by the extension module of its package alone, and by the whole package."""

from __future__ import annotations

import importlib
from importlib.machinery import PathFinder

import crc32c
import pytest

from logfs.format.base import crc


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_checksum_is_crc_32c(monkeypatch: pytest.MonkeyPatch, *, is_alone: bool) -> None:
    """The check value of CRC-32C, of the bytes `123456789`, also if the package has no such extension module."""
    if not is_alone:
        find = PathFinder.find_spec
        monkeypatch.setattr(
            PathFinder,
            "find_spec",
            lambda name, *places: None if name == "crc32c._crc32c" else find(name, *places),
        )
    module = importlib.reload(crc)
    assert (module.crc32c is crc32c.crc32c) is not is_alone
    assert module.crc32c(b"123456789") == 0xE3069283
    assert module.crc32c(b"56789", module.crc32c(b"1234")) == 0xE3069283
