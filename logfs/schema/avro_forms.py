"""Checks of the forms of an Avro schema, made before data are decoded with it.

A parsed schema is the name of a type, a list (for a union), or a dict. `named` maps the names of types to their
parsed schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMED = ("record", "error", "enum", "fixed")


def is_recursive(schema: Any, named: Mapping[str, Any]) -> bool:
    """Whether the schema has a named type whose values can contain values of the same type."""
    done: set[str] = set()

    def search(part: Any, around: tuple[str, ...]) -> bool:
        form = _resolved(part, named)
        name = form["name"] if isinstance(form, dict) and form["type"] in _NAMED else None
        if name in around:
            return True
        if name in done:
            return False
        inner = around if name is None else (*around, name)
        if any(search(each, inner) for each in _parts(form)):
            return True
        done.add(name or "")
        return False

    return search(schema, ())


def has_items_without_bytes(schema: Any, named: Mapping[str, Any]) -> bool:
    """Whether the schema has an array whose items take no bytes in the encoding, such as nulls.

    A few bytes of data could declare any number of such items, which would then fill the memory.
    """
    known: dict[str, bool] = {}

    def takes_bytes(part: Any) -> bool:
        form = _resolved(part, named)
        if not isinstance(form, dict):
            return bool(form != "null")
        kind = form["type"]
        if kind == "fixed":
            return bool(form["size"] > 0)
        if kind not in ("record", "error"):
            return kind in ("array", "map", "enum") or takes_bytes(kind)
        name = form["name"]
        if name not in known:
            # For a record that contains itself, True ends the recursion. True is right: a value can be finite only if
            # the record contains itself by a union, an array or a map, and these take bytes.
            known[name] = True
            known[name] = any(takes_bytes(field["type"]) for field in form["fields"])
        return known[name]

    return any(
        isinstance(form, dict) and form["type"] == "array" and not takes_bytes(form["items"])
        for form in forms(schema, named)
    )


def forms(schema: Any, named: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the parsed schema and all schemas inside it. Each named type is yielded once."""
    seen: set[str] = set()
    pending = [schema]
    while pending:
        form = _resolved(pending.pop(), named)
        if isinstance(form, dict) and form["type"] in _NAMED:
            if form["name"] in seen:
                continue
            seen.add(form["name"])
        yield form
        pending += _parts(form)


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return the parsed schema of a named type. Any other schema, such as a primitive type, is returned unchanged."""
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _parts(form: Any) -> Iterator[Any]:
    """Yield the schemas directly inside a schema: of a record's fields, an array's items and so on."""
    if isinstance(form, list):
        yield from form
    elif isinstance(form, dict):
        kind = form["type"]
        if kind in ("record", "error"):
            for field in form["fields"]:
                yield field["type"]
        elif kind == "array":
            yield form["items"]
        elif kind == "map":
            yield form["values"]
        elif not isinstance(kind, str):
            yield kind
