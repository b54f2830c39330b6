"""After an alarm of drift: what a challenger is trained on, when, how far it may move, and what its contest costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwise.core.errors import ConfigError
from tailwise.online.audit import AUDIT, read_audit
from tailwise.online.challenger import train_challenger
from tailwise.online.drift import FEWEST
from tailwise.online.jobs import ChallengerJob
from tailwise.online.learner import DRIFT, SCHEDULE
from tailwise.online.promotion import PURSES
from tailwise.online.settings import LearnSettings
from tests.online.worlds import Planted, bars_with, holder, played

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small
FLIP = 280  # bars of the session before the market turns
SETTINGS = {"window": 120, "fresh": 0.5, "every": 90, "patience": 40, "kl_after_drift": 77.0, "drift_reference": 1000}


class Noted(Planted):
    """Planted challengers, and the jobs that asked for them."""

    jobs: list[ChallengerJob]

    def begin(self, job: ChallengerJob) -> None:
        self.jobs = [*getattr(self, "jobs", []), job]
        super().begin(job)


def test_a_challenger_after_an_alarm_learns_from_the_new_regime_alone(tmp_path: Path) -> None:
    """The deployed policy is long until the market turns. The training after the alarm waits for half a window of bars
    since the estimated change, has none from before it but those that features need, may move further, and its contest
    is the first of its purse. Rejects a window that is mostly the old regime, a training that waits for `every`, and a
    challenger that pays for those on schedule."""
    long, short = holder(0.9), holder(-0.9)
    before, more = bars_with(long, [(FLIP, 0.004), (240, -0.01)])
    worker = Noted(lambda _: short)
    played(long, before, more, tmp_path, worker=worker, **SETTINGS)
    lines = read_audit(tmp_path / AUDIT)
    first = {line["kind"]: line for line in reversed(lines)}
    alarm = first["drift"]
    step = int(more.time[1].astype("int64") - more.time[0].astype("int64"))
    changed = alarm["time"] - (alarm["since"] - 1) * step  # first bar of the new regime by the estimate
    assert first["watching drift"]["reference"] == FEWEST and FLIP < alarm["n"] < FLIP + 60
    assert abs(changed - int(more.time[FLIP].astype("int64"))) <= 20 * step
    training = next(line for line in lines if line["kind"] == "training" and line["n"] > alarm["n"])
    assert training["why"] == "drift" and training["time"] == changed + 59 * step
    job = next(one for one in worker.jobs if one.number == training["challenger"])
    times = job.bars[0].time.astype("int64")
    assert (times >= changed).sum() == 60 and len(times) == training["window"]
    assert 0 < training["window"] - 60 < 60  # what features need before their first value
    assert job.settings.kl == 77.0 and worker.jobs[0].settings.kl == 100.0
    on_schedule = [line for line in lines if line["kind"] == "contest" and line["n"] < alarm["n"]]
    assert [line["place"] for line in on_schedule] == list(range(1, len(on_schedule) + 1)) and len(on_schedule) > 1
    contest = next(line for line in lines if line["kind"] == "contest" and line["n"] > alarm["n"])
    assert (contest["purse"], contest["place"]) == ("drift", 1)
    assert contest["needed"] == pytest.approx(131.595, abs=0.001)  # 2 / (.025 * 6 / pi^2): half of alpha
    assert len({SCHEDULE, DRIFT}) == PURSES  # so that all of them together spend alpha once
    promoted = first["promoted"]
    assert promoted["challenger"] == training["challenger"] and promoted["n"] > contest["n"]


def test_windows_grow_from_the_change_until_they_are_whole(tmp_path: Path) -> None:
    """Challengers that are no better are dropped; each later one has more bars since the change, and once the window is
    whole, trainings are on schedule again. Rejects windows that stay cut, and ones that grow over the change."""
    long, same = holder(0.9), holder(0.92)
    before, more = bars_with(long, [(FLIP, 0.004), (340, -0.01)])
    played(long, before, more, tmp_path, worker=Planted(lambda _: same), **{**SETTINGS, "every": 45})
    lines = read_audit(tmp_path / AUDIT)
    alarm = next(line for line in lines if line["kind"] == "drift")
    later = [line for line in lines if line["kind"] == "training" and line["n"] > alarm["n"]]
    whole = later[-1]["window"]
    widths = [line["window"] for line in later]
    assert widths == sorted(widths) and widths[0] == whole - 60 and len(set(widths)) > 2
    assert [line["why"] for line in later] == ["drift" if width < whole else "schedule" for width in widths]


def test_an_alarm_pays_for_the_training_it_asked_for_also_with_a_whole_window(tmp_path: Path) -> None:
    """fresh = 1: the first training after the alarm has the whole window. It is the alarm's all the same, the next one
    is on schedule. Rejects a purse and a budget of KL that are never used with such settings."""
    long, same = holder(0.9), holder(0.92)
    before, more = bars_with(long, [(FLIP, 0.004), (300, -0.01)])
    worker = Noted(lambda _: same)
    played(long, before, more, tmp_path, worker=worker, **{**SETTINGS, "fresh": 1.0, "every": 60})
    lines = read_audit(tmp_path / AUDIT)
    alarm = next(line for line in lines if line["kind"] == "drift")
    later = [line for line in lines if line["kind"] == "training" and line["n"] > alarm["n"]]
    assert [line["why"] for line in later[:2]] == ["drift", "schedule"]
    jobs = {one.number: one for one in worker.jobs}
    assert [jobs[line["challenger"]].settings.kl for line in later[:2]] == [77.0, 100.0]


def test_a_reference_is_taken_again_when_it_has_doubled(tmp_path: Path) -> None:
    """A market without a change: 250 bars, then at least 500 while the statistic is 0."""
    long = holder(0.9)
    before, more = bars_with(long, [(640, 0.002)])
    played(long, before, more, tmp_path, worker=Planted(lambda _: long), **{**SETTINGS, "every": 2000})
    references = [line["reference"] for line in read_audit(tmp_path / AUDIT) if line["kind"] == "watching drift"]
    assert references[0] == FEWEST and 500 <= references[1] < 640 and len(references) == 2


def test_a_window_without_a_rollout_is_a_sentence() -> None:
    """Rejects a division by the number of segments, which is 0."""
    policy = holder(0.5)
    steps = policy.config.run.rollout_steps
    bars = policy.market().dataset.bars[0].slice(0, 20 + steps)  # 20 are the warm-up
    with pytest.raises(ConfigError, match=f"one rollout of this run has {steps}"):
        train_challenger(policy, [bars], LearnSettings(window=50, updates=1), number=1)
