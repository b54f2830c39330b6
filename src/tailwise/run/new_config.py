"""A commented configuration that fits given bars, checked before it is written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from tailwise.bars.bars import Bars
from tailwise.bars.check_bars import Reading
from tailwise.bars.data_config import SharesSplit
from tailwise.core.atomic import write_text
from tailwise.core.config import load_yaml
from tailwise.core.errors import ConfigError, ConfigWarning
from tailwise.core.numerics import tail_horizon
from tailwise.features.config import DEFAULT_COLUMNS, FeaturesConfig
from tailwise.features.spec import columns_of, longest_warm_up
from tailwise.market.costs import COSTS, MarketKind, currency_pair, describe_pair, guessed_costs, volume_doubt
from tailwise.market.dataset import Dataset, build_dataset, refuse_twice
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.split import began_late, ended_before, split_windows
from tailwise.run.config import Config, parse_config
from tailwise.run.limits import with_numbers

SEEDS = 5
PATIENT = 30  # updates without a better evaluation that end a training; 20 chose other checkpoints, 40 the same
BARS_PER_UPDATE = 55  # of a select window that are played in less than a quarter of the time of an update
MOST_PURGED = 1 / 3  # of the select window
TOTAL_STEPS = 200_000  # more raised the result on train bars and lowered it on those that follow
FEWEST_BARS = 500  # below, a test window would say nothing
FEWEST_TRAINED = 275  # of each of several symbols: what a single file of FEWEST_BARS has left to train on

_TEMPLATE = """# Written by `tailwise init`; `tailwise config explain KEY` tells more about every key.
# {found}
seed: 0

data:
  kind: files
  paths: {paths}
{reading}  # The oldest bars train, the next ones select the best checkpoint, the newest ones only test:
{windows}
  # purge: bars left out between them, over which features of one window would look back into the one before.
  split: {{kind: shares, select: {select:g}, test: {test:g}, purge: {purge}}}
{pool}
features: # what the policy sees of the bars; docs/features.md lists all{left_out}
  include: [{features}]
{scales}
env:
  kind: market
  # A rule that the policy starts from and is pulled back to: a position of 10% volatility a year, scaled to the limit.
  # Others: buy_and_hold, momentum, {{kind: function, function: rules.py:name}}. Without one: null.
  base: {{kind: volatility_target, target: 0.1}}
  # Multiples of the rule's exposure: 0 is flat, 1 the rule, 2 twice of it; low: -1 allows shorts.
  # A choice: {{kind: positions, positions: [0, 0.5, 1, 1.5]}}. All symbols in one account: {{kind: weights, high: 2}}.
  action: {{kind: exposure, low: 0, high: 2}}
  tolerance: 0.05 # no order while target and exposure differ by less: smaller ones are mostly noise
  episode_length: {episode} # bars; training starts episodes at random bars
  fill: next_open # a decision at the close of a bar is filled at the next open
  stop_loss: null # a fraction of the entry price, e.g. 0.05; gap-aware

costs: # {costs_note}
{costs}

learner:
  # Discount per bar: the horizon of tails in all tables is {horizon} bars{horizon_words}, where a weight of 5% is left.
  gamma: {gamma:g}
  # The pull to the base rule, per nat; 0 is none. An entropy bonus would only blur what the rule says.
  prior: {{kind: base, weight: 0.01}}
  entropy: {{kind: constant, weight: 0}}

risk: # the worst 5% of discounted returns may lose half of what buy and hold lost there on the train bars
  mode: constraint
  alpha: 0.05
  limit: {{of: buy_and_hold, share: 0.5}}

