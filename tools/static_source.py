# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python source inside a wheel, read without importing any of it.

A name is followed through the wheel's own modules to where it is defined; an expression is
evaluated as far as constants, lists and a few well-known calls go. What goes further is `Unknown`,
never guessed.
"""

from __future__ import annotations

import ast
import email
import zipfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Special = Callable[[ast.Call, str], Any]

_DEPTH = 12


class Unknown(Exception):  # noqa: N818 - a value that is not known is no error
    """An expression whose value only a running program knows."""


@dataclass(frozen=True)
class Definition:
    """Where a name is defined: the module, and the node that does it."""

    module: str
    node: ast.AST


@dataclass(frozen=True)
class Made:
    """An object that a call makes, by the text of that call."""

    text: str


class Source:
    """The modules of a wheel."""

    def __init__(self, wheel: Path) -> None:
        """Open a wheel; its files are read when they are asked for."""
        self._zip = zipfile.ZipFile(wheel)
        self._names = frozenset(self._zip.namelist())
        self._trees: dict[str, ast.Module | None] = {}
        self._indexes: dict[str, dict[str, ast.AST]] = {}

    def metadata(self) -> tuple[str, str]:
        """The distribution's name and version."""
        name = next(one for one in sorted(self._names) if one.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(self._zip.read(name))
        return str(message["Name"]), str(message["Version"])

    def modules(self, folder: str) -> list[str]:
        """The modules below a folder of the wheel, as dotted names."""
        paths = (PurePosixPath(name) for name in self._names if name.startswith(f"{folder}/"))
        dotted = {".".join(path.with_suffix("").parts) for path in paths if path.suffix == ".py"}
        return sorted(name.removesuffix(".__init__") for name in dotted)

    def tree(self, module: str) -> ast.Module | None:
        """The syntax tree of a module; None where the wheel has no such module."""
        if module not in self._trees:
            path = self._path(module)
            self._trees[module] = ast.parse(self._zip.read(path)) if path else None
        return self._trees[module]

    def index(self, module: str) -> Mapping[str, ast.AST]:
        """The top-level names of a module, with the nodes that define them."""
        if module not in self._indexes:
            tree = self.tree(module)
            found: dict[str, ast.AST] = {}
            for name, node in _bindings(tree.body) if tree else ():
                # A class that is made anew from itself (`X = defstruct("X", ...)`) keeps its own.
                if not isinstance(found.get(name), ast.ClassDef) or isinstance(node, ast.ClassDef):
                    found[name] = node
            self._indexes[module] = found
        return self._indexes[module]

    def find(
        self, module: str, name: str, local: Mapping[str, ast.AST] | None = None
    ) -> Definition | None:
        """Follow a name to its definition.

        Args:
            module: where the name is used.
            name: the name.
            local: what a function binds by itself (its own imports).
        """
        for _ in range(_DEPTH):
            node = (local or {}).get(name) or self.index(module).get(name)
            local = None
            if not isinstance(node, ast.ImportFrom):
                return None if node is None else Definition(module, node)
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            module, name = self._target(module, node), original
            if self.tree(f"{module}.{name}") and name not in self.index(module):
                return None
        return None

    def _path(self, module: str) -> str | None:
        base = module.replace(".", "/")
        return next((p for p in (f"{base}.py", f"{base}/__init__.py") if p in self._names), None)

    def _target(self, module: str, node: ast.ImportFrom) -> str:
        """The module that an import statement names."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        is_package = (self._path(module) or "").endswith("/__init__.py")
        above = parts[: len(parts) - node.level + is_package]
        return ".".join([*above, node.module] if node.module else above)


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """The names that statements bind, in order; a later one stands for an earlier one."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from ((t.id, node.value) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            yield node.target.id, node.value
        elif isinstance(node, ast.If | ast.Try):
            yield from _bindings(node.body)
            yield from _bindings(node.orelse)


def _bound(target: ast.expr, value: Any) -> dict[str, Any]:  # noqa: ANN401 - any value
    """The names of a loop's target with their parts of a value."""
    if isinstance(target, ast.Tuple):
        pairs = zip(target.elts, value, strict=True)
        return {name: one for inner, part in pairs for name, one in _bound(inner, part).items()}
    return {target.id: value} if isinstance(target, ast.Name) else {}


def bindings(node: ast.FunctionDef) -> dict[str, ast.AST]:
    """The names that a function binds by itself."""
    return dict(_bindings(node.body))


class Evaluator:
    """Evaluates expressions of a wheel's modules as far as that goes without running them."""

    def __init__(self, source: Source, special: Mapping[str, Special] | None = None) -> None:
        """Evaluate over the modules of one wheel.

        Args:
            source: the wheel.
            special: functions by their name, of which the caller knows what they return.
        """
        self.source = source
        self._special = special or {}
        self._by_type: dict[type, Callable[[Any, str, Mapping[str, Any]], Any]] = {
            ast.Constant: lambda node, _module, _env: node.value,
            ast.List: lambda node, module, env: list(self._items(node, module, env)),
            ast.Tuple: lambda node, module, env: list(self._items(node, module, env)),
            ast.Set: lambda node, module, env: list(self._items(node, module, env)),
            ast.Dict: self._dict,
            ast.DictComp: self._dict_comprehension,
            ast.Name: self._name,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.Compare: self._compare,
            ast.Call: self._call,
            ast.Subscript: self._subscript,
            ast.Attribute: self._attribute,
        }
        self._calls: dict[str, Callable[[Any], Any]] = {
            "list": list,
            "tuple": list,
            "set": list,
            "sorted": sorted,
            "frozenset": list,
        }

    def value(self, node: ast.AST, module: str, env: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - any value
        """The value of an expression.

        Args:
            node: the expression.
            module: where it stands.
            env: local names with their values, in front of the module's; or with the nodes that
                define them.

        Raises:
            Unknown: it depends on more than the wheel's text.
        """
        evaluate = self._by_type.get(type(node))
        if evaluate is None:
            raise Unknown(ast.unparse(node))
        return evaluate(node, module, env or {})

    def _items(
        self, node: ast.List | ast.Tuple | ast.Set, module: str, env: Mapping[str, Any]
    ) -> Iterator[Any]:
        for one in node.elts:
            if isinstance(one, ast.Starred):
                yield from self.value(one.value, module, env)
            else:
                yield self.value(one, module, env)

    def _dict(self, node: ast.Dict, module: str, env: Mapping[str, Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, one in zip(node.keys, node.values, strict=True):
            if key is None:
                found.update(self.value(one, module, env))
            else:
                try:
                    found[self.value(key, module, env)] = self.value(one, module, env)
                except Unknown:
                    # A help text made at run time must not take the known values with it.
                    found[self.value(key, module, env)] = Made(ast.unparse(one))
        return found

    def _dict_comprehension(
        self, node: ast.DictComp, module: str, env: Mapping[str, Any]
    ) -> dict[Any, Any]:
        (loop,) = node.generators
        found = {}
        for one in self.value(loop.iter, module, env):
            inner = {**env, **_bound(loop.target, one)}
            if all(self.value(test, module, inner) for test in loop.ifs):
                found[self.value(node.key, module, inner)] = self.value(node.value, module, inner)
        return found

    def _name(self, node: ast.Name, module: str, env: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        if node.id in env and not isinstance(env[node.id], ast.AST):
            return env[node.id]
        local = {name: one for name, one in env.items() if isinstance(one, ast.AST)}
        found = self.source.find(module, node.id, local)
        if found is None or isinstance(found.node, ast.ClassDef | ast.FunctionDef):
            raise Unknown(node.id)
        return self.value(found.node, found.module)

    def _binary(self, node: ast.BinOp, module: str, env: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        left, right = (self.value(one, module, env) for one in (node.left, node.right))
        try:
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Pow):
                return left**right
            if isinstance(node.op, ast.BitOr):
                return left | right if isinstance(left, dict) else [*left, *right]
        except TypeError as error:
            raise Unknown(ast.unparse(node)) from error
        raise Unknown(ast.unparse(node))

    def _unary(self, node: ast.UnaryOp, module: str, env: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        value = self.value(node.operand, module, env)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub):
            return -value
        raise Unknown(ast.unparse(node))

    def _compare(self, node: ast.Compare, module: str, env: Mapping[str, Any]) -> bool:
        left, right = (self.value(one, module, env) for one in (node.left, node.comparators[0]))
        if isinstance(node.ops[0], ast.In):
            return bool(left in right)
        if isinstance(node.ops[0], ast.NotIn):
            return bool(left not in right)
        if isinstance(node.ops[0], ast.Eq):
            return bool(left == right)
        raise Unknown(ast.unparse(node))

    def _subscript(self, node: ast.Subscript, module: str, env: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        if ast.unparse(node.value).split(".")[-1] == "Literal":
            return self._literal(node, module, env)
        try:
            return self.value(node.value, module, env)[self.value(node.slice, module, env)]
        except (KeyError, IndexError, TypeError) as error:
            raise Unknown(ast.unparse(node)) from error

    def _literal(self, node: ast.Subscript, module: str, env: Mapping[str, Any]) -> list[Any]:
        """The values of a `Literal[...]`, those of literals inside it too."""
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        values: list[Any] = []
        for one in inner:
            value = self.value(one, module, env)
            values += value if isinstance(value, list) else [value]
        return values

    def _attribute(self, node: ast.Attribute, module: str, env: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        """A default of a class, as `Class.field` gives it."""
        if isinstance(node.value, ast.Name) and node.value.id not in env:
            found = self.source.find(module, node.value.id)
            if found and isinstance(found.node, ast.ClassDef):
                inner = dict(_bindings(found.node.body)).get(node.attr)
                if inner is not None and not isinstance(inner, ast.ClassDef | ast.FunctionDef):
                    return self.value(inner, found.module)
        raise Unknown(ast.unparse(node))

    def _call(self, node: ast.Call, module: str, env: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        name = ast.unparse(node.func)
        if name in self._special:
            return self._special[name](node, module)
        if name.split(".")[-1] == "get_args" and len(node.args) == 1:
            return self.value(node.args[0], module, env)
        if name in self._calls and len(node.args) <= 1:
            inner = [self.value(one, module, env) for one in node.args]
            return self._calls[name](inner[0]) if inner else []
        if name == "dict" and not node.args:
            return {}
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"keys", "items"}:
            held = self.value(node.func.value, module, env)
            return list(held) if node.func.attr == "keys" else list(held.items())
        return self._own_function(node, module, env)

    def _own_function(self, node: ast.Call, module: str, env: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        """What a function of the wheel without arguments returns at its end."""
        found = self.source.find(module, node.func.id) if isinstance(node.func, ast.Name) else None
        if found is None or node.args or node.keywords:
            raise Unknown(ast.unparse(node))
        if isinstance(found.node, ast.FunctionDef):
            last = found.node.body[-1]
            if isinstance(last, ast.Return) and last.value:
                return self.value(last.value, found.module, {**env, **bindings(found.node)})
        raise Unknown(ast.unparse(node))
