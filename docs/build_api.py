"""Write the API reference in docs/api from docstrings, and the tables in docs/add-a-method.md.

    python docs/build_api.py            write the pages
    python docs/build_api.py --check    write nothing; fail where a page is out of date

The sources are parsed and not imported, so that types and defaults stand as they are written; only
the descriptions of `RunConfig`, some of which are computed, are asked of the class.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path

from fedloom.runs.config import RunConfig

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src"
GUIDE = DOCS / "add-a-method.md"
WIDTH = 96
"""Longest signature on one line."""

PAGES = {
    "running": (
        "Run, resume, compare, tune, verify",
        (
            *("fedloom.launch", "fedloom.runs", "fedloom.tuning", "fedloom.verification"),
            "fedloom.core.protocol",
        ),
    ),
    "advice": ("Check data, choose a method", ("fedloom.advice",)),
    "records": ("What a run leaves behind", ("fedloom.record",)),
    "tasks": ("Tasks and metrics", ("fedloom.core.task", "fedloom.core.metrics")),
    "using-models": ("Models in use", ("fedloom.serving",)),
    "writing-methods": ("Write a method", ("fedloom.core", "fedloom.methods")),
    "methods": ("Methods and terms", ("fedloom.methods.",)),
    "models": ("Networks", ("fedloom.models", "fedloom.core.net")),
    "data": ("Data", ("fedloom.data",)),
    "errors": ("Errors", ("fedloom.errors",)),
    "analysis": ("Diagnostics as functions: `fl.analysis`", ("fedloom.analysis",)),
    "diagnose": ("Diagnostics of a run: `fl.diagnose`", ("fedloom.diagnose",)),
    "loggers": ("Loggers: `fl.loggers`", ("fedloom.loggers",)),
    "testing": ("Test a method of your own: `fl.testing`", ("fedloom.testing",)),
}
"""Page -> its title, and where the names on it are imported from; a dot at the end: from below."""
HELD = {"s": "Site", "r": "Round", "b": "Batch", "up": "Up", "net": "Net"}
"""Argument of a hook -> its class, for the tables of the guide."""

Attribute = tuple[str, str, str]
"""Name, type with default, meaning."""
Definition = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Entry:
    """A public name with its definition and docstring."""

    name: str
    node: Definition
    doc: str


# ------------------------------------------------------------------ reading the sources


def file_of(module: str, suffix: str = ".py") -> Path:
    """The file of a module or of a package."""
    path = SOURCE.joinpath(*module.split("."))
    return path / f"__init__{suffix}" if path.is_dir() else path.with_suffix(suffix)


@cache
def parsed(file: Path) -> list[ast.stmt]:
    """The statements of a file; none where there is no such file."""
    return ast.parse(file.read_text("utf-8")).body if file.exists() else []


def imports(body: list[ast.stmt]) -> dict[str, str]:
    """Imported name -> where it is imported from."""
    lines = [line for line in body if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


def public_names(package: str) -> dict[str, str]:
    """Public name -> where it is imported from: what the stub lists, or `__all__`, or else every
    class and function without an underscore."""
    if stub := parsed(file_of(package, ".pyi")):
        return imports(stub)
    body = parsed(file_of(package))
    for line in body:
        if isinstance(line, ast.Assign) and name_of(line) == "__all__":
            return dict.fromkeys(ast.literal_eval(line.value), package)
    defined = [line.name for line in body if isinstance(line, ast.ClassDef | ast.FunctionDef)]
    return dict.fromkeys([name for name in defined if not name.startswith("_")], package)


def find(name: str, module: str) -> Entry:
    """A name's definition, in the module itself or where that imports it from."""
    body = parsed(file_of(module))
    for node, doc in with_docs(body):
        if isinstance(node, Definition) and name_of(node) == name:
            return Entry(name, node, doc)
    homes = imports(parsed(file_of(module, ".pyi")) + body)
    if name not in homes:
        raise SystemExit(f"{name!r} is public, but {module} neither defines nor imports it")
    return find(name, homes[name])


