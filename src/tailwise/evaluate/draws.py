"""What chance alone would have given: many draws of random positions, and of the policy with sampled actions.

One draw says little: of random positions with the turnover of a policy one gained 107% where the median lost 8%. So
DRAWS accounts are played side by side, and what is reported are their percentiles and the place of the policy in them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.bars.data_config import Purpose
from tailwise.evaluate.backtest import play_side_by_side, random_targets
from tailwise.evaluate.words import percent
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath
from tailwise.run.policy import Trader
from tailwise.run.worlds import MarketWorld

Floats = npt.NDArray[np.float64]
DRAWS = 200
FEWEST_DRAWS = 20  # below, percentiles of draws say nothing
RANDOM_POSITIONS = "random positions with the turnover of the policy"
SAMPLED_ACTIONS = "the policy with sampled actions"
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_STEPS = 600_000  # decisions of all sampled accounts together; of longer windows there are fewer draws
_MOST_TARGETS = 20_000_000  # of all random accounts together


@dataclass(frozen=True)
class Draws:
    """Total returns of accounts that differ by chance alone.

    what       is drawn, in words
    count      accounts
    quantiles  (level, total return), fractions of the initial equity
    policy     total return of the policy as it was judged; above: share of the draws that it is above
    """

    what: str
    count: int
    quantiles: tuple[tuple[float, float], ...]
    policy: float
    above: float

    @classmethod
    def of(cls, what: str, total_returns: Floats, policy: float) -> Draws:
        """Summarise total returns [count]; a draw that is equal counts half, so that copies of the policy give 1/2."""
        above = np.mean(total_returns < policy) + 0.5 * np.mean(total_returns == policy)
        quantiles = tuple((level, float(np.quantile(total_returns, level))) for level in LEVELS)
        return cls(what, len(total_returns), quantiles, policy, float(above))

    @property
    def sentence(self) -> str:
        """The median and the middle 90%, and where the policy is among them."""
        values = dict(self.quantiles)
        return (
            f"Of {self.count} draws of {self.what} the median returned {percent(values[0.5])}, nine in ten between "
            f"{percent(values[0.05])} and {percent(values[0.95])}; the policy ({percent(self.policy)}) is above "
            f"{self.above:.0%} of them."
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def random_draws(
    bars: Bars,
    path: AccountPath,
    costs: CostConfig | None,
    config: MarketEnvConfig | None,
    *,
    first: int,
    last: int,
    seed: int,
    count: int = DRAWS,
) -> tuple[Floats, Floats]:
    """Targets [count, T] of random positions with the turnover of `path`, and wealth [count, n + 1] of those accounts;
    fewer than `count` where bars are very many.

    Draw 0 is `random_matched(..., seed=seed)`.
    """
    draws = max(min(count, _MOST_TARGETS // len(bars)), FEWEST_DRAWS)
    targets = random_targets(bars, path, seed=seed, count=draws)
    return targets, play_side_by_side(targets, bars, costs, config=config, first=first, last=last)


def median_draw(wealth: Floats) -> int:
    """The draw that ended nearest to the median of all; the earliest of those as near."""
    ends = wealth[:, -1]
    return int(np.abs(ends - np.median(ends)).argmin())


def sampled_wealth(
    policy: Trader, world: MarketWorld, purpose: Purpose, *, seed: int, count: int = DRAWS
) -> Floats | None:
    """Wealth at the end [accounts, draws] of accounts that differ by their sampled actions alone.

    None where fewer than FEWEST_DRAWS fit into MOST_STEPS decisions. Draw 0 is the account that `policy.trade` plays
    with sampled actions and the same seed.
    """
    tables = world.dataset.tables(purpose, together=world.portfolio)
    accounts = world.episodes(1)
    longest = max(len(table.close) - table.first_valid for table in tables)
    draws = min(count, MOST_STEPS // (accounts * longest))
    if draws < FEWEST_DRAWS:
        return None
    paths = policy.trade(purpose, deterministic=False, seed=seed, market=world.side_by_side(draws))
    return np.array([path.wealth[-1] for path in paths]).reshape(draws, accounts).T
