"""A portfolio of one asset is the single-asset market: same targets, same path."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, assume, given, settings

from tailwise.market.costs import COMPONENTS
from tailwise.market.env_config import ExposureAction, WeightsAction
from tests.market.portfolio_worlds import asset_of, portfolio_of
from tests.market.test_reference import World, scripted_worlds, worlds
from tests.market.worlds import RELATIVE, TOO_CLOSE, first_disagreement, simulator_of


def largest_difference(world: World) -> float:
    """Of equity, units, orders, prices, every component and reward, relative, over all steps; infinite when an event or
    an end differs."""
    table, config, costs, targets = world
    assert isinstance(config.action, ExposureAction)
    action = WeightsAction(low=config.action.low, high=config.action.high, gross=config.action.high)
    single = simulator_of(table, config, costs)
    changed = config.model_copy(update={"action": action, "start": "first", "report": True})
    many = portfolio_of([asset_of(table, "ONE")], changed, costs)
    worst = 0.0
    for target in targets:
        one = single.step(np.array([target]), autoreset=False)
        other = many.step(np.array([[target]]), autoreset=False)
        assert one.ledger is not None and other.ledger is not None
        a, b = one.ledger[0], other.ledger[0]
        same = a["event"] == b["event"][0] and one.terminated[0] == other.terminated[0]
        if not (same and one.truncated[0] == other.truncated[0]):
            return np.inf
        scale = config.initial_cash
        pairs = [(a[name], b[name], scale) for name in (*COMPONENTS, "equity", "shortfall")]
        for name in ("units", "order_units", "exit_units"):
            pairs.append((a[name], b[name][0], max(abs(a[name]), 1e-3 * scale / table.close[0])))
        for name in ("order_price", "exit_price"):
            pairs.append((a[name], b[name][0], table.close[0]))
        pairs.append((one.reward[0], other.reward[0], 1.0))
        worst = max(worst, *(abs(x - y) / size for x, y, size in pairs))
        if one.terminated[0] or one.truncated[0]:
            break
    return worst


@given(worlds())
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_one_asset_reproduces_the_single_asset_simulator(world: World) -> None:
    """Any costs, stops, margin, latency, lots and fills. Rejects a portfolio with rules of its own."""
    assume(first_disagreement(*world)[1] > TOO_CLOSE)  # in a tie the last bit decides
    assert largest_difference(world) < RELATIVE


def test_scripted_worlds_with_every_event_reproduce_as_well() -> None:
    differences = [largest_difference(world) for world in scripted_worlds()]
    assert max(differences) < RELATIVE
    # The comparison can fail: with another stop the paths part.
    table, config, costs, targets = scripted_worlds()[0]
    single = simulator_of(table, config, costs)
    other = simulator_of(table, config.model_copy(update={"stop_loss": 0.01}), costs)
    rewards = [[s.step(np.array([x]), autoreset=False).reward[0] for x in targets[:6]] for s in (single, other)]
    assert rewards[0] != rewards[1]
