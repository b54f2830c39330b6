"""`tailwise frontier` as a person uses it: tiny runs, real ones."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import tailwise as tw
from tailwise.evaluate.judgement import judge_policy
from tailwise.evaluate.statistics import empirical_cvar
from tailwise.run.metric_store import differences_without_time
from tests.cli.terminal import SMALL, Terminal

MARKET = [*SMALL, "-s", "data.parameters={length: 900, noise: 0.002}", "-s", "model.encoder.hidden=[16]"]
GAME = "FrontierLottery-v0"
LOTTERY = ["cartpole", *SMALL, "-s", f"env.id={GAME}", "-s", "model.encoder.hidden=[8]", "--episodes", "100"]
FLAG = Path("press-ctrl-c")  # in the working folder: how many steps from now


class Lottery(gym.Env[Any, Any]):
    """One step: 1 for sure, or 3 and now and then -10. It presses Ctrl-C when the file FLAG says so."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if FLAG.exists():
            left = int(FLAG.read_text()) - 1
            FLAG.write_text(str(left))
            if left == 0:
                FLAG.unlink()
                signal.raise_signal(signal.SIGINT)
        lost = self.np_random.random() < 0.1
        reward = 1.0 if action == 0 else -10.0 if lost else 3.0
        return np.zeros(1, np.float32), reward, True, False, {}


@pytest.fixture(autouse=True)
def _the_lottery_is_registered() -> Iterator[None]:
    gym.register(GAME, entry_point=Lottery)
    yield
    del gym.registry[GAME]


def files(folder: str) -> dict[Path, tuple[int, bytes]]:
    """Every file of all checkpoints, with the time of its last change."""
    found = Path(folder).glob("*/checkpoints/**/*")
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found if path.is_file()}


def test_a_market_frontier_is_trained_judged_drawn_and_continued(tailwise: Terminal) -> None:
    command = ["frontier", "sine", *MARKET, "--out", "f", "--seeds", "2", "--limits"]
    assert tailwise(*command, "-0.05") == 0
    assert "4 runs of 192 steps, seeds 0, 1, in f" in tailwise.out
    for text in (
        "unconstrained, seed 1: update 3, 192/192 steps",
        "buy and hold",
        "CVaR 5%, 30",
        "page: f/frontier.html",
    ):
        assert text in tailwise.out
    folders = {"unconstrained_seed_0", "unconstrained_seed_1", "limit_-0.05_seed_0", "limit_-0.05_seed_1"}
    assert {path.parent.name for path in Path("f").glob("*/config.yaml")} == folders
    told = json.loads(Path("f/frontier.json").read_text())
    assert told["label"].startswith("synthetic: sine(") and told["label"] in Path("f/frontier.html").read_text()
    assert told["horizon"] == 30 and told["seeds"] == [0, 1]
    for run in told["runs"]:
        policy = tw.load(Path(run["folder"]) / "checkpoints" / run["checkpoint"])
        assert run["checkpoint"] == "update-000003" and policy.config.seed == run["seed"]
        assert getattr(policy.config.risk, "limit", None) == run["limit"]
        for how, deterministic in (("sampled", False), ("most likely", True)):
            known = judge_policy(policy, deterministic=deterministic)[0].statistics["policy"]
            assert run["scores"][how]["cvar_return"] == pytest.approx(known.cvar_return, rel=1e-12)
            assert run["scores"][how]["cvar_bar"] == pytest.approx(known.cvar_bar, rel=1e-12)
            yearly = np.log1p(known.total_return) / known.years
            assert run["scores"][how]["mean_return"] == pytest.approx(yearly, rel=1e-9)
    row = told["rows"][2]
    seeds = [run["scores"]["sampled"]["cvar_return"] for run in told["runs"] if run["limit"] == -0.05]
    assert row["limit"] == -0.05 and row["cvar_return"]["mean"] == pytest.approx(np.mean(seeds))
    assert row["kept"] == (np.mean(seeds) >= -0.05)
    # Three updates are within the warm-up, so that the limit never acted: neither kept nor missed by its doing.
    assert row["seeds_acted"] == 0 and "The limit never acted in 2 of 2 runs" in tailwise.out
    assert "never acted" in tailwise.out or "kept without acting" in tailwise.out
    assert [run["limit_acted"] for run in told["runs"]] == [None, False, None, False]

    before = files("f")
    again = tailwise.json(*command, "-0.05")
    assert files("f") == before and again["rows"] == told["rows"]
    assert again == {"folder": "f", **json.loads(Path("f/frontier.json").read_text())}

    other = tailwise.refuses(*command, "-0.05", "-s", "learner.clip=0.1")
    assert "f/limit_-0.05_seed_0 was trained with another configuration: learner.clip 0.2, here 0.1" in other
    assert files("f") == before


def test_an_environment_is_judged_by_its_episodes(tailwise: Terminal) -> None:
    told = tailwise.json("frontier", *LOTTERY, "--seeds", "1", "--limits", "-2", "--no-unconstrained", "--out", "f")
    (run,) = told["runs"]
    policy = tw.load(Path(run["folder"]))
    assert told["episodes"] == 100 and told["market"] is False and told["references"] == {}
    for how, deterministic in (("sampled", False), ("most likely", True)):
        # One step an episode: the discounted return is the return.
        returns = policy.evaluate(episodes=100, deterministic=deterministic, seed=0).returns
        score = run["scores"][how]
        assert score["mean_return"] == pytest.approx(returns.mean())
        assert score["cvar_return"] == pytest.approx(empirical_cvar(returns, 0.05))
    assert len(set(returns.tolist())) <= 3
    assert [row["kept"] for row in told["rows"]] == [row["cvar_return"]["mean"] >= -2 for row in told["rows"]]


