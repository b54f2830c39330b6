"""A handful of the injected faults in the fast suite, all of them and the sound runs in the slow one."""

from __future__ import annotations

import tempfile

import pytest

from benchmarks.fault_cases import FAULTS, Fault
from benchmarks.faults import judge_fault, judge_sound
from benchmarks.healthy import SOUND, Sound
from tailwise.run.health import RULES

FAST = ("critic 2 frozen", "log-probs stale by 1e4, one update", "one-hot logits", "NaN in the weights", "disk full")
OTHER_ALERTS = {"checkpoint_failed", "checkpoint_rejected"}  # raised by files, not by rules


def test_there_are_enough_of_both_and_each_names_a_rule() -> None:
    assert len(FAULTS) >= 30 and len(SOUND) >= 20
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) and len({sound.name for sound in SOUND}) == len(SOUND)
    assert {fault.rule for fault in FAULTS} <= {rule.name for rule in RULES} | OTHER_ALERTS


@pytest.mark.parametrize("name", FAST)
def test_fault_is_noticed_and_ends_as_stated(name: str) -> None:
    check = judge_fault(next(fault for fault in FAULTS if fault.name == name))
    assert check.passed, check


def test_details_do_not_name_the_folder_of_this_time() -> None:
    """What is written down of two runs differs where they differ. Rejects evidence with the temporary folder in it."""
    check = judge_fault(next(fault for fault in FAULTS if fault.name == "writer killed"))
    assert check.passed and "RUN/checkpoints/" in check.detail, check
    assert tempfile.gettempdir() not in check.detail


@pytest.mark.slow
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name not in FAST], ids=lambda fault: fault.name)
def test_every_fault(fault: Fault) -> None:
    check = judge_fault(fault)
    assert check.passed, check


@pytest.mark.slow
@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.name)
def test_sound_run_is_quiet(sound: Sound) -> None:
    check, _ = judge_sound(sound)
    assert check.passed, check
