"""A policy as a NautilusTrader strategy: on the same bars it fills and is worth what `evaluate` says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise.bars.bars import save_bars
from tailwise.core.errors import ConfigError, NotBuiltError
from tailwise.market.path import AccountPath
from tests.live.markets import CASES, LSTM, trader_of, trained
from tests.support import merged

nautilus = pytest.importorskip(
    "tailwise.live.nautilus",
    reason="nautilus_trader is of the extra 'live': pip install '.[live]'",
    exc_type=ModuleNotFoundError,
)
pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small

ONE_BASIS_POINT = 1e-4
# What a venue has too: a fee and whole units. Spread, impact and interest are the simulator's alone.
VENUE: dict[str, Any] = {
    "costs": {
        "taker_fee_bps": 2.0,
        "half_spread_bps": 0.0,
        "slippage_bps": 0.0,
        "impact_bps": 0.0,
        "borrow_rate": 0.0,
        "loan_rate": 0.0,
        "lot_size": 1.0,
    },
    "env": {"initial_cash": 1_000_000.0},
}
POLICIES = {
    "positions, LSTM": LSTM,
    "exposure, MLP": {
        "env": {"action": {"kind": "exposure", "low": -1.0, "high": 1.0}, "tolerance": 0.0},
        "model": {"actor": {"hidden": [8], "gain": 1.0}},  # with more, it is always at a bound
    },
    "base rule": CASES["base"],
}


def both(changes: dict[str, Any], **mistake: Any) -> tuple[Any, AccountPath]:
    """The same policy in NautilusTrader's engine and in an evaluation of its test window."""
    trader = trained(1, merged(changes, VENUE))
    world = trader.market()
    bars, window = world.dataset.bars[0], world.dataset.window("test")[0]
    since = int(bars.time[window.first - 1].astype("int64")) + bars.frequency.bar_ns
    return nautilus.run_backtest(trader, bars, since=since, **mistake), trader.trade("test", market=world)[0]


def difference(result: Any, path: AccountPath) -> float:
    """Largest relative difference of the equity at a close."""
    return float(np.abs(result.equity / path.equity - 1).max())


@pytest.mark.parametrize("name", POLICIES)
def test_fills_and_equity_are_those_of_an_evaluation(name: str) -> None:
    """Every fill with its bar, units and price; equity at every close within a basis point, which leaves room for the
    rounding to cents alone. Rejects fills at the close that was decided on, sizes by that close, and a policy that sees
    another account than the venue's."""
    result, path = both(POLICIES[name])
    ledger = {name: np.asarray(values).reshape(len(path), -1)[:, 0] for name, values in path.ledger.items()}
    orders = np.flatnonzero(ledger["order_units"])
    assert len(orders) > 10
    assert [fill[1] for fill in result.fills] == ledger["order_units"][orders].tolist()
    np.testing.assert_allclose([fill[2] for fill in result.fills], ledger["order_price"][orders], rtol=1e-8)
    np.testing.assert_allclose([fill[3] for fill in result.fills], ledger["fee"][orders], atol=0.011)
    closes = result.time.astype("int64")
    assert [fill[0] for fill in result.fills] == closes[orders].tolist()
    assert difference(result, path) < ONE_BASIS_POINT / 10


def test_orders_sized_at_the_close_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong version: an order sized and sent when its bar closes."""
    proper = nautilus.PolicyStrategy.on_bar

    class AtClose:
        def __init__(self, price: Any) -> None:
            self.price = price

    def hasty(self: Any, bar: Any) -> None:
        proper(self, bar)
        self.on_trade_tick(AtClose(bar.close))

    monkeypatch.setattr(nautilus.PolicyStrategy, "on_bar", hasty)
    result, path = both(POLICIES["positions, LSTM"])
    wanted = path.ledger["order_units"][path.ledger["order_units"] != 0].tolist()
    assert [fill[1] for fill in result.fills] != wanted


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (CASES["guards"], ConfigError, "env.stop_loss"),
        ({"costs": {"latency": 1}}, ConfigError, "costs.latency"),
        ({"env": {"fill": "close"}}, ConfigError, "env.fill"),
        (CASES["portfolio"], NotBuiltError, "a portfolio"),
    ],
)
def test_what_the_strategy_does_not_do_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        nautilus.require_orders_alone(trained(1, changes))


def test_the_snippet_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/nautilus.md. Rejects a page that shows other names than there are."""
    page = (Path(__file__).parents[2] / "docs" / "nautilus.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    policy = trained(1, merged(LSTM, VENUE))
    policy.save("runs/sp500-1")
    save_bars(policy.market().dataset.bars[0].slice(0, 100), tmp_path / "SP500.csv")
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert len(names["result"].fills) > 0 and names["result"].equity[-1] > 0


def test_two_symbols_are_traded_by_two_strategies() -> None:
    """A policy of several symbols trades the one that it is given, by that symbol's own features."""
    trader = trader_of("two symbols")
    bars = trader.market().dataset.bars[1]
    result = nautilus.run_backtest(trader, bars.slice(0, 120))
    assert len(result.fills) > 0 and np.isfinite(result.equity).all()
