"""Numbers of minibatches: one per name, read at the end."""

from __future__ import annotations

import pytest
import torch

from tailwise.learner.tally import Tally


def test_means_are_weighted_and_extremes_kept_by_hand() -> None:
    """(1 x 3 + 5 x 1) / 4 = 2. Rejects a plain mean (3), tensors of a name that are mixed up with another's, and a
    largest that is the last one."""
    tally = Tally()
    tally.mean({"a": torch.tensor(1.0), "b": 10.0}, 3.0)
    tally.mean({"b": torch.tensor(2.0, dtype=torch.float64), "a": torch.tensor(5.0)}, 1.0)
    tally.largest({"high": torch.tensor(7.0)})
    tally.largest({"high": 4.0})
    tally.smallest({"low": torch.tensor(-1.0)})
    tally.smallest({"low": torch.tensor(-0.5)})
    assert tally.result() == {"a": 2.0, "b": 8.0, "high": 7.0, "low": -1.0}


def test_a_float32_tensor_is_read_as_it_is() -> None:
    """0.1 in float32, beside a float64 tensor. Rejects a transfer that rounds one to the other's type."""
    tally = Tally()
    tally.mean({"single": torch.tensor(0.1), "double": torch.tensor(0.1, dtype=torch.float64)}, 1.0)
    assert tally.result() == {"single": float(torch.tensor(0.1)), "double": 0.1}


def test_nothing_keeps_a_graph() -> None:
    tally, weight = Tally(), torch.ones(2, requires_grad=True)
    tally.mean({"loss": (weight * 3.0).mean().detach()}, 1.0)
    assert tally.result() == {"loss": pytest.approx(3.0)}
    assert Tally().result() == {}
