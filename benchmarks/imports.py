"""Does every import point backwards along the line that data follows? `python -m benchmarks.imports`.

Part of `make check`.

All imports of `src/tailwise` count alike: at the top of a file, inside a function (lazy), under TYPE_CHECKING (types
only), and module names in strings that are imported by name. A lazy or type-only import runs no code at start, but the
reader of the file still has to know the other one.

Two rules:
- A package imports those before it. The order is that of the import-linter contract in pyproject.toml.
- Modules form no cycle. KNOWN_CYCLES lists the imports that close one today; the list may only shrink.

import-linter itself knows neither strings nor cycles between the modules of one package.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
PACKAGE = "tailwise"
# Not packages of the line: the public names, which the commands may use, and what `python -m tailwise` runs.
PUBLIC, MAIN = PACKAGE, f"{PACKAGE}.__main__"

Kind = Literal["top", "lazy", "type-only", "string"]

# (importer, imported): why it is still there. Removing any of them must not need another entry.
KNOWN_CYCLES: dict[tuple[str, str], str] = {
    ("fused.ahead", "fused.backend"): "reads the backend's buffers; goes with the composed backend of fused/",
    ("fused.epochs", "fused.backend"): "reads the backend's buffers; goes with the composed backend of fused/",
}


@dataclass(frozen=True)
class Import:
    """One import of a module of the package by another one; names are full, `tailwise.run.trainer`."""

    importer: str
    imported: str
    kind: Kind
    line: int

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported} (line {self.line}, {self.kind})"


def modules_of(source: Path) -> dict[str, Path]:
    """Full names of all modules of the package below `source` (a folder `src`), with their files."""
    found = {}
    for file in sorted((source / PACKAGE).rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(source: Path) -> list[Import]:
    """Every import between two modules of the package, in the order of files and lines."""
    modules = modules_of(source)
    return [
        found
        for name, file in modules.items()
        for found in _imports_in(ast.parse(file.read_text(encoding="utf-8")), name, file, modules)
    ]


def _imports_in(tree: ast.Module, name: str, file: Path, modules: Mapping[str, Path]) -> Iterator[Import]:
    for node, kind in _walk(tree, "top"):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{file}, line {node.lineno}: a relative import; write the full name of the module.")
            # `from tailwise.run import checkpoint` imports the module, `from tailwise.run.envs import EnvDriver` a name
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [one if one in modules else str(node.module) for one in full]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            kind, targets = "string", [node.value]
        else:
            continue
        for target in dict.fromkeys(targets):
            if target in modules and target != name:
                yield Import(name, target, kind, node.lineno)


def _walk(node: ast.AST, kind: Kind) -> Iterator[tuple[ast.AST, Kind]]:
    """All nodes below `node`, each with the kind that an import there has."""
    for child in ast.iter_child_nodes(node):
        below = kind
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and kind == "top":
            below = "lazy"
        yield child, below
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield part, "type-only"
                yield from _walk(part, "type-only")
            for part in child.orelse:
                yield part, below
                yield from _walk(part, below)
        else:
            yield from _walk(child, below)


def package_order(pyproject: Path) -> list[str]:
    """Packages from the first to the last, from the contract `order` of import-linter."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "order"]
    return [layer.strip("()") for layer in reversed(layers)]


def forward_imports(imports: Iterable[Import], order: Sequence[str]) -> list[Import]:
    """Imports of a package that comes later. The public names stand between the last two packages."""
    ranks = {f"{PACKAGE}.{package}": float(rank) for rank, package in enumerate(order)}
    ranks |= {PUBLIC: len(order) - 1.5, MAIN: float(len(order))}

    def rank(module: str) -> float:
        package = module if module in ranks else ".".join(module.split(".")[:2])
        if package not in ranks:
            raise ValueError(
                f"{module} belongs to no package of the order in pyproject.toml ({', '.join(order)}); add it there."
            )
        return ranks[package]

    # __init__ names the homes of the public names, which may be anywhere.
    return [one for one in imports if one.importer != PUBLIC and rank(one.imported) > rank(one.importer)]


def cycles(imports: Iterable[Import]) -> list[list[str]]:
    """Groups of modules that import one another, directly or through others (Tarjan); each sorted by name."""
    graph: dict[str, list[str]] = {}
    for one in imports:
        graph.setdefault(one.importer, []).append(one.imported)
        graph.setdefault(one.imported, [])
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in graph[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            at = stack.index(module)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in graph:
        if module not in number:
            visit(module)
    return groups


@dataclass(frozen=True)
class Findings:
    """What is wrong, as sentences; empty where nothing is."""

    forward: list[str]
    cycles: list[str]
    stale: list[str]  # entries of the list of known imports that are no longer needed

    @property
    def sentences(self) -> list[str]:
        """All of them."""
        return [*self.forward, *self.cycles, *self.stale]


def findings_in(source: Path, order: Sequence[str], known: Collection[tuple[str, str]]) -> Findings:
    """Check the package below `source`. known: imports that may close a cycle, names without `tailwise.`."""
    imports = imports_of(source)
    allowed = {(f"{PACKAGE}.{importer}", f"{PACKAGE}.{imported}") for importer, imported in known}
    pairs = {(one.importer, one.imported) for one in imports}
    # The public names import everything and nothing of the line imports them, so they close no cycle.
    rest = [one for one in imports if (one.importer, one.imported) not in allowed and one.importer != PUBLIC]
    told = []
    for group in cycles(rest):
        inside = [str(one) for one in rest if one.importer in group and one.imported in group]
        told.append(f"cycle of {len(group)} modules:\n  " + "\n  ".join(inside))
    stale = [f"{a} no longer imports {b}: remove it from KNOWN_CYCLES" for a, b in sorted(allowed - pairs)]
    for pair in sorted(allowed & pairs):
        again = [*rest, *(one for one in imports if (one.importer, one.imported) == pair)]
        if not any(set(pair) <= set(group) for group in cycles(again)):
            stale.append(f"{pair[0]} imports {pair[1]} without closing a cycle: remove it from KNOWN_CYCLES")
    forward = [f"forward import: {one}" for one in forward_imports(imports, order)]
    return Findings(forward, told, stale)


def main() -> None:
    """Print what is wrong, or one line when nothing is; exit with 1 in the first case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args()
    source = ROOT / "src"
    findings = findings_in(source, package_order(ROOT / "pyproject.toml"), KNOWN_CYCLES)
    if arguments.json:
        print(json.dumps({"passed": not findings.sentences, "known": len(KNOWN_CYCLES), **asdict(findings)}))
    elif findings.sentences:
        print("\n".join(findings.sentences))
    else:
        count = len(imports_of(source))
        print(f"{count} imports: none points forward, {len(KNOWN_CYCLES)} known ones close a cycle, no other does")
    sys.exit(1 if findings.sentences else 0)


if __name__ == "__main__":
    main()
