"""Hostile command lines: every command with values that do not belong there, beside a run and bars that are good.

What would go on for long is bounded in the templates: nothing here serves, asks the network or trains more than a few
hundred steps.
"""

from __future__ import annotations

from tests.fuzz.configurations import BOUNDS
from tests.fuzz.dice import TEXTS, Dice

RUN, MARKET, BARS = "good-run", "good-market", "bars.csv"
BOUND = [word for bound in BOUNDS for word in ("-s", bound)]
SMALL_NUMBERS = ["0", "-1", "1", "2", "x", "", "nan", "1.5", "9" * 30, "1e3"]
PLACES = [RUN, MARKET, BARS, "nowhere", ".", "empty", "file", "file/below", "config.yaml"]
OUT = [
    "new",
    "x.csv",
    "x.yaml",
    "x.html",
    "x.parquet",
    "",
    "file",
    "file/below",
    "empty",
    RUN,
    "/",
    "/proc/x",
    "a/b/c",
    ".",
]
CHECKPOINTS = ["update-000002", "", "best", "update-9", "../x", "a\0b", "x" * 300]
LIMITS = ["", ",", "x", "nan", "-1e999", "-1,-1", ";"]
T = TEXTS

# Command, its arguments and its options, each with good values first and then those that are not.
Choices = tuple[list[str], list[str]]
COMMANDS: list[tuple[list[str], list[Choices], dict[str, Choices]]] = [
    (["train"], [(["cartpole", "ar1"], T)], {"--out": (["new"], OUT), "--track": ([""], ["x"]), "-s": (["seed=1"], T)}),
    (["resume"], [([RUN, MARKET], [*PLACES, *T])], {"--track": ([""], ["x"])}),
    (
        ["evaluate", "--no-stress"],
        [([RUN, MARKET], [*PLACES, *T])],
        {
            "--episodes": (["1"], SMALL_NUMBERS),
            "--seed": (["1"], SMALL_NUMBERS),
            "--checkpoint": (["update-000002"], CHECKPOINTS),
            "--ensemble": (["vote"], T),
        },
    ),
    (
        ["report", "--no-stress"],
        [([MARKET], [*PLACES, *T])],
        {"--out": (["x.html"], OUT), "--checkpoint": (["update-000002"], CHECKPOINTS)},
    ),
    (["compare"], [([MARKET], [*PLACES, *T]), ([RUN], [*PLACES, *T])], {"--out": (["x.html"], OUT)}),
    (["presets"], [(["cartpole"], T)], {}),
    (["demo", "--steps", "x"], [], {"--out": (["new"], OUT)}),
    (["frontier"], [(["cartpole", "ar1"], T)], {"--limits": ([""], LIMITS), "--out": (["new"], OUT)}),
    (
        ["walk-forward", "--folds", "200", "-s", "data.parameters.length=300"],  # never enough bars to train on
        [(["ar1", "cartpole"], T)],
        {
            "--seeds": (["1"], T),
            "--kind": (["rolling"], T),
            "--purge": (["auto"], T),
            "--embargo": (["10000"], SMALL_NUMBERS),
            "--tested": (["0.01"], T),
            "--select": (["0.1"], T),
        },
    ),
    (
        ["init"],
        [([BARS], [*PLACES, *T])],
        {
            "--out": (["x.yaml"], OUT),
            "--repair": (["drop"], T),
            "--adjust": (["ignore"], T),
            "--time-unit": (["s"], T),
            "--periods-per-year": (["252"], T),
        },
    ),
    (["watch", "nowhere"], [], {"--host": (["127.0.0.1"], T), "--port": (["0"], SMALL_NUMBERS)}),
    (["doctor"], [([RUN, MARKET], [*PLACES, *T])], {"--html": (["x.html"], OUT)}),
    (["config", "show"], [(["cartpole", "ar1"], [*PLACES, *T])], {"-s": (["seed=1"], T)}),
    (["config", "check"], [(["cartpole", "ar1"], [*PLACES, *T])], {"-s": (["seed=1"], T)}),
    (["config", "explain"], [(["learner.clip", "risk"], T)], {}),
    (
        ["data", "check"],
        [([BARS], [*PLACES, *T])],
        {
            "--repair": (["drop", "clip"], T),
            "--adjust": (["ignore"], T),
            "--time-unit": (["ns"], T),
            "--periods-per-year": (["252"], T),
            "--symbol": (["bars"], T),
            "--out": (["x.csv", "x.parquet"], OUT),
        },
    ),
    (
        ["data", "synth"],
        [(["ar1", "sine", "heston", "leak", "jump_diffusion", "regime_switching", "random_walk"], T)],
        {
            "--out": (["x.csv", "x.parquet"], OUT),
            "--bars": (["500"], SMALL_NUMBERS),
            "--seed": (["7"], SMALL_NUMBERS),
            "-s": (["sigma=0.5", "bar=1D"], ["sigma=", "bar=9d", "drift=1e300", "sigma=[1]", *T]),
        },
    ),
    (["data", "sets"], [(["sp500", "eurusd"], T)], {"--out": (["x.csv"], OUT)}),
    (["data", "leak-check", *BOUND], [(["ar1"], T)], {"--cuts": (["1"], ["0", "2", "x"]), "--seed": (["1"], T)}),
    (
        ["data", "fetch"],
        [(["nope"], T), (["BTC/USDT"], T)],
        {
            "--since": (["2020-01-01"], T),
            "--until": (["2020-02-01"], T),
            "--timeframe": (["1h"], T),
            "--out": (["x.csv"], OUT),
        },
    ),
    (["runs", "list"], [([".", RUN], [*PLACES, *T])], {}),
    (["runs", "prune"], [([".", RUN], [*PLACES, *T])], {}),
    (["runs", "reproduce"], [([RUN], ["nowhere", BARS, *T])], {"--out": (["new"], OUT)}),
]


def hostile_command(dice: Dice) -> list[str]:
    """One command with its arguments and up to three options; about half of the values are good."""
    start, arguments, options = dice.pick(COMMANDS)
    words = [*start, *(dice.pick(choices[dice.chance(0.4)]) for choices in arguments)]
    for name in {dice.pick(list(options)): None for _ in range(dice.below(4))} if options else ():
        words += [name, dice.pick(options[name][dice.chance(0.5)])]
    if dice.chance(0.3):
        words.append(dice.pick(["--json", "--json", "--force", "--quiet", "--nope", "--", "-", "extra", "--help"]))
    if dice.chance(0.05):
        del words[dice.below(len(words))]
    return [*words, *BOUND] if words[:1] == ["train"] else words
