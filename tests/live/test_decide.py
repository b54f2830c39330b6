"""What to hold now: the decision equals the evaluation's bit for bit, and says what it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailwise
from tailwise.bars.bars import save_bars
from tailwise.core.errors import ConfigError, DataError
from tailwise.run.decide import Decider
from tailwise.run.decision import Holding
from tailwise.run.ensemble import Ensemble
from tests.live.markets import CASES, first_tested, trader_of

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small


@pytest.mark.parametrize("name", CASES)
def test_a_decision_is_the_one_that_evaluate_makes_at_that_bar(name: str) -> None:
    """Targets and equity of an evaluation, at bars of its whole window, bit for bit (LEDGER L3). Rejects features,
    hidden states, masks, draws or guards that live would compute in another way."""
    trader = trader_of(name)
    world = trader.market()
    since = first_tested(world)
    for k, path in enumerate(trader.trade("test", market=world)):
        bars = list(world.dataset.bars) if world.portfolio else [world.dataset.bars[k]]
        assert len(np.unique(path.target, axis=0)) > 1
        for step in (0, 1, 7, 23, len(path) - 1):
            if step >= len(path):
                continue
            known = [one.between(None, path.time[step]) for one in bars]  # up to the close before the bar
            made = trader.decide(known, since=since)
            assert np.array_equal(made.target, path.target[step]), (k, step)
            assert made.equity == path.equity[step]
            assert made.played == step


def test_bars_may_be_a_frame_or_a_file(tmp_path: Path) -> None:
    """Rejects a path that is read letter by letter, and a frame read column by column."""
    trader = trader_of("mlp")
    bars = trader.market().dataset.bars[0]
    known = trader.decide(bars, since=first_tested(trader.market()))
    save_bars(bars, tmp_path / "any.csv")
    for given in (bars.to_frame(), tmp_path / "any.csv", str(tmp_path / "any.csv"), [bars]):
        made = trader.decide(given, since=first_tested(trader.market()))
        assert np.array_equal(made.target, known.target) and made.symbols == known.symbols


def test_why() -> None:
    """Probabilities, law, limit and drives are those of the decision: hand-made features decide, others do not."""
    trader = trader_of("lstm")
    bars = trader.market().dataset.bars[0]
    made = trader.decide(bars)
    assert made.probabilities is not None and made.choices is not None
    assert made.probabilities.sum() == pytest.approx(1.0)
    assert made.expected[0] == pytest.approx(float(made.probabilities @ made.choices))
    assert made.target[0] == made.choices[np.argmax(made.probabilities)]
    law = made.forecast
    assert law.quantiles is not None and law.cvar is not None and (np.diff(law.quantiles[0]) >= 0).all()
    assert law.cvar[0] < law.mean[0]
    sizes = [abs(float(one.effect[0])) for one in made.drives]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 0
    assert {one.name for one in made.drives} >= {"return_1", "volatility_20", "exposure"}
    assert "played through" in made.hidden_state


def test_an_entry_that_the_policy_ignores_drives_nothing() -> None:
    """The weights that read one feature are cut: its effect is exactly 0, and that of the others is not. Rejects an
    attribution that shows the size of a feature instead of what it does."""
    import torch

    trader = trader_of("mlp")
    bars = trader.market().dataset.bars[0]
    with torch.no_grad():
        first = next(iter(trader.models[0].encoder.parameters()))
        first[:, 0] = 0.0
    drives = {one.name: one for one in trader.decide(bars).drives}
    assert drives["return_1"].effect[0] == 0.0 and not drives["return_1"].flips
    assert drives["volatility_20"].effect[0] != 0.0


def test_what_is_really_held_replaces_what_was_played() -> None:
    trader = trader_of("guards")
    bars = trader.market().dataset.bars[0]
    close = float(bars.close[-1])
    held = trader.decide(bars, Holding(units=-500.0 / close, equity=1000.0, entry=close * 1.1, peak=1250.0))
    assert held.exposure[0] == pytest.approx(-0.5) and held.equity == 1000.0
    by_name = {one.name: one.value for one in held.drives}
    assert by_name["exposure"] == pytest.approx(-0.5) and by_name["drawdown"] == pytest.approx(0.2)
    assert by_name["unrealised_return"] == pytest.approx(0.1 / 1.1, rel=1e-5)
    with pytest.raises(DataError, match="peak at least the equity"):
        trader.decide(bars, Holding(units=1.0, equity=10.0, peak=5.0))


def test_guards_speak_in_the_verdict() -> None:
    """At the first bar at which the drawdown guard acted in an evaluation it speaks, and leaves only what reduces; at
    the first bar of all it does not."""
    from tailwise.market.guard_arrays import DRAWDOWN

    trader = trader_of("guards")
    world = trader.market()
    path, bars = trader.trade("test", market=world)[0], world.dataset.bars[0]
    acted = np.flatnonzero(path.ledger["guard"] & DRAWDOWN)
    assert len(acted)
    calm, halted = (
        trader.decide(bars.between(None, path.time[k]), since=first_tested(world)) for k in (0, int(acted[0]))
    )
    assert calm.verdict.speaking == () and (calm.verdict.low[0], calm.verdict.high[0]) == (-0.5, 0.5)
    assert "drawdown" in halted.verdict.speaking
    now = float(halted.exposure[0])
    assert (halted.verdict.low[0], halted.verdict.high[0]) == pytest.approx((min(now, 0.0), max(now, 0.0)))


def test_a_policy_predicts_the_law_of_what_follows() -> None:
    trader = trader_of("mlp")
    assert isinstance(trader, tailwise.Policy)
    obs = np.zeros((3, trader.model.observation.size), dtype=np.float32)
    obs[1] += 1.0
    law = trader.law(obs)
    assert law.quantiles is not None and law.cvar is not None
    assert law.quantiles.shape == (3, 16) and law.cvar[0] == law.cvar[2] != law.cvar[1]
    assert law.limit == -0.05 and law.budget_use is not None
    assert law.budget_use[1] == pytest.approx(law.cvar[1] / -0.05)


def test_bars_that_cannot_be_decided_on_are_refused() -> None:
    trader: Decider = trader_of("mlp")
    assert not isinstance(trader, Ensemble)
    bars = trader.market().dataset.bars[0]
    with pytest.raises(DataError, match="warm-up"):
        trader.decide(bars.slice(0, 10))
    with pytest.raises(DataError, match="write a UTC date"):
        trader.decide(bars, since="tomorrow")
    later = trader.decide(bars, since="2200-01-01")
    assert later.played == 0 and later.since is None and "begin at this close" in later.hidden_state
    gym: dict[str, Any] = {"env": {"id": "CartPole-v1"}, "run": {"tensorboard": False}}
    with pytest.raises(ConfigError, match="not trained on a market"):
        tailwise.PPO(config=gym).decide(bars)
