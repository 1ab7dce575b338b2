#!/usr/bin/env python3
# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the pages of docs/ that say what code says: roles, modules, inventory variables.

tools/render_docs.py          writes the pages
tools/render_docs.py --check  writes nothing; names the pages that are not current, status 1 then
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
OURS = "llmetal.inference."
NOTE = "<!-- Made by tools/render_docs.py; edit {source} instead. -->"
_MARK = re.compile(r"\b([CIBVOEM]|RV)\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_LINK = re.compile(r"\b[LR]\(([^,()]+),\s*([^()]+)\)")


def text_of(value: object) -> str:
    """A description, one text or a list of them, as Markdown."""
    texts = value if isinstance(value, list) else [value] if value else []
    return " ".join(markdown(str(text)) for text in texts)


def markdown(text: str) -> str:
    """Ansible's markup in Markdown."""
    text = _LINK.sub(r"[\1](\2)", " ".join(text.split()))

    def mark(found: re.Match[str]) -> str:
        kind, inner = found.groups()
        if kind == "B":
            return f"**{inner}**"
        return f"*{inner}*" if kind == "I" else f"`{inner}`"

    return _MARK.sub(mark, text)


def cell(text: str) -> str:
    """A text as the cell of a table."""
    return text.replace("|", r"\|").replace("\n", " ")


def default_of(option: Mapping[str, Any]) -> str:
    """The default of an option, or that it is required."""
    if option.get("required"):
        return "required"
    if "default" not in option:
        return ""
    value = option["default"]
    shown = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return f"`{shown.removesuffix('...').strip()}`"


def type_of(option: Mapping[str, Any]) -> str:
    """The type of an option, with that of its elements."""
    kind = str(option.get("type", "raw"))
    return f"{kind} of {option['elements']}" if option.get("elements") else kind


def option_rows(
    options: Mapping[str, Any], inside: str, prefix: str = ""
) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each option, those inside others below them."""
    for name, option in options.items():
        meaning = text_of(option.get("description"))
        choices = option.get("choices")
        if choices:
            meaning += " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."
        yield f"`{prefix}{name}`", type_of(option), default_of(option), meaning
        many = "[]" if option.get("type") == "list" else ""
        yield from option_rows(option.get(inside) or {}, inside, f"{prefix}{name}{many}.")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    return lines


def role_page(path: Path) -> str:
    """The page of a role, from its argument_specs."""
    role = path.parent.parent.name
    specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
    lines = [NOTE.format(source=path.relative_to(ROOT)), "", f"# Role {role}", ""]
    for name, entry in specs.items():
        if name != "main":
            lines += [f"## Entry point {name}", ""]
        lines += [f"{markdown(str(entry.get('short_description', ''))).rstrip('.')}.", ""]
        for text in _list(entry.get("description")):
            lines += [markdown(text), ""]
        if entry.get("options"):
            head = ("variable", "type", "default", "meaning")
            lines += [*table(head, option_rows(entry["options"], "options")), ""]
    return "\n".join(lines).rstrip() + "\n"


def inventory_page(path: Path) -> str:
    """The page of the variables of an inventory, from their specification."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    main = data["argument_specs"]["main"]
    groups = ", ".join(f"`{group}`" for group in data["site_groups"])
    head = ("variable", "type", "default", "meaning")
    lines = [
        NOTE.format(source=path.relative_to(ROOT)),
        "",
        "# The variables of an inventory",
        "",
        f"Every host is in one of the groups {groups}. Set these for a host, a group or all",
        "hosts; `llmetal validate -i INVENTORY` names what is misspelt or has the wrong type.",
        f"Variables of your own begin with `{data['free_prefix']}`; those of Ansible and the",
        "documented ones of a [role](roles/index.md) are allowed too, any other is refused.",
        "",
        *table(head, option_rows(main["options"], "options")),
    ]
    return "\n".join(lines) + "\n"


def class_constants(path: Path) -> dict[str, str]:
    """The texts that the classes of a Python file assign."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    return {name: text for body in bodies for name, text in assigned(body).items()}


def constants(path: Path) -> dict[str, str]:
    """The texts that a Python file assigns at its top level."""
    return assigned(ast.parse(path.read_text(encoding="utf-8")).body)


def assigned(body: Iterable[ast.stmt]) -> dict[str, str]:
    """The texts that statements assign, by name."""
    found = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = str(node.value.value)
    return found


def documentation(path: Path) -> dict[str, Any]:
    """The documentation of a module, with what its fragments of ours add."""
    doc: dict[str, Any] = yaml.safe_load(constants(path)["DOCUMENTATION"])
    names = doc.get("extends_documentation_fragment") or []
    for name in [names] if isinstance(names, str) else names:
        if not name.startswith(OURS):
            continue
        file, _, variant = name.removeprefix(OURS).partition(".")
        fragment = class_constants(path.parent.parent / "doc_fragments" / f"{file}.py")
        added = yaml.safe_load(fragment[variant.upper() or "DOCUMENTATION"])
        for part in ("options", "attributes"):
            doc[part] = merged(added.get(part) or {}, doc.get(part) or {})
    return doc


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings in one, those inside them too; the second has the last word."""
    both = {**below, **above}
    for key in set(below) & set(above):
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = merged(below[key], above[key])
    return both


def module_page(path: Path) -> str:
    """The page of a module, from its documentation."""
    texts = constants(path)
    doc = documentation(path)
    name = f"llmetal.inference.{path.stem}"
    lines = [NOTE.format(source=path.relative_to(ROOT)), "", f"# Module {name}", ""]
    lines += [f"{markdown(str(doc['short_description'])).rstrip('.')}.", ""]
    for text in _list(doc.get("description")):
        lines += [markdown(text), ""]
    if doc.get("options"):
        head = ("parameter", "type", "default", "meaning")
        lines += ["## Parameters", "", *table(head, option_rows(doc["options"], "suboptions")), ""]
    if doc.get("attributes"):
        rows = [
            (f"`{key}`", str(value.get("support", "")), attribute_text(value))
            for key, value in doc["attributes"].items()
        ]
        lines += ["## Attributes", "", *table(("attribute", "support", "meaning"), rows), ""]
    if texts.get("EXAMPLES", "").strip():
        lines += ["## Examples", "", "```yaml", texts["EXAMPLES"].strip(), "```", ""]
    values = yaml.safe_load(texts.get("RETURN", "")) or {}
    if values:
        rows = [(row[0], row[1], row[3]) for row in option_rows(values, "contains")]
        lines += ["## Returns", "", *table(("value", "type", "meaning"), rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def attribute_text(attribute: Mapping[str, Any]) -> str:
    """What an attribute means, and what there is to say about it."""
    parts = (text_of(attribute.get("description")), text_of(attribute.get("details")))
    return " ".join(part for part in parts if part)


def index_page(title: str, pages: Mapping[Path, str]) -> str:
    """The list of the pages of a folder, each with its first sentence."""
    lines = [NOTE.format(source="tools/render_docs.py"), "", f"# {title}", ""]
    for path, text in pages.items():
        heading, sentence = [line for line in text.splitlines() if line][1:3]
        lines.append(f"- [{heading.rpartition(' ')[2]}]({path.name}): {sentence}")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """All pages that are made, with their texts."""
    specs = sorted((ROOT / "roles").glob("*/meta/argument_specs.yml"))
    docs = ROOT / "docs"
    roles = {docs / "roles" / f"{p.parent.parent.name}.md": role_page(p) for p in specs}
    sources = sorted((ROOT / "plugins" / "modules").glob("*.py"))
    modules = {docs / "modules" / f"{p.stem}.md": module_page(p) for p in sources}
    variables = ROOT / "plugins" / "plugin_utils" / "data" / "site_variables.yml"
    return {
        docs / "inventory.md": inventory_page(variables),
        **roles,
        docs / "roles" / "index.md": index_page("Roles", roles),
        **modules,
        docs / "modules" / "index.md": index_page("Modules", modules),
    }


def stale(wanted: Mapping[Path, str]) -> list[Path]:
    """The pages that are missing, differ, or have nothing to be made from."""
    there = {p for name in ("roles", "modules") for p in (ROOT / "docs" / name).glob("*.md")}
    differ = {
        path
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    return sorted(differ | (there - set(wanted)))


def main(argv: Sequence[str]) -> int:
    """Write the pages, or say which are not current."""
    wanted = pages()
    old = stale(wanted)
    if "--check" in argv:
        for path in old:
            print(f"{path.relative_to(ROOT)} is not current: run tools/render_docs.py")
        return 1 if old else 0
    for path in old:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
        print(path.relative_to(ROOT))
    return 0


def _list(value: object) -> list[str]:
    if not value:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
