"""State that several threads share: a loop over it goes over a copy, which no other thread can change."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import logfs

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = {"partitions", "unloaded", "offline", "homes", "deletions", "unfinished"}
OWNERS = {"registry", "_registry", "store", "_store", "checkpoints", "_checkpoints"}
# The classes whose own attributes these are.
OWN = {"store.py", "registry.py", "checkpoints.py"}
SOURCES = [
    path
    for folder in ("store", "mirror", "mount")
    for path in sorted((Path(logfs.__file__).parent / folder).rglob("*.py"))
]


def shared(node: ast.AST, path: Path) -> bool:
    """Whether an expression is one of the shared dictionaries."""
    if not isinstance(node, ast.Attribute) or node.attr not in SHARED:
        return False
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id == "self":
        return path.name in OWN and path.parent.name == "store"
    return getattr(owner, "id", getattr(owner, "attr", "")) in OWNERS


def live_loops(path: Path) -> Iterator[str]:
    """Yield the places of loops over a shared dictionary, and of copies that another thread may disturb."""
    tree = ast.parse(path.read_text())
    safe = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "list" and node.args
    }
    for node in ast.walk(tree):
        found = None
        if isinstance(node, (ast.For, ast.comprehension)) and shared(node.iter, path):
            found = node.iter
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_copy = node.func.attr == "values" and id(node) in safe
            if node.func.attr in ("items", "values", "keys") and not of_copy:
                found = node.func.value if shared(node.func.value, path) else None
        if found is not None:
            yield f"{path}:{found.lineno}: {ast.unparse(found)}"


def test_every_loop_over_shared_state_goes_over_a_copy() -> None:
    """`dictionary changed size during iteration` cannot happen where the partitions of a store are looped over."""
    assert [place for path in SOURCES for place in live_loops(path)] == []
