"""The inference of playback is `decide_padded` to the last bit, also while weights and normaliser change in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tailwise.core.errors import DataError
from tailwise.model.actor_critic import ActorCritic, Decided, decide_padded
from tailwise.model.playback import PaddedPolicy
from tests.model.test_inference import inputs
from tests.support import bits, small_backend


def same(mine: Decided, theirs: Decided) -> bool:
    return all(bits(getattr(mine, name)) == bits(getattr(theirs, name)) for name in ("action", "params", "state"))


def model_of(core: str, action: str) -> ActorCritic:
    model = small_backend(model={"core": {"kind": core}, "actor": {"gain": 1.0}}, action=action).model
    model.normaliser.absorb(torch.randn(500, 3, generator=torch.Generator().manual_seed(9)) * 3 + 1)
    return model


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box"])
def test_playback_equals_decide_padded(core: str, action: str) -> None:
    """One after the other with any number of rows, sampled and most likely. Rejects memory that is not cleared (rows
    of an earlier call), another order of operations and a hidden state that is kept."""
    model = model_of(core, action)
    playback = PaddedPolicy(model)
    for seed, rows in enumerate((1, 64, 3, 150, 1, 64, 65)):
        given = inputs(model, rows, seed)
        assert same(playback(*given), decide_padded(model, *given)), rows
        assert same(playback(*given[:4], None), decide_padded(model, *given[:4], None)), rows


NETWORKS: dict[str, dict[str, Any]] = {
    "odd widths": {"encoder": {"hidden": [5, 13]}, "core": {"kind": "lstm", "hidden": 7}, "actor": {"hidden": [9]}},
    "64": {"encoder": {"hidden": [64, 64]}, "core": {"kind": "lstm", "hidden": 64}, "actor": {"hidden": [64]}},
    "two layers of lstm": {"core": {"kind": "lstm", "hidden": 16, "layers": 2}},
    "two layers of gru": {"core": {"kind": "gru", "hidden": 16, "layers": 2}},
    "relu": {"encoder": {"hidden": [11], "activation": "relu"}},
    "silu": {"encoder": {"hidden": [11], "activation": "silu"}, "core": {"kind": "gru", "hidden": 5}},
    "norms": {"norm": "layer", "encoder": {"hidden": [11, 6]}, "core": {"kind": "lstm", "hidden": 6}},
    "no hidden layers": {"encoder": {"hidden": []}, "actor": {"hidden": []}, "core": {"kind": "lstm", "hidden": 4}},
    "as they are": {"observations": {"kind": "none"}},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_played_by_its_own_operations(name: str) -> None:
    """Rejects activations that round by their place in a row, layers in another order, and forgotten norms."""
    model = small_backend(model=NETWORKS[name]).model
    model.normaliser.absorb(torch.randn(500, 3, generator=torch.Generator().manual_seed(9)) * 3 + 1)
    playback = PaddedPolicy(model)
    for seed, rows in enumerate((1, 1, 2, 37, 1)):
        given = inputs(model, rows, seed)
        assert same(playback(*given), decide_padded(model, *given)), rows
        assert same(playback(*given[:4], None), decide_padded(model, *given[:4], None)), rows


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("broken", ["other bits", "another signature"])
def test_the_operation_of_an_lstm_is_used_where_it_gives_its_bits(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects an operation that is trusted unseen, and one that is never used."""
    model, calls, real = model_of("lstm", "discrete"), list[int](), torch.mkldnn_rnn_layer
    given = inputs(model, 1, 1)

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    def damaged(*arguments: Any) -> Any:
        if broken == "another signature":
            raise TypeError("mkldnn_rnn_layer() takes other arguments")
        y, *others = real(*arguments)
        return (torch.nextafter(y, y + 1), *others)

    monkeypatch.setattr(torch, "mkldnn_rnn_layer", counted)
    playback = PaddedPolicy(model)
    calls.clear()
    assert same(playback(*given), decide_padded(model, *given)) and len(calls) == 1
    monkeypatch.setattr(torch, "mkldnn_rnn_layer", damaged)
    assert same(PaddedPolicy(model)(*given), decide_padded(model, *given))


def test_an_encoder_of_ones_own_is_called() -> None:
    """Rejects layers that are taken apart although somebody else wrote them."""
    model = model_of("lstm", "discrete")
    inner = model.encoder

    class Turned(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return inner(x.flip(-1)).square()

    model.encoder = Turned()
    given = inputs(model, 1, 1)
    assert same(PaddedPolicy(model)(*given), decide_padded(model, *given))


def test_wild_numbers_are_played_as_they_are_judged() -> None:
    """Beyond the clip, beyond float32 once scaled, denormal; one entry passes as it is. Rejects a standardisation that
    numpy and torch round differently, one of flags, and a warning that an evaluation does not give."""
    model = model_of("none", "box")
    with torch.no_grad():
        model.normaliser.variance.fill_(0.013)
        model.normaliser.scaled[2] = False
    playback = PaddedPolicy(model)
    for wild in (0.0, -0.0, 1e-42, 7.3, -1e3, 1e20, 3.4e38, -3.4e38):
        obs, *others = inputs(model, 1, 1)
        obs[0, 1] = wild
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mine = playback(obs, *others)
        assert same(mine, decide_padded(model, obs, *others)), wild


@pytest.mark.parametrize("activation", [torch.tanh, torch.relu, torch.nn.functional.silu])
def test_activations_round_by_the_number_alone(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """64 numbers by themselves and within 64 rows, of all sizes. What this build of torch must keep for rows to be
    played alone. Fewer than fill a vector are computed otherwise: SiLU of one number differs."""
    every = (torch.arange(2**16, dtype=torch.int32) << 16).view(torch.float32)  # with 7 digits of fraction
    every = every[every.isfinite()]
    blocks = every[: len(every) // 4096 * 4096].view(-1, 64, 64)
    together = torch.cat([activation(block) for block in blocks.unbind(0)])
    alone = torch.stack([activation(row) for row in blocks.flatten(0, 1).unbind(0)])
    assert bits(alone) == bits(together)


def test_what_changes_between_two_decisions_counts() -> None:
    """Statistics of the normaliser and weights, with the counter of versions as it was. Rejects terms that are kept for
    a version, or for ever."""
    model = model_of("lstm", "discrete")
    playback, given = PaddedPolicy(model), inputs(model, 2, 1)
    before = playback(*given)
    with torch.no_grad():
        model.normaliser.mean.add_(0.5)
    moved = playback(*given)
    assert same(moved, decide_padded(model, *given)) and not same(moved, before)
    with torch.no_grad():
        model.normaliser.variance.mul_(2.0)
        model.actor.head.weight.mul_(1.5)
    assert same(playback(*given), decide_padded(model, *given))


def test_an_answer_stays_as_it_is() -> None:
    """Rejects answers that are views of memory which the next decision overwrites."""
    model = model_of("lstm", "box")
    playback = PaddedPolicy(model)
    first = playback(*inputs(model, 3, 1))
    kept = [bits(part) for part in first]
    playback(*inputs(model, 3, 2))
    assert [bits(part) for part in first] == kept


def test_an_answer_that_is_no_number_is_refused() -> None:
    model = model_of("none", "box")
    with torch.no_grad():
        model.actor.head.bias.fill_(float("nan"))
    with pytest.raises(DataError, match="NaN or infinite"):
        PaddedPolicy(model)(*inputs(model, 2, 1))
