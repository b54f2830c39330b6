"""One planted mistake: where it stands, what the text becomes, and which tests must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """A mistake of meaning in one file of `src/tailwise`.

    - wrong: what the code does with the mistake, in one clause; together with `file` it names the mutant.
    - file: path below `src/tailwise`.
    - old, new: exact text that occurs once in the file, and what replaces it.
    - tests: test files, relative to the root of the repository, that must fail.
    - only: a `-k` expression for test files that take long; empty: all tests of the files.
    - equivalent: the argument that no test can tell the mutant from the original; empty where a test must.
    """

    wrong: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""
    equivalent: str = ""

    @property
    def name(self) -> str:
        """`learner/returns.py: the bootstrap stays at termination`."""
        return f"{self.file}: {self.wrong}"

    def planted(self, root: Path) -> str:
        """Text of the file below `root` with the mistake in it; ValueError where the old text is not unique."""
        text = (root / "src/tailwise" / self.file).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"The mutant '{self.name}' replaces a text that occurs {count} times in src/tailwise/{self.file}, "
                f"expected exactly once: {self.old!r}. Follow the change of that file in the list of mutants."
            )
        return text.replace(self.old, self.new)
