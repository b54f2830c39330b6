"""Whatever is typed, configured or returned by an environment ends in a result or a sentence, never in a traceback.

Each case is a function of its number: `run_case(1234, ...)` repeats it. Exit codes: 0 done, 1 a check failed, 2 bad
input.
"""

from __future__ import annotations

import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from tailwise.cli.main import main
from tests.fuzz.commands import BARS, BOUND, MARKET, RUN, hostile_command
from tests.fuzz.configurations import argument_of, hostile_overrides, hostile_text
from tests.fuzz.dice import Dice
from tests.fuzz.environments import HOSTILE_ID, Hostile

CASES, FAST, BLOCK = 2000, 60, 50
ROOM = 4 << 30  # bytes that a case may map beyond what the process has already
SECONDS = 60  # of processor time


class TooLong(BaseException):
    """A case that goes on and on; no `except` of ours stops it."""


def stop(number: int, frame: Any) -> None:
    """End a case when its processor time is over."""
    raise TooLong


def words_of(case: int) -> list[str]:
    """The command line of a case; writes the file that it names."""
    dice = Dice("case", case)
    part = case % 5
    if part in (0, 1):
        return hostile_command(dice)
    if part == 2:
        evaluated = ["-s", "evaluate.every=1", "-s", "evaluate.episodes=2"] if dice.chance(0.3) else []
        named = ["-s", f"env.id={HOSTILE_ID}", "-s", f"env.kwargs={{case: {case}}}"]
        core = dice.pick(["none", "gru", "lstm"])
        return ["train", "cartpole", *BOUND, *evaluated, *named, "-s", f"model.core={{kind: {core}}}", "-q"]
    command = dice.pick([["config", "check"], ["config", "show"], ["train", "-q"], ["train", "-q"]])
    bound = BOUND if command[0] == "train" else []
    if part == 3:
        source = dice.pick(["cartpole", "gru", "categorical", "scalar", "dict-reach", "pendulum", "ar1", "portfolio"])
        return [*command, argument_of(source), *hostile_overrides(dice, source), *bound]
    Path("hostile.yaml").write_bytes(hostile_text(dice))
    return [*command, "hostile.yaml", *bound]


def problem_with(command: Callable[[list[str]], int], words: list[str], printed: Callable[[], Any]) -> str | None:
    """What is wrong with how a command ends; None when it ends as it should."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = command(words)
    except TooLong:
        return f"goes on for more than {SECONDS} s"
    except BaseException:  # noqa: BLE001  (whatever leaves a command is what this test looks for)
        return traceback.format_exc(limit=-8)
    out, error = printed()
    if "Traceback" in out + error:
        return f"prints a traceback: {(out + error)[-2000:]}"
    if code not in (0, 1, 2):
        return f"ends with exit code {code}"
    if code == 2 and not any(mark in error for mark in ("error: ", "Usage: ", "─ Error ─")):
        return f"is refused without a sentence: {error!r}"
    return None


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bars and two small runs."""
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["data", "synth", "ar1", "--bars", "600", "--out", BARS]) == 0
        assert main(["train", "cartpole", *BOUND, "-q", "--out", RUN]) == 0
        assert main(["train", "ar1", *BOUND, "-q", "--out", MARKET]) == 0
    return folder


@pytest.fixture
def bounded() -> Iterator[None]:
    """Limits of memory and time for what a case does; numbers that ask for more must end in a sentence."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    before = signal.signal(signal.SIGPROF, stop)  # not SIGALRM, which the time limit of pytest uses
    gym.register(HOSTILE_ID, entry_point=Hostile)
    yield
    del gym.registry[HOSTILE_ID]
    signal.signal(signal.SIGPROF, before)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run_case(case: int, folder: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with how case number `case` ends, in an own folder; None when nothing is."""
    here = folder / str(case)
    (here / "empty").mkdir(parents=True)
    (here / "file").write_text("")
    for name in (RUN, MARKET, BARS):
        (here / name).symlink_to(good / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        words = words_of(case)
        capsys.readouterr()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        problem = problem_with(main, words, capsys.readouterr)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None if problem is None else f"case {case}: tailwise {words!r}\n{problem}"


def check_cases(cases: range, folder: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = [problem for case in cases if (problem := run_case(case, folder, good, capsys))]
    assert not problems, "\n\n".join(problems)


@pytest.mark.usefixtures("bounded")
def test_sixty_cases(tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects any exception that leaves a command, and exit codes that say something else than what happened."""
    check_cases(range(FAST), tmp_path, good, capsys)


@pytest.mark.slow
@pytest.mark.timeout(BLOCK * SECONDS)
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("first", range(FAST, CASES, BLOCK))
def test_two_thousand_cases(first: int, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_cases(range(first, min(first + BLOCK, CASES)), tmp_path, good, capsys)


def test_a_case_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [words_of(case) for case in range(200)] == [words_of(case) for case in range(200)]
    assert len({tuple(words_of(case)) for case in range(200)}) > 150


def test_the_judge_notices_what_it_is_for() -> None:
    """Rejects a judge that accepts everything: a traceback, printed or raised, a wrong code, a silent refusal."""

    def ends(code: int, out: str = "", error: str = "") -> str | None:
        return problem_with(lambda _: code, [], lambda: (out, error))

    assert ends(0) is None and ends(1) is None and ends(2, error="error: x") is None
    assert "exit code 3" in str(ends(3)) and "without a sentence" in str(ends(2))
    assert "prints a traceback" in str(ends(1, error="Traceback (most recent call last):"))
    assert "ZeroDivisionError" in str(problem_with(lambda _: 1 // 0, [], lambda: ("", "")))
    assert "goes on" in str(problem_with(lambda _: stop(0, None) or 0, [], lambda: ("", "")))
