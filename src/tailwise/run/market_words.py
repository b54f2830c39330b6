"""What is said about a market before it is trained on: its bars, worlds and units, and what deserves a warning."""

from __future__ import annotations

from tailwise.bars.bars import CLOSES_ONLY
from tailwise.learner.config import PathAdversary
from tailwise.learner.risk_config import RiskConstraint
from tailwise.market.costs import CostConfig, impact_warning
from tailwise.market.dataset import Dataset
from tailwise.market.env_config import MarketEnvConfig
from tailwise.run.config import Config
from tailwise.run.limits import limit_of, units_of


def describe_market(config: Config, dataset: Dataset) -> list[str]:
    """Sentences on the data, the limits of symbols, and worlds beside the train bars. config: with its numbers."""
    assert config.data is not None
    sentences = dataset.describe()
    for symbol, one in units_of(config).items():
        limit = limit_of(config, symbol)
        if limit is not None:
            sentences.append(f"{symbol} has the limit {limit:.4g}, {one.unit:.3g} x the mean of all symbols.")
    resample = config.data.resample
    if resample is not None:
        sentences.append(
            f"{resample.share:.0%} of the training episodes begin in {resample.worlds} resampled worlds: the train "
            f"bars in blocks of {resample.block:g} bars on average"
            f"{', their mean log-return removed' if resample.drift == 'remove' else ''}."
        )
    adversary = config.learner.adversary
    if isinstance(adversary, PathAdversary):
        sentences.append(
            f"{adversary.share:.0%} of the training episodes begin on paths that an adversary shifts by at most "
            f"{adversary.size:g} volatilities per bar in the mean, every {adversary.every} updates."
        )
    return sentences


def warn_of_market(config: Config, dataset: Dataset, settings: MarketEnvConfig, costs: CostConfig) -> list[str]:
    """Sentences on costs that cannot be right, fills that nobody gets, and rewards that are no log-returns."""
    every = [bars for part in dataset.parts for bars in part.bars]
    sentences = [text for bars in every if (text := impact_warning(bars, costs, settings.initial_cash))]
    same_price = [bars.symbol for bars in every if CLOSES_ONLY["previous_close"] in bars.label]
    if same_price and settings.fill == "next_open":
        sentences.append(
            f"{', '.join(same_price)}: closes only, and a bar opens at the close before: orders are filled at the "
            "price they were decided at, which nobody gets; with data.close_only same_close they wait for the next one."
        )
    if settings.reward.active:
        limited = " and risk.limit steers its tail;" if isinstance(config.risk, RiskConstraint) else ""
        sentences.append(
            f"env.reward adds {settings.reward.words} to the log-return: what training reports as log-return is "
            f"this sum,{limited} evaluations count log-returns alone."
        )
    return [*sentences, *dataset.spec.notes]
