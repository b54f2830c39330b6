"""The model: observation -> normaliser -> encoder -> core -> actor and critics, and its decisions.

Nothing is stored between calls. The hidden state is one tensor [B, S, H]: S = layers for a GRU, 2 x layers for an LSTM
(all h, then all c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.numerics import surely_finite
from tailwise.model.action_spec import ActionSpec
from tailwise.model.config import (
    EARLIER_LOG_STD,
    LOG_STD,
    Critic,
    MlpEncoder,
    ModelConfig,
    NoCore,
    PopArt,
    RunningNormaliser,
)
from tailwise.model.distributions import ActionLaw, law_for, mask_logits
from tailwise.model.networks import build_encoder, hidden_stack, linear
from tailwise.model.observation import ObservationSpec
from tailwise.model.recurrence import Recurrent
from tailwise.model.scales import ObservationNormaliser, ReturnScale, Standard

LOG_STD_BOUNDS = (-5.0, 2.0)
ROWS = 64  # playback always computes this many rows, so that a decision never depends on its neighbours


@dataclass(frozen=True)
class CriticOutput:
    """Normalised units. mean [..., C]; law [..., C, N]: quantiles, or logits on atoms, or None for scalar critics."""

    mean: Tensor
    law: Tensor | None


class CriticHead(nn.Module):
    """latent [..., H] -> mean [...], law [..., N] or None."""

    def __init__(
        self,
        config: Critic,
        in_features: int,
        *,
        activation: str,
        norm: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.body = hidden_stack(in_features, config.hidden, activation=activation, norm=norm, generator=generator)
        width = config.hidden[-1] if config.hidden else in_features
        self.mean_head = None if config.mean_from_law else linear(width, 1, gain=1.0, generator=generator)
        self.law_head: nn.Linear | None = None
        start = config.initial_law()
        if start is not None:
            self.law_head = linear(width, config.law_size, gain=0.01, generator=generator)
            with torch.no_grad():
                self.law_head.bias.copy_(start)

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        features = self.body(latent)
        law = self.law_head(features) if self.law_head is not None else None
        if self.mean_head is not None:
            return self.mean_head(features).squeeze(-1), law
        assert law is not None
        return law.mean(-1), law


@dataclass(frozen=True)
class Latent:
    """features [T, B, H] that actor and critics read; state [B, S, H] after the last step ([B, 0, 0] without core)."""

    features: Tensor
    state: Tensor


class Actor(nn.Module):
    """latent [..., H] -> parameters of the action law [..., P]."""

    def __init__(
        self, config: ModelConfig, law: ActionLaw, in_features: int, *, activation: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        actor = config.actor
        self.body = hidden_stack(
            in_features, actor.hidden, activation=activation, norm=config.norm, generator=generator
        )
        width = actor.hidden[-1] if actor.hidden else in_features
        outputs = law.parameters if law.discrete else law.noise
        self.head = linear(width, outputs, gain=actor.gain, generator=generator)
        self.log_std = None if law.discrete else nn.Parameter(torch.full((outputs,), actor.log_std))

    def forward(self, latent: Tensor, mask: Tensor | None) -> Tensor:
        """mask [..., K] bool (True: allowed) or None."""
        out = self.head(self.body(latent))
        if self.log_std is None:
            return mask_logits(out, mask)
        return torch.cat([out, self.log_std.expand_as(out)], dim=-1)


class ActorCritic(nn.Module):
    """Policy and critics over one trunk; `groups` names the parameter groups that loss terms own."""

    def __init__(
        self, config: ModelConfig, observation: ObservationSpec, action: ActionSpec, *, init_seed: int
    ) -> None:
        super().__init__()
        self.config = config
        self.observation = observation
        self.action = action
        generator = torch.Generator().manual_seed(init_seed)
        squashed = config.actor.box == "squashed"
        if action.kind != "box" and config.actor.log_std not in (LOG_STD, *EARLIER_LOG_STD):
            raise ConfigError(
                f"model.actor.log_std is {config.actor.log_std} but the action space is {action.kind}; remove the key "
                "(it is for Box)"
            )
        if squashed and action.kind != "box":
            raise ConfigError(
                f"model.actor.box is squashed but the action space is {action.kind}; remove the key (it is for Box)"
            )
        if squashed:
            action.require_bounded()
        self.law = law_for(action, squashed=squashed)
        self.prior: Tensor | None = None  # [P], parameters of the law that the policy is pulled to
        observations = config.observations
        self.normaliser = ObservationNormaliser(
            torch.tensor(observation.scaled),
            clip=observations.clip if isinstance(observations, RunningNormaliser) else None,
        )
        returns = config.returns
        self.return_scale = (
            ReturnScale(rate=returns.rate, floor=returns.floor)
            if isinstance(returns, PopArt)
            else ReturnScale(rate=None)
        )
        self.encoder, width = build_encoder(config.encoder, observation.size, norm=config.norm, generator=generator)
        self.core: Recurrent | None = None
        if not isinstance(config.core, NoCore):
            self.core = Recurrent(config.core, width, generator=generator)
            width = self.core.hidden
        self.features = width  # H of what actor and critics read
        activation = config.encoder.activation if isinstance(config.encoder, MlpEncoder) else "tanh"
        self.actor = Actor(config, self.law, width, activation=activation, generator=generator)
        self.critics = nn.ModuleList(
            CriticHead(config.critic, width, activation=activation, norm=config.norm, generator=generator)
            for _ in range(2 if config.critic.twin else 1)
        )

    @torch.no_grad()
    def start_at(self, prior: Tensor) -> None:
        """Make the policy this law, parameters [P], whatever it observes."""
        nn.init.zeros_(self.actor.head.weight)
        self.actor.head.bias.copy_(prior[: self.actor.head.out_features])
        if self.actor.log_std is not None:
            self.actor.log_std.copy_(prior[self.actor.head.out_features :])

    def set_action(self, action: ActionSpec) -> None:
        """Take over the units of another policy's actions, for the law as well; everything else must be equal."""
        self.action, self.law = action, law_for(action, squashed=self.law.squashed)

    def critic_heads(self) -> list[CriticHead]:
        """The critics, first and (if twin) second."""
        return [critic for critic in self.critics if isinstance(critic, CriticHead)]

    @property
    def critic_count(self) -> int:
        """C, the number of critics."""
        return len(self.critics)

    @property
    def state_shape(self) -> tuple[int, int]:
        """(S, H) of the hidden state, (0, 0) without a core."""
        return (self.core.slots, self.core.hidden) if self.core is not None else (0, 0)

    @torch.no_grad()
    def project(self) -> None:
        """Put ln(standard deviations) back into their bounds after a step.

        A clamp inside `forward` would leave a parameter beyond its bound without gradient, and so without a way back.
        """
        if self.actor.log_std is not None:
            self.actor.log_std.clamp_(*LOG_STD_BOUNDS)

    @torch.no_grad()
    def widen(self, log_factor: float) -> None:
        """Multiply the standard deviations of Box actions by exp(log_factor), within their bounds."""
        if self.actor.log_std is not None and log_factor != 0.0:
            self.actor.log_std.add_(log_factor)
            self.project()

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Named parameter groups; every parameter is in exactly one."""
        named = {"encoder": self.encoder, "actor": self.actor}
        if self.core is not None:
            named["core"] = self.core
        for i, critic in enumerate(self.critics):
            named[f"critic_{i}"] = critic
        return {name: list(module.parameters()) for name, module in named.items()}

    def initial_state(self, environments: int) -> Tensor:
        """Zero hidden state [B, S, H]."""
        return torch.zeros(environments, *self.state_shape)

    def latent(self, obs: Tensor, state: Tensor, start: Tensor) -> Latent:
        """obs [T, B, D] raw, state [B, S, H] before step 0, start [T, B] (True zeroes the state before that step)."""
        return self.latent_of(self.normaliser(obs), state, start)

    def latent_of(self, normalised: Tensor, state: Tensor, start: Tensor) -> Latent:
        """`latent` of observations [T, B, D] that are normalised already, as an adversary moves them."""
        features = self.encoder(normalised)
        if self.core is None:
            return Latent(features, state)
        y, after = self.core(features, state, start)
        return Latent(y, after)

    def policy(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Parameters of the action law [..., P] at latent features [..., H]."""
        params: Tensor = self.actor(features, mask)
        return params

    def values(self, features: Tensor) -> CriticOutput:
        """Outputs of all critics in normalised units at latent features [..., H]."""
        pairs = [critic(features) for critic in self.critics]
        mean = torch.stack([pair[0] for pair in pairs], dim=-1)
        law = torch.stack([pair[1] for pair in pairs], dim=-2) if pairs[0][1] is not None else None
        return CriticOutput(mean, law)


