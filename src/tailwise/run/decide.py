"""What to hold now, and why: the decision of a policy at the last close of some bars.

The bars are played through: an account begins flat at the close before `since` with the hidden state of an episode's
start, and the policy trades it bar by bar to the last close. With the bars and the beginning of an evaluation every
decision is the one that the evaluation made, bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from tailwise.bars.bars import Bars, load_bars
from tailwise.core.errors import ConfigError, DataError
from tailwise.features.spec import FeatureSpec
from tailwise.market.account import Account
from tailwise.market.action_kinds import action_kind
from tailwise.market.env_config import MarketEnvConfig
from tailwise.model.actor_critic import ActorCritic, decide_padded
from tailwise.run.config import Config
from tailwise.run.decision import Drive, Holding, LiveDecision, Verdict, show
from tailwise.run.follow import Follower, Moment
from tailwise.run.forecast import Forecast, forecast_of, mean_forecast
from tailwise.run.limits import scales_of, units_of
from tailwise.run.opening import Opening, Since, opening_of
from tailwise.run.play import KeepingPlayer

Floats = npt.NDArray[np.float64]
BarSource: TypeAlias = "Bars | pd.DataFrame | str | Path"
_MANY = 64  # occluded observations that are computed side by side


@dataclass(frozen=True)
class PlayedBars:
    """How the bars were played: how many of them, and whether by the most likely actions."""

    bars: int
    deterministic: bool


class Decider(ABC):
    """Whoever trades an account of the market: a policy, or several that decide together."""

    config: Config
    features: FeatureSpec | None  # what was fitted on the train bars; None outside the market

    @property
    @abstractmethod
    def models(self) -> list[ActorCritic]:
        """The models that decide, in the order of their player's hidden states."""

    @property
    @abstractmethod
    def deterministic(self) -> bool:
        """Whether it is meant to be played by its most likely actions."""

    @abstractmethod
    def player(
        self, *, deterministic: bool, seed: int, environments: npt.NDArray[np.int64] | None = None
    ) -> KeepingPlayer:
        """What plays it, with new hidden states; environments: as in `ModelPlayer`."""

    def follower(
        self, account: Account, *, deterministic: bool | None = None, seed: int | None = None, row: int = 0
    ) -> Follower:
        """What trades `account` as an evaluation would trade its account number `row`."""
        model = self.models[0]
        player = self.player(
            deterministic=self.deterministic if deterministic is None else deterministic,
            seed=self.config.seed if seed is None else seed,
            environments=np.array([row]),
        )
        return Follower(account, player, action=model.action, observed=model.observation.size)

    def decide(
        self,
        bars: BarSource | Sequence[BarSource],
        account: Holding | None = None,
        *,
        since: Since = None,
        deterministic: bool | None = None,
        seed: int | None = None,
    ) -> LiveDecision:
        """What to hold at the last close of `bars`; for accounts with several assets, the bars of all of them.

        bars: `Bars`, or what `load_bars` reads: a DataFrame, a CSV or a Parquet file. One set of them is taken as those
        of the symbol that the policy trades, where that is a single one; otherwise a file names its symbol. since:
        first bar that the account trades (UTC), by default the first one after the train bars. account: what is really
        held, by default what the account that was played holds. The hidden state is the played one in any case.

            decision = policy.decide(bars)
            print(decision.target, decision.forecast.cvar, decision.hidden_state)
        """
        market, spec = market_of(self)
        several = bars_of(bars, spec)
        opening = opening_of(self.config.costs, market, spec, several, since, scales=scales_of(self.config))
        names = tuple(one.symbol for one in several)
        trader = opening.account(self.config.costs, market, names)
        row = 0 if opening.portfolio else row_of(spec, names[0])
        likely = self.deterministic if deterministic is None else deterministic
        follower = self.follower(trader, deterministic=likely, seed=seed, row=row)
        played = 0
        for time, rows, trades in opening.feed():
            if not follower.begun:
                trader.feed(rows, time)
            else:
                follower.choose()
                if follower.advance(rows, time).ruined:
                    raise DataError(
                        f"the account was ruined at {show(time)}, so there is nothing to hold; name a later beginning "
                        "with since."
                    )
                played += 1
            if trades and not follower.begun:
                follower.begin()
        if account is not None:
            trader.hold(account.units, account.equity, account.entry, account.peak, account.held)
        return _explained(self, follower, opening, PlayedBars(played, likely))


