"""Whole searches on real, tiny runs: resumed after a kill, by processes, with trials, under a limit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tailwise
from tailwise.core.errors import ConfigError, ConfigWarning, DataError
from tailwise.evaluate.frontier import play_rewards
from tailwise.evaluate.study import StudyStopped
from tailwise.run import checkpoint as ckpt
from tailwise.run.controllers import Hyperparameters
from tailwise.run.jobs import Line
from tailwise.run.trials import count_trials
from tailwise.scale.member_job import digest_of
from tailwise.scale.tune_result import TuneResult
from tests.support import merged

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")

CARTPOLE: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "model": {"encoder": {"hidden": [8]}, "actor": {"hidden": [8], "gain": 1.0}, "critic": {"hidden": [8]}},
    "learner": {"epochs": 1},
    "evaluate": {"episodes": 2, "deterministic": False},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 384, "checkpoint_every": 1, "tensorboard": False},
}
MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "sine", "parameters": {"length": 900, "noise": 0.002}},
    "features": {"include": ["return_1", "return_5"]},
    "env": {"kind": "market", "episode_length": 64},
    "costs": {"impact_bps": 0},
    "model": {"encoder": {"hidden": [8]}},
    "learner": {"gamma": 0.9, "epochs": 1},
    "risk": {"mode": "constraint", "limit": -0.05, "warmup": {"updates": 1, "longest": 1}},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "checkpoint_every": 1, "tensorboard": False},
}
SPACE = {
    "learner.learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
    "learner.gamma": {"low": 0.9, "high": 0.999},
    "learner.entropy.weight": {"low": 1e-4, "high": 0.1, "scale": "log"},
}
PBT = {"population": 3, "generations": 3}

COMMAND = """
import json, sys, tailwise
config, space, settings, out = json.loads(sys.argv[1])
tailwise.tune(config, space, settings=settings, out=out)
"""


def lineage(result: TuneResult) -> list[list[dict[str, Any]]]:
    """Every member with its parent, values, scores and the hash of its weights."""
    return [[one.model_dump() for one in step] for step in result.steps]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    return tailwise.tune(CARTPOLE, SPACE, settings=PBT, out=tmp_path_factory.mktemp("tune") / "whole")


def test_a_population_copies_its_best_and_is_written_down(undisturbed: TuneResult) -> None:
    """Rejects hashes that are not those of the weights, members that were not trained for their generation, and values
    in the lineage that are not those of the run."""
    assert undisturbed.trainings == 9 and len(undisturbed.copies) >= 1
    for generation, step in enumerate(undisturbed.steps):
        for one in step:
            run = undisturbed.folder / one.member.folder
            assert one.measured.steps == 128 * (generation + 1) and one.measured.checkpoint is not None
            checkpoint = run / "checkpoints" / one.measured.checkpoint
            assert one.measured.weights == digest_of(checkpoint)
            learner = tailwise.load(run).config.learner
            assert {
                "learner.learning_rate": learner.learning_rate,
                "learner.gamma": learner.gamma,
                "learner.entropy.weight": learner.entropy.weight,
            } == one.member.values
    assert len({one.measured.weights for step in undisturbed.steps for one in step}) == 9
    for one in undisturbed.copies:
        assert one.member.parent is not None
        donor = undisturbed.steps[one.member.generation - 1][one.member.parent]
        assert one.member.seed == donor.member.seed and one.member.values != donor.member.values
    stored = json.loads((undisturbed.folder / "tune.json").read_text())
    assert stored["steps"] == json.loads(json.dumps(undisturbed.to_json()))["steps"]
    assert undisturbed.best is not None and stored["best"] == undisturbed.best.member.folder
    page = (undisturbed.folder / "tune.html").read_text()
    assert "learner.entropy.weight" in page and "mean return, episodes of selection" in page
    assert str(undisturbed.folder) not in page and undisturbed.best.member.folder in page  # it may be sent to others


def test_scores_have_intervals_and_values_stand_beside_the_configurations(undisturbed: TuneResult) -> None:
    """Two episodes a, b have the standard error |a - b| / 2. Rejects the deviation of episodes in its place, and
    the factor 1.96 of many episodes."""
    best = undisturbed.best
    assert best is not None and best.measured.value is not None and best.measured.error is not None
    agent = tailwise.load(undisturbed.folder / best.member.folder)
    world = agent.world()
    driver = world.eval_env("select", episodes=2, seed=0)
    played = play_rewards(agent, driver, episodes=world.episodes(2), deterministic=False, seed=0)
    driver.close()
    first, second = (float(one.rewards.sum()) for one in played)
    assert (first + second) / 2 == best.measured.value
    assert best.measured.error == pytest.approx(abs(first - second) / 2)
    place = undisturbed.headings().index("95%")
    assert all(" to " in row[place] for row in undisturbed.table())
    half = 12.7062 * best.measured.error  # Student with one degree of freedom: tan(0.475 pi)
    low, high = (undisturbed.amount(best.measured.value + side * half) for side in (-1, 1))
    assert undisturbed.table()[0][place] == f"{low} to {high}"
    learnt = {row[0]: row[1:] for row in undisturbed.learnt()}
    assert learnt.keys() == SPACE.keys() and learnt["learner.learning_rate"][0] == "0.0003"
    assert learnt["learner.gamma"][1] == f"{best.member.values['learner.gamma']:.4g}"


def test_a_member_that_is_never_replaced_trains_like_a_run_of_its_own(undisturbed: TuneResult, tmp_path: Path) -> None:
    """Generations change nothing by themselves: three parts in three folders are one run, bit for bit."""
    result = tailwise.tune(CARTPOLE, SPACE, settings={**PBT, "share": 0.0}, out=tmp_path / "free")
    first, last = result.steps[0][1].member, result.steps[-1][1]
    agent = tailwise.PPO(config=merged(CARTPOLE, {"seed": first.seed}), run_dir=tmp_path / "alone")
    agent.trainer.adopt(Hyperparameters.of_keys({key: float(value) for key, value in first.values.items()}))
    agent.learn()
    newest, _ = ckpt.latest_good(tmp_path / "alone")
    assert newest is not None and digest_of(newest) == last.measured.weights
    assert result.copies == [] and lineage(result)[0] == lineage(undisturbed)[0]


def killed(out: Path, *, when: Path | None = None, after: float = 0.0) -> bool:
    """Search in a process of its own and kill it; whether it was still at work.

    when: the file whose appearance kills it; None: `after` seconds from the moment at which it changes anything
    """
    arguments = json.dumps([CARTPOLE, SPACE, PBT, str(out)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    before = written(out)
    process = subprocess.Popen([sys.executable, "-c", COMMAND, arguments], env=environment, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (when.exists() if when is not None else written(out) != before):
        time.sleep(0.002)
    deadline = time.monotonic() + after
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    return running


def written(out: Path) -> set[tuple[str, int]]:
    """What the runs of a search have written so far."""
    return {(str(path), path.stat().st_size) for path in out.glob("*/metrics.jsonl")}


def test_killed_and_resumed_it_is_the_same_population(undisturbed: TuneResult, tmp_path: Path) -> None:
    """kill -9 while a copy trains. Lineage, values, scores and the weights of every member are those of a search that
    was never killed. Rejects draws from a generator that moves on, and a copy that begins without its donor."""
    out = tmp_path / "killed"
    assert killed(out, when=out / "generation-001-member-001" / "config.yaml")
    stored = json.loads((out / "tune.json").read_text())
    assert len(stored["steps"]) == 1 and stored["best"] is None
    result = tailwise.tune(CARTPOLE, SPACE, settings=PBT, out=out)
    assert lineage(result) == lineage(undisturbed)
    assert (out / "tune.json").read_bytes() == (undisturbed.folder / "tune.json").read_bytes()


@pytest.mark.slow
def test_killed_at_six_random_moments(undisturbed: TuneResult, tmp_path: Path) -> None:
    """Within its training, between members, while it writes; each begins after the last one's first new line."""
    out, dice = tmp_path / "killed", random.Random(5)
    kills = sum(killed(out, after=dice.uniform(0.0, 0.4)) for _ in range(6))
    result = tailwise.tune(CARTPOLE, SPACE, settings=PBT, out=out)
    assert kills >= 3 and lineage(result) == lineage(undisturbed)