@dataclass(frozen=True)
class Decision:
    """One vector step: action [B, A] raw, log_prob [B], params [B, P], features [B, H], state [B, S, H]."""

    action: Tensor
    log_prob: Tensor
    params: Tensor
    features: Tensor
    state: Tensor


@torch.no_grad()
def decide(
    model: ActorCritic,
    obs: Tensor,
    state: Tensor,
    start: Tensor,
    mask: Tensor | None,
    uniform: Tensor | None,
    *,
    standard: Standard | None = None,
) -> Decision:
    """obs [B, D], state [B, S, H], start [B], mask [B, K], uniform [B, noise] in (0, 1), None: most likely action.

    standard: what the normaliser computes with, where many decisions are made between two changes of it.
    """
    latent = model.latent_of((standard or model.normaliser)(obs[None]), state, start[None])
    features = latent.features[0]
    params = model.policy(features, mask)
    action = model.law.mode(params) if uniform is None else model.law.sample(params, uniform)
    return Decision(action, model.law.log_prob(params, action), params, features, latent.state)


def decide_padded(
    model: ActorCritic, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None
) -> Decision:
    """`decide` in blocks of exactly ROWS rows, the last one padded: row i is the same whatever stands beside it.

    Matrix kernels choose their order of summation by the number of rows; with a fixed number it cannot change.
    Raises DataError where the law of the action is not finite: the largest of NaNs is no decision.
    """
    blocks = []
    for first in range(0, obs.shape[0], ROWS):
        block = slice(first, first + ROWS)
        made = decide(
            model,
            _padded(obs[block], 0.0),
            _padded(state[block], 0.0),
            _padded(start[block], 1.0),
            None if mask is None else _padded(mask[block], 1.0),
            None if uniform is None else _padded(uniform[block], 0.5),
        )
        rows = obs[block].shape[0]
        decision = Decision(
            made.action[:rows], made.log_prob[:rows], made.params[:rows], made.features[:rows], made.state[:rows]
        )
        check_finite(decision, obs[block], first)
        blocks.append(decision)
    if len(blocks) == 1:
        return blocks[0]
    names = ("action", "log_prob", "params", "features", "state")
    return Decision(*(torch.cat([getattr(block, name) for block in blocks]) for name in names))


