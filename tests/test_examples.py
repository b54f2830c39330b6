"""The examples of `examples/` run, cell by cell, in under a minute of CPU each, and their notebooks show the same."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")


def tool() -> ModuleType:
    """examples/notebooks.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("examples_notebooks", EXAMPLES / "notebooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


NOTEBOOKS = tool()


def example(name: str) -> dict[str, Any]:
    """Run the cells; the names that they leave. Rejects a notebook whose cells or kinds of outputs are others."""
    began = time.process_time()
    cells = NOTEBOOKS.read_cells(EXAMPLES / f"{name}.py")
    names: dict[str, Any] = NOTEBOOKS.run(cells)
    assert stale(cells, json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))) == []
    assert time.process_time() - began < 60
    return names


def stale(cells: list[Any], kept: dict[str, Any]) -> list[str]:
    """Where a notebook is not what its script gives: a sentence each. Numbers may differ in the last digits."""
    if len(cells) != len(kept["cells"]):
        return [f"{len(kept['cells'])} cells instead of {len(cells)}"]
    found = []
    for number, (cell, one) in enumerate(zip(cells, kept["cells"], strict=True), start=1):
        if "".join(one["source"]) != cell.source:
            found.append(f"cell {number} is another")
        outputs = [output["output_type"] for output in one.get("outputs", [])]
        if outputs != [output["output_type"] for output in cell.outputs]:
            found.append(f"cell {number} shows {outputs}")
    return found


def test_every_script_is_listed_tested_and_a_notebook() -> None:
    """Rejects a script that nobody runs, and a notebook without its script."""
    names = {path.stem for path in NOTEBOOKS.scripts()}
    listed, here = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    assert len(names) == 3 and {path.stem for path in EXAMPLES.glob("*.ipynb")} == names
    assert all(f"`{name}.ipynb`" in listed and f'example("{name}")' in here for name in names)


def test_a_stale_notebook_is_noticed() -> None:
    """Rejects a changed cell, outputs that were never written, and a cell that is gone; an error ends the run."""
    cells = [NOTEBOOKS.Cell("# A title", True), NOTEBOOKS.Cell("print(1)\n2 + 2", False)]
    assert NOTEBOOKS.run(cells)["__name__"] == "__main__"
    kept = json.loads(json.dumps(NOTEBOOKS.notebook(cells)))
    stream, value = kept["cells"][1]["outputs"]
    assert stale(cells, kept) == [] and (stream["text"], value["data"]["text/plain"]) == ("1\n", "4")
    kept["cells"][1]["outputs"] = []
    assert stale(cells, kept) == ["cell 2 shows []"]
    assert stale([cells[0], NOTEBOOKS.Cell("x = 1", False)], kept) == ["cell 2 is another"]
    assert stale(cells[:1], kept) == ["2 cells instead of 1"]
    with pytest.raises(ZeroDivisionError):
        NOTEBOOKS.run([NOTEBOOKS.Cell("1 / 0", False)])


def test_a_rule_and_a_policy_trade_the_same_window() -> None:
    names = example("rule_against_policy")
    policy, rule = (names["table"][name] for name in ("policy under the limit", "close above its average"))
    assert 0 < policy["worst drawdown"] < 1 and 0 < rule["worst drawdown"] < 1
    assert policy["worst 5% of days"] < 0 and names["rule"].time[0] == names["path"].time[0]


def test_a_reward_of_ones_own_has_parts() -> None:
    parts = example("drawdown_reward")["parts"]
    assert set(parts) == {"base", "drawdown_penalty", "own"} and min(parts.values()) > 0


def test_the_task_needs_a_memory() -> None:
    """Chance is 0.5 of 1, and a policy without memory stays there: 100 episodes are within 0.2 of it."""
    names = example("mask_and_memory")
    assert names["without"] < 0.7 and names["remembered"] > 0.9
