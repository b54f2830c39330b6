"""What goes wrong beside a session: half a line, a training that dies, an account below nothing, a lost disk cache."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tailwise.core.errors import TailwiseError
from tailwise.live.paper import Beginning, frequency_of, terms_of
from tailwise.online.audit import AUDIT, Audit, read_audit
from tailwise.online.jobs import Aside, AtOnce, ChallengerJob
from tailwise.online.settings import LearnSettings
from tailwise.online.shadow import Shadow
from tests.online.worlds import bars_with, holder

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small


def test_a_log_that_was_written_in_another_format_is_continued_behind_its_last_line(tmp_path: Path) -> None:
    """Rejects a cut at the length that the lines would have if this program had written them."""
    first, second = {"kind": "begun", "n": 0, "time": 0}, {"kind": "drift", "n": 3, "time": 5}
    text = json.dumps(first, indent=None) + "\n" + json.dumps(second) + "\n"  # blanks after commas and colons
    (tmp_path / AUDIT).write_text(text + '{"kind": "half')
    audit = Audit(tmp_path)
    audit.write(**first)
    audit.write(**second)
    audit.write("training", 4, 6)
    assert (tmp_path / AUDIT).read_text().startswith(text)
    assert read_audit(tmp_path / AUDIT) == [first, second, {"kind": "training", "n": 4, "time": 6}]


def test_the_journal_is_on_the_disk_before_a_line_of_the_log(tmp_path: Path) -> None:
    """Rejects a log whose newest line follows from ticks that a power cut takes back."""
    sizes: list[int] = []
    audit = Audit(tmp_path)
    audit.sync = lambda: sizes.append(audit.path.stat().st_size if audit.path.exists() else 0)
    audit.write("begun", 0, 0)
    audit.write("training", 1, 1)
    assert sizes[0] == 0 and 0 < sizes[1] < audit.path.stat().st_size


@dataclass(frozen=True)
class Dies(ChallengerJob):
    """A training whose process is killed."""

    def run(self) -> None:
        os._exit(9)


@dataclass(frozen=True)
class Fails(ChallengerJob):
    """A training with an error that nobody foresaw."""

    def run(self) -> None:
        raise RuntimeError("out of memory")


@pytest.mark.parametrize(("kind", "why"), [(Dies, "BrokenProcessPool"), (Fails, "RuntimeError: out of memory")])
def test_a_training_that_fails_ends_with_a_sentence(kind: type[ChallengerJob], why: str, tmp_path: Path) -> None:
    worker = Aside()
    worker.begin(kind(tmp_path, (), LearnSettings(), 7, tmp_path / "0007", False))
    with pytest.raises(TailwiseError, match=f"training of challenger 7 failed in its process: {why}.*goes on with it"):
        worker.finish()
    worker.close()


def test_a_loss_beyond_the_equity_ends_a_shadow_as_in_the_simulator(tmp_path: Path) -> None:
    """A short account and an open at eight times the last close: its equity is negative. Rejects its logarithm."""
    short = holder(-0.9)
    before, more = bars_with(short, [(3, 0.0)])
    terms = terms_of(short, [before.symbol], frequency_of(short, [before], None), Beginning(None), tmp_path)
    shadow = Shadow(short, terms, [before])
    assert shadow.begun and not shadow.ruined
    from tailwise.live.feeds import raw_bar

    shadow.step({before.symbol: raw_bar(more, 0)})  # the order is filled
    bar = raw_bar(more, 1)
    prices = {name: 8.0 * getattr(bar, name) for name in ("open", "high", "low", "close")}
    returns = shadow.step({before.symbol: replace(bar, **prices)})  # a gap that no margin call meets in time
    assert shadow.desks[0].account.equity < 0 and shadow.ruined
    assert np.isfinite(returns).all() and returns[0] < -3
    assert shadow.step({before.symbol: raw_bar(more, 2)})[0] == 0


def test_a_folder_of_another_training_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Rejects a challenger that was left from other bars, settings or another policy."""
    policy = holder(0.5)
    policy.save(tmp_path / "policy")
    bars = (policy.market().dataset.bars[0].slice(0, 250),)
    settings = LearnSettings(window=200, updates=1, kl=100.0)
    job = ChallengerJob(tmp_path / "policy", bars, settings, 1, tmp_path / "0001", False)
    AtOnce().begin(job)
    made = (tmp_path / "0001" / "facts.json").stat().st_mtime_ns
    AtOnce().begin(job)
    assert job.done and (tmp_path / "0001" / "facts.json").stat().st_mtime_ns == made
    assert not replace(job, bars=(bars[0].slice(0, 240),)).done
    other = replace(job, settings=LearnSettings(window=200, updates=2, kl=100.0))
    assert not other.done
    AtOnce().begin(other)
    assert other.done and not job.done
    holder(0.6).save(tmp_path / "another")
    assert not replace(other, deployed=tmp_path / "another").done