# Five policies from the same bars, each with a seed of its own; their mean decides. What one seed does is chance.
run: {{total_steps: {steps}, seeds: {seeds}}} # environments, rollout_steps, epochs and minibatches follow from it
# Updates between evaluations on the select window, which take about a hundredth of the time, or less; as many of them
# as `patience` without a better one end the training of a seed.
evaluate: {{every: {every}, patience: {patience}}}
"""


def write_config(paths: Sequence[Path], how: Reading | None = None, *, out: Path, force: bool = False) -> list[str]:
    """Read the bars, choose what depends on them, write the file; sentences about what was read and chosen.

    paths: CSV or Parquet files, one symbol each; how: they are read; force: replace `out`.
    """
    how = how or Reading()
    _check_target(out, paths, force=force)
    bars = [replace(how, symbol=path.stem).load(path) for path in paths]
    short = [one for one in bars if len(one) < FEWEST_BARS]
    if short:
        raise ConfigError(
            f"{short[0].source} has {len(short[0])} bars; at least {FEWEST_BARS} are needed to train, select and test."
        )
    refuse_twice([one.symbol for one in bars])
    late = _late(bars)
    for sentence in late.values():
        warnings.warn(sentence, ConfigWarning, stacklevel=2)  # the command prints what is returned
    names = [_from_folder_of(out, path) for path, one in zip(paths, bars, strict=True) if one.symbol not in late]
    bars, left_out = [one for one in bars if one.symbol not in late], tuple(late.values())
    text = config_text(bars, names, how, left_out=left_out)
    dataset = _dataset(text, out)  # what cannot be built is said now, not after training began
    constant = dataset.spec.constant
    if constant:
        text = config_text(bars, names, how, constant=constant, left_out=left_out)
        dataset = _dataset(text, out)
    write_text(out, text)
    doubt = _volume_doubt(bars)
    return [
        *dataset.describe(),
        *left_out,
        *([f"left out, constant in the train bars: {', '.join(constant)}"] if constant else []),
        *([] if doubt is None else [f"costs.impact_bps is 0: {doubt}"]),
    ]


def config_text(
    bars: list[Bars],
    paths: list[str],
    how: Reading,
    *,
    constant: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
) -> str:
    """The YAML with its comments, without the features that are `constant`; left_out: sentences about other bars."""
    first = bars[0]
    round_the_clock = first.frequency.calendar == "24/7"
    names = [name for name in _columns(bars) if name not in constant]
    missing = "" if _has_volume(bars) else "; volume is mostly missing, so nothing is made of it"
    if constant:
        missing += f"; left out, constant in the train bars: {', '.join(constant)}"
    split = _split(bars, names)
    helping = ended_before(bars, split)
    judged = [one for one in bars if not any(one is other for other in helping)]
    shown = judged[0]
    windows = split_windows(judged, split)
    # Accounts of several symbols are played side by side, so the longest window is what an evaluation takes.
    selecting = max(w.end - w.first for w in windows["select"])
    every = max(5, -(-selecting // BARS_PER_UPDATE))
    spans = [
        f"  #   {purpose} {_day(shown.time[w.first])} to {_day(shown.time[w.end - 1])} ({w.end - w.first} bars)"
        for purpose, (w, *_) in windows.items()
    ]
    pair, doubt = currency_pair(first.symbol), _volume_doubt(bars)
    per_day = first.frequency.periods_per_year / (365 if round_the_clock else 252)
    gamma = 0.97  # with 0.99 a tail takes 300 bars to be seen: rollouts and test windows hold too few of them
    horizon = tail_horizon(gamma)
    options = {
        "repair": how.repair if how.repair != "none" else None,
        "adjust": how.adjust if how.adjust != "refuse" else None,
        "time_unit": how.time_unit,
        "periods_per_year": how.periods_per_year,
        "close_only": how.close_only if how.close_only != "refuse" else None,
    }
    return _TEMPLATE.format(
        found="\n# ".join([*(f"{one.symbol}: {one.frequency.sentence}" for one in bars), *left_out]),
        paths=yaml.safe_dump(paths, default_flow_style=True, width=10_000).strip(),
        reading="".join(f"  {key}: {value}\n" for key, value in options.items() if value is not None),
        windows="\n".join(spans),
        scales=_SCALES if len(bars) > 1 else "",
        pool=_pool([one.symbol for one in helping]) if len(bars) > 1 else "",
        select=split.select,
        test=split.test,
        purge=split.purge,
        seeds=SEEDS,
        every=every,
        patience=max(2, -(-PATIENT // every)),
        left_out=missing,
        features=", ".join(names),
        episode=int(np.clip(first.frequency.periods_per_year, 128, 512)),
        costs_note=_costs_note(pair, round_the_clock=round_the_clock),
        costs=_costs("pair" if pair else "round_the_clock" if round_the_clock else "session", doubt),
        gamma=gamma,
        horizon=horizon,
        horizon_words=f" ({horizon / per_day:.3g} {'days' if round_the_clock else 'trading days'})",
        steps=f"{TOTAL_STEPS:_}",
    )


_SCALES = "  scales: symbol # each symbol in its own means and deviations; shared: one for all, also for new symbols\n"


def _has_volume(bars: list[Bars]) -> bool:
    return min(float(np.mean(one.volume > 0)) for one in bars) > 0.5


def _columns(bars: list[Bars]) -> list[str]:
    """Features that can be made of all these bars."""
    return [name for name in DEFAULT_COLUMNS if _has_volume(bars) or "volume" not in name]


def _split(bars: list[Bars], names: Sequence[str]) -> SharesSplit:
    split = SharesSplit()
    return split.model_copy(update={"purge": _purge(bars, names, split)})


def _late(bars: list[Bars]) -> dict[str, str]:
    """Symbol -> a sentence why it is left out: too few of its bars are older than the windows that judge the others."""
    late = began_late(bars, _split(bars, _columns(bars)), FEWEST_TRAINED) if len(bars) > 1 else {}
    return {
        symbol: f"left out: {symbol} has {own} bars in the train window, and at least {FEWEST_TRAINED} are needed: it "
        "begins too late to be trained with the others; give it a configuration of its own, or name later windows "
        "under data.split and add its file to data.paths."
        for symbol, own in late.items()
    }


def _purge(bars: list[Bars], names: Sequence[str], split: SharesSplit) -> int:
    """Bars that the features look back, at most MOST_PURGED of those that select."""
    step = int(bars[0].frequency.bar.astype("timedelta64[ns]").astype(np.int64))
    look_back = longest_warm_up(columns_of(FeaturesConfig(include=tuple(names))), step)
    return min(look_back, int(MOST_PURGED * split.select * max(len(one) for one in bars)))


def _pool(train_only: list[str]) -> str:
    """The section of several symbols; train_only: those that end before the others are judged."""
    ended = f", train_only: {yaml.safe_dump(train_only, default_flow_style=True, width=10_000).strip()}"
    return (
        "  # One policy for all of them. Each has a limit, and rewards, in proportion to its own tail; pooled: one "
        "limit for all.\n"
        "  # Symbols that only train, because their bars end before the windows above: train_only: [NAME].\n"
        f"  pool: {{tails: symbol{ended if train_only else ''}}}\n"
    )


def _costs(market: MarketKind, doubt: str | None) -> str:
    """A line for each guessed cost; doubt: why impact cannot be computed, which turns it off."""
    guesses = guessed_costs(market)
    comments = {name: COSTS[name].comment for name in guesses}
    if doubt is not None:
        guesses["impact_bps"], comments["impact_bps"] = 0.0, f"off: {doubt}"
    lines = (f"{name}: {value:g} # {comments[name]}" for name, value in guesses.items())
    return "\n".join(f"  {line.removesuffix(' # ')}" for line in lines)


def _costs_note(pair: tuple[str, str] | None, *, round_the_clock: bool) -> str:
    """Which kind of market the costs are guessed for; what the bars do not tell is not claimed."""
    if pair is not None:
        kind = f"{describe_pair(*pair)} at a broker"
    else:
        kind = "a large crypto exchange" if round_the_clock else "a liquid market that closes at night"
    return f"Guesses for {kind}; put in your own."


def _volume_doubt(bars: list[Bars]) -> str | None:
    """Why impact cannot be computed from the volumes, a sentence; None when it can."""
    account = float(MarketEnvConfig().initial_cash)
    for one in bars:
        if np.mean(one.volume > 0) <= 0.5:
            return f"{one.symbol} has no volume in most of its bars."
        doubt = volume_doubt(one, account)
        if doubt is not None:
            return doubt
    return None


def _check_target(out: Path, paths: Sequence[Path], *, force: bool) -> None:
    """Refuse what cannot be written, and what must not be replaced, before any work."""
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}; make it first.")
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name a file with --out.")
    if any(path.exists() and out.exists() and out.samefile(path) for path in paths):
        raise ConfigError(f"{out} is one of the files with bars; choose another name with --out.")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; choose another name with --out, or replace it with --force.")


def _from_folder_of(out: Path, path: Path) -> str:
    """How the file written at `out` must name `path`: from its own folder, unless the path was given in full."""
    return str(path) if path.is_absolute() else os.path.relpath(path.resolve(), out.resolve().parent)


def _dataset(text: str, out: Path) -> Dataset:
    """What `train` will build of the configuration."""
    config = _checked(text, out)
    assert config.data is not None and config.features is not None
    dataset = build_dataset(config.data, config.features)
    with_numbers(config, dataset)
    return dataset


def _checked(text: str, out: Path) -> Config:
    """The configuration as `train` will read it: paths are taken from the folder of the file that will be written."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.yaml"
        draft.write_text(text, encoding="utf-8")
        data = load_yaml(draft)
    data["data"]["paths"] = [str(out.resolve().parent / path) for path in data["data"]["paths"]]
    return parse_config(data, source=str(out))


def _day(moment: np.datetime64) -> str:
    return str(moment.astype("datetime64[D]"))
