"""Several seeds are one run and one policy: trained side by side as each would be alone, killed, continued, loaded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailwise
from tailwise.core.config import dump_yaml
from tailwise.core.errors import CheckpointError, ConfigError, LockedError, ShapeError
from tailwise.run.checkpoint import checkpoints_in, read_policy, read_training
from tailwise.run.config import parse_config
from tailwise.run.ensemble import Ensemble, nearest_position
from tailwise.run.lock import RunLock
from tailwise.run.metric_store import differences_without_time
from tailwise.run.run_list import describe, remove_spare, spare_checkpoints
from tailwise.run.seeds import alerts_of, metrics_of
from tailwise.run.trials import count_trials, read_lines
from tests.support import bits, merged

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "sine", "parameters": {"length": 500, "noise": 0.002}},
    "features": {"include": ["return_1", "return_5"]},
    "env": {"kind": "market", "episode_length": 64, "action": {"kind": "exposure", "low": -1, "high": 1}},
    "costs": {"impact_bps": 0},
    "learner": {"gamma": 0.9, "epochs": 1},
    "model": {"encoder": {"hidden": [8]}},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 192, "tensorboard": False, "checkpoint_every": 1},
    "evaluate": {"every": 1},
}
SEEDS: dict[str, Any] = {"run": {"seeds": 3}}
ACTIONS: dict[str, dict[str, Any]] = {
    "exposure": {"kind": "exposure", "low": -1, "high": 1},
    "positions": {"kind": "positions", "positions": [-1, 0, 0.5, 1]},
    "weights": {"kind": "weights", "low": -1, "high": 1, "gross": 1.5},
}
TWO = {"data": {"seeds": [0, 1]}}


def agent(seed: int, **changes: Any) -> tailwise.PPO:
    """Not trained: the first weights of different seeds decide differently."""
    return tailwise.PPO(config=merged(MARKET, {"seed": seed, **changes}))


def of_kind(kind: str, seed: int, **changes: Any) -> tailwise.PPO:
    """An agent with actions of a kind; weights need two assets."""
    more = {"env": {"action": ACTIONS[kind]}, **(TWO if kind == "weights" else {})}
    return agent(seed, **merged(more, changes))


def same_weights(first: Path, second: Path) -> bool:
    one, two = read_policy(first).tensors, read_policy(second).tensors
    return one.keys() == two.keys() and all(bits(one[name]) == bits(two[name]) for name in one)


def assert_same_run(first: Path, second: Path) -> None:
    """Metrics without time, and both halves of every checkpoint."""
    assert differences_without_time(first / "metrics.jsonl", second / "metrics.jsonl") == []
    names = [path.name for path in checkpoints_in(first)]
    assert names and names == [path.name for path in checkpoints_in(second)]
    for name in names:
        one, two = first / "checkpoints" / name, second / "checkpoints" / name
        assert same_weights(one, two)
        mine, theirs = read_training(one), read_training(two)
        assert mine.json == theirs.json and all(bits(mine.tensors[k]) == bits(theirs.tensors[k]) for k in mine.tensors)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three seeds, trained one after the other in this process."""
    folder = tmp_path_factory.mktemp("runs") / "three"
    training = tailwise.train(merged(MARKET, SEEDS), out=folder)
    assert training.finished and not training.failed and training.reason == "all 3 seeds are trained"
    assert [one.updates for one in training.seeds] == [3, 3, 3] and training.to_json()["steps"] == 3 * 192
    return folder


def test_every_seed_is_trained_as_it_would_be_alone(trained: Path, tmp_path: Path) -> None:
    """Rejects seeds that share a stream, and one that goes on from the weights of the seed before."""
    for seed in (0, 2):
        one = tailwise.PPO(config=merged(MARKET, {"seed": seed}), run_dir=tmp_path / f"{seed}")
        one.learn()
        assert_same_run(tmp_path / f"{seed}", trained / f"seed_{seed}")
    newest = "checkpoints/update-000003"
    assert not same_weights(trained / "seed_0" / newest, trained / "seed_1" / newest)


