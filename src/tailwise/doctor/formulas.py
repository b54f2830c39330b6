"""The golden numbers of the formulas, computed again on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tailwise.doctor.check import Check
from tailwise.learner.constraint import PidState, next_multiplier
from tailwise.learner.critic_losses import cross_entropy, midpoints, project, quantile_loss
from tailwise.learner.losses import k3, kl_categorical, kl_gaussian, policy_loss_terms
from tailwise.learner.returns import gae, normalise, sr_lambda
from tailwise.learner.risk import cvar_from_atoms, cvar_from_quantiles, wang_from_quantiles
from tailwise.learner.risk_config import Pid
from tailwise.model.scales import preserve_outputs

NORMAL_CVAR_05 = -2.0627128  # of N(0, 1)
Pairs = list[tuple[float, float]]  # (found, expected)


def quantile_huber() -> Pairs:
    """theta zeros, y ones; theta 1..5 against 3 and 6; kappa 1 and 0.02."""
    ladder = torch.arange(1.0, 6.0)
    cases = [
        (torch.zeros(10), torch.ones(10), 1.0, 0.25),
        (torch.zeros(10), torch.ones(10), 0.02, 0.495),
        (ladder, torch.tensor([3.0]), 1.0, 0.12),
        (ladder, torch.tensor([3.0]), 0.02, 0.1984),
        (ladder, torch.tensor([6.0]), 1.0, 0.85),
        (ladder, torch.tensor([6.0]), 0.02, 1.095),
    ]
    return [(float(quantile_loss(theta, y, kappa=kappa)), golden) for theta, y, kappa, golden in cases]


def cvar() -> Pairs:
    """A normal law is exact, the whole law gives its mean, the atom at the crossing is split."""
    normal = torch.special.ndtri(midpoints(101, dtype=torch.float64))
    atoms = torch.arange(10, dtype=torch.float64)
    return [
        (float(cvar_from_quantiles(normal, 0.05)), NORMAL_CVAR_05),
        (float(cvar_from_quantiles(normal, 1.0)), 0.0),
        (float(cvar_from_atoms(atoms, None, 0.15)), (0.1 * 0 + 0.05 * 1) / 0.15),
    ]


def wang() -> Pairs:
    """N(0, 1) becomes -eta."""
    normal = torch.special.ndtri(midpoints(2001, dtype=torch.float64))
    return [(float(wang_from_quantiles(normal, 0.5)), -0.5)]


def categorical() -> Pairs:
    """The Bellman projection of a uniform law, and the price of knowing nothing."""
    atoms, uniform = torch.linspace(-1, 1, 5), torch.full((5,), 0.2)
    inside, ended = project(0.3 + 0.9 * atoms, uniform, atoms), project(0.3 + 0 * atoms, uniform, atoms)
    golden = [0.04, 0.22, 0.22, 0.22, 0.30, 0.0, 0.0, 0.4, 0.6, 0.0]
    return [*_pairs(torch.cat([inside, ended]), golden), (float(cross_entropy(torch.zeros(51), uniform_law(51))), 1.0)]


def uniform_law(count: int) -> Tensor:
    """[count], adding up to 1."""
    return torch.full((count,), 1.0 / count)


def pid() -> Pairs:
    """Costs 50, 50, 50, 10, 10 against a limit of 25."""
    gains = Pid(kp=0.1, ki=0.01, kd=0.01, smoothing=0.95, integral_clip=1e9)
    state = PidState(integral=0.001)
    multipliers = []
    for cost in (50.0, 50.0, 50.0, 10.0, 10.0):
        value, state = next_multiplier(state, cost, 25.0, gains, largest=1e9)
        multipliers.append(value)
    return list(zip(multipliers, [0.401, 0.7935, 1.178875, 0.937481, 0.700657], strict=True))


def _episode(steps: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(reward, value, next value, terminated, truncated), [T, 1], float64, with a termination and a truncation."""
    g = torch.Generator().manual_seed(0)
    reward, value = torch.randn(steps, 1, generator=g).double(), torch.randn(steps + 1, 1, generator=g).double()
    final = torch.randn(steps, 1, generator=g).double()
    terminated, truncated = torch.zeros(steps, 1, dtype=torch.bool), torch.zeros(steps, 1, dtype=torch.bool)
    terminated[1], truncated[3] = True, True
    following = torch.where(truncated, final, value[1:]).masked_fill(terminated, 0.0)
    return reward, value, following, terminated, truncated


def gae_by_hand() -> Pairs:
    """Against the recursion written out with plain numbers."""
    reward, value, following, terminated, truncated = _episode()
    computed = gae(reward, value[:-1], following, terminated, truncated, gamma=0.9, lam=0.8)
    carry, expected = 0.0, []
    for t in reversed(range(reward.shape[0])):
        delta = float(reward[t] + 0.9 * following[t] - value[t])
        carry = delta + (0.0 if bool(terminated[t] | truncated[t]) else 0.9 * 0.8 * carry)
        expected.append(carry)
    return _pairs(computed, expected[::-1])


