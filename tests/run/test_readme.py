"""The first snippet of the README, run as it stands: what a new user tries must solve its task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_first_snippet_solves_cartpole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a geometry for a million steps in a run of 100,000: 64 x 128 rows left it at 243 to 380 of 500."""
    snippet = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert names["agent"].config.env.id == "CartPole-v1"
    assert names["agent"].evaluate(episodes=20).mean >= 490
