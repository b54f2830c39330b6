"""Mistakes in the model: laws of actions, statistics of observations, the return scale, memory, action spaces."""

from __future__ import annotations

from benchmarks.mutant import Mutant

DISTRIBUTIONS = ("tests/model/test_distributions.py",)
NORMALISER = ("tests/model/test_normaliser.py",)
RETURN_SCALE = ("tests/model/test_return_scale.py",)
RECURRENCE = ("tests/model/test_recurrence.py",)
ACTION_SPEC = ("tests/model/test_action_spec.py",)
OUTLIERS = NORMALISER

MUTANTS = (
    Mutant(
        "the density of a squashed action is multiplied by its Jacobian",
        "model/distributions.py",
        "return super().log_prob(params, action) - log_jacobian.sum(-1)",
        "return super().log_prob(params, action) + log_jacobian.sum(-1)",
        DISTRIBUTIONS,
    ),
    Mutant(
        "the density of a Gaussian leaves its width out",
        "model/distributions.py",
        "return (-0.5 * z**2 - log_std - _HALF_LOG_2PI).sum(-1)",
        "return (-0.5 * z**2 - _HALF_LOG_2PI).sum(-1)",
        DISTRIBUTIONS,
    ),
    Mutant(
        "the entropy of a Gaussian lacks its half",
        "model/distributions.py",
        "return (self.split(params)[1] + 0.5 + _HALF_LOG_2PI).sum(-1)",
        "return (self.split(params)[1] + _HALF_LOG_2PI).sum(-1)",
        DISTRIBUTIONS,
    ),
    Mutant(
        "forbidden actions keep their logits and allowed ones lose them",
        "model/distributions.py",
        "return torch.where(mask, logits, torch.finfo(logits.dtype).min)",
        "return torch.where(~mask, logits, torch.finfo(logits.dtype).min)",
        DISTRIBUTIONS,
    ),
    Mutant(
        "a uniform number above the last sum picks an impossible action",
        "model/distributions.py",
        "return torch.minimum(index, last_possible)",
        "return index.clamp(max=logits.shape[-1] - 1)",
        DISTRIBUTIONS,
    ),
    Mutant(
        "all components of an action are drawn with the first number",
        "model/distributions.py",
        "_inverse_cdf(logits, uniform[..., i : i + 1])",
        "_inverse_cdf(logits, uniform[..., :1])",
        DISTRIBUTIONS,
    ),
    Mutant(
        "the log-probability is that of the last component alone",
        "model/distributions.py",
        "            total = total + chosen.squeeze(-1)\n",
        "            total = chosen.squeeze(-1)\n",
        DISTRIBUTIONS,
    ),
    Mutant(
        "the greatest entropy is that of one component",
        "model/distributions.py",
        "return sum(math.log(k) for k in self.sizes)",
        "return math.log(self.sizes[0])",
        DISTRIBUTIONS,
    ),
    Mutant(
        "the spread between batches is left out of the variance",
        "model/scales.py",
        "(old_sum + newest * n + delta**2 * count * n / total) / total",
        "(old_sum + newest * n) / total",
        NORMALISER,
    ),
    Mutant(
        "the placeholder variance is averaged in",
        "model/scales.py",
        "old_sum = variance * count if count > 0 else 0.0",
        "old_sum = variance * max(count, 1.0)",
        NORMALISER,
    ),
    Mutant(
        "columns that must stay as they are are scaled",
        "model/scales.py",
        "return torch.where(self.scaled, standard, obs)",
        "return standard",
        NORMALISER,
    ),
    Mutant(
        "the mean of a jump may move without a limit",
        "model/scales.py",
        "delta = (screened.moments.mean - mean).clip(-reach, reach)",
        "delta = screened.moments.mean - mean",
        OUTLIERS,
    ),
    Mutant(
        "the count of rows is not kept",
        "model/scales.py",
        "        self.count.fill_(total)\n",
        "        self.count.fill_(n)\n",
        NORMALISER,
    ),
    Mutant(
        "a wild entry below the bulk is not noticed",
        "model/scales.py",
        "wild = (batch < low[far]) | (batch > high[far])",
        "wild = batch > high[far]",
        OUTLIERS,
    ),
    Mutant(
        "a change of scale is drawn in like a rare entry",
        "model/scales.py",
        "rare = (share > 0) & (share <= RARE)",
        "rare = share > 0",
        OUTLIERS,
    ),
    Mutant(
        "the scale of the bulk includes the wild entries",
        "model/scales.py",
        "kept = ordered[cut : count - cut]",
        "kept = ordered",
        OUTLIERS,
    ),
    Mutant(
        "wild entries are drawn in to a mean that contains them",
        "model/scales.py",
        "others = np.ma.masked_array(rows, wild)",
        "others = np.ma.masked_array(rows, np.zeros_like(wild))",
        OUTLIERS,
    ),
    Mutant(
        "the shift of the mean is left out of the variance of returns",
        "model/scales.py",
        "variance = (1 - self.rate) * variance + self.rate * square + self.rate * (1 - self.rate) * shift * shift",
        "variance = (1 - self.rate) * variance + self.rate * square",
        RETURN_SCALE,
    ),
    Mutant(
        "the bias of a head keeps the old mean",
        "model/scales.py",
        "bias[:] = (old_sigma * bias.astype(np.float64) + old_mu - mu) / sigma",
        "bias[:] = (old_sigma * bias.astype(np.float64)) / sigma",
        RETURN_SCALE,
    ),
    Mutant(
        "the weight of a head is scaled the wrong way round",
        "model/scales.py",
        "np.multiply(weight, old_sigma / sigma,",
        "np.multiply(weight, sigma / old_sigma,",
        RETURN_SCALE,
    ),
    Mutant(
        "a collapsing scale has no floor",
        "model/scales.py",
        "sigma = max(math.sqrt(variance), self.floor * peak, ABSOLUTE_FLOOR)",
        "sigma = max(math.sqrt(variance), ABSOLUTE_FLOOR)",
        RETURN_SCALE,
    ),
    Mutant(
        "raw returns forget the mean",
        "model/scales.py",
        "return normalised * self.sigma.to(normalised.dtype) + self.mu.to(normalised.dtype)",
        "return normalised * self.sigma.to(normalised.dtype)",
        RETURN_SCALE,
    ),
    Mutant(
        "memory is not cleared where an episode starts inside a rollout",
        "model/actor_critic.py",
        "begin = torch.where(plan.fresh[:, None, None], torch.zeros((), dtype=state.dtype), state[plan.environment])",
        "begin = state[plan.environment]",
        RECURRENCE,
    ),
    Mutant(
        "memory is not cleared where a rollout starts with an episode",
        "model/actor_critic.py",
        "begin = torch.where(start[0][:, None, None], torch.zeros_like(state), state)",
        "begin = state",
        RECURRENCE,
    ),
    Mutant(
        "the state after a rollout is that of the first segment",
        "model/actor_critic.py",
        "last=torch.from_numpy(rank[segment[:, -1]]),",
        "last=torch.from_numpy(rank[segment[:, 0]]),",
        RECURRENCE,
    ),
    Mutant(
        "hidden state and cell are swapped",
        "model/actor_critic.py",
        "return y, torch.cat([h, c]).transpose(0, 1)",
        "return y, torch.cat([c, h]).transpose(0, 1)",
        RECURRENCE,
    ),
    Mutant(
        "the open gate is that of the input",
        "model/actor_critic.py",
        "keep = parameter.chunk(4 if self.is_lstm else 3)[1]",
        "keep = parameter.chunk(4 if self.is_lstm else 3)[0]",
        RECURRENCE,
    ),
    Mutant(
        "a Box is scaled by its whole range",
        "model/action_spec.py",
        "np.where(finite, high / 2.0 - low / 2.0, 1.0)",
        "np.where(finite, high - low, 1.0)",
        ACTION_SPEC,
    ),
    Mutant(
        "a squashed action covers half of its range",
        "model/action_spec.py",
        "raw = self.low + (np.tanh(raw) + 1.0) / 2.0 * (self.high - self.low)",
        "raw = self.low + np.tanh(raw) / 2.0 * (self.high - self.low)",
        ACTION_SPEC,
    ),
    Mutant(
        "integer Boxes are cut off instead of rounded",
        "model/action_spec.py",
        "values = np.rint(values)",
        "values = np.trunc(values)",
        ACTION_SPEC,
    ),
    Mutant(
        "actions of a Box leave its bounds",
        "model/action_spec.py",
        "values = np.clip(raw, self.low, self.high)",
        "values = np.asarray(raw)",
        ACTION_SPEC,
    ),
    Mutant(
        "the first choice of a stored discrete space is 0",
        "model/action_spec.py",
        'start=tuple(data["start"]),',
        'start=tuple(0 for _ in data["start"]),',
        ACTION_SPEC,
    ),
)
