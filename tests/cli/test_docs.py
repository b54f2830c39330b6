"""The generated pages of the documentation are what the code says today, and each command has its page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tailwise.core.config_keys import _all_keys, reference
from tailwise.core.metrics import METRICS
from tailwise.run.config import Config

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current(generate: ModuleType) -> None:
    """Rejects a field or metric that was added without `python docs/generate.py`."""
    pages = generate.pages()
    assert {path.name for path in pages} == {"configuration.md", "metrics.md", "health-rules.md"}
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name} is not current; run: python docs/generate.py"


def test_every_key_and_every_metric_is_on_its_page() -> None:
    keys, metrics = (DOCS / "configuration.md").read_text(), (DOCS / "metrics.md").read_text()
    entries = reference(Config)
    sections = {entry.key for entry in entries if entry.section}
    values = {key for key in _all_keys(Config) if key not in sections}
    # A union is listed by its `kind` (or `mode`), not by its own name.
    missing = [
        key for key in values if f"`{key}`" not in keys and f"`{key}.kind`" not in keys and f"`{key}.mode`" not in keys
    ]
    assert missing == []
    assert [name for name in METRICS if f"`{name}`" not in metrics] == []


def test_every_field_says_its_meaning_default_and_range() -> None:
    for entry in reference(Config):
        assert entry.meaning, f"{entry.key} has no description"
        assert entry.allowed, entry.key
        assert "typing" not in entry.allowed and "class" not in entry.allowed, entry
        if not entry.section:
            assert entry.default, entry.key


@pytest.mark.parametrize(
    "command",
    ["train", "resume", "evaluate", "presets", "config", "demo", "init", "data", "data leak-check", "frontier"],
)
def test_each_command_has_its_page(command: str) -> None:
    page = (DOCS / "commands" / f"{command.replace(' ', '-')}.md").read_text()
    assert page.startswith(f"# tailwise {command}\n")
    assert "Exit codes" in page