def test_ctrl_c_leaves_what_the_same_command_continues(tailwise: Terminal) -> None:
    """Interrupted in the second of two runs. Rejects a finished run that is trained again, and a half-trained one that
    starts over or goes on from another state."""
    command = ["frontier", *LOTTERY, "--seeds", "1", "--limits", "-2"]
    assert tailwise(*command, "--out", "whole") == 0
    # 192 steps and 2 x (64 + 36) of playback, which count too (64 environments, two rounds), then 1.5 rollouts.
    FLAG.write_text(str(192 + 2 * 128 + 96))
    assert tailwise(*command, "--out", "f") == 130
    assert "continue with the same command and --out f" in tailwise.error and not FLAG.exists()
    first, second = Path("f/unconstrained_seed_0"), Path("f/limit_-2.0_seed_0")
    assert not Path("f/frontier.json").exists()
    assert [path.name for path in sorted((second / "checkpoints").iterdir())] == ["update-000001", "update-000002"]
    before = {path: made for path, made in files("f").items() if first in path.parents}
    assert tailwise(*command, "--out", "f") == 0
    assert "limit -2.0, seed 0: goes on after update 2" in tailwise.out
    assert {path: made for path, made in files("f").items() if first in path.parents} == before
    for name in (first.name, second.name):
        assert (
            differences_without_time(Path("f") / name / "metrics.jsonl", Path("whole") / name / "metrics.jsonl") == []
        )
    ours, theirs = (json.loads(Path(folder, "frontier.json").read_text())["rows"] for folder in ("f", "whole"))
    assert ours == theirs


def test_processes_side_by_side_give_the_same(tailwise: Terminal) -> None:
    command = ["frontier", "sine", *MARKET, "--seeds", "1", "--limits", "-0.05"]
    alone = tailwise.json(*command, "--out", "one")
    both = tailwise.json(*command, "--out", "two", "--jobs", "2")
    assert both["rows"] == alone["rows"] and len(both["runs"]) == 2
    assert [run["limit"] for run in both["runs"]] == [None, -0.05]


def test_an_error_in_a_process_is_a_sentence(tailwise: Terminal) -> None:
    """The lottery is registered in this process only."""
    # A horizon that the short rollouts cover, or a warning would stand before the sentence.
    one_run = ["--seeds", "1", "--no-unconstrained", "--limits", "-2", "-s", "learner.gamma=0.5"]
    line = tailwise.refuses("frontier", *LOTTERY, *one_run, "--jobs", "2", "--json")
    assert f"'{GAME}' is not registered" in line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sine"], "there are no limits; write for example --limits -0.02,-0.05,-0.1."),
        (["sine", "--limits", " "], "there are no limits"),
        (["sine", "--limits", "-0.02,-2%"], "the limit '-2%' is not a number"),
        (["sine", "--limits", "-0.02,"], "the limit '' is not a number"),
        (["sine", "--limits", "-inf"], "the limit '-inf' is not finite"),
        (["sine", "--limits", "-0.1,-0.10"], "the limit -0.1 is given twice"),
        (["scalar", "--limits", "-1"], "model.critic.kind is scalar, and a limit on CVaR needs the law"),
        (["sine", "--limits", "-1", "--episodes", "5"], "its test window is played whole, once; leave out --episodes"),
        (["sine", "--limits", "-1", "-s", "learner.clp=1"], "did you mean 'learner.clip'?"),
        (["cartpole", "--limits", "-1", "-s", "env.id=null"], "env.id is not set"),
        (["cartpole", "--limits", "-1", "-s", "env.id=CartPol-v1"], "'CartPol-v1' is not registered"),
        (["sine", "--limits", "-1", "-s", "learner.gamma=0.999"], "the test window has 1500 bars, and the tail of"),
        (["sine", "--limits", "-1", "-s", "data.split={kind: shares, test: 0}"], "data.split has no test window"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_no_folder(tailwise: Terminal, arguments: list[str], sentence: str) -> None:
    assert sentence in tailwise.refuses("frontier", *arguments)
    assert not list(Path.cwd().iterdir())


def test_a_limit_that_demands_a_gain_is_allowed_and_warned_about(
    tailwise: Terminal, recwarn: pytest.WarningsRecorder
) -> None:
    short = ["-s", "learner.gamma=0.98"]  # 150 bars ahead, and rollouts of 16
    told = tailwise.json("frontier", "sine", *MARKET, *short, "--seeds", "1", "--no-unconstrained", "--limits", "0.01")
    assert told["folder"] == "runs/frontier-1" and told["rows"][0]["limit"] == 0.01
    # Said once, without the line of code that said it: rejects a command that prints it and lets Python warn too.
    assert tailwise.error.count("are few against the") == 1
    assert not [warning for warning in recwarn if "are few" in str(warning.message)]
    assert "warning: the limit 0.01 is not below 0: it demands a gain" in tailwise.error


def test_a_frontier_around_a_base_rule_is_continued(tailwise: Terminal) -> None:
    """The rule is scaled to each limit when its training begins; rejects a folder that is refused because of that."""
    data = ["-s", "data.parameters={length: 900, noise: 0.02}"]
    rule = ["-s", "env.base={kind: volatility_target}", "-s", "env.action={kind: exposure, low: 0, high: 2}"]
    command = ["frontier", "sine", *MARKET, *data, *rule, "--out", "f", "--seeds", "1", "--limits", "-0.05,-0.1"]
    assert tailwise(*command) == 0, tailwise.error
    kept = files("f")
    assert tailwise(*command) == 0 and files("f") == kept, tailwise.error
