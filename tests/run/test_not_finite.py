"""A policy that is not finite is refused, and an answer that is not finite is no action."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tailwise.cli.main import main
from tailwise.core.errors import DataError, NotFiniteError
from tailwise.doctor.audit import audit_run
from tailwise.run.agent import PPO, load
from tailwise.run.checkpoint import latest_good
from tests.run.crafted import TENSORS, WEIGHTS, change_tensors
from tests.support import SMALL_RUN, merged

HEAD = "actor.head.weight"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finite") / "run"
    PPO("CartPole-v1", merged(SMALL_RUN, {"run": {"checkpoint_every": 1}}), run_dir=folder).learn()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def spoil(checkpoint: Path, file: str, name: str, value: float) -> None:
    """One entry of one tensor; the hashes are those of the spoiled file."""

    def put(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].reshape(-1)[0] = value

    change_tensors(checkpoint, file, put)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [HEAD, "normaliser.mean"])
def test_a_policy_with_broken_weights_is_refused_by_the_name_of_the_tensor(run: Path, name: str, value: float) -> None:
    """Rejects a loader that trusts hashes: the most likely of NaN logits is action 0, always."""
    newest = run / "checkpoints" / "update-000003"
    spoil(newest, WEIGHTS, name, value)
    with pytest.raises(NotFiniteError, match=rf"weights\.safetensors: the tensor '{name}' has 1 of .* NaN or infinite"):
        load(newest)
    path, rejected = latest_good(run)
    assert path == run / "checkpoints" / "update-000002"
    assert [(one.path.name, name in one.reason) for one in rejected] == [("update-000003", True)]


def test_evaluation_and_resume_go_on_from_a_finite_checkpoint_and_say_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run / "checkpoints" / "update-000003", WEIGHTS, HEAD, float("nan"))
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    shown = capsys.readouterr()
    assert "checkpoint update-000002" in shown.out and f"the tensor '{HEAD}'" in shown.err
    assert main(["evaluate", str(run), "--episodes", "2", "--checkpoint", "update-000003"]) == 2
    assert f"the tensor '{HEAD}'" in capsys.readouterr().err
    _, notes = PPO.resume(run)
    assert len(notes) == 1 and HEAD in notes[0]


def test_broken_moments_of_the_optimiser_are_refused_too(run: Path) -> None:
    """They would become weights with the next step."""
    newest = run / "checkpoints" / "update-000003"

    def spoil_every_moment(tensors: dict[str, torch.Tensor]) -> None:
        moments = [name for name in tensors if name.startswith("optimiser/") and tensors[name].is_floating_point()]
        assert moments
        for name in moments:
            tensors[name].reshape(-1)[0] = torch.inf

    change_tensors(newest, TENSORS, spoil_every_moment)
    assert latest_good(run)[0] == run / "checkpoints" / "update-000002"


def test_the_doctor_says_so(run: Path) -> None:
    assert {one.name: one.verdict for one in audit_run(run)}["weights"] == "ok"
    spoil(run / "checkpoints" / "update-000002", WEIGHTS, HEAD, float("nan"))
    checks = {one.name: one for one in audit_run(run)}
    assert checks["weights"].verdict == "fail" and HEAD in checks["weights"].evidence


def test_a_policy_that_is_not_finite_is_not_saved(run: Path, tmp_path: Path) -> None:
    agent, _ = PPO.resume(run)
    with torch.no_grad():
        agent.model.actor.head.bias[0] = torch.nan
    with pytest.raises(NotFiniteError, match=r"actor\.head\.bias"):
        agent.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("action", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_answer_that_is_not_finite_never_becomes_an_action(action: str, deterministic: bool) -> None:
    """The law of discrete and of Box actions, by `predict` and in playback. Rejects argmax of NaN, which is 0, and
    clip(inf), which is the upper bound."""
    policy = PPO(action, SMALL_RUN)
    obs = np.zeros((3, policy.model.observation.size), dtype=np.float32)
    policy.predict(obs, deterministic=deterministic)
    with torch.no_grad():
        policy.model.actor.head.bias[0] = torch.inf
    with pytest.raises(DataError, match="answer to observation 0 is NaN or infinite, so it is no action"):
        policy.predict(obs, deterministic=deterministic)
    with pytest.raises(DataError, match="it is no action"):
        policy.evaluate(episodes=1, deterministic=deterministic)


def test_a_hidden_state_that_is_not_finite_is_named_by_its_row() -> None:
    policy = PPO("CartPole-v1", merged(SMALL_RUN, {"model": {"core": {"kind": "lstm", "hidden": 4}}}))
    obs = np.zeros((3, 4), dtype=np.float32)
    _, state = policy.predict(obs, deterministic=True)
    state[1, 0, 0] = torch.nan
    with pytest.raises(DataError, match="answer to observation 1 "):
        policy.predict(obs, state=state, deterministic=True)
