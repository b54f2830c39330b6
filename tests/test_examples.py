"""The scripts of `examples/` run and show what they say, each in under a minute of CPU time."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _under_a_minute() -> object:
    began = time.process_time()
    yield
    assert time.process_time() - began < 60


def test_every_script_is_listed_and_tested() -> None:
    """Rejects a script that nobody runs."""
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    listed, here = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    assert len(scripts) == 3
    assert all(f"`{name}.py`" in listed and f'example("{name}")' in here for name in scripts)


def test_a_rule_and_a_policy_trade_the_same_window(tmp_path: Path) -> None:
    rows = example("rule_against_policy").main(tmp_path)
    policy, rule = rows.values()
    assert 0 < policy["worst drawdown"] < 1 and 0 < rule["worst drawdown"] < 1
    assert policy["worst 5% of days"] < 0


def test_a_reward_of_ones_own_has_parts(tmp_path: Path) -> None:
    parts = example("drawdown_reward").main(tmp_path)
    assert set(parts) == {"base", "drawdown_penalty", "own"} and min(parts.values()) > 0


def test_the_task_needs_a_memory() -> None:
    """Chance is 0.5 of 1, and a policy without memory stays there: 100 episodes are within 0.2 of it."""
    module = example("mask_and_memory")
    assert module.main("none", steps=4096) < 0.7
    assert module.main("lstm") > 0.9
