"""Pages that are written by hand keep up with what the code has."""

from __future__ import annotations

from pathlib import Path

from tailwise.core.metrics import METRICS

DOCS = Path(__file__).parent.parent / "docs"


def test_the_clipping_page_names_every_clip() -> None:
    """Ledger 003-D. A new clip metric that the page does not explain fails here."""
    page = (DOCS / "clipping.md").read_text(encoding="utf-8")
    clips = [name for name in METRICS if "clip" in name or "clamp" in name or name == "obs/outlier_fraction"]
    assert len(clips) >= 5
    assert [name for name in clips if f"`{name}`" not in page] == []


def test_every_command_has_a_page() -> None:
    from tailwise.cli.main import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    commands |= {group.name for group in app.registered_groups if group.name}
    pages = {path.stem for path in (DOCS / "commands").glob("*.md")}
    assert len(commands) >= 6
    assert commands <= pages
