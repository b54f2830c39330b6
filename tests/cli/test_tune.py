"""`tailwise tune` as a person uses it: tiny runs, real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tailwise as tw
from tests.cli.terminal import SMALL, Terminal

CARTPOLE = ["cartpole", *SMALL, "-s", "model.encoder.hidden=[8]", "-s", "evaluate.episodes=2"]
FEW = ["-o", "population=2", "-o", "generations=2"]


def test_a_population_is_trained_shown_continued_and_evaluated(tailwise: Terminal) -> None:
    Path("space.yaml").write_text(
        "learner.learning_rate: {low: 1e-4, high: 1e-1, scale: log}\nlearner.prior.weight: {low: 0.01, high: 0.1}\n"
    )
    command = ["tune", *CARTPOLE, *FEW, "--space", "space.yaml", "--out", "t"]
    assert tailwise(*command) == 0
    for text in (
        "pbt: 2 members of 192 steps in 2 generations, in t",
        "generation 0, member 1: reached 128 steps; scored on what selects now",
        "search: generation 1 is done, 2 members: best is member",
        "4 trainings were compared by that number",
        "page: t/tune.html",
    ):
        assert text in tailwise.out
    assert "warning: space.yaml: learner.prior.weight is not in this configuration" in tailwise.error
    before = Path("t/tune.json").read_bytes()
    assert tailwise(*command, "--json") == 0
    told = json.loads(tailwise.out)
    assert Path("t/tune.json").read_bytes() == before and told["trainings"] == 4
    assert told["best"]["member"]["values"].keys() == {"learner.learning_rate"} and Path(told["page"]).exists()
    rate = tw.load(told["best_run"]).config.learner.learning_rate
    assert rate == told["best"]["member"]["values"]["learner.learning_rate"]
    assert tailwise("evaluate", told["best_run"], "--episodes", "2") == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--search", "magic"], "the search is 'magic'; choose pbt, random, grid or optuna"),
        (["-o", "population=1"], "search pbt: key 'population' is 1"),
        (["-o", "population"], "override 'population' is not key=value"),
        (["--space", "nowhere.yaml"], "nowhere.yaml: there is no such file"),
        (["-o", "generations=1000"], "are less than one update of 64 steps each"),
    ],
)
def test_bad_input_is_a_sentence(tailwise: Terminal, arguments: list[str], sentence: str) -> None:
    assert sentence in tailwise.refuses("tune", *CARTPOLE, *arguments, "--out", "t")
    assert not Path("t").exists()


def test_quiet_shows_whole_steps_alone(tailwise: Terminal) -> None:
    options = ["-o", "trials=2", "-o", "generations=1", "--search", "random"]
    assert tailwise("tune", *CARTPOLE, *options, "-q", "--out", "t") == 0
    assert "search: generation 0 is done, 2 members" in tailwise.out and "generation 0, member 0" not in tailwise.out
