"""The inference of playback, bar by bar: `decide_padded` as a flat list of torch's operations on memory made once.

A paper session asks for one row at a time. What rounds by the number of rows, the matrix products and the recurrence,
is computed on the 64 padded rows as in every evaluation; what treats every number by itself (normaliser, activations,
masks, the most likely action) is computed on the given rows alone, or on as many as fill vectors. Modules are not
called; their weights are read when they are used. Every number comes from the same operation, so that decisions equal
those of `decide_padded` to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from tailwise.model.actor_critic import ROWS, ActorCritic, check_finite
from tailwise.model.distributions import mask_logits
from tailwise.model.recurrence import Recurrent, Weights
from tailwise.model.scales import Standard

#: Activations of `networks.hidden_stack`, in place.
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Tanh: torch.tanh_,
    nn.ReLU: torch.relu_,
    nn.SiLU: lambda rows: functional.silu(rows, inplace=True),
}
Array = npt.NDArray[Any]
# Of numbers that do not fill torch's vectors the last ones are computed by other code, which rounds otherwise (SiLU).
_VECTORS = 64
_LSTM_MODE = 2  # of `torch.mkldnn_rnn_layer`
_PROBE = 0.5  # standard deviation of the memories on which the layers of an LSTM are compared


class Answer(NamedTuple):
    """What a policy decides: action [B, A] raw, params [B, P], state [B, S, H]."""

    action: Tensor
    params: Tensor
    state: Tensor


class _Padded:
    """ROWS rows of one input; those that are not given hold `fill`."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, fill: float) -> None:
        self.view = np.full((ROWS, *shape), fill, dtype=dtype)  # numpy copies a few numbers in a third of torch's time
        self.rows = torch.from_numpy(self.view)
        self._fill, self._given = fill, 0

    def put(self, given: Array) -> Tensor:
        """The rows, of which the first are `given` [n, ...]."""
        count = len(given)
        self.view[:count] = given
        if count < self._given:
            self.view[count : self._given] = self._fill
        self._given = count
        return self.rows


class _Standard:
    """`scales.Standard` in numpy, which takes a third of torch's time for a row; each step rounds once, in both."""

    def __init__(self, standard: Standard) -> None:
        self._mean, self._scale, scaled = (one.numpy() for one in standard[:3])
        self._clip, self._as_it_is = standard.clip, ~scaled

    def __call__(self, obs: Array) -> Array:
        """obs [n, D] raw -> standardised and clipped."""
        with np.errstate(over="ignore", invalid="ignore"):
            standard: Array = obs - self._mean
            standard *= self._scale
        np.clip(standard, -self._clip, self._clip, out=standard)
        np.copyto(standard, obs, where=self._as_it_is)
        return standard


