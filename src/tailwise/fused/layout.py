"""All parameters of a model in one flat float32 buffer, and its dense layers as a table that a kernel can run.

The torch model keeps its parameters, but their memory becomes a view into the buffer: state_dict, checkpoints and
torch's own inference work as before, and kernels need one array. Parameters that are multiplied with the same input lie
one after the other, so that they form one matrix: first layers of actor and critics, mean and quantiles of a critic.

Workspace: the activations of R rows live in one flat array. A buffer of width w begins at (widths before it) * R and
holds its rows one after the other. The output buffer is [actor | mean 0 | quantiles 0 | quantiles 1 | mean 1]: the
quantiles of both critics are neighbours, so that the particle loss runs over them in one loop. Where all heads read the
same features they are one matrix, filled up with rows of zeros to a multiple of WHOLE: one product of 136 columns takes
four fifths of the time of three with 3, 65 and 65.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tailwise.fused.products import panel_floats
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import MlpEncoder

# Columns of an operation out[:, part] = f(in[:, part] @ W' + b); buffers are named by their offset per row.
IN, IN_LEAD, IN_COLUMN, IN_WIDTH, OUT, OUT_LEAD, OUT_COLUMN, OUT_WIDTH, WEIGHT, BIAS, ACTIVATION, IN_GRADIENT = range(
    12
)
PANELS, BACK_PANELS = 12, 13  # where W' and W are laid out for products, in floats of `Bound.panels`
_OPERATION = 14
FIRST, LAID = 5, 8  # of a row of `products.lay_out`: where its panels begin, and how many numbers it has
NO_GRADIENT, OVERWRITE, ACCUMULATE = 0, 1, 2  # what the backward pass does with the gradient of the input
NONE, TANH, RELU = 0, 1, 2  # activations
NO_CORE, LSTM, GRU = 0, 1, 2

ALIGN = 16  # floats: every matrix begins at a multiple of 64 bytes, so that products do not depend on the allocator
WHOLE = 8  # columns of an output matrix come in this number, the width of a SIMD register
_ACTIVATIONS = {"tanh": TANH, "relu": RELU}


class _Panels:
    """Gives out places for weights that are laid out for products."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, weight: int, outputs: int, inputs: int, *, back: bool = False) -> list[int]:
        """A row of `products.lay_out` for the weight [outputs, inputs]: W' to go forward, W to go back."""
        matrix = [outputs, inputs, inputs, 1] if back else [inputs, outputs, 1, inputs]
        return [weight, *matrix, self._floats(matrix[0], matrix[1]), matrix[0], 0]

    def place_below(self, weights: list[tuple[int, int]], outputs: int) -> list[list[int]]:
        """Rows for weights [outputs, inputs], given as (place, inputs), that are multiplied with neighbouring inputs:
        each W' below the one before, to go forward."""
        whole, above, rows = sum(inputs for _, inputs in weights), 0, []
        first = self._floats(whole, outputs)
        for weight, inputs in weights:
            rows.append([weight, inputs, outputs, 1, inputs, first, whole, above])
            above += inputs
        return rows

    def _floats(self, inner: int, columns: int) -> int:
        """Where there is room for panels."""
        first = -(-self.size // ALIGN) * ALIGN
        self.size = first + panel_floats(inner, columns)
        return first

    def of(self, operations: np.ndarray, *, back: bool = False) -> tuple[np.ndarray, list[list[int]]]:
        """(operations [n, 14] that know their panels, rows of `products.lay_out`)."""
        rows, laid = np.zeros((len(operations), _OPERATION), dtype=np.int64), []
        rows[:, :PANELS] = operations
        for row in rows:
            laid.append(self.place(row[WEIGHT], row[OUT_WIDTH], row[IN_WIDTH]))
            row[PANELS] = laid[-1][FIRST]
            if back and row[IN_GRADIENT] != NO_GRADIENT:
                laid.append(self.place(row[WEIGHT], row[OUT_WIDTH], row[IN_WIDTH], back=True))
                row[BACK_PANELS] = laid[-1][FIRST]
        return rows, laid


class Slice(NamedTuple):
    """Columns `column` to `column + width` of the buffer at `offset`, whose rows are `lead` floats apart."""

    offset: int
    lead: int
    column: int
    width: int


class Network(NamedTuple):
    """Where everything is: offsets count floats in the flat buffer, or floats per row in a workspace.

    trunk, heads: operations [n, 14]; trunk_width, heads_width: floats per row of their workspaces (without a core they
    share one); input_lead: floats between rows of the observations; encoded: offset, width I and distance between
    rows of the trunk's result, which leave room for the H numbers of the state that a core reads beside it; features,
    output: what the heads read and write; policy, values: operations of the actor alone and of the critics alone, in
    workspaces of their own that begin with the features; in_panels, hidden_panels, in_back, hidden_back: where the
    core's weights are laid out as panels (for an LSTM, which adds what it reads and its state up, in_panels has both
    and hidden_panels is not used); actor: width of the actor's output; critics, quantiles: C and N; core: NO_CORE, LSTM
    or GRU; hidden: H; w_in, w_hidden, b_in, b_hidden: the core's parameters; log_std: of a Box policy, -1 for Discrete;
    squashed: 1 where tanh maps a Box policy's actions into their bounds, else 0.
    """

    trunk: np.ndarray
    heads: np.ndarray
    trunk_width: int
    heads_width: int
    input_lead: int
    encoded: int
    encoded_width: int
    encoded_lead: int
    features: int
    features_width: int
    output: int
    output_width: int
    policy: np.ndarray
    policy_width: int
    policy_output: int
    values: np.ndarray
    values_output: int
    in_panels: int
    hidden_panels: int
    in_back: int
    hidden_back: int
    actor: int
    critics: int
    quantiles: int
    core: int
    hidden: int
    w_in: int
    w_hidden: int
    b_in: int
    b_hidden: int
    log_std: int
    squashed: int


class Parameters(NamedTuple):
    """A network as kernels read it: its layout, all parameters `flat` [size], and the weights laid out as `panels`."""

    network: Network
    flat: np.ndarray
    panels: np.ndarray


class Laid(NamedTuple):
    """Which weights are laid out as panels for products, and where, [n, 8] as in `products.lay_out`: to act, for the
    critics' values, to learn; floats: of all panels. Apart from `Network`, because no kernel reads it, and whatever is
    in there makes every kernel slower to compile."""

    to_act: np.ndarray
    to_value: np.ndarray
    to_learn: np.ndarray
    floats: int


@dataclass(frozen=True)
class Bound:
    """A model whose parameters are views into `flat` [size].

    segments: int64 [parameters, 3]: first float, number of floats, 1 for a critic's and 0 for others; by_name: first
    float, size and shape of each parameter in the model's order.
    """

    network: Network
    laid: Laid
    flat: Tensor
    segments: np.ndarray
    by_name: dict[str, tuple[int, int, torch.Size]]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat tensor [size] of the same layout, such as a gradient, as tensors by parameter name."""
        return {name: flat[first : first + size].view(shape) for name, (first, size, shape) in self.by_name.items()}


def aligned_zeros(size: int) -> Tensor:
    """Zeros, float32; torch begins every tensor at a multiple of 64 bytes."""
    return torch.zeros(size, dtype=torch.float32)


class _Places:
    """Gives out places in the flat buffer."""

    def __init__(self) -> None:
        self.size = 0
        self.first: dict[Tensor, int] = {}

    def matrix(self, *parameters: Tensor, filling: int = 0) -> int:
        """Places one after the other without a gap, then `filling` numbers that stay 0; the first of them."""
        self.size = -(-self.size // ALIGN) * ALIGN
        first = self.size
        for parameter in parameters:
            self.first[parameter] = self.size
            self.size += parameter.numel()
        self.size += filling
        return first


class _Table:
    """Operations over the buffers of one workspace."""

    def __init__(self, width: int, beside: int = 0) -> None:
        self.width = 0
        self.rows: list[list[int]] = []
        self.input = self.buffer(width, beside)

    def buffer(self, width: int, beside: int = 0) -> Slice:
        """A new buffer, with room for `beside` numbers of somebody else in each row."""
        buffer = Slice(self.width, width + beside, 0, width)
        self.width += buffer.lead
        return buffer

    def dense(self, source: Slice, target: Slice, weight: int, bias: int, activation: int, *, gradient: bool) -> Slice:
        """One dense layer between parts of buffers."""
        self.rows.append([*source, *target, weight, bias, activation, OVERWRITE if gradient else NO_GRADIENT])
        return target

    def operations(self, first: int = 0, end: int | None = None) -> np.ndarray:
        """Rows `first` to `end`. The backward pass runs them last to first: all but the first writer add."""
        written: set[tuple[int, int]] = set()
        for row in reversed(self.rows):
            place = (row[IN], row[IN_COLUMN])
            if row[IN_GRADIENT] != NO_GRADIENT:
                row[IN_GRADIENT] = ACCUMULATE if place in written else OVERWRITE
                written.add(place)
        return np.array(self.rows[first:end], dtype=np.int64).reshape(-1, 12)


def bind(model: ActorCritic) -> Bound:
    """Move the model's parameters into one flat buffer and describe its layers; the model must be covered."""
    assert isinstance(model.config.encoder, MlpEncoder)
    activation = _ACTIVATIONS[model.config.encoder.activation]
    places = _Places()
    layers, state = _linears(model.encoder), 0 if model.core is None else model.core.hidden
    table = _Table(model.observation.size, 0 if layers else state)
    encoded, input_lead = table.input, table.input.lead
    for layer in layers:
        weight, bias = places.matrix(layer.weight), places.matrix(layer.bias)
        target = table.buffer(layer.out_features, state if layer is layers[-1] else 0)
        encoded = table.dense(encoded, target, weight, bias, activation, gradient=bool(table.rows))
    trunk_rows, trunk_width = len(table.rows), table.width
    core, hidden, at = NO_CORE, 0, (0, 0, 0, 0)
    trunk, features, learnt = table.operations(), encoded, trunk_rows > 0
    if model.core is not None:
        net = model.core.net
        core, hidden = (LSTM if model.core.is_lstm else GRU), model.core.hidden
        at_list = [
            places.matrix(getattr(net, f"{name}_l0")) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        at = (at_list[0], at_list[1], at_list[2], at_list[3])
        trunk_rows, table, learnt = 0, _Table(hidden), True
        features = table.input
    heads = _place_heads(model, places)
    output = _run_heads(heads, table, features, activation, learnt=learnt, filled=True)
    policy_table, values_table = _Table(features.width), _Table(features.width)
    policy = _run_heads(heads[:1], policy_table, policy_table.input, activation, learnt=False)
    values = _run_heads(heads[1:], values_table, values_table.input, activation, learnt=False)
    if core == NO_CORE:
        trunk = table.operations(0, trunk_rows)  # again: the heads decide whose gradients add up
    panels = _Panels()
    trunk, laid_trunk = panels.of(trunk, back=True)
    head_rows, laid_heads = panels.of(table.operations(trunk_rows), back=True)
    policy_rows, laid_policy = panels.of(policy_table.operations())
    value_rows, laid_values = panels.of(values_table.operations())
    gates, inputs = (4 if core == LSTM else 3) * hidden, encoded.width
    weights = [(at[0], inputs), (at[1], hidden)] if core != NO_CORE else []
    to_core = panels.place_below(weights, gates) if core == LSTM else [panels.place(w, gates, n) for w, n in weights]
    core_panels = [*to_core, *(panels.place(w, gates, n, back=True) for w, n in weights)]
    in_panels, hidden_panels, in_back, hidden_back = [row[FIRST] for row in core_panels] or [0, 0, 0, 0]
    log_std = -1 if model.actor.log_std is None else places.matrix(model.actor.log_std)
    network = Network(
        trunk=trunk,
        heads=head_rows,
        trunk_width=trunk_width,
        heads_width=table.width,
        input_lead=input_lead,
        encoded=encoded.offset,
        encoded_width=encoded.width,
        encoded_lead=encoded.lead,
        features=features.offset,
        features_width=features.width,
        output=output.offset,
        output_width=output.width,
        policy=policy_rows,
        policy_width=policy_table.width,
        policy_output=policy.offset,
        values=value_rows,
        values_output=values.offset,
        in_panels=in_panels,
        hidden_panels=hidden_panels,
        in_back=in_back,
        hidden_back=hidden_back,
        actor=model.actor.head.out_features,
        critics=model.critic_count,
        quantiles=model.config.critic.law_size,
        core=core,
        hidden=hidden,
        w_in=at[0],
        w_hidden=at[1],
        b_in=at[2],
        b_hidden=at[3],
        log_std=log_std,
        squashed=int(model.law.squashed),
    )
    laid = Laid(
        to_act=_matrices(laid_trunk, laid_policy, to_core),
        to_value=_matrices(laid_values),
        to_learn=_matrices(laid_trunk, laid_heads, core_panels),
        floats=panels.size,
    )
    return _move(model, network, laid, places)


def _matrices(*laid: list[list[int]]) -> np.ndarray:
    """Rows of `products.lay_out` as one table."""
    return np.array([row for rows in laid for row in rows], dtype=np.int64).reshape(-1, LAID)


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


class _Layer(NamedTuple):
    """Places of the weight [width, inputs] and the bias of one dense layer."""

    weight: int
    bias: int
    width: int


class _Head(NamedTuple):
    """The actor or a critic: its hidden layers and its output layer; joined: its first layer, which is the last one
    where there are no hidden ones, is part of a matrix with those of all heads."""

    body: list[_Layer]
    last: _Layer
    joined: bool


def _place_heads(model: ActorCritic, places: _Places) -> list[_Head]:
    """Actor first, then the critics."""
    bodies = [_linears(model.actor.body), *(_linears(critic.body) for critic in model.critic_heads())]
    joined = all(bodies)
    if joined:  # the first layers share their input, so they are one matrix
        places.matrix(*(body[0].weight for body in bodies))
        places.matrix(*(body[0].bias for body in bodies))
    outputs: list[list[nn.Linear]] = [[model.actor.head]]
    for critic in model.critic_heads():
        assert critic.mean_head is not None
        pair = [critic.mean_head, *([] if critic.law_head is None else [critic.law_head])]
        outputs.append(pair if len(outputs) == 1 else pair[::-1])
    if not any(bodies):  # all outputs are one matrix
        together = [layer for output in outputs for layer in output]
        missing = -sum(layer.out_features for layer in together) % WHOLE
        places.matrix(*(layer.weight for layer in together), filling=missing * model.features)
        places.matrix(*(layer.bias for layer in together), filling=missing)
        return [
            _Head([], _Layer(places.first[output[0].weight], places.first[output[0].bias], width), True)
            for output, width in ((output, sum(layer.out_features for layer in output)) for output in outputs)
        ]
    heads = []
    for body, output in zip(bodies, outputs):
        for layer in body[1:] if joined else body:
            places.matrix(layer.weight)
            places.matrix(layer.bias)
        layers = [_Layer(places.first[la.weight], places.first[la.bias], la.out_features) for la in body]
        weight, bias = places.matrix(*(la.weight for la in output)), places.matrix(*(la.bias for la in output))
        heads.append(_Head(layers, _Layer(weight, bias, sum(la.out_features for la in output)), joined))
    return heads


def _run_heads(
    heads: list[_Head], table: _Table, features: Slice, activation: int, *, learnt: bool, filled: bool = False
) -> Slice:
    """Operations of neighbouring heads from `features` on; `learnt`: whether a gradient goes back into them; `filled`:
    these are all heads, so that the rows of zeros after them may be multiplied along."""
    sources = [features] * len(heads)
    joined = heads[0].joined
    if joined and heads[0].body:
        first = [head.body[0] for head in heads]
        whole = table.buffer(sum(layer.width for layer in first))
        table.dense(features, whole, first[0].weight, first[0].bias, activation, gradient=learnt)
        begins = np.cumsum([0, *(layer.width for layer in first)])
        sources = [Slice(whole.offset, whole.lead, int(b), la.width) for b, la in zip(begins, first)]
    for i, head in enumerate(heads):
        for layer in head.body[1:] if joined else head.body:
            back = learnt or sources[i] is not features
            target = table.buffer(layer.width)
            sources[i] = table.dense(sources[i], target, layer.weight, layer.bias, activation, gradient=back)
    width = sum(head.last.width for head in heads)
    if heads[0].joined and not heads[0].body:
        output = table.buffer(-(-width // WHOLE) * WHOLE if filled else width)
        return table.dense(features, output, heads[0].last.weight, heads[0].last.bias, NONE, gradient=learnt)
    output = table.buffer(width)
    column = 0
    for source, head in zip(sources, heads):
        target = Slice(output.offset, output.lead, column, head.last.width)
        back = learnt or source is not features
        table.dense(source, target, head.last.weight, head.last.bias, NONE, gradient=back)
        column += head.last.width
    return output


@torch.no_grad()
def _move(model: ActorCritic, network: Network, laid: Laid, places: _Places) -> Bound:
    flat = aligned_zeros(places.size)
    critics = {p for critic in model.critics for p in critic.parameters()}
    by_name, segments = {}, []
    for name, parameter in model.named_parameters():
        first, size = places.first[parameter], parameter.numel()
        view = flat[first : first + size].view(parameter.shape)
        view.copy_(parameter)
        parameter.data = view
        by_name[name] = (first, size, parameter.shape)
        segments.append([first, size, int(parameter in critics)])
    return Bound(network, laid, flat, np.array(segments, dtype=np.int64), by_name)
