"""What becomes of a text that code puts together of several pieces: Python joins them without asking, so that only the code can say."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import TypeGuard

#: Methods of texts and of dictionaries that a text given to them may steer.
_STEERING = frozenset(
    (
        "count", "endswith", "find", "get", "index", "isdigit", "partition", "pop",
        "removeprefix", "removesuffix", "rfind", "rpartition", "setdefault", "split", "startswith", "__contains__",
    )
)  # fmt: skip


def may_steer(code: types.CodeType, line: int) -> bool:
    """Whether a text that is put together at a line of a function is compared there, looked up or taken apart, by itself or by its name."""
    tree = _parsed(code)
    if tree is None:
        return False
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        if _is_text(node) and node.lineno <= line <= (node.end_lineno or node.lineno):
            whole = _whole(node, parents)
            if _steers(whole, parents) or any(_steers(use, parents) for use in _uses(whole, parents, tree)):
                return True
    return False


@functools.lru_cache(maxsize=256)
def _parsed(code: types.CodeType) -> ast.AST | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError):
        return None
    return ast.increment_lineno(tree, code.co_firstlineno - 1)


def _is_text(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether an expression puts a text together: an f-string, ``%`` or `format` of a text."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "format"
    return isinstance(node, ast.JoinedStr)


def _whole(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    """The text that a text is a piece of."""
    while isinstance(parents.get(node), ast.JoinedStr | ast.FormattedValue | ast.BinOp):
        node = parents[node]
    return node


def _steers(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents.get(node)
    if isinstance(parent, ast.Call):
        function = parent.func
        return node in parent.args and isinstance(function, ast.Attribute) and function.attr in _STEERING
    if isinstance(parent, ast.Attribute):
        return parent.attr in _STEERING
    is_key = isinstance(parent, ast.Subscript) and parent.slice is node and isinstance(parent.ctx, ast.Load)
    return is_key or isinstance(parent, ast.Compare | ast.Match)


def _uses(node: ast.AST, parents: dict[ast.AST, ast.AST], tree: ast.AST) -> Iterator[ast.AST]:
    """Where the variable is read that a text is put into."""
    parent = parents.get(node)
    targets = parent.targets if isinstance(parent, ast.Assign) else [getattr(parent, "target", None)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    for use in ast.walk(tree):
        if isinstance(use, ast.Name) and use.id in names and isinstance(use.ctx, ast.Load):
            yield use
