"""List what src defines and nobody uses.

    python -m tests.tools.unused

A definition is a function, class or constant of a module, or a method or property of a class. What only unused code
uses is unused. A function, class or constant is used where its own module names it outside of its definition, where
another one imports it or names it as an attribute of its module, and where a text is its name ("module:name", tables of
lazy imports). A method is used where anything of its name is used as an attribute, so that a shared name may hide that
one of two is unused; what is listed is listed rightly. Whatever a decorator registers and what other libraries call
count as used. Exits with 1 when something is used by nobody. What the second list marks as written about in docs/ is
offered to users, and is no waste.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = "docs"
ATTRIBUTE, TEXT = "attribute of anything", "text"
NAME = re.compile(r"(?:[\w.]+[:.])?([A-Za-z_]\w*)")
# Decorators that hand a function to nobody; any other one may register it.
PLAIN = frozenset(
    {
        "abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "dataclass", "inference_mode",
        "kernel", "lru_cache", "no_grad", "overload", "override", "property", "runtime_checkable", "setter",
        "staticmethod",
    }
)  # fmt: skip
# Methods that other libraries call: of gymnasium, torch, numba, yaml, uvicorn, asyncio and typer.
CALLED = frozenset(
    {
        "_optimize_functions", "add_overload", "close_extras", "compile", "compose_node", "connection_lost",
        "connection_made", "construct_mapping", "convert", "data_received", "define_pipelines", "finalize", "forward",
        "increase_indent", "observation", "redirect_request", "reset", "run_pass", "startup", "step",
    }
)  # fmt: skip
# Kept although nobody uses them yet: why.
KEPT = {
    "k3_mean": "the estimator of KL that the ledger names (001-12)",
    "src/tailwise/market/account.py": "the account that paper trading will use",
    "src/tailwise/market/account_guards.py": "the guards that paper trading will use",
}


@dataclass(frozen=True)
class Definition:
    """A name that src defines: its file from the root; first and last line, with decorators."""

    name: str
    kind: str
    file: str
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Use:
    """A place that names something; of: the file of the module that it belongs to, or ATTRIBUTE, or TEXT."""

    name: str
    of: str
    file: str
    line: int

    def means(self, one: Definition) -> bool:
        """Whether it can be this definition, and is not a part of it."""
        if self.file == one.file and one.first <= self.line <= one.last:
            return False
        if self.of == ATTRIBUTE:  # of an object, or of a module that is a variable
            return one.kind in ("method", "constant")
        return self.of == TEXT or (self.of == one.file and one.kind != "method")


@dataclass(frozen=True)
class Unused:
    """by_nobody: no other place names them; by_tests: only tests, benchmarks or scripts do."""

    by_nobody: list[Definition]
    by_tests: list[Definition]


def definitions(tree: ast.Module, file: str) -> Iterator[Definition]:
    """Everything that a module defines at its top or in the bodies of its classes, but for dunders and fields."""
    for node in tree.body:
        yield from _defined_by(node, file, inside=False)


def _defined_by(node: ast.stmt, file: str, *, inside: bool) -> Iterator[Definition]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        kind = "class" if isinstance(node, ast.ClassDef) else "method" if inside else "function"
        registered = any(_decorator(one) not in PLAIN for one in node.decorator_list)
        if not (registered or node.name.startswith("__") or (inside and node.name in CALLED)):
            yield Definition(node.name, kind, file, first, node.end_lineno or first)
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if not isinstance(one, ast.Assign | ast.AnnAssign):  # fields are read by whoever stores them
                    yield from _defined_by(one, file, inside=True)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for name in (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)):
            if not name.startswith("__"):
                yield Definition(name, "constant", file, node.lineno, node.end_lineno or node.lineno)
    elif isinstance(node, ast.If):  # TYPE_CHECKING, and what depends on the platform
        for one in (*node.body, *node.orelse):
            yield from _defined_by(one, file, inside=inside)


def _decorator(node: ast.expr) -> str:
    """The last word of a decorator: dataclass(frozen=True) -> dataclass, x.setter -> setter."""
    if isinstance(node, ast.Call):
        return _decorator(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def uses(tree: ast.Module, file: str, modules: Mapping[str, str]) -> Iterator[Use]:
    """Everything that a module names; modules: dotted name -> file of those that src has."""
    known = _imported_modules(tree, modules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield Use(node.id, file, file, node.lineno)
        elif isinstance(node, ast.Attribute):
            yield Use(node.attr, known.get(ast.unparse(node.value), ATTRIBUTE), file, node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            yield from (Use(alias.name, modules[node.module], file, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (text := NAME.fullmatch(node.value)):
            yield Use(text[1], TEXT, file, node.lineno)


def _imported_modules(tree: ast.Module, modules: Mapping[str, str]) -> dict[str, str]:
    """How this module calls modules of src -> their files: `import a.b`, `import a.b as c`, `from a import b as c`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: modules[alias.name] for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (full := f"{node.module}.{alias.name}") in modules:
                    found[alias.asname or alias.name] = modules[full]
    return found


def find_unused(source: Mapping[str, str], others: Mapping[str, str]) -> Unused:
    """source, others: file -> text; what `source` defines, judged by what both name."""
    modules = {_module(file): file for file in source}
    trees = {file: ast.parse(text, file) for file, text in {**source, **others}.items()}
    defined = [one for file in source for one in definitions(trees[file], file)]
    kept = [one for one in defined if one.name in KEPT or one.file in KEPT]
    named: dict[str, list[Use]] = defaultdict(list)
    for file, tree in trees.items():
        for use in uses(tree, file, modules):
            named[use.name].append(use)
    by_nobody = _unused(defined, kept, named, set(trees))
    without_others = _unused(defined, kept, named, set(source))
    return Unused(by_nobody, [one for one in without_others if one not in by_nobody])


def _unused(
    defined: list[Definition], kept: list[Definition], named: Mapping[str, list[Use]], files: set[str]
) -> list[Definition]:
    """Definitions that no used place in `files` names; found again and again, until nothing more falls."""
    unused: list[Definition] = []
    alive, fell = [one for one in defined if one not in kept], True
    while fell:
        dead = defaultdict(list)
        for one in unused:
            dead[one.file].append(one)
        fallen = [
            one
            for one in alive
            if not any(
                use.file in files
                and use.means(one)
                and not any(other.first <= use.line <= other.last for other in dead[use.file])
                for use in named[one.name]
            )
        ]
        alive = [one for one in alive if one not in fallen]
        unused += fallen
        fell = bool(fallen)
    return sorted(unused, key=lambda one: (one.file, one.first))


def _module(file: str) -> str:
    """src/tailwise/core/atomic.py -> tailwise.core.atomic"""
    return file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read(folders: Iterable[str]) -> dict[str, str]:
    """The Python files below the folders, by their path from the root."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def main() -> int:
    """Print both lists."""
    found = find_unused(read(["src"]), read(["tests", "benchmarks", PAGES]))
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / PAGES).rglob("*.md"))
    for title, some in (("used by nobody", found.by_nobody), ("used by tests or benchmarks alone", found.by_tests)):
        print(f"{title}: {len(some)} definitions, {sum(one.lines for one in some)} lines")
        for one in some:
            written = " (in docs)" if re.search(rf"\b{one.name}\b", pages) else ""
            print(f"  {one.file}:{one.first}: {one.kind} {one.name}, {one.lines} lines{written}")
    return 1 if found.by_nobody else 0


if __name__ == "__main__":
    sys.exit(main())
