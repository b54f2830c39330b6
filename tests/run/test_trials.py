"""The book of trials: what counts as one, writers side by side, torn lines."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailwise
from tailwise.bars.synthetic import make
from tailwise.core.errors import DataError
from tailwise.run.trials import FILE, SKETCH, TrialBook, bars_sketch, config_hash, count_trials, read_lines
from tests.support import merged

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "random_walk", "parameters": {"length": 300}},
    "features": {"include": ["return_1"]},
    "env": {"kind": "market", "episode_length": 32},
    "run": {"environments": 4, "rollout_steps": 8, "total_steps": 64, "tensorboard": False, "checkpoint_every": 1},
    "model": {"encoder": {"hidden": [8]}},
}


def train(folder: Path, **changes: Any) -> None:
    """One update of two."""
    tailwise.PPO(config=merged(MARKET, changes), run_dir=folder).learn(32)


def test_a_trial_is_a_configuration_a_cut_and_a_seed_on_some_bars(tmp_path: Path) -> None:
    """Rejects counting runs: resuming and repeating one exactly are not new trials; other bars do not count here."""
    train(tmp_path / "one")
    assert count_trials(tmp_path / "one").counted == 1
    agent, _ = tailwise.PPO.resume(tmp_path / "one")
    agent.learn()
    assert [line["kind"] for line in read_lines(tmp_path / FILE)] == ["bars", "training"]
    train(tmp_path / "again")
    assert len(read_lines(tmp_path / FILE)) == 3 and count_trials(tmp_path / "again").counted == 1
    train(tmp_path / "seed", seed=1)
    train(tmp_path / "clip", learner={"clip": 0.1})
    train(tmp_path / "cut", data={"split": {"kind": "shares", "select": 0.2, "test": 0.2}})
    assert count_trials(tmp_path / "one").counted == 4
    train(tmp_path / "bars", data={"seeds": [5]})
    assert count_trials(tmp_path / "one").counted == 4 and count_trials(tmp_path / "bars").counted == 1
    assert count_trials(tmp_path / "one").elsewhere == 1 and count_trials(tmp_path / "bars").elsewhere == 4


def test_sets_that_share_bars_are_tried_together(tmp_path: Path) -> None:
    """A market alone, beside another, and a longer history of it count together; the other one by itself was seen with
    it. Rejects the hash of the whole set, by which none of them is known from another."""
    for name, data in {
        "alone": {"seeds": [1]},
        "both": {"seeds": [1, 2]},
        "other": {"seeds": [2]},
        "third": {"seeds": [3]},
    }.items():
        train(tmp_path / name, data=data)
    counts = {name: count_trials(tmp_path / name) for name in ("alone", "both", "other", "third")}
    assert [one.counted for one in counts.values()] == [2, 3, 2, 1]
    assert [one.elsewhere for one in counts.values()] == [2, 1, 2, 3]


def test_a_sketch_knows_its_bars_whatever_they_are_called() -> None:
    """Shorter, renamed, repeated: shared. Other prices, other times: not one hash in common over 20 symbols."""
    walk, _ = make("random_walk", seed=0, length=3000)
    sketch = set(bars_sketch([walk]))
    assert len(sketch) == SKETCH and set(bars_sketch([replace(walk, symbol="X"), walk])) == sketch
    assert sketch & set(bars_sketch([walk.slice(1000, 3000)])) and sketch & set(bars_sketch([walk.slice(0, 600)]))
    others = [make("random_walk", seed=seed, length=3000)[0] for seed in range(1, 21)]
    assert not sketch & set(bars_sketch(others)) and len(bars_sketch(others)) == 20 * SKETCH
    assert not sketch & set(bars_sketch([replace(walk, time=walk.time + np.timedelta64(1, "h"))]))


def test_a_training_that_never_starts_is_no_trial(tmp_path: Path) -> None:
    tailwise.PPO(config=MARKET, run_dir=tmp_path / "one")
    assert not (tmp_path / FILE).exists() and count_trials(tmp_path / "one").counted == 1


def test_seed_and_split_are_not_part_of_the_configuration() -> None:
    parse = tailwise.Config.model_validate
    one, other = parse(MARKET), parse(merged(MARKET, {"seed": 7, "data": {"split": {"test": 0.3}}}))
    assert config_hash(one) == config_hash(other) != config_hash(parse(merged(MARKET, {"learner": {"clip": 0.1}})))


def test_writers_side_by_side_lose_nothing_and_write_nothing_twice(tmp_path: Path) -> None:
    book = TrialBook(tmp_path / FILE)

    def write(number: int) -> None:
        book.result(data="d", config="c", cut="x", seed=number // 2, window="w", sharpe=float(number // 2))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(80)))
    assert sorted(line["seed"] for line in read_lines(book.file)) == list(range(40))
    found = book.look_up("d", window="w")
    assert sorted(found.sharpes) == [float(k) for k in range(40)] and found.counted == 0
    assert book.look_up("d", window="another").sharpes == ()


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    book = TrialBook(tmp_path / FILE)
    book.result(data="d", config="c", cut="x", seed=0, window="w", sharpe=1.0)
    with open(book.file, "a") as file:
        file.write('{"kind": "result", "da')
    assert len(read_lines(book.file)) == 1
    book.result(data="d", config="c", cut="x", seed=1, window="w", sharpe=None)
    assert [line["seed"] for line in read_lines(book.file)] == [0, 1]
    assert book.look_up("d", window="w").sharpes == (1.0,)
    with open(book.file, "a") as file:
        file.write(json.dumps({"kind": "result"}) + "\n")
    with pytest.raises(DataError, match="line 4: is no line of a trial"):
        read_lines(book.file)
