"""The snippets of the README, run as they stand: what a new user tries must work, and solve its task."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailwise.bars.bars import save_bars
from tailwise.bars.synthetic import random_walk

README = Path(__file__).parents[2] / "README.md"


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
def test_the_lines_for_bars_end_in_a_page(tmp_path: Path) -> None:
    """In a process of its own, as a script: the seeds are processes too. 1,500 daily bars."""
    save_bars(random_walk(seed=5, length=1500, bar="1d"), tmp_path / "btc.csv")
    (tmp_path / "script.py").write_text(snippets()[0], encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "<AccountPath of btc" in done.stdout
    assert Path(tmp_path, done.stdout.splitlines()[-1]).stat().st_size > 100_000
    assert (tmp_path / "rule.html").is_file()


@pytest.mark.slow
def test_the_lines_for_gymnasium_solve_cartpole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a geometry for a million steps in a run of 100,000: 64 x 128 rows left it at 243 to 380 of 500."""
    snippet = snippets()[1]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert names["agent"].config.env.id == "CartPole-v1"
    assert names["agent"].evaluate(episodes=20).mean >= 490
