"""What a policy expects: the law of the return that follows an observation, and its tail beside the limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.numerics import tail_horizon
from tailwise.learner.return_laws import return_law
from tailwise.learner.risk import cvar_from_quantiles
from tailwise.learner.risk_config import CvarMeasure, RiskConstraint, RiskOff
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import quantile_midpoints
from tailwise.run.config import Config

Floats = npt.NDArray[np.float64]
_ALPHA = 0.05  # where the run measured no tail
_LONGEST = 1_000_000  # steps; what a horizon without a discount is called


@dataclass(frozen=True)
class Forecast:
    """Predicted laws of the discounted return that follows n observations, the mean of the critics. Raw units: rewards,
    log-returns on a market.

    mean       [n]
    levels     [N] in (0, 1); quantiles: [n, N] at these levels, ascending. None for critics that predict a mean alone
    alpha      tail probability; cvar: [n], mean of the worst alpha of each law, None without a law
    limit      lowest CVaR that the policy was trained to keep, None without such a limit. It speaks of all visited
               states together: a single forecast may lie below it
    horizon    steps after which the discount has fallen to 5%
    """

    mean: Floats
    levels: Floats | None
    quantiles: Floats | None
    alpha: float
    cvar: Floats | None
    limit: float | None
    horizon: int

    @property
    def budget_use(self) -> Floats | None:
        """[n]: CVaR over limit; above 1 the law is worse than the limit. None without a limit below 0."""
        if self.cvar is None or self.limit is None or not self.limit < 0:
            return None
        return np.asarray(self.cvar / self.limit)

    def times(self, unit: float) -> Forecast:
        """In log-returns, of a symbol whose rewards were divided by `unit` in training (data.pool)."""
        if unit == 1.0:
            return self
        return replace(
            self,
            mean=self.mean * unit,
            quantiles=None if self.quantiles is None else self.quantiles * unit,
            cvar=None if self.cvar is None else self.cvar * unit,
            limit=None if self.limit is None else self.limit * unit,
        )

    def to_json(self, row: int = 0) -> dict[str, Any]:
        """Plain values of one row."""
        use = self.budget_use
        return {
            "mean": float(self.mean[row]),
            "horizon": self.horizon,
            "alpha": self.alpha,
            "cvar": None if self.cvar is None else float(self.cvar[row]),
            "limit": self.limit,
            "budget_use": None if use is None else float(use[row]),
            "levels": None if self.levels is None else self.levels.tolist(),
            "quantiles": None if self.quantiles is None else self.quantiles[row].tolist(),
        }


@torch.no_grad()
def forecast_of(model: ActorCritic, config: Config, features: Tensor) -> Forecast:
    """The forecasts at latent features [n, H], which actor and critics read."""
    out = model.values(features)
    scale = model.return_scale
    mu, sigma = float(scale.mu), float(scale.sigma)
    mean = (out.mean.double().mean(-1) * sigma + mu).numpy()
    gamma = config.learner.gamma
    horizon = tail_horizon(gamma) if gamma < 1 else _LONGEST
    risk = config.risk
    if out.law is None:
        alpha = _ALPHA if isinstance(risk, RiskOff) else risk.alpha
        return Forecast(mean, None, None, alpha, None, None, horizon)
    law = return_law(model.config.critic)
    alpha = max(_ALPHA, 1.0 / law.size) if isinstance(risk, RiskOff) else risk.alpha
    limited = isinstance(risk, RiskConstraint) and isinstance(risk.measure, CvarMeasure)
    levels = quantile_midpoints(law.size).double()
    each = levels.expand(features.shape[0], -1)
    quantiles = law.particles(out.law.double(), each, mu=mu, sigma=sigma).sort(-1).values
    cvar = cvar_from_quantiles(quantiles, alpha)
    return Forecast(
        mean,
        levels.numpy(),
        quantiles.double().numpy(),
        alpha,
        cvar.double().numpy(),
        risk.level if limited else None,  # type: ignore[union-attr]  # `limited` says that it is a constraint
        horizon,
    )


def mean_forecast(forecasts: list[Forecast]) -> Forecast:
    """The forecast of policies that decide together: the mean of their quantiles, and the first one's terms."""
    first = forecasts[0]
    if len(forecasts) == 1:
        return first
    mean = np.mean([one.mean for one in forecasts], axis=0)
    laws = [one.quantiles for one in forecasts if one.quantiles is not None]
    if len(laws) < len(forecasts) or len({law.shape for law in laws}) > 1:
        return Forecast(mean, None, None, first.alpha, None, first.limit, first.horizon)
    quantiles = np.mean(laws, axis=0)
    cvar = cvar_from_quantiles(torch.from_numpy(quantiles), first.alpha).numpy()
    return Forecast(mean, first.levels, quantiles, first.alpha, cvar, first.limit, first.horizon)