class Decided(Protocol):
    """What is read of a decision: action [B, A] raw, params [B, P], state [B, S, H]."""

    @property
    def action(self) -> Tensor: ...
    @property
    def params(self) -> Tensor: ...
    @property
    def state(self) -> Tensor: ...


def check_finite(decision: Decided, obs: Tensor, first: int = 0) -> None:
    """Raise DataError unless law, action and hidden state of every row are finite; `first` is the number of row 0."""
    parts = [decision.params, decision.state]
    if decision.action.is_floating_point():
        parts.append(decision.action)
    if surely_finite(*[part.numpy() for part in parts]):
        return
    finite = torch.stack([torch.isfinite(part.flatten(1)).all(dim=1) for part in parts]).all(dim=0)
    if bool(finite.all()):
        return
    row = int((~finite).nonzero()[0])
    raise DataError(
        f"the policy's answer to observation {first + row} is NaN or infinite, so it is no action (the observation's "
        f"largest entry is {float(obs[row].abs().max()):.3g}, and its weights or hidden state may be broken); check "
        "the observation and the checkpoint."
    )


def _padded(rows: Tensor, fill: float) -> Tensor:
    """rows [n, ...] with n <= ROWS -> [ROWS, ...], filled up with `fill`."""
    padded = torch.full((ROWS, *rows.shape[1:]), fill, dtype=rows.dtype)
    padded[: rows.shape[0]] = rows
    return padded
