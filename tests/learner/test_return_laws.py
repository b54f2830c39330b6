"""The objects that say how the learner treats each kind of critic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tailwise.core.errors import ConfigError
from tailwise.learner.return_laws import ReturnLaw, ScaleMove, return_law
from tailwise.model.config import CategoricalCritic, Critic, QuantileCritic, ScalarCritic
from tests.support import small_backend

QUANTILE = QuantileCritic(quantiles=4, minibatch_particles=2)
CATEGORICAL = CategoricalCritic(atoms=5, span=2.0, particles=4, minibatch_particles=2)
MOVE = ScaleMove(old_mu=1.0, old_sigma=2.0, mu=3.0, sigma=4.0)


def test_what_each_kind_learns_from() -> None:
    """Particles where the law is learnt, the lambda-return as the only one of them where that is asked for."""
    returns = torch.tensor([[1.0, 2.0]])
    scalar, quantile, categorical = map(return_law, (ScalarCritic(), QUANTILE, CATEGORICAL))
    thin = return_law(QuantileCritic(target="scalar"))
    assert (scalar.size, quantile.size, categorical.size) == (0, 4, 5)
    assert (scalar.lam, quantile.lam, categorical.lam, thin.lam) == (None, 0.99, 0.99, None)
    assert (quantile.particle_count, quantile.sampled) == (4, 2)
    assert scalar.target_of(returns) is None
    target = thin.target_of(returns)
    assert target is not None and target.tolist() == [[[1.0], [2.0]]]


@pytest.mark.parametrize("critic", [QUANTILE, CATEGORICAL], ids=lambda critic: critic.kind)
def test_a_head_is_built_with_the_initial_law(critic: Critic) -> None:
    backend = small_backend(model={"critic": critic.model_dump()})
    start = critic.initial_law()
    assert start is not None and start.shape == (critic.law_size,)
    for head in backend.model.critic_heads():
        assert head.law_head is not None and torch.equal(head.law_head.bias, start.float())


def test_a_scalar_critic_has_no_law_to_ask() -> None:
    law = return_law(ScalarCritic())
    assert ScalarCritic().initial_law() is None
    assert law.kernel is not None and law.kernel.quantiles == 0  # the compiled loss of its mean alone
    with pytest.raises(ConfigError, match=r"predicts no law of the return; use model\.critic\.kind quantile"):
        law.particles(torch.zeros(1, 2, 4), torch.full((1, 4), 0.5), mu=0.0, sigma=1.0)


def raw_output(law: ReturnLaw) -> tuple[float, float]:
    """A head's raw prediction at one input before and after the scale moved."""
    head = nn.Linear(1, 1)
    with torch.no_grad():
        head.weight.fill_(0.5)
        head.bias.fill_(-1.0)
        before = MOVE.old_mu + MOVE.old_sigma * float(head(torch.ones(1)))
        law.rescale(head, MOVE)
        return before, MOVE.mu + MOVE.sigma * float(head(torch.ones(1)))


def test_quantiles_keep_their_raw_values_when_the_scale_moves_and_logits_are_left_alone() -> None:
    """1 + 2 (0.5 - 1) = 0 stays 0. A logit that was rescaled like a return would predict another law."""
    before, after = raw_output(return_law(QUANTILE))
    assert before == after == 0.0
    assert raw_output(return_law(CATEGORICAL))[1] == 3.0 + 4.0 * (0.5 - 1.0)


def test_the_first_returns_start_quantiles_and_nothing_else() -> None:
    returns = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    start = return_law(QUANTILE).start(returns)
    assert start is not None and start.tolist() == [1.0, 3.0, 5.0, 7.0]  # levels 1/8, 3/8, 5/8, 7/8 of 0 .. 8
    assert return_law(QUANTILE).start(np.ones(3)) is None  # no spread to start from
    assert return_law(CATEGORICAL).start(returns) is None


def test_the_grid_of_atoms_in_raw_units() -> None:
    """Atoms -2 .. 2 in five steps of 1, with mu 10 and sigma 3: from 4 in steps of 3."""
    assert return_law(CATEGORICAL).grid(10.0, 3.0).tolist() == [4.0, 3.0]
    assert return_law(QUANTILE).grid(10.0, 3.0).tolist() == [0.0, 0.0]


def test_compiled_code_reads_quantiles_only() -> None:
    kernel = return_law(QUANTILE).kernel
    assert kernel is not None and (kernel.quantiles, kernel.kappa, kernel.sampled) == (4, 0.02, 2)
    assert return_law(CATEGORICAL).kernel is None


def test_why_a_tail_cannot_be_read() -> None:
    assert QUANTILE.no_tail is None and CATEGORICAL.no_tail is None
    scalar, thin = ScalarCritic().no_tail, QuantileCritic(target="scalar").no_tail
    assert scalar is not None and scalar.setting == "model.critic.kind is scalar"
    assert thin is not None and thin.setting == "model.critic.target is scalar"
    assert (QUANTILE.tail_levels, CATEGORICAL.tail_levels) == (4, None)