def test_all_seeds_are_one_policy(trained: Path) -> None:
    """The mean of the members' actions on one account, which each of them observes."""
    together = tailwise.load(trained)
    assert isinstance(together, tailwise.Ensemble) and together.how == "average" and len(together.members) == 3
    assert together.config.run.seeds == 3 and [one.config.seed for one in together.members] == [0, 1, 2]
    obs = np.random.default_rng(0).normal(size=(5, together.members[0].model.observation.size)).astype(np.float32)
    alone = [one.predict(obs, deterministic=True)[0] for one in together.members]
    action, state = together.predict(obs, deterministic=True)
    assert np.ptp(np.stack(alone), axis=0).max() > 0
    np.testing.assert_allclose(action, np.mean(alone, axis=0), atol=1e-7)
    assert state.shape[:2] == (5, 3)
    with pytest.raises(ShapeError, match="pass what the previous predict returned"):
        together.predict(obs, state=state[:, :2])
    first = [one.trade()[0].target[0, 0] for one in together.members]
    assert together.trade()[0].target[0, 0] == pytest.approx(np.mean(first), abs=1e-6)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("kind", ["exposure", "positions", "weights"])
def test_an_ensemble_of_one_is_that_policy(kind: str, core: str) -> None:
    """Bit for bit: account by account, and step by step with a hidden state, sampled actions included."""
    model = {"model": {"core": {"kind": core, **({} if core == "none" else {"hidden": 4})}}}
    one, other = of_kind(kind, 1, **model), of_kind(kind, 1, **model)
    for deterministic in (True, False):
        alone, together = (p.trade(deterministic=deterministic)[0] for p in (one, Ensemble([other])))
        assert np.array_equal(alone.target, together.target) and np.array_equal(alone.equity, together.equity)
    size, state, states = one.model.observation.size, None, None
    ensemble, mask = Ensemble([other]), None
    if kind == "positions":
        mask = np.array([[1, 1, 0, 1], [0, 1, 1, 1]], dtype=bool)
    for step in range(4):
        obs = np.random.default_rng(step).normal(size=(2, size)).astype(np.float32)
        for deterministic in (True, False):
            mine, after = one.predict(obs, state=state, mask=mask, deterministic=deterministic)
            theirs, later = ensemble.predict(obs, state=states, mask=mask, deterministic=deterministic)
            assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
            assert torch.equal(after, later[:, 0])
        state, states = after, later
    single, _ = one.predict(obs[0], mask=None if mask is None else mask[0], deterministic=True)
    both, _ = ensemble.predict(obs[0], mask=None if mask is None else mask[0], deterministic=True)
    assert np.shape(single) == np.shape(both) and np.array_equal(single, both)


def test_hidden_states_are_those_of_the_members() -> None:
    """Rejects members that share a state: each goes on from its own, in every row by itself."""
    core = {"model": {"core": {"kind": "gru", "hidden": 4}}}
    members = [agent(seed, **core) for seed in (1, 4)]
    together, state, own = Ensemble(members), None, [None, None]
    for step in range(3):
        obs = np.random.default_rng(step).normal(size=(2, members[0].model.observation.size)).astype(np.float32)
        start = np.array([step == 0, step != 1])
        action, state = together.predict(obs, state=state, episode_start=start, deterministic=True)
        parts = [
            one.predict(obs, state=before, episode_start=start, deterministic=True)
            for one, before in zip(members, own, strict=True)
        ]
        own = [after for _, after in parts]  # type: ignore[misc]
        np.testing.assert_array_equal(action, np.mean([a for a, _ in parts], axis=0, dtype=np.float64).astype("f4"))
        assert torch.equal(state, torch.stack([after for _, after in parts], dim=1))
    assert not torch.equal(state[:, 0], state[:, 1])


