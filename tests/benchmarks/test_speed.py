"""The speed benchmark: its parts, its arithmetic, and the page that is made of it."""

from __future__ import annotations

import pytest

from benchmarks.report import Options
from benchmarks.speed import PARTS, chosen
from benchmarks.speed_page import PAGE, fill
from benchmarks.speed_profile import INFERENCE, REST, Timers
from benchmarks.speed_sizes import JAX, SIZES
from benchmarks.speed_start import cpu_of
from benchmarks.speed_workers import serial_share
from tailwise.run.speed.contenders import CONTRIB, FUSED, SB3
from tailwise.run.speed.rounds import Round


def _options(*only: str, quick: bool = False) -> Options:
    return Options(quick, lambda text: None, only)


def test_parts_can_be_run_one_by_one() -> None:
    assert chosen(_options()) == list(PARTS)
    assert chosen(_options("lstm64")) == ["lstm64/64", "lstm64/256"]
    assert chosen(_options("mlp64/256", "start")) == ["mlp64/256", "start"]
    with pytest.raises(SystemExit, match="--only lstm: there is no such part"):
        chosen(_options("lstm"))


def test_the_floors_are_those_that_were_promised() -> None:
    """A floor that somebody lowers to pass fails here."""
    assert SIZES["mlp64/64"].floors == {SB3: 4.0, JAX: 2.0}
    assert SIZES["lstm64/64"].floors == {CONTRIB: 10.5, JAX: 1.7}
    assert SIZES["lstm128/64"].floors == {CONTRIB: 8.0}
    assert SIZES["mlp64/256"].floors == {SB3: 2.2}
    assert SIZES["lstm64/256"].floors == {JAX: 1.8}
    assert [SIZES[name].share for name in ("mlp64/64", "lstm64/64", "lstm128/64")] == [0.42, 0.52, 0.62]
    assert all((size.work.steps, size.work.quantiles, size.work.particles) == (128, 64, 8) for size in SIZES.values())


def test_a_timer_stops_while_another_one_inside_runs() -> None:
    """Rejects timers that count the inner part twice."""
    now = [0.0]
    timers = Timers(clock=lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    inner = timers.around(INFERENCE, spend)

    def outer() -> None:
        spend(1.0)
        inner(5.0)
        spend(2.0)
        inner(0.5)

    timers.around(REST, outer)()
    spend(7.0)  # outside of everything
    assert timers.seconds[INFERENCE] == 5.5
    assert timers.seconds[REST] == 3.0
    assert sum(timers.seconds.values()) == 8.5


def test_the_serial_share_is_what_one_thread_worked_alone() -> None:
    """10 s of main thread and 8 s of the other: 8 s ran side by side on each, 2 of 18 were alone. What was worked
    before the first round does not count."""
    turns = [Round(1, 1, 0.0, {"main_cpu": m, "others_cpu": o}) for m, o in ((100.0, 0.0), (105.0, 4.0), (110.0, 8.0))]
    assert serial_share(turns) == pytest.approx(2 / 18)


def test_the_cpu_time_of_a_command_is_its_own() -> None:
    """Rejects wall time: the command sleeps."""
    seconds, said = cpu_of(["-c", "import time; time.sleep(0.5); print('done')"])
    assert said == "done\n"
    assert 0.0 < seconds < 0.4


def test_the_page_has_a_place_for_every_table() -> None:
    work = SIZES["mlp64/64"].work.name
    values = {
        (work, FUSED.name, "steps per CPU-second"): 200_000.0,
        (work, SB3.name, "steps per CPU-second"): 40_000.0,
        (work, SB3.name, "times its steps per CPU-second"): 5.04,
        (work, FUSED.name, "share of the GEMM limit"): 0.456,
        (work, FUSED.name, "peak memory, MiB"): 512.4,
        (work, FUSED.name, "environment", "us per sample"): 0.125,
        ("LSTM, hidden 128", FUSED.name, "steps per CPU-second"): 9_940.0,
    }
    page = fill(PAGE.read_text(encoding="utf-8"), values)
    for row in (
        "| stable-baselines3 PPO | 40 k (5.0x) |",
        "| share of the GEMM limit | 46% |",
        f"| {work} | tailwise fused | - | - | 512 |",
        "| environment | 0.12 |",
        "| hidden | 128 | 9.9 k | - |",
    ):
        assert row in page.splitlines()
    assert fill(page, {}) == page
    with pytest.raises(SystemExit, match="no place for the table sizes"):
        fill("# A page without tables", values)
