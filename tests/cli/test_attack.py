"""`tailwise attack`, as a person uses it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.terminal import SMALL, Terminal

MARKET = [*SMALL, "-s", "data.parameters={length: 900, noise: 0.002}", "-s", "model.encoder.hidden=[16]", "--quiet"]
QUICK = ("--attacks", "random,mad,learned", "--adversary-steps", "64")


def test_an_environment_is_attacked(tailwise: Terminal) -> None:
    """Table, sentences, page and JSON say the same. Rejects a flag that is not handed on."""
    assert tailwise("train", "cartpole", *SMALL, "--quiet", "--out", "r") == 0
    told = tailwise.json("attack", "r", "--budgets", "0.2,0.1", "--episodes", "3", "--seed", "4", *QUICK)
    assert [(one["budget"], one["attack"]) for one in told["outcomes"]] == [
        (budget, attack) for budget in (0.1, 0.2) for attack in ("random", "mad", "learned")
    ]
    assert told["seed"] == 4 and len(told["clean"]["returns"]) == 3 and told["page"] == "r/attack.html"
    assert told["entries"] == [f"observation.{place}" for place in range(4)]
    assert 'id="panel-attack"' in Path("r/attack.html").read_text(encoding="utf-8")
    assert Path(told["file"]).exists()
    options = ("--budgets", "0.1", "--episodes", "2", "--attacks", "random", "--entry", "observation.1=0.5")
    only = tailwise.json("attack", "r", *options, "--entry", "*=0")
    assert only["entries"] == ["observation.1"] and 0.0 < only["outcomes"][0]["largest_move"] <= 0.05 + 1e-5
    assert tailwise("attack", "r", "--budgets", "0.1", "--episodes", "2", "--attacks", "pgd", "--out", "p.html") == 0
    assert "Random actions return" in tailwise.out and "page: p.html" in tailwise.out and "pgd" in tailwise.out
    assert "it is certain that" in tailwise.out and Path("p.html").exists()


def test_a_market_is_attacked_through_its_prices(tailwise: Terminal) -> None:
    assert tailwise("train", "sine", *MARKET, "--out", "m") == 0
    told = tailwise.json("attack", "m", "--unit", "bps", "--budgets", "5", "--attacks", "random,critic")
    assert told["unit"] == "bps" and told["clean"]["tail"] is not None and "exposure" not in told["entries"]


def test_what_cannot_be_attacked_says_so(tailwise: Terminal) -> None:
    assert tailwise("train", "cartpole", *SMALL, "--quiet", "--out", "r") == 0
    for options, words in (
        (["--attacks", "fgsm"], "choose from random, critic, mad, pgd, learned"),
        (["--budgets", "a"], "write numbers with commas"),
        (["--budgets", "0"], "not above 0"),
        (["--entry", "x"], "write NAME=SHARE"),
        (["--entry", "speed=1"], "name 'speed', which is none"),
        (["--unit", "bps"], "is not a market; use kind std"),
        (["--unit", "cm"], "choose std or bps"),
    ):
        assert tailwise("attack", "r", *options) == 2, options
        assert words in tailwise.error, tailwise.error
    assert tailwise("attack", "nowhere") == 2 and "not the folder of a run" in tailwise.error


def test_the_path_of_a_market_is_attacked(tailwise: Terminal) -> None:
    """Table, page and JSON; what belongs to the other kind is refused, and so is what is no market."""
    assert tailwise("train", "sine", *MARKET, "--out", "m") == 0
    assert tailwise("attack", "m", "--kind", "path", "--budgets", "0.02") == 0
    assert "worst path" in tailwise.out and "volatilities per bar" in tailwise.out
    assert "page: m/attack-path.html" in tailwise.out and Path("m/attack-path.html").exists()
    told = tailwise.json("attack", "m", "--kind", "path", "--budgets", "0.02", "--seed", "3")
    assert told["unit"] == "volatility" and told["seed"] == 3 and told["certificates"] == []
    chance, worst = told["outcomes"]
    assert worst["mean_return"] < chance["mean_return"] < told["clean"]["mean_return"]
    for options, words in (
        (["--kind", "bars"], "choose observations or path"),
        (["--kind", "path", "--attacks", "pgd"], "attacks belongs to attacks on observations"),
        (["--kind", "path", "--unit", "bps"], "unit belongs to attacks on observations"),
        (["--kind", "path", "--episodes", "2"], "episodes belongs to attacks on observations"),
        (["--kind", "path", "--budgets", "2"], "not above 0 and at most 1"),
    ):
        assert tailwise("attack", "m", *options) == 2, options
        assert words in tailwise.error, tailwise.error
    assert tailwise("train", "cartpole", *SMALL, "--quiet", "--out", "r") == 0
    assert tailwise("attack", "r", "--kind", "path") == 2 and "is not a market" in tailwise.error
