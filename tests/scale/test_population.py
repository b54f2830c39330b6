"""Who is replaced by whom, from scores alone: no training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tailwise.core.errors import ConfigError, DataError
from tailwise.run.config import parse_config
from tailwise.scale.pbt import PbtSettings, PopulationBasedTraining, check_changeable
from tailwise.scale.population import Measured, Member, Ranking, Step, Trained
from tailwise.scale.space import Space, read_space

CONFIG = parse_config({"env": {"id": "CartPole-v1"}}, source="test")
SPACE = read_space(
    {
        "learner.learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
        "learner.gamma": {"low": 0.9, "high": 0.999},
    },
    CONFIG,
)


def search(
    *, space: Space = SPACE, limit: float | None = None, seed: int = 0, **settings: object
) -> PopulationBasedTraining:
    chosen = PbtSettings.model_validate({"population": 5, "generations": 4, **settings})
    return PopulationBasedTraining(chosen, space, Ranking(limit), seed)


def measured(value: float | None, tail: float | None = None) -> Measured:
    return Measured(steps=1, value=value, tail=tail, failed=None if value is not None else "its numbers broke")


def scored(
    tuning: PopulationBasedTraining,
    members: Sequence[Member],
    values: Sequence[float | None],
    done: Sequence[Step] = (),
) -> list[Trained]:
    return [
        Trained(member=member, measured=tuning.smooth(member, measured(value), done))
        for member, value in zip(members, values, strict=True)
    ]


def test_the_worst_take_over_the_best_and_move() -> None:
    """Rejects a copy that keeps its own seed or folder, one that keeps the donor's values, and a second loser."""
    tuning = search(resample=0.0)
    first = tuning.next([])
    assert [one.number for one in first] == list(range(5)) and [one.seed for one in first] == list(range(5))
    assert len({one.values["learner.learning_rate"] for one in first}) == 5
    step = scored(tuning, first, [3.0, 1.0, 5.0, 4.0, 2.0])
    second = tuning.next([step])
    copy, donor = second[1], first[2]
    assert (copy.parent, copy.copied, copy.begins, copy.seed) == (2, True, donor.folder, donor.seed)
    for key in SPACE.entries:
        old, new = float(donor.values[key]), float(copy.values[key])
        ratio = (1 - new) / (1 - old) if key == "learner.gamma" else new / old
        assert ratio == pytest.approx(1.2) or ratio == pytest.approx(0.8)
    for number in (0, 2, 3, 4):
        going = second[number]
        assert (going.parent, going.copied, going.begins) == (number, False, first[number].folder)
        assert going.values == first[number].values and going.seed == first[number].seed
    assert len({one.folder for one in (*first, *second)}) == 10


def test_draws_depend_on_seed_generation_and_member_alone() -> None:
    """The same decisions however often they are asked for and in whatever order; other ones for another seed."""
    tuning, again, other = search(), search(), search(seed=7)
    assert tuning.next([]) == again.next([]) and tuning.next([]) != other.next([])
    step = scored(tuning, tuning.next([]), [3.0, 1.0, 5.0, 4.0, 2.0])
    assert tuning.next([step]) == tuning.next([step]) == again.next([step])
    values = tuning.explored(step[2].member.values, generation=1, member=1)
    assert values != tuning.explored(step[2].member.values, generation=2, member=1)
    assert values != tuning.explored(step[2].member.values, generation=1, member=3)


def test_moves_are_factors_or_drawn_anew_by_their_share() -> None:
    """400 copies: a quarter is drawn anew, half of the rest goes up; all stay in their bounds."""
    tuning, start = search(), {"learner.learning_rate": 1e-3, "learner.gamma": 0.99}
    kinds: Counter[str] = Counter()
    for member in range(400):
        rate = float(tuning.explored(start, generation=1, member=member)["learner.learning_rate"])
        assert 1e-5 <= rate <= 1e-2
        kinds["up" if rate == 1.2e-3 else "down" if rate == 0.8e-3 else "anew"] += 1
    assert kinds["anew"] == pytest.approx(100, abs=30) and kinds["up"] == pytest.approx(150, abs=35)


def test_a_limit_comes_before_the_score() -> None:
    """Rejects a ranking by return: the best member breaks the limit and is the one that is replaced."""
    tuning = search(limit=-0.05)
    members = tuning.next([])
    pairs = [(0.9, -0.20), (0.1, -0.04), (0.2, -0.03), (0.3, -0.06), (0.05, -0.01)]
    step = [
        Trained(member=member, measured=tuning.smooth(member, measured(value, tail), []))
        for member, (value, tail) in zip(members, pairs, strict=True)
    ]
    assert [one.member.number for one in tuning.ranking.worst_first(step)] == [0, 3, 4, 1, 2]
    best = tuning.ranking.best(step)
    assert best is not None and best.member.number == 2
    assert [one.number for one in tuning.next([step]) if one.copied] == [0]
    unknown = tuning.smooth(members[0], measured(9.0, None), [])
    assert tuning.ranking.key(unknown) < tuning.ranking.key(step[0].measured)


def test_scores_are_smoothed_along_the_lineage() -> None:
    """A copy inherits the donor's history, not its own."""
    tuning = search(memory=0.5)
    first = scored(tuning, tuning.next([]), [3.0, 1.0, 5.0, 4.0, 2.0])
    second = tuning.next([first])
    step = scored(tuning, second, [1.0, 1.0, 1.0, 1.0, 1.0], [first])
    assert [one.measured.smoothed for one in step] == [2.0, 3.0, 3.0, 2.5, 1.5]
    assert [one.measured.value for one in step] == [1.0] * 5


def test_failed_members_are_replaced_and_equal_ones_are_not() -> None:
    tuning = search(share=0.0)
    members = tuning.next([])
    step = scored(tuning, members, [3.0, None, 5.0, None, 2.0])
    assert {one.number: one.parent for one in tuning.next([step]) if one.copied} == {1: 2, 3: 2}
    assert not any(one.copied for one in search().next([scored(tuning, members, [1.0] * 5)]))
    with pytest.raises(DataError, match=r"every member of generation 0 failed .*its numbers broke"):
        tuning.next([scored(tuning, members, [None] * 5)])


def test_it_ends_after_its_generations() -> None:
    tuning = search(generations=1)
    assert tuning.next([scored(tuning, tuning.next([]), [1.0, 2.0, 3.0, 4.0, 5.0])]) == ()
    assert [PbtSettings(population=n).replaced for n in (2, 4, 5, 9, 10, 20)] == [1, 1, 1, 1, 2, 4]


def test_keys_that_are_fixed_in_a_run_are_refused() -> None:
    space = read_space({"learner.epochs": {"choices": [1, 2]}}, CONFIG)
    with pytest.raises(ConfigError, match=r"learner\.epochs cannot change while a run goes on.*--search random"):
        check_changeable(space, CONFIG)