def bars_of(given: BarSource | Sequence[BarSource], spec: FeatureSpec) -> list[Bars]:
    """The bars that were given; what is no `Bars` yet is read."""
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str | Bars) else [given]
    only = next(iter(spec.windows)) if len(spec.windows) == 1 and len(several) == 1 else None
    found: list[Bars] = []
    for one in several:
        if isinstance(one, Bars):
            found.append(one)
            continue
        if only is None and isinstance(one, pd.DataFrame):
            raise DataError("a DataFrame does not say which symbol it is; give load_bars(frame, symbol=...).")
        found.append(load_bars(one, symbol=only or Path(one).stem))
    return found


def market_of(trader: Decider) -> tuple[MarketEnvConfig, FeatureSpec]:
    """The account and the features of a policy that was trained on a market; ConfigError for any other."""
    spec, market = trader.features, trader.config.env.market
    if market is None or spec is None:
        raise ConfigError("this policy was not trained on a market (env.kind is gym), so it decides on no bars.")
    return market, spec


def doubts_of(trader: Decider, symbols: Sequence[str], *, since: Since, trades: bool) -> list[str]:
    """Sentences about bars that a policy does not know, or knows too well. trades: an account is traded from `since` on
    (None: from the first bar), so that what it earns would be read."""
    _, spec = market_of(trader)
    known = list(spec.windows)
    found = [
        f"the policy was trained on {', '.join(known)}, not on {one}; what it says of {one} is a guess"
        for one in symbols
        if one not in known
    ]
    trained = [spec.windows[one].last for one in symbols if one in known]
    if trades and trained and (since is None or str(since) <= max(trained)):
        found.append(
            f"the session begins on bars that the policy was trained on, the last of them {max(trained)[:16]}: what it "
            "earns there says nothing; begin later with --since"
        )
    return found


def forecast_at(trader: Decider, now: Moment, symbol: str) -> Forecast:
    """What the policy predicts at a moment of an account of `symbol`, before it decides."""
    forecasts = []
    for model, hidden in zip(trader.models, now.hidden, strict=True):
        decision = decide_padded(
            model,
            torch.from_numpy(now.obs).to(torch.get_default_dtype()),
            hidden,
            torch.from_numpy(now.start),
            None if now.mask is None else torch.from_numpy(now.mask),
            None,
        )
        forecasts.append(forecast_of(model, trader.config, decision.features))
    return mean_forecast(forecasts).times(_worth(trader, symbol))


def _worth(trader: Decider, symbol: str) -> float:
    """A reward of 1 in log-returns: those of pooled symbols are in units of their own tails."""
    own = units_of(trader.config).get(symbol)
    return 1.0 if own is None else own.unit


def row_of(spec: FeatureSpec, symbol: str) -> int:
    """Number of the account of a symbol in an evaluation: its place among the train symbols."""
    names = list(spec.windows)
    return names.index(symbol) if symbol in names else 0


def _explained(trader: Decider, follower: Follower, opening: Opening, how: PlayedBars) -> LiveDecision:
    """The decision at the last close and what it rests on."""
    account, market = follower.account, trader.config.env.market
    assert market is not None
    now, unit = follower.moment(), account.per_action
    exposure, equity = account.exposure(), account.equity
    bounds, speaking = account.guard_bounds(), account.guards_now()
    made = follower.choose()
    looks = [_Look.at(trader, k, now, unit) for k in range(len(trader.models))]
    worth = _worth(trader, account.symbols[0])
    low, high = bounds[:, 0], bounds[:, 1]
    kind = action_kind(market.action)
    since = opening.clock.time[-how.bars] if how.bars else None
    return LiveDecision(
        symbols=account.symbols,
        time=opening.clock.time[-1],
        close=opening.last_close(),
        action=np.asarray(made.action),
        target=made.target,
        exposure=exposure,
        choices=kind.choices * unit[0] if kind.choices.size else None,
        probabilities=np.mean([one.probabilities[0] for one in looks], axis=0) if kind.choices.size else None,
        expected=np.mean([one.expected[0] for one in looks], axis=0),
        spread=np.mean([one.spread[0] for one in looks], axis=0),
        forecast=mean_forecast([one.forecast for one in looks]).times(worth),
        verdict=Verdict(low, high, speaking, bool(((made.target < low) | (made.target > high)).any())),
        drives=_drives(trader, follower, now, unit, looks, worth=worth),
        equity=equity,
        played=how.bars,
        since=since,
        deterministic=how.deterministic,
    )


