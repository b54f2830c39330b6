"""Schedules in closed form, and the plateau that starts the decay of the entropy bonus."""

from __future__ import annotations

import itertools
import math

import pytest

from tailwise.learner.config import (
    ConstantEntropy,
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    PlateauEntropy,
)
from tailwise.run.controllers import entropy_weight, plateau_begins, schedule_factor
from tests.support import small_trainer


@pytest.mark.parametrize("total", [1, 96, 10**9])
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ConstantSchedule(), (1.0, 1.0, 1.0, 1.0)),
        (LinearSchedule(), (1.0, 0.5, 0.0, 0.0)),
        (LinearSchedule(end=0.2), (1.0, 0.6, 0.2, 0.2)),
        (CosineSchedule(), (1.0, 0.5, 0.0, 0.0)),
        (CosineSchedule(end=0.1), (1.0, 0.55, 0.1, 0.1)),
    ],
)
def test_closed_form_at_0_50_100_and_150_percent(schedule: object, expected: tuple[float, ...], total: int) -> None:
    """004-11. Rejects a cosine that is not clamped: at 150% it is back at .5 (asserted)."""
    for share, value in zip((0.0, 0.5, 1.0, 1.5), expected, strict=True):
        assert schedule_factor(schedule, share * total, total) == pytest.approx(value, abs=1e-12)  # type: ignore[arg-type]
    assert 0.5 * (1 + math.cos(math.pi * 1.5)) == pytest.approx(0.5)


def test_cosine_falls_all_the_way_and_never_rises() -> None:
    factors = [schedule_factor(CosineSchedule(), step, 100) for step in range(201)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert factors[25] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_trainer_uses_the_schedule_with_steps_over_all_environments() -> None:
    """Rejects a wrong total (updates, or steps per environment): the rate would hardly move. 3 updates of 32 of 96."""
    trainer = small_trainer(learner={"learning_rate": 0.01, "schedule": {"kind": "linear"}})
    trainer.train()
    rates = [row["step/learning_rate"] for row in trainer.history]
    assert rates == pytest.approx([0.01, 0.01 * 2 / 3, 0.01 / 3])
    assert [row["step/schedule"] for row in trainer.history] == pytest.approx([1, 2 / 3, 1 / 3])


# ------------------------------------------------------------------ entropy


def test_plateau_begins_when_the_slope_is_within_tolerance() -> None:
    """002-5. Rejects a test of the last difference: one flat step of noise would start the decay (asserted)."""
    falling = [1.0 - 0.05 * i for i in range(10)]
    assert plateau_begins(falling, 5, 0.01) is None
    trace = [*falling, *[0.55] * 10]
    at = plateau_begins(trace, 5, 0.01)
    assert at is not None and 11 <= at <= 14
    noisy = [1.0 - 0.1 * (i // 2) for i in range(10)]  # every second difference is 0
    assert plateau_begins(noisy, 6, 0.01) is None
    assert any(abs(b - a) <= 0.01 for a, b in itertools.pairwise(noisy))
    assert plateau_begins([1.0] * 4, 5, 0.01) is None  # not a whole window yet


def test_plateau_slope_is_the_least_squares_one() -> None:
    import numpy as np

    trace = np.random.default_rng(0).normal(size=8).tolist()
    slope = abs(np.polyfit(range(8), trace, 1)[0])
    assert plateau_begins(trace, 8, slope * 1.001) == 7
    assert plateau_begins(trace, 8, slope * 0.999) is None


def test_decay_is_linear_from_the_plateau_to_the_floor_and_stays() -> None:
    config = PlateauEntropy(weight=0.02, floor=0.005, decay=10)
    weights = [entropy_weight(config, plateau_at=100, update=u) for u in (90, 100, 105, 110, 500)]
    assert weights == pytest.approx([0.02, 0.02, 0.0125, 0.005, 0.005])
    assert entropy_weight(config, plateau_at=None, update=10**6) == 0.02
    assert entropy_weight(ConstantEntropy(weight=0.03), plateau_at=3, update=50) == 0.03


def test_plateau_in_a_run_starts_the_decay_once() -> None:
    """A huge tolerance: the plateau is seen when the window is full, and the weight then falls to its floor."""
    trainer = small_trainer(
        run={"total_steps": 32 * 9},
        learner={
            "entropy": {"kind": "plateau", "weight": 0.02, "floor": 0.01, "window": 3, "tolerance": 10, "decay": 4}
        },
    )
    trainer.train()
    weights = [row["step/entropy_weight"] for row in trainer.history]
    assert trainer.controllers.plateau_at == 3
    assert weights == pytest.approx([0.02, 0.02, 0.02, 0.02, 0.0175, 0.015, 0.0125, 0.01, 0.01])