def test_stopped_after_each_update_it_is_the_same_population(undisturbed: TuneResult, tmp_path: Path) -> None:
    """Ctrl-C wherever it can act: every update of every member ends the search once."""
    out, stops = tmp_path / "stopped", 0
    while True:
        lines: list[Line] = []
        try:
            result = tailwise.tune(CARTPOLE, SPACE, settings=PBT, out=out, say=lines.append, stop=Once(3))
        except StudyStopped:
            stops += 1
            continue
        break
    assert stops >= 5 and lineage(result) == lineage(undisturbed)


class Once:
    """False for some questions, then True."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_processes_side_by_side_change_nothing(tmp_path: Path) -> None:
    settings = {"population": 2, "generations": 2}
    space = {"learner.learning_rate": SPACE["learner.learning_rate"]}
    one, two = (
        tailwise.tune(CARTPOLE, space, settings=settings, out=tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2)
    )
    assert lineage(one) == lineage(two)


def test_another_search_in_the_same_folder_is_refused(undisturbed: TuneResult, tmp_path: Path) -> None:
    folder = undisturbed.folder
    with pytest.raises(DataError, match=r"belongs to another search: population 3, here 4"):
        tailwise.tune(CARTPOLE, SPACE, settings={**PBT, "population": 4}, out=folder)
    with pytest.raises(DataError, match=r"config\.seed 0, here 9"):
        tailwise.tune(merged(CARTPOLE, {"seed": 9}), SPACE, settings=PBT, out=folder)
    changed = tmp_path / "changed"
    changed.mkdir()
    stored = json.loads((folder / "tune.json").read_text())
    stored["steps"][1][0]["member"]["values"]["learner.gamma"] = 0.95
    (changed / "tune.json").write_text(json.dumps(stored))
    with pytest.raises(DataError, match="step 1 is not what follows from the steps before it"):
        tailwise.tune(CARTPOLE, SPACE, settings=PBT, out=changed)


def test_a_limit_comes_first_and_every_training_is_a_trial(tmp_path: Path) -> None:
    """On a market: scored on the select window, ranked by the limit, counted. The best run is one that evaluate opens,
    and the limit that members train with may be searched while the one that ranks stays."""
    space = {
        "learner.learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"},
        "risk.limit": {"low": -0.05, "high": -0.02},
    }
    several = merged(MARKET, {"run": {"seeds": 3}})  # as init writes it; a member is one policy
    result = tailwise.tune(several, space, settings={"population": 3, "generations": 2}, out=tmp_path / "t")
    assert result.ranking.limit == -0.05 and result.best is not None and result.best_run is not None
    members = [one for step in result.steps for one in step]
    assert all(one.measured.tail is not None for one in members)
    trained = [tailwise.load(result.folder / one.member.folder).config.risk.model_dump()["limit"] for one in members]
    assert trained == [one.member.values["risk.limit"] for one in members] and len(set(trained)) >= 3
    assert count_trials(result.best_run).counted == 6
    (judged,) = tailwise.judge(result.best_run, stress=False).accounts
    assert judged.judged.symbol == "SYNTHETIC-SINE"
    assert result.table()[0][-1] == result.best.member.folder


@pytest.mark.parametrize(
    ("search", "settings"),
    [("random", {"trials": 4, "round": 2, "generations": 2}), ("grid", {"points": 2, "generations": 2, "round": 4})],
)
def test_trials_are_pruned_and_continued(search: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """A trial that goes on to the end is one run in one folder. Rejects pruning of the better half."""
    rates = {"low": 1e-4, "high": 0.3, "scale": "log"}
    space = {"learner.learning_rate": rates, "learner.epochs": {"choices": [1, 2]}}
    first = tmp_path / "first"
    with pytest.raises(StudyStopped):
        tailwise.tune(CARTPOLE, space, search=search, settings=settings, out=first, stop=Once(4))
    result = tailwise.tune(CARTPOLE, space, search=search, settings=settings, out=first)
    whole = tailwise.tune(CARTPOLE, space, search=search, settings=settings, out=tmp_path / "second")
    assert lineage(result) == lineage(whole)
    begun = [one for step in result.steps for one in step if one.member.generation == 0]
    ended = {one.member.number for one in result.finalists}
    assert len(begun) == 4 and 1 <= len(ended) < 4
    best = max(begun, key=lambda one: float(one.measured.value or 0.0))
    assert best.member.number in ended
    assert all(one.measured.steps == 384 for one in result.finalists)
    config = tailwise.load(result.folder / begun[0].member.folder).config
    assert config.learner.epochs == begun[0].member.values["learner.epochs"]
    if search == "grid":
        assert [one.member.values["learner.learning_rate"] for one in begun] == [1e-4, 0.3, 1e-4, 0.3]
        assert [one.member.values["learner.epochs"] for one in begun] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("config", "changes", "sentence"),
    [
        (CARTPOLE, {"search": "bayes"}, "the search is 'bayes'; choose pbt, random, grid or optuna"),
        (CARTPOLE, {"settings": {"populaton": 3}}, "search pbt: key 'populaton' is unknown; did you mean 'population'"),
        (CARTPOLE, {"settings": {"generations": 7}}, "in 7 generations are less than one update of 64 steps each"),
        (CARTPOLE, {"space": {"model.core.kind": {"choices": ["none", "gru"]}}}, "cannot change while a run goes on"),
        (MARKET, {"space": {"learner.gamma": {"low": 0.8, "high": 0.95}}}, "gamma cannot be searched while risk acts"),
        (
            merged(MARKET, {"data": {"split": {"select": 0.0}}}),
            {"settings": {"generations": 2}},
            "no select bars|select window",
        ),
        (merged(CARTPOLE, {"env": {"id": None}}), {}, "env.id is not set"),
    ],
)
def test_what_cannot_be_searched_is_a_sentence(
    config: dict[str, Any], changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    """Before anything is trained or a folder is made."""
    with pytest.raises((ConfigError, DataError), match=sentence):
        tailwise.tune(config, out=tmp_path / "none", **changes)
    assert not (tmp_path / "none").exists()


def test_absent_keys_are_warned_of(tmp_path: Path) -> None:
    space = {**SPACE, "learner.prior.weight": {"low": 1e-3, "high": 0.1}}
    absent = r"prior\.weight is not in this configuration"
    with pytest.warns(ConfigWarning, match=absent) as warned, pytest.raises(StudyStopped):
        tailwise.tune(CARTPOLE, space, settings=PBT, out=tmp_path / "t", stop=lambda: True)
    assert all(Path(one.filename) == Path(__file__) for one in warned if "prior.weight" in str(one.message))