def particles_and_gae() -> Pairs:
    """The mean of SR(lambda) over its particles, minus V, is the GAE with the same lambda."""
    reward, value, following, terminated, truncated = _episode()
    count, lam = 40_000, 0.7
    u = torch.rand(6, 1, count, generator=torch.Generator().manual_seed(1)).double()
    z, final = value[..., None].expand(-1, -1, count), following[..., None].expand(-1, -1, count)
    y = sr_lambda(reward, z.contiguous(), final.contiguous(), terminated, truncated, u, gamma=0.9, lam=lam)
    expected = gae(reward, value[:-1], following, terminated, truncated, gamma=0.9, lam=lam)
    return _pairs(y.mean(-1) - value[:-1], [float(number) for number in expected.flatten()])


def popart() -> Pairs:
    """Raw outputs of a head are the same before and after its scale changed."""
    torch_state = torch.Generator().manual_seed(2)
    head, x = nn.Linear(8, 4), torch.randn(16, 8, generator=torch_state)
    with torch.no_grad():
        head.weight.copy_(torch.randn(4, 8, generator=torch_state))
        head.bias.copy_(torch.randn(4, generator=torch_state))
        before = 3.0 + 2.0 * head(x)
        preserve_outputs(head, old_mu=3.0, old_sigma=2.0, mu=-1.0, sigma=5.0)
        after = -1.0 + 5.0 * head(x)
    return _pairs(after, [float(number) for number in before.flatten()])


def divergences() -> Pairs:
    """Exact KL of Gaussians and categoricals, and k3 where float32 would be infinite."""
    zero, one = torch.zeros(1), torch.ones(1)
    uniform, skewed = torch.zeros(3), torch.tensor([math.log(2.0), 0.0, 0.0])
    by_hand = sum((1 / 3) * math.log((1 / 3) / p) for p in (0.5, 0.25, 0.25))
    return [
        (float(kl_gaussian(zero, zero, one, zero)), 0.5),
        (float(kl_gaussian(zero, zero, zero, one)), 1 + math.exp(-2) / 2 - 0.5),
        (float(kl_categorical(uniform, skewed)), by_hand),
        (float(torch.isfinite(k3(torch.tensor(200.0)))), 1.0),
    ]


def surrogate() -> Pairs:
    """Clipped at 1.2, and for a negative advantage never beyond 3 x A."""
    new, old = torch.log(torch.tensor([1.5, 1.1, 100.0])), torch.zeros(3)
    terms = policy_loss_terms(new, old, torch.tensor([1.0, 1.0, -1.0]), clip=0.2, dual_clip=3.0)
    return _pairs(terms.loss, [-1.2, -1.1, 3.0])


def advantages() -> Pairs:
    """Constants become exactly 0; the scale of the data does not matter."""
    valid = torch.ones(4, 1, dtype=torch.bool)
    pairs: Pairs = []
    for constant in (0.1, -37.123, 1e4 + 0.1):
        flat, _ = normalise(torch.full((4, 1), constant), valid, mode="global")
        pairs += _pairs(flat, [0.0] * 4)
    data = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    small, large = (normalise(data * factor, valid, mode="global")[0] for factor in (1e-4, 1e4))
    return [*pairs, *_pairs(small, [float(value) for value in large.flatten()])]


FORMULAS: tuple[tuple[str, Callable[[], Pairs], float], ...] = (
    ("quantile Huber loss", quantile_huber, 1e-6),
    ("CVaR", cvar, 1e-6),
    ("Wang transform", wang, 0.005),
    ("categorical projection", categorical, 1e-6),
    ("PID multiplier", pid, 5e-7),
    ("GAE", gae_by_hand, 1e-12),
    ("SR(lambda) against GAE", particles_and_gae, 0.02),
    ("PopArt", popart, 1e-5),
    ("KL divergences", divergences, 1e-6),
    ("PPO surrogate", surrogate, 1e-6),
    ("advantage normalisation", advantages, 1e-5),
)


def check_formulas(formulas: Sequence[tuple[str, Callable[[], Pairs], float]] = FORMULAS) -> list[Check]:
    """Check each formula: the largest distance from its golden numbers."""
    checks = []
    for name, compute, tolerance in formulas:
        pairs = compute()
        worst = max((abs(computed - expected) for computed, expected in pairs), default=math.inf)
        good = bool(pairs) and worst <= tolerance
        count = "1 number" if len(pairs) == 1 else f"{len(pairs)} numbers"
        evidence = f"{count}, largest error {worst:.2g}, allowed {tolerance:g}"
        meaning = (compute.__doc__ or "").strip()
        advice = "" if good else "this installation computes wrongly: reinstall torch, then run the tests"
        checks.append(Check(name, "ok" if good else "fail", evidence, meaning, advice))
    return checks


def _pairs(computed: Tensor, expected: Sequence[float]) -> Pairs:
    return list(zip([float(value) for value in computed.flatten()], expected, strict=True))