def with_docs(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Statements with their docstrings: the first one inside, or the string that follows."""
    for node, after in pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node, ast.get_docstring(node) or ""
        elif isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield node, cleandoc(str(after.value.value))
        else:
            yield node, ""


def name_of(node: ast.stmt) -> str:
    """What a definition defines; empty for other statements."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    if isinstance(node, ast.AnnAssign):
        return source_of(node.target)
    return source_of(node.targets[0]) if isinstance(node, ast.Assign) else ""


def members(node: Definition) -> tuple[list[Attribute], list[ast.FunctionDef]]:
    """The public attributes of a class, properties among them, and its methods."""
    attributes: list[Attribute] = []
    methods = []
    for member, doc in with_docs(node.body if isinstance(node, ast.ClassDef) else []):
        name = name_of(member)
        if not name or name.startswith("_"):
            continue
        if isinstance(member, ast.AnnAssign):
            attributes.append((name, *type_and_meaning(member, doc)))
        elif isinstance(member, ast.FunctionDef) and is_property(member):
            returns = source_of(member.returns) if member.returns else ""
            attributes.append((name, returns, first_paragraph(doc)))
        elif isinstance(member, ast.FunctionDef):
            methods.append(member)
    return attributes, methods


def type_and_meaning(node: ast.AnnAssign, doc: str) -> tuple[str, str]:
    """Of an attribute; a key of `RunConfig` is a call of pydantic's `Field`."""
    kind = re.sub(r"^ClassVar\[(.*)\]$", r"\1", source_of(node.annotation))
    default = node.value
    if isinstance(default, ast.Call) and source_of(default.func) == "Field":
        doc = str(RunConfig.model_fields[name_of(node)].description)
        default = default.args[0]
    elif isinstance(default, ast.Call) and source_of(default.func) == "field":
        default = None
    return kind if default is None else f"{kind} = {source_of(default)}", first_paragraph(doc)


def is_property(node: ast.FunctionDef) -> bool:
    decorators = {source_of(decorator) for decorator in node.decorator_list}
    return bool(decorators & {"property", "cached_property"})


def source_of(node: ast.AST) -> str:
    """The source of an expression, its strings in double quotes."""
    return re.sub(r"'([^'\"\\]*)'", r'"\1"', ast.unparse(node))


def first_paragraph(doc: str) -> str:
    """On one line."""
    return " ".join(doc.partition("\n\n")[0].split())


# ------------------------------------------------------------------ writing Markdown


def signature(node: ast.FunctionDef, width: float = WIDTH) -> str:
    """A function as it is called; one argument to a line where it is too wide."""
    written = arguments(node.args)
    returns = f" -> {source_of(node.returns)}" if node.returns else ""
    line = f"{node.name}({', '.join(written)}){returns}"
    if len(line) <= width:
        return line
    inner = "".join(f"    {argument},\n" for argument in written)
    return f"{node.name}(\n{inner}){returns}"


def arguments(node: ast.arguments) -> list[str]:
    """As written, without `self`."""

    def written(argument: ast.arg, default: ast.expr | None) -> str:
        return source_of(argument) + (f" = {source_of(default)}" if default else "")

    plain = [*node.posonlyargs, *node.args]
    defaults = [*[None] * (len(plain) - len(node.defaults)), *node.defaults]
    parts = [written(*pair) for pair in zip(plain, defaults, strict=True)]
    if node.vararg:
        parts.append(f"*{source_of(node.vararg)}")
    elif node.kwonlyargs:
        parts.append("*")
    parts += [written(*pair) for pair in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    parts += [f"**{source_of(node.kwarg)}"] if node.kwarg else []
    return parts[1:] if parts[:1] in (["self"], ["cls"]) else parts


def code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def prose(doc: str) -> str:
    """A docstring as Markdown: examples and indented blocks become code."""
    blocks = []
    for block in doc.replace("::\n\n", ":\n\n").split("\n\n"):
        if block == ":":  # announced what follows, which is code by its indent
            continue
        if block.lstrip().startswith(">>>"):
            blocks.append(code(cleandoc(block)))
        elif block.startswith("    "):
            blocks.append(code(cleandoc(block), "text"))
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def table(rows: Sequence[tuple[str, ...]], *heads: str) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def attribute_table(attributes: list[Attribute], prefix: str = "") -> str:
    def cell(text: str) -> str:
        return f"`{text}`".replace("|", "\\|") if text else ""  # a bar would end the cell

    rows = [(cell(prefix + name), cell(kind), meaning) for name, kind, meaning in attributes]
    return table(rows, "name", "type", "what it is")


def section(entry: Entry) -> str:
    """One name of a page. A method without a docstring overrides one that is described there."""
    node = entry.node
    if isinstance(node, ast.FunctionDef):
        head = signature(node)
    elif isinstance(node, ast.ClassDef):
        bases = ", ".join(map(source_of, node.bases))
        head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    else:
        head = source_of(node)
        head = head if len(head) <= WIDTH else head.partition(" = ")[0]  # a long value says little
    parts = [f"## {entry.name}", code(head), prose(entry.doc)]
    attributes, methods = members(node)
    parts += [attribute_table(attributes)] if attributes else []
    for method in methods:
        if doc := ast.get_docstring(method):
            parts += [code(signature(method)), prose(doc)]
    return "\n\n".join(part for part in parts if part)


# ------------------------------------------------------------------ the pages


def entries() -> dict[str, list[Entry]]:
    """Page -> the names on it. Where a name is imported from says on which page it is."""
    pages: dict[str, dict[str, Entry]] = {page: {} for page in PAGES}
    for name, home in public_names("fedloom").items():
        if home == "fedloom":  # a subpackage
            pages[name] |= {n: find(n, at) for n, at in public_names(f"fedloom.{name}").items()}
        elif home != "fedloom.version":
            pages[page_of(home)][name] = find(name, home)
    return {page: sorted(names.values(), key=by_name) for page, names in pages.items() if names}


def by_name(entry: Entry) -> str:
    return entry.name.lower()


def page_of(home: str) -> str:
    """The page of the longest module name that this one begins with."""
    fitting = [
        (len(module), page)
        for page, (_, modules) in PAGES.items()
        for module in modules
        if home == module or home.startswith(f"{module.rstrip('.')}.")
    ]
    if not fitting:
        raise SystemExit(f"no page has the names of {home}; add it to PAGES")
    return max(fitting)[1]


def reference() -> dict[Path, str]:
    """Every page of the reference, by file."""
    origin = "<!-- Written by docs/build_api.py from the docstrings; change those. -->"
    pages = {}
    index = ["# API reference", origin, "Public names: `import fedloom as fl`, then `fl.name`."]
    for page, names in entries().items():
        title = PAGES[page][0]
        text = "\n\n".join([f"# {title}", origin, *map(section, names)])
        pages[DOCS / "api" / f"{page}.md"] = f"{text}\n"
        links = [
            (f"[`{entry.name}`]({page}.md#{anchor})", first_paragraph(entry.doc))
            for entry, anchor in zip(names, anchors(names), strict=True)
        ]
        index += [f"## [{title}]({page}.md)", table(links, "name", "what it is")]
    pages[DOCS / "api" / "README.md"] = "\n\n".join(index) + "\n"
    return pages


def anchors(names: list[Entry]) -> Iterator[str]:
    """What GitHub calls each heading of a page: in lower case, numbered where that is ambiguous."""
    earlier: Counter[str] = Counter()
    for name in map(by_name, names):
        yield f"{name}-{earlier[name]}" if earlier[name] else name
        earlier[name] += 1


def guide() -> str:
    """The guide with its tables of what hooks are given, between their marks."""
    text = GUIDE.read_text("utf-8")
    for argument, name in HELD.items():
        attributes, methods = members(find(name, public_names("fedloom")[name]).node)
        for method in methods:
            call, _, returns = signature(method, math.inf).partition(" -> ")
            attributes.append((call, returns, first_paragraph(ast.get_docstring(method) or "")))
        rows = attribute_table(attributes, prefix=f"{argument}.")
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{rows}\n{end}{rest.partition(end)[2]}"
    return text


def write(pages: dict[Path, str], folder: Path, command: str) -> None:
    """Write pages and remove others of their folder; with --check only say what is out of date."""
    stale = [f for f, text in pages.items() if not f.exists() or f.read_text("utf-8") != text]
    superfluous = [file for file in folder.glob("*.md") if file not in pages]
    if "--check" in sys.argv:
        names = ", ".join(file.relative_to(DOCS.parent).as_posix() for file in stale + superfluous)
        sys.exit(f"out of date: {names}; run {command}" if names else 0)
    folder.mkdir(exist_ok=True)
    for file in stale:
        file.write_text(pages[file], "utf-8")
    for file in superfluous:
        file.unlink()


def main() -> None:
    """Write every page, or say which is out of date."""
    write({**reference(), GUIDE: guide()}, DOCS / "api", "python docs/build_api.py")


if __name__ == "__main__":
    main()
