"""Records of `__consumer_offsets` that logfs reads and does not write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logfs.format.messages import group_schema
from logfs.format.messages.group_schema import GROUP_METADATA

if TYPE_CHECKING:
    from collections.abc import Mapping


def encode_group_metadata(fields: Mapping[str, Any], version: int = 3) -> bytes:
    """Return the value of a classic group's metadata; fields that the version lacks are dropped."""
    return group_schema.VALUES[GROUP_METADATA].encode(version, fields)