class _Stack:
    """Layers of `networks.hidden_stack` on ROWS rows, of which the first `count` are read.

    custom: an encoder of one's own, which is called: its layers may have hooks that make their weights.
    """

    def __init__(self, module: nn.Module, *, custom: bool = False) -> None:
        children = list(module) if type(module) is nn.Sequential else [module]
        known = {nn.Linear, nn.LayerNorm, *_IN_PLACE}
        ours = all(type(one) in known and (type(one) is not nn.Linear or one.bias is not None) for one in children)
        ours &= not children or type(children[0]) is nn.Linear  # nothing is written into what is given
        self._own = None if ours and not custom else module
        self._layers, step = list[tuple[type[nn.Module], nn.Module, int]](), 1
        for layer in children:
            if isinstance(layer, nn.Linear):
                step = _VECTORS // math.gcd(_VECTORS, layer.out_features)
            self._layers.append((type(layer), layer, step))

    def __call__(self, rows: Tensor, count: int) -> Tensor:
        """rows [ROWS, W], not written to -> [ROWS, H]."""
        if self._own is not None:  # an encoder of one's own
            out: Tensor = self._own(rows[None])[0]
            return out
        for kind, layer, step in self._layers:
            if isinstance(layer, nn.Linear):
                rows = functional.linear(rows, layer.weight, layer.bias)
            elif kind is nn.LayerNorm:
                rows[:count] = layer(rows[:count])
            else:
                _IN_PLACE[kind](rows[: -(-count // step) * step])
        return rows


class _PaddedCore:
    """One step of a recurrent core on ROWS rows."""

    def __init__(self, core: Recurrent) -> None:
        self._core, self._net = core, core.net
        self._names = [[f"{name}_l{layer}" for name in Weights._fields] for layer in range(core.layers)]
        self._before = torch.zeros(core.slots, ROWS, core.hidden, dtype=next(core.net.parameters()).dtype)
        self._slots = self._before.unbind(0)
        self._view, self._given = self._before.numpy(), 0
        self._by_layer = core.is_lstm and self._layers_are_the_net()

    def __call__(self, x: Tensor, state: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """x [ROWS, I], state [n, S, H] before the step, start [n] -> (y [ROWS, H], state [n, S, H] after it)."""
        count, view = len(state), self._view
        view[:, :count] = state.numpy().swapaxes(0, 1)
        begins = start.numpy()
        if begins.any():
            view[:, :count][:, begins] = 0.0
        if count < self._given:
            view[:, count : self._given] = 0.0
        self._given = count
        y, slots = self._layers(x) if self._by_layer else self._whole(x)
        after = torch.empty(count, len(view), view.shape[2], dtype=x.dtype)
        kept = after.numpy()
        for slot, rows in enumerate(slots):
            kept[:, slot] = rows.numpy()[:count]
        return y, after

    def _layers(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The operation of oneDNN that `nn.LSTM` comes to, without the way there, which takes as long again."""
        net, before, count = self._net, self._slots, len(self._names)
        h_after, c_after, y = [], [], x[None]
        for layer, names in enumerate(self._names):
            weight_ih, weight_hh, bias_ih, bias_hh = (getattr(net, name) for name in names)
            y, h, c, _ = torch.mkldnn_rnn_layer(
                y,
                weight_ih,
                weight_hh,
                bias_ih,
                bias_hh,
                before[layer],
                before[count + layer],
                False,
                [],
                _LSTM_MODE,
                self._core.hidden,
                1,
                True,
                False,
                False,
                False,
            )
            h_after.append(h.view(ROWS, -1))
            c_after.append(c.view(ROWS, -1))
        return y[0], [*h_after, *c_after]

    def _whole(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        layers, before = self._core.layers, self._before
        if self._core.is_lstm:
            y, (h, c) = self._net(x[None], (before[:layers], before[layers:]))
            return y[0], [*h.unbind(0), *c.unbind(0)]
        weights = [getattr(self._net, name) for names in self._names for name in names]
        y, h = torch.gru(x[None], before, weights, True, layers, 0.0, False, False, False)
        return y[0], list(h.unbind(0))

    @torch.no_grad()
    def _layers_are_the_net(self) -> bool:
        """Whether `_layers` can be called here and gives the bits of `nn.LSTM`, which torch may compute otherwise on
        other machines; compared on random rows and memories."""
        here = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not here or self._before.dtype is not torch.float32:
            return False
        width = self._net.input_size
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(ROWS, width, generator=generator)
        self._before.normal_(0.0, _PROBE, generator=generator)
        try:
            y, slots = self._layers(x)
        except (AttributeError, TypeError, RuntimeError):  # a torch that calls it otherwise, or oneDNN refuses
            self._before.zero_()
            return False
        other, others = self._whole(x)
        self._before.zero_()
        return all(torch.equal(one, two) for one, two in zip([y, *slots], [other, *others], strict=True))


class PaddedPolicy:
    """`decide_padded` of one model, for many calls; weights and normaliser may change between them, its parts not."""

    def __init__(self, model: ActorCritic) -> None:
        self.model = model
        self._inputs: dict[str, _Padded] = {}
        custom = model.config.encoder.kind == "custom"
        self._encoder, self._actor = _Stack(model.encoder, custom=custom), _Stack(model.actor.body)
        self._core = None if model.core is None else _PaddedCore(model.core)
        self._statistics: tuple[bytes, bytes] | None = None  # of the normaliser, to which `_standard` belongs
        self._standard: _Standard | None = None

    def __call__(
        self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None
    ) -> Answer:
        """Arguments and errors as those of `decide_padded`."""
        with torch.no_grad():
            if obs.shape[0] > ROWS:
                return self._blocks(obs, state, start, mask, uniform)
            answer = self._block(obs, state, start, mask, uniform)  # nearly always; slices of a row take a while
        check_finite(answer, obs)
        return answer

    def _blocks(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Answer:
        blocks = []
        for first in range(0, obs.shape[0], ROWS):
            block = slice(first, first + ROWS)
            answer = self._block(
                obs[block],
                state[block],
                start[block],
                None if mask is None else mask[block],
                None if uniform is None else uniform[block],
            )
            check_finite(answer, obs[block], first)
            blocks.append(answer)
        return Answer(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))

    def _block(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Answer:
        model, count = self.model, obs.shape[0]
        standard = self._standard_now(obs.dtype)
        rows = self._padded("obs", obs.numpy() if standard is None else standard(obs.numpy()), 0.0)
        features, after = self._encoder(rows, count), state
        if self._core is not None:
            features, after = self._core(features, state, start)
        actor = model.actor
        out = functional.linear(self._actor(features, count), actor.head.weight, actor.head.bias)
        law = model.law
        if uniform is None:
            params = self._params(out[:count], mask)
            return Answer(law.mode(params), params, after)
        params = self._params(out, None if mask is None else self._padded("mask", mask.numpy(), 1.0))
        action = law.sample(
            params, self._padded("uniform", uniform.numpy(), 0.5)
        )  # sums along a row, on as many rows as ever
        return Answer(action[:count], params[:count], after)

    def _params(self, out: Tensor, mask: Tensor | None) -> Tensor:
        """What `Actor` makes of the outputs of its head [n, ...]."""
        log_std = self.model.actor.log_std
        if log_std is None:
            return mask_logits(out, mask)
        return torch.cat([out, log_std.expand_as(out)], dim=-1)

    def _padded(self, name: str, given: Array, fill: float) -> Tensor:
        memory = self._inputs.get(name)
        if memory is None or memory.view.dtype != given.dtype:
            memory = self._inputs[name] = _Padded(given.shape[1:], given.dtype, fill)
        return memory.put(given)

    def _standard_now(self, dtype: torch.dtype) -> _Standard | None:
        """What the normaliser does, computed again where its statistics are no longer the same numbers."""
        normaliser = self.model.normaliser
        statistics = (normaliser.mean.numpy().tobytes(), normaliser.variance.numpy().tobytes())
        if self._statistics != statistics:
            standard = normaliser.standard(dtype)
            self._statistics, self._standard = statistics, None if standard is None else _Standard(standard)
        return self._standard
