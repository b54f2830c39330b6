"""Which definitions of benchmarks/ a part of a benchmark depends on: those that can be reached from where it begins.

A benchmark of many parts shares files between them. A constant of one part is no source of another, so a section of
docs/results.md that names its beginnings (`Subject.entries`) has a digest of the reachable definitions alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

Place = tuple[str, str]  # module under benchmarks/, and the name of a definition in it


class Definitions:
    """The top-level definitions of every module under benchmarks/, by name. files: contents by path."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._modules: dict[str, dict[str, ast.stmt]] = {}

    def reachable(self, entries: Sequence[str]) -> dict[Place, ast.stmt]:
        """Definitions by place, from entries as `risk_minimal.checks`; one that is gone raises."""
        open_ = [(module, name) for module, _, name in (entry.partition(".") for entry in entries)]
        for module, name in open_:
            if name not in self._of(module):
                raise KeyError(f"benchmarks/{module}.py defines no {name}")
        places: dict[Place, ast.stmt] = {}
        while open_:
            place = open_.pop()
            node = self._of(place[0]).get(place[1])
            if node is None or place in places:  # a builtin, an argument or a local variable has no definition
                continue
            places[place] = node
            open_ += self._used(place[0], node)
        return places

    def _of(self, module: str) -> dict[str, ast.stmt]:
        if module not in self._modules:
            source = self._files.get(f"benchmarks/{module}.py", b"")
            body = ast.parse(source).body
            self._modules[module] = {name: node for node in body for name in _names(node)}
        return self._modules[module]

    def _used(self, module: str, node: ast.stmt) -> Iterator[Place]:
        """Every definition that a statement may use; a local name that hides one is taken for it, which is never too
        little."""
        if isinstance(node, ast.ImportFrom):
            yield from self._imported(node)
            return
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield module, part.id
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                yield from self._attribute(module, part.value.id, part.attr)
            elif isinstance(part, ast.ImportFrom):  # inside a function
                yield from self._imported(part)
                if part.module == "benchmarks":
                    yield from ((alias.name, name) for alias in part.names for name in self._of(alias.name))
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield from self._named(part.value)

    def _imported(self, node: ast.ImportFrom) -> Iterator[Place]:
        if node.module is not None and node.module.startswith("benchmarks."):
            yield from ((node.module.removeprefix("benchmarks."), alias.name) for alias in node.names)

    def _attribute(self, module: str, owner: str, name: str) -> Iterator[Place]:
        """`risk_toys.lottery`, where the module imports risk_toys whole."""
        node = self._of(module).get(owner)
        if isinstance(node, ast.ImportFrom) and node.module == "benchmarks":
            yield from ((alias.name, name) for alias in node.names if owner == (alias.asname or alias.name))

    def _named(self, text: str) -> Iterator[Place]:
        """All of a module that a text names ("benchmarks.speed_peers:ppo"), because another process imports it."""
        module = text.removeprefix("benchmarks.").partition(":")[0]
        if text.startswith("benchmarks.") and f"benchmarks/{module}.py" in self._files:
            yield from ((module, name) for name in self._of(module))


def _names(node: ast.stmt) -> list[str]:
    """What a statement at the top of a module defines; none for `if __name__ == ...`."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
