"""One ONNX file: onnxruntime decides as torch does, on observations that the market really shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailwise
from tailwise.core.errors import NotBuiltError
from tailwise.live.export import export_onnx, session_of
from tests.live.markets import CASES, trained
from tests.support import merged

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small
DOCS = Path(__file__).parents[2] / "docs"
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": CASES["mlp"],
    "lstm": CASES["lstm"],
    "gru, lots": merged(CASES["lots"], {"model": {"core": {"kind": "gru", "hidden": 8, "layers": 2}, "norm": "layer"}}),
    "weights": CASES["portfolio"],
    "squashed": merged(CASES["guards"], {"model": {"actor": {"box": "squashed"}}}),
    "categorical": {
        "model": {"critic": {"kind": "categorical", "hidden": [8], "atoms": 21}},
        "risk": {"mode": "off"},
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_decides_as_torch_does(name: str, tmp_path: Path) -> None:
    """2,000 decisions on the test window with the hidden state fed back on both sides. Rejects a normaliser, mask,
    reset or range of actions that was left out, each of which moves an output by far more than 1e-5."""
    pytest.importorskip("onnxruntime")
    agent = trained(1, NETWORKS[name])
    made = export_onnx(agent, tmp_path / "policy.onnx", steps=2000)
    assert made.passed and made.file is not None, made.sentences()
    assert made.decisions == 2000 and made.flipped == 0 and max(made.errors.values()) <= 1e-5
    assert ("next_state" in made.errors) == (agent.model.core is not None)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"]


def test_a_file_that_decides_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights change between the trace and the comparison: errors are counted and nothing is written. Rejects a
    comparison of the file with itself."""
    pytest.importorskip("onnxruntime")
    agent = trained(1, CASES["lstm"])
    from tailwise.live import export as module

    traced = module._traced

    def then_changed(exported: Any) -> bytes:
        data = traced(exported)
        with torch.no_grad():
            agent.model.actor.head.weight.mul_(-1.0)
        return data

    monkeypatch.setattr(module, "_traced", then_changed)
    made = export_onnx(agent, tmp_path / "policy.onnx", steps=200)
    assert not made.passed and made.flipped > 0 and made.file is None
    assert list(tmp_path.iterdir()) == []


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    agent = trained(1, CASES["lstm"])
    export_onnx(agent, tmp_path / "policy.onnx", steps=10, name="update-000001")
    session = session_of(str(tmp_path / "policy.onnx"))
    said = session.get_modelmeta().custom_metadata_map
    assert agent.features is not None
    assert json.loads(said["tailwise.features"]) == json.loads(json.dumps(agent.features.to_json()))
    assert json.loads(said["tailwise.observation_names"])[:2] == ["return_1", "volatility_20"]
    assert json.loads(said["tailwise.state_shape"]) == [2, 8] and said["tailwise.checkpoint"] == "update-000001"
    other = trained(2, CASES["lstm"])
    export_onnx(other, tmp_path / "other.onnx", steps=10)
    again = session_of(str(tmp_path / "other.onnx")).get_modelmeta().custom_metadata_map
    assert again["tailwise.policy_sha256"] != said["tailwise.policy_sha256"]
    assert again["tailwise.features_sha256"] == said["tailwise.features_sha256"]  # the same bars, the same fit


def test_the_example_of_the_page_decides_with_onnxruntime_and_numpy_alone(tmp_path: Path) -> None:
    """It runs in a process that can import nothing else of ours, and takes the actions of `predict`, fed back."""
    pytest.importorskip("onnxruntime")
    agent = trained(1, CASES["lstm"])
    export_onnx(agent, tmp_path / "policy.onnx", steps=10)
    page = (DOCS / "commands" / "export.md").read_text(encoding="utf-8")
    snippet = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert snippet is not None and len(snippet.group(1).splitlines()) <= 30
    seen = np.random.default_rng(0).normal(size=(50, agent.model.observation.size)).astype(np.float32)
    np.save(tmp_path / "observations.npy", seen)
    blocked = "import sys\nsys.modules['torch'] = sys.modules['tailwise'] = None\n"
    (tmp_path / "example.py").write_text(blocked + snippet.group(1), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    actions = [int(line.split()[0]) for line in run.stdout.splitlines()]
    state, expected = None, []
    for row in seen:
        action, state = agent.predict(row, state=state, deterministic=True)
        expected.append(int(action))
    assert actions == expected and len(set(actions)) > 1


def test_whole_numbers_of_a_box_are_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    from tailwise.live.onnx_module import OnnxPolicy

    agent = trained(1, CASES["guards"])
    agent.model.action = replace(agent.model.action, dtype="int64")
    with pytest.raises(NotBuiltError, match="dtype int64"):
        OnnxPolicy(agent.model, masked=False)
    assert isinstance(agent, tailwise.Policy)
