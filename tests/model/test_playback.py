"""The inference of playback is `decide_padded` to the last bit, also while weights and normaliser change in between."""

from __future__ import annotations

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
