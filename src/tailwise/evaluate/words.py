"""How statistics are named and printed, in tables on the terminal and on pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailwise.evaluate.statistics import PathStatistics
from tailwise.market.path import AccountPath


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value + 0.0:.{digits}f}%"  # + 0.0 turns -0.0 into 0.0


def plain(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


Column = tuple[str, Callable[[PathStatistics], str]]


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
        ("exposure", lambda s: plain(s.mean_exposure)),
    ]


def ruins(paths: Mapping[str, AccountPath]) -> list[str]:
    """A sentence for every account that was ruined."""
    return [
        f"{name}: ruined on {str(path.time[-1])[:10]}, {len(path):,} of {path.planned:,} bars into the window; equity "
        f"ended {float(path.ledger['shortfall'][-1]):,.2f} below the bankruptcy floor."
        for name, path in paths.items()
        if path.ruined
    ]


def legend(example: PathStatistics, *, gamma: float) -> str:
    """What the columns mean, in a few sentences."""
    return (
        "Returns after all costs. Volatility and Sharpe: log-returns per bar, annualised, without a risk-free rate. "
        f"CVaR: mean log-return of the worst {100 * example.alpha:g}%, of single bars and of the gamma {gamma:g} "
        f"discounted log-return over the next {example.horizon} bars from every bar. Turnover: notional traded per "
        "year as a multiple of equity. Exposure: mean absolute position as a multiple of equity."
    )