def test_the_mean_of_positions_is_one_that_is_allowed() -> None:
    """Rejects the nearest of all: members chose 1 and -1, flat between them is smaller than the smallest order."""
    scale = np.array([-1.0, 0.0, 1.0])
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1]])
    assert nearest_position(np.zeros(3), scale, mask).tolist() == [1, 0, 2]
    members = [of_kind("positions", seed) for seed in range(5)]
    obs = np.random.default_rng(3).normal(size=(64, members[0].model.observation.size)).astype(np.float32)
    allowed = np.random.default_rng(4).random((64, 4)) < 0.6
    allowed[:, 1] |= ~allowed.any(axis=1)
    action, _ = Ensemble(members).predict(obs, mask=allowed, deterministic=True)
    assert allowed[np.arange(64), action].all()
    chosen = np.stack([one.predict(obs, mask=allowed, deterministic=True)[0] for one in members])
    wanted = Ensemble(members).scale[chosen].mean(axis=0)  # type: ignore[index]
    gaps = np.where(allowed, np.abs(Ensemble(members).scale[None] - wanted[:, None]), np.inf)  # type: ignore[index]
    assert np.array_equal(gaps[np.arange(64), action], gaps.min(axis=1)) and (np.ptp(chosen, axis=0) > 0).any()


def test_an_ensemble_is_saved_and_loaded_as_one(trained: Path, tmp_path: Path) -> None:
    """The folder holds policies alone; a member that was exchanged is noticed."""
    together = tailwise.load(trained)
    together.save(tmp_path / "policy")
    again = tailwise.load(tmp_path / "policy")
    mine, theirs = together.trade()[0], again.trade()[0]
    assert np.array_equal(mine.target, theirs.target) and np.array_equal(mine.equity, theirs.equity)
    folders = sorted(path.name for path in (tmp_path / "policy").iterdir())
    assert folders == ["ensemble.json", "member_0", "member_1", "member_2"]
    assert not (tmp_path / "policy" / "member_0" / "training").exists()
    with pytest.raises(CheckpointError, match="holds a policy without its training"):
        read_training(tmp_path / "policy" / "member_0")
    (tmp_path / "policy" / "member_1").rename(tmp_path / "other")
    tailwise.load(tmp_path / "policy" / "member_2").save(tmp_path / "policy" / "member_1")
    with pytest.raises(CheckpointError, match="is not the member that was saved"):
        tailwise.load(tmp_path / "policy")
    one = tailwise.load(trained / "seed_1")
    one.save(tmp_path / "one")
    assert np.array_equal(tailwise.load(tmp_path / "one").trade()[0].equity, one.trade()[0].equity)


def test_all_seeds_are_one_trial(trained: Path) -> None:
    """None of them is chosen. Rejects a deflated Sharpe ratio that counts the members of one policy."""
    lines = read_lines(trained.parent / "trials.jsonl")
    assert [line["kind"] for line in lines].count("training") == 3
    assert count_trials(trained).counted == 1
    assert count_trials(trained / "seed_2").counted == 1


def test_the_run_is_listed_pruned_and_read_as_one(trained: Path) -> None:
    listed = describe(trained)
    assert (listed.status, listed.steps, listed.total_steps) == ("finished", 3 * 192, 3 * 192)
    scores = [describe(trained / f"seed_{seed}").score for seed in range(3)]
    assert listed.score == pytest.approx(np.mean(scores))  # type: ignore[arg-type]
    run = tailwise.Run(trained)
    assert [one.config.seed for one in run.members] == [0, 1, 2] and "update-000003" in run.checkpoints
    frame = metrics_of(trained)
    means = [float(metrics_of(trained / f"seed_{seed}")["policy/entropy"].iloc[-1]) for seed in range(3)]
    assert list(frame["update"]) == [1, 2, 3] and frame["policy/entropy"].iloc[-1] == pytest.approx(np.mean(means))
    assert all(alert["evidence"].startswith(f"seed {alert['seed']}: ") for alert in alerts_of(trained))
    newest = run.policy("update-000003").trade()[0]
    assert np.array_equal(newest.equity, run.policy("update-000003").trade()[0].equity)
    spare = spare_checkpoints(trained)
    assert {one.path.name for one in spare} == {"update-000001", "update-000002"} and len(spare) == 6
    with RunLock(trained / "seed_1").held(), pytest.raises(LockedError):
        remove_spare(trained)


def test_a_run_with_a_seed_that_has_not_begun_is_not_judged(trained: Path, tmp_path: Path) -> None:
    """Rejects an error that speaks of a folder which nobody has made."""
    shutil.copytree(trained, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "seed_2")
    with pytest.raises(CheckpointError, match=r"seed_2 of 3 seeds have no checkpoint yet.*tailwise resume"):
        tailwise.judge(tmp_path / "half")


