"""Small changes of source code, each of which a test should notice."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
_OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Change(NamedTuple):
    """One change: the line, and the text that takes the place of its bytes [start, end) in UTF-8."""

    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the source with the change."""
        lines = source.split("\n")
        data = lines[self.line - 1].encode()
        lines[self.line - 1] = (data[: self.start] + self.text.encode() + data[self.end :]).decode()
        return "\n".join(lines)


def changes(source: str) -> Iterator[Change]:
    """Yield every change of a module.

    They are of comparisons, conditions, arithmetic, numbers and a few functions, and calls that are left out.
    """
    module = _Module(source)
    for node in _executed(module.tree):
        yield from module.operators(node)
        yield from module.values(node)


class _Module:
    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self._lines = [line.encode() for line in source.split("\n")]

    def operators(self, node: ast.AST) -> Iterator[Change]:
        """Yield the changes of the operators of a node."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._between(left, right, _COMPARISONS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                if not (_is_text(left) or _is_text(right)):
                    yield from self._between(left, right, _ARITHMETIC[type(op)])
            case ast.BoolOp(op=op, values=values):
                for left, right in pairwise(values):
                    yield from self._between(
                        left, right, "or" if isinstance(op, ast.And) else "and"
                    )
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._replaced(node, self._text(operand))

    def values(self, node: ast.AST) -> Iterator[Change]:
        """Yield the changes of conditions, constants, names and statements."""
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield from self._replaced(test, f"(not ({self._text(test)}))")
            case ast.Constant(value=bool(value)):
                yield from self._replaced(node, str(not value))
            case ast.Constant(value=int(value)):
                yield from self._replaced(node, str(value + 1))
            case ast.Name(id=name) if name in _OTHER_NAMES:
                yield from self._replaced(node, _OTHER_NAMES[name])
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield from self._replaced(node, "pass")

    def _text(self, node: ast.AST) -> str:
        found = ast.get_source_segment(self.source, node)
        assert found is not None
        return found

    def _replaced(self, node: ast.expr | ast.stmt, by: str) -> Iterator[Change]:
        if node.lineno == node.end_lineno and node.end_col_offset is not None:
            yield Change(node.lineno, node.col_offset, node.end_col_offset, by)

    def _between(self, left: ast.expr, right: ast.expr, by: str) -> Iterator[Change]:
        """Replace the operator between two operands on one line, if no bracket is there, too."""
        line, start = left.end_lineno, left.end_col_offset
        if line == right.lineno and start is not None:
            found = self._lines[line - 1][start : right.col_offset]
            if not set(found) & set(b"()"):
                yield Change(line, start, right.col_offset, f" {by} ")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_log_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in the bodies of functions: no annotations, docstrings, log calls or messages of errors."""
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, is_inside = todo.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
            continue
        if _is_log_call(node) or (isinstance(node, ast.Expr) and _is_log_call(node.value)):
            continue
        if is_inside:
            yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += [(each, True) for each in node.body]
        elif isinstance(node, ast.AnnAssign):
            todo += [(node.value, is_inside)] if node.value else []
        else:
            todo += [(each, is_inside) for each in ast.iter_child_nodes(node)]
