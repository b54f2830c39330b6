"""How statistics are named and printed, in tables on the terminal and on pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tailwise.evaluate.bootstrap import Interval
from tailwise.evaluate.statistics import PathStatistics
from tailwise.market.costs import COMPONENTS, LEAST_IMPACT, cost_words
from tailwise.market.path import AccountPath

EXPOSURES = "exposure: long / short / net"
HARDLY_INVESTED = 0.05  # mean gross exposure below which hardly any money was at stake
FEW_UPDATES = 20  # of training, below which a policy is close to its start
RANDOM = "random, same turnover"  # the rule that trades as often as a policy, at random: the median of its draws
BASE_RULE = "base rule"  # `env.base`, which the actions of a policy multiply: the untrained policy
NEVER_ACTED = "it never acted: training ended within its warm-up, and the policy follows the mean alone"
EQUAL_WEIGHT = "buy and hold, equal weights"  # of several symbols, the same share of the money in each
Column = tuple[str, Callable[[PathStatistics], str]]


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{round(100 * value, digits) + 0.0:.{digits}f}%"  # + 0.0 turns -0.0 into 0.0


def plain(value: float | None, digits: int = 2) -> str:
    """A number with so many digits after the point, never "-0.00"; a dash when it is undefined."""
    return "-" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def exposures(numbers: PathStatistics) -> str:
    """The cell below `EXPOSURES`."""
    return " / ".join(plain(x) for x in (numbers.long_exposure, numbers.short_exposure, numbers.net_exposure))


def held(numbers: PathStatistics) -> str:
    """'0.40 long and 0.35 short', of the mean exposures."""
    long, short = plain(numbers.long_exposure), plain(numbers.short_exposure)
    return f"{long} long" if numbers.short_exposure == 0 else f"{long} long and {short} short"


def signed_percent(value: float | None) -> str:
    """A difference in percent, with its sign."""
    return "-" if value is None else f"{100 * value + 0.0:+.1f}%"  # + 0.0 turns -0.0 into 0.0


def signed(value: float | None) -> str:
    """A difference of ratios, with its sign."""
    return "-" if value is None else f"{value + 0.0:+.2f}"


def bounds(interval: Interval, show: Callable[[float | None], str]) -> str:
    """'low to high', or a dash where there are no bounds."""
    return "-" if interval.low is None else f"{show(interval.low)} to {show(interval.high)}"


def difference_heads(level: float) -> tuple[str, ...]:
    """Titles of the columns of `difference_cells`; level: probability that an interval holds the truth."""
    interval = f"{100 * level:g}% interval"
    return ("return per year", interval, "Sharpe ratio", interval, "verdict")


def difference_cells(mean_return: Interval, sharpe: Interval, verdict: str) -> tuple[str, ...]:
    """One path minus another: log-return per year and Sharpe ratio, each with its interval, and the verdict."""
    return (
        signed_percent(mean_return.estimate),
        bounds(mean_return, signed_percent),
        signed(sharpe.estimate),
        bounds(sharpe, signed),
        verdict,
    )


def reservations(gross_exposure: float, updates: int | None) -> list[str]:
    """What keeps a result from being praised, as ends of a sentence; updates: of training, None for a rule."""
    reasons = []
    if gross_exposure < HARDLY_INVESTED:
        reasons.append(f"it hardly held anything (gross exposure {gross_exposure:.2g} on average)")
    if updates is not None and updates < FEW_UPDATES:
        count = "1 update" if updates == 1 else f"{updates} updates"
        reasons.append(f"it was trained for {count} only, which leaves it close to its start")
    return reasons


def earned(verdict: str, mean_return: float, reserved: Sequence[str]) -> str:
    """Whether it earned money, as the beginning of a sentence; verdict: of the evidence, mean_return: per year."""
    why = " and ".join(reserved)
    if verdict == "no evidence":
        return "No evidence that it earns money" + (f"; {why}" if why else "")
    side = "above" if verdict == "above zero" else "below"
    if why:
        return f"Its log-return is {side} 0 beyond noise ({small_percent(mean_return)} per year), but {why}"
    return f"It {'earned' if side == 'above' else 'lost'} money beyond noise"


def listed(names: Sequence[str]) -> str:
    """Names of rules as they stand in a sentence: 'flat, momentum and random positions'."""
    *others, last = ["random positions" if name == RANDOM else name for name in names]
    return f"{', '.join(others)} and {last}" if others else last


def chance(probability: float, repetitions: int) -> str:
    """A probability from resampling; never a plain 0, which resampling cannot show."""
    if probability == 0:
        return f"< {100 / repetitions:.2g}%"
    return f"{100 * probability:.1f}%"


def limit_word(kept: bool | None, acted: bool | None) -> str:
    """Whether a limit was kept, for a cell; acted: whether it ever acted in training, None when that is not known."""
    if kept is None:
        return "not judged"
    if acted is False:
        return "kept without acting" if kept else "never acted"
    return "kept" if kept else "missed"


def small_percent(value: float) -> str:
    """One digit after the point; more where a small number needs them."""
    points = 100 * value + 0.0  # + 0.0 turns -0.0 into 0.0
    return f"{points:.1f}%" if abs(points) >= 1 or points == 0 else f"{points:.2g}%"


def columns(example: PathStatistics) -> list[Column]:
    """Headings with their units, and how each is read off the statistics."""
    tail = f"{100 * example.alpha:g}%"
    return [
        ("total return", lambda s: percent(s.total_return)),
        ("per year", lambda s: percent(s.annual_return)),
        ("volatility", lambda s: percent(s.annual_volatility)),
        ("Sharpe", lambda s: plain(s.sharpe)),
        ("worst drawdown", lambda s: percent(-s.max_drawdown)),
        (f"CVaR {tail}, bar", lambda s: percent(s.cvar_bar, 2)),
        (f"CVaR {tail}, {example.horizon} bars", lambda s: percent(s.cvar_return)),
        ("turnover/year", lambda s: plain(s.turnover, 1)),
        ("costs/year", lambda s: percent(s.costs, 2)),
        ("long exposure", lambda s: plain(s.long_exposure)),
        ("short exposure", lambda s: plain(s.short_exposure)),
        ("net exposure", lambda s: plain(s.net_exposure)),
    ]


def glossary_rows(example: PathStatistics) -> list[tuple[str, str, Callable[[PathStatistics], str], str]]:
    """Every number: its key, what it is called, how it is printed, and what it means in a sentence."""
    tail = f"{100 * example.alpha:g}%"
    count: Callable[[float], str] = "{:,.0f}".format
    return [
        (
            "log_return",
            "log-return per year",
            lambda s: percent(math.log1p(s.total_return) / s.years if s.total_return > -1 else None),
            "mean of log-returns per bar x bars per year; what intervals and comparisons speak of",
        ),
        ("total_return", "total return", lambda s: percent(s.total_return), "last equity over first, minus 1"),
        ("annual_return", "return per year (CAGR)", lambda s: percent(s.annual_return), "geometric; - below a year"),
        ("annual_volatility", "volatility per year", lambda s: percent(s.annual_volatility), "of log-returns per bar"),
        ("sharpe", "Sharpe ratio", lambda s: plain(s.sharpe), "mean over deviation, per year, no risk-free rate"),
        ("sortino", "Sortino ratio", lambda s: plain(s.sortino), "mean over downside deviation, per year"),
        ("calmar", "Calmar ratio", lambda s: plain(s.calmar), "return per year over worst drawdown"),
        ("omega", "Omega ratio", lambda s: plain(s.omega), "sum of gains over sum of losses; 1 is break-even"),
        ("max_drawdown", "worst drawdown", lambda s: percent(-s.max_drawdown), "largest fall from a peak"),
        ("longest_drawdown", "longest drawdown", lambda s: f"{s.longest_drawdown:,} bars", "until as high again"),
        ("cdar", f"CDaR {tail}", lambda s: percent(-s.cdar), f"mean of the worst {tail} of the drawdowns"),
        ("var_bar", f"VaR {tail}, bar", lambda s: percent(s.var_bar, 2), f"{tail} of the bars were worse"),
        ("cvar_bar", f"CVaR {tail}, bar", lambda s: percent(s.cvar_bar, 2), f"mean of the worst {tail} of the bars"),
        (
            "cvar_return",
            f"CVaR {tail}, {example.horizon} bars",
            lambda s: percent(s.cvar_return),
            "the same of discounted returns over that horizon; what a limit speaks of",
        ),
        ("skewness", "skewness", lambda s: plain(s.skewness), "below 0: losses are larger and rarer than gains"),
        ("excess_kurtosis", "excess kurtosis", lambda s: plain(s.excess_kurtosis), "above 0: fatter tails than normal"),
        ("tail_ratio", "tail ratio", lambda s: plain(s.tail_ratio), f"upper {tail} quantile over the lower one"),
        ("turnover", "turnover per year", lambda s: plain(s.turnover, 1), "notional traded, multiple of equity"),
        ("costs", "costs per year", lambda s: percent(s.costs, 2), cost_words()),
        (
            "cost_share",
            "cost share",
            lambda s: percent(s.cost_share),
            "part of the earnings before costs that they took",
        ),
        ("mean_exposure", "gross exposure", lambda s: plain(s.mean_exposure), "long + short, mean, multiple of equity"),
        ("long_exposure", "long exposure", lambda s: plain(s.long_exposure), "mean of the long positions"),
        ("short_exposure", "short exposure", lambda s: plain(s.short_exposure), "mean size of the short positions"),
        ("net_exposure", "net exposure", lambda s: plain(s.net_exposure), "long - short; below 0 it is short"),
        ("time_in_market", "time in the market", lambda s: percent(s.time_in_market), "share of bars with a position"),
        ("trades", "trades", lambda s: count(s.trades), "bars with an order or an exit"),
        ("round_trips", "round trips", lambda s: count(s.round_trips), "positions opened"),
        ("hit_rate", "hit rate", lambda s: percent(s.hit_rate), "round trips that made money after costs"),
        ("profit_factor", "profit factor", lambda s: plain(s.profit_factor), "won by winners over lost by losers"),
    ]


def ruins(paths: Mapping[str, AccountPath]) -> list[str]:
    """A sentence for every account that was ruined."""
    return [
        f"{name}: ruined on {str(path.time[-1])[:10]}, {len(path):,} of {path.planned:,} bars into the window; equity "
        f"ended {float(path.ledger['shortfall'][-1]):,.2f} below the bankruptcy floor."
        for name, path in paths.items()
        if path.ruined
    ]


def costly_impact(path: AccountPath) -> list[str]:
    """A sentence when impact was the largest cost of an account, and not a trifle."""
    costs = {name: float(path.ledger[name].sum()) for name, sign in COMPONENTS.items() if sign < 0}
    impact = costs.pop("impact")
    notional = float((path.traded * np.maximum(path.ledger["equity_before"], 0.0)).sum())
    if impact <= max(costs.values()) or impact < LEAST_IMPACT * notional:
        return []
    return [
        f"Impact is the largest cost of {path.symbol}: {impact:,.0f}, which is {percent(impact / path.equity[0])} of "
        f"the account at the start and {impact / notional * 1e4:.3g} bps of what was traded. Check that volume counts "
        "units, not ticks or lots, and that the account is not too large for this market; costs.impact_bps: 0 turns "
        "it off."
    ]