@dataclass(frozen=True)
class _Look:
    """What one model says of n observations: target [n, A] it expects and its spread, probabilities [n, K], the
    forecast, the most likely action as raw [n, ...]."""

    expected: Floats
    spread: Floats
    probabilities: Floats
    forecast: Forecast
    likely: npt.NDArray[Any]

    @classmethod
    def at(cls, trader: Decider, place: int, now: Moment, unit: Floats) -> _Look:
        return cls.of(trader, place, now.obs, now, unit)

    @classmethod
    def of(cls, trader: Decider, place: int, obs: npt.NDArray[np.float32], now: Moment, unit: Floats) -> _Look:
        """obs [n, D], all of them at this moment."""
        model, count = trader.models[place], len(obs)
        decision = decide_padded(
            model,
            torch.from_numpy(obs).to(torch.get_default_dtype()),
            now.hidden[place].expand(count, -1, -1).contiguous(),
            torch.from_numpy(np.repeat(now.start, count)),
            None if now.mask is None else torch.from_numpy(np.repeat(now.mask, count, axis=0)),
            None,
        )
        market = trader.config.env.market
        assert market is not None
        kind = action_kind(market.action)
        forecast = forecast_of(model, trader.config, decision.features)
        if kind.choices.size:
            chances = decision.params.double().softmax(-1).numpy()
            targets = kind.choices * unit[0]
            mean = chances @ targets
            spread = np.sqrt(np.maximum(chances @ targets**2 - mean**2, 0.0))
            return cls(mean[:, None], spread[:, None], chances, forecast, decision.action.numpy())
        raw = decision.action.double().numpy()
        deviation = decision.params[:, decision.action.shape[-1] :].double().exp().numpy()
        likely = model.action.to_env(raw, squashed=model.law.squashed).astype(np.float64).reshape(count, -1)
        upper = model.action.to_env(raw + deviation, squashed=model.law.squashed).reshape(count, -1)
        lower = model.action.to_env(raw - deviation, squashed=model.law.squashed).reshape(count, -1)
        spread = np.abs(upper.astype(np.float64) - lower) / 2 * np.abs(unit)
        return cls(likely * unit, spread, np.zeros((count, 0)), forecast, likely)


def _drives(
    trader: Decider, follower: Follower, now: Moment, unit: Floats, looks: list[_Look], *, worth: float
) -> tuple[Drive, ...]:
    """Replace one entry of the observation at a time by its train mean, in every model, and look what changes.

    The mean is that of the policy's normaliser, which saw the observations of training. The hidden state stays, so that
    this tells what the newest observation did, not what was remembered.
    """
    names, size = follower.account.names, now.obs.shape[1]
    effects, tails, flips = np.zeros((size, len(unit))), np.zeros(size), np.zeros(size, dtype=np.bool_)
    for place, look in enumerate(looks):
        mean = trader.models[place].normaliser.mean.numpy().astype(np.float32)
        for first in range(0, size, _MANY):
            entries = np.arange(first, min(first + _MANY, size))
            obs = np.repeat(now.obs, len(entries), axis=0)
            obs[np.arange(len(entries)), entries] = mean[entries]
            without = _Look.of(trader, place, obs, now, unit)
            effects[entries] += (look.expected - without.expected) / len(looks)
            flips[entries] |= (without.likely != look.likely).any(axis=-1)
            if look.forecast.cvar is not None and without.forecast.cvar is not None:
                tails[entries] += (look.forecast.cvar - without.forecast.cvar) / len(looks)
    known = looks[0].forecast.cvar is not None
    order = np.argsort(-np.abs(effects).sum(axis=1), kind="stable")
    return tuple(
        Drive(names[k], float(now.obs[0, k]), effects[k], float(tails[k]) * worth if known else None, bool(flips[k]))
        for k in order.tolist()
    )
