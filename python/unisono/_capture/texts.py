"""What becomes of a text that code puts together of several pieces: Python joins them without asking, so that only the code can say."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from unisono._capture.places import is_the_users, user_frame

#: Methods of texts and of dictionaries that a text given to them may steer.
_STEERING = frozenset(
    (
        "count", "endswith", "find", "get", "index", "isdigit", "partition", "pop",
        "removeprefix", "removesuffix", "rfind", "rpartition", "setdefault", "split", "startswith", "__contains__",
    )
)  # fmt: skip


def may_steer(frame: types.FrameType) -> bool:
    """Whether a text that is put together at a frame's line is compared, looked up or taken apart: there, by itself or by its name; where
    the function was called, if it returns the text; or in a function of the user's that is given it.
    """
    return _any_steers(frame, _is_text)


def ends_there(frame: types.FrameType) -> bool:
    """Whether a text that is put together at a frame's line goes no further than to a function that has it for a message, and that is
    called for nothing that it returns, such as a check.
    """
    code = _parsed(frame.f_code)
    texts = [] if code is None else [code.whole(node) for node in code.at(frame.f_lineno) if _is_text(node)]
    return bool(texts) and all(_is_message(text, code, frame) for text in texts if code is not None)


def _is_message(text: ast.AST, code: _Code, frame: types.FrameType) -> bool:
    parent = code.parents.get(text)
    call = code.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    if not (isinstance(call, ast.Call) and isinstance(code.parents.get(call), ast.Expr)):
        return False
    function = _function(call.func, frame)
    called = _parsed(function.__code__) if isinstance(function, types.FunctionType) else None
    name = None if called is None else _parameter(text, call, function)
    return called is not None and name is not None and all(map(called.passes_on, called.reading(name)))


def _any_steers(frame: types.FrameType, *wanted: Callable[[ast.AST], bool]) -> bool:
    """Whether any of the expressions at a frame's line that are wanted steers; those of the first kind that there is one of."""
    code = _parsed(frame.f_code)
    if code is None:
        return False
    here = [*code.at(frame.f_lineno)]
    found = next(filter(None, ([node for node in here if is_wanted(node)] for is_wanted in wanted)), [])
    texts = map(code.whole, found)
    return any(_steers(use, code, frame) for text in texts for use in (text, *code.uses(text)))


def _steers(text: ast.AST, code: _Code, frame: types.FrameType) -> bool:
    parent = code.parents.get(text)
    if isinstance(parent, ast.Return | ast.Lambda):
        return _steers_caller(frame)
    call = code.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    return code.chooses_by(text) or (isinstance(call, ast.Call) and _steers_callee(text, call, frame))


def _steers_caller(frame: types.FrameType) -> bool:
    """Whether what a function returns steers the code of the user's that called it; if others are between, which calls it is not known."""
    caller = user_frame(frame.f_back)
    name = frame.f_code.co_name if caller is frame.f_back else None
    return caller is not None and _any_steers(caller, lambda node: _calls(node, name), _is_call)


def _calls(node: ast.AST, name: str | None) -> bool:
    """Whether an expression calls a function by this name, or asks for a property of this name."""
    called = node.func if isinstance(node, ast.Call) else node if isinstance(node, ast.Attribute) else None
    return called is not None and name == getattr(called, "attr", getattr(called, "id", None))


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)


def _steers_callee(text: ast.AST, call: ast.Call, frame: types.FrameType) -> bool:
    """Whether a function of the user's compares the argument that it is given."""
    function = _function(call.func, frame)
    code = _parsed(function.__code__) if isinstance(function, types.FunctionType) else None
    if code is None or not is_the_users(function.__code__.co_filename):
        return False
    return any(code.chooses_by(use) for use in code.reading(_parameter(text, call, function)))


def _parameter(text: ast.AST, call: ast.Call, function: types.FunctionType) -> str | None:
    """The name that an argument of a call has in the function that is called."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
    if isinstance(call.func, ast.Attribute) and names and names[0] in ("self", "cls"):
        names = names[1:]
    given = dict(zip(map(id, call.args), names, strict=False))
    given |= {id(one.value): one.arg for one in call.keywords if one.arg is not None}
    return given.get(id(text))


def _function(expression: ast.expr, frame: types.FrameType) -> Any:
    """What a name or an attribute of a name stands for in a frame, without its binding to an object."""
    if isinstance(expression, ast.Name):
        found = frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    elif isinstance(expression, ast.Attribute):
        found = inspect.getattr_static(_function(expression.value, frame), expression.attr, None)
    else:
        return None
    return getattr(found, "__func__", found)


@dataclass(frozen=True)
class _Code:
    """The syntax of a function.

    Attributes:
        tree: its syntax tree, with the lines of its file.
        parents: what each node is part of.
    """

    tree: ast.AST
    parents: dict[ast.AST, ast.AST]

    def at(self, line: int) -> Iterator[ast.expr]:
        """The expressions that a line is part of."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and node.lineno <= line <= (node.end_lineno or node.lineno):
                yield node

    def whole(self, node: ast.AST) -> ast.AST:
        """The text, or the tuple, that a text is a piece of."""
        while isinstance(self.parents.get(node), ast.JoinedStr | ast.FormattedValue | ast.BinOp | ast.Tuple):
            node = self.parents[node]
        return node

    def uses(self, node: ast.AST) -> Iterator[ast.AST]:
        """Where the variable or the attribute is read that a text is put into."""
        parent = self.parents.get(node)
        targets = parent.targets if isinstance(parent, ast.Assign) else [getattr(parent, "target", None)]
        for one in (one for target in targets for one in getattr(target, "elts", [target])):
            yield from self.reading(getattr(one, "attr", getattr(one, "id", None)))

    def reading(self, name: str | None) -> Iterator[ast.AST]:
        """Where a variable or an attribute of a name is read."""
        named = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name | ast.Attribute))
        read = (node for node in named if isinstance(node.ctx, ast.Load))
        yield from (node for node in read if name == (node.id if isinstance(node, ast.Name) else node.attr))

    def chooses_by(self, node: ast.AST) -> bool:
        """Whether a text is compared, looked up or taken apart."""
        parent = self.parents.get(node)
        if isinstance(parent, ast.Call):
            function = parent.func
            return node in parent.args and isinstance(function, ast.Attribute) and function.attr in _STEERING
        if isinstance(parent, ast.Attribute):
            return parent.attr in _STEERING
        is_key = isinstance(parent, ast.Subscript) and parent.slice is node and isinstance(parent.ctx, ast.Load)
        return is_key or isinstance(parent, ast.Compare | ast.Match)

    def passes_on(self, node: ast.AST) -> bool:
        """Whether a text is only given another name, put into another text or returned, or its kind is asked for."""
        parent = self.parents.get(node)
        if isinstance(parent, ast.Call):
            return isinstance(parent.func, ast.Name) and parent.func.id in ("callable", "isinstance")
        return isinstance(parent, ast.Assign | ast.Return | ast.FormattedValue)


@functools.lru_cache(maxsize=256)
def _parsed(code: types.CodeType) -> _Code | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError):
        return None
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    return _Code(tree, {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)})


def _is_text(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether an expression puts a text together: an f-string, ``%``, `format` or `join` of a text."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join")
    return isinstance(node, ast.JoinedStr)