def test_one_agent_does_not_train_several_seeds(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.seeds is 3, and tailwise.PPO trains one policy; call tailwise.train"):
        tailwise.PPO(config=merged(MARKET, SEEDS))
    with pytest.raises(ConfigError, match=r"call tailwise.resume\('.*three'\)"):
        tailwise.PPO.resume(trained)
    with pytest.raises(ConfigError, match="an ensemble of no policies"):
        Ensemble([])


def test_one_seed_is_a_run_as_ever(tmp_path: Path) -> None:
    training = tailwise.train(MARKET, out=tmp_path / "one")
    assert training.finished and (tmp_path / "one" / "checkpoints").is_dir()
    assert not isinstance(training.policy(), tailwise.Ensemble)
    before = (tmp_path / "one" / "metrics.jsonl").read_bytes()
    assert tailwise.resume(tmp_path / "one").finished
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() == before


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    """Stopped after the first update of the second seed: the first is finished, the third has not begun."""
    whole = tailwise.train(merged(MARKET, SEEDS), out=tmp_path / "whole")
    counted = 0

    def stop() -> bool:
        nonlocal counted
        counted += 1
        return (tmp_path / "halted" / "seed_1" / "metrics.jsonl").exists()

    halted = tailwise.train(merged(MARKET, SEEDS), out=tmp_path / "halted", stop=stop)
    assert not halted.finished and [one.updates for one in halted.seeds] == [3, 1, 0] and counted > 3
    assert describe(tmp_path / "halted").status == "unfinished"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "halted" / "seed_0").rglob("*") if path.is_file()}
    after = tailwise.resume(tmp_path / "halted")
    assert after.finished and kept == {path: path.stat().st_mtime_ns for path in kept}
    for seed in range(3):
        assert_same_run(tmp_path / "whole" / f"seed_{seed}", tmp_path / "halted" / f"seed_{seed}")
    assert whole.policy().trade()[0].equity.tolist() == after.policy().trade()[0].equity.tolist()


def _children(pid: int) -> list[int]:
    """Processes that `pid` started."""
    try:
        names = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(name) for name in names]


@pytest.mark.parametrize("victim", ["parent", "all"])
def test_kill_9_and_resume(tmp_path: Path, victim: str) -> None:
    """Side by side in processes, killed after the first seed is finished and in the middle of others; then the same as
    a run that was never killed, with the finished seed untouched."""
    config = parse_config(
        merged(MARKET, {"run": {"seeds": 3, "total_steps": 1600, "checkpoint_every": 3}, "evaluate": {"every": 5}}),
        source="t",
    )
    (tmp_path / "c.yaml").write_text(dump_yaml(config))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    command = [sys.executable, "-m", "tailwise", "train", str(tmp_path / "c.yaml"), "--jobs", "2", "--quiet"]
    killed = tmp_path / "killed"
    process = subprocess.Popen([*command, "--out", str(killed)], env=environment)
    deadline = time.monotonic() + 400
    while not (killed / "seed_2" / "checkpoints").is_dir():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    others = _children(process.pid)
    process.send_signal(signal.SIGKILL)
    for pid in others if victim == "all" else []:
        os.kill(pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    done = [one for one in range(3) if describe(killed / f"seed_{one}").status == "finished"]
    kept = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for seed in done[:1]
        for path in (killed / f"seed_{seed}").rglob("*")
        if path.is_file()
    }
    assert kept
    resumed = [sys.executable, "-m", "tailwise", "resume", str(killed), "--jobs", "2", "--json"]
    summary = json.loads(subprocess.run(resumed, env=environment, check=True, capture_output=True, timeout=400).stdout)
    assert summary["reason"] == "all 3 seeds are trained" and [one["updates"] for one in summary["seeds"]] == [25] * 3
    assert kept == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept}
    whole = tailwise.train(config, out=tmp_path / "whole")
    for one in whole.seeds:
        assert_same_run(Path(one.run_dir), killed / f"seed_{one.seed}")
