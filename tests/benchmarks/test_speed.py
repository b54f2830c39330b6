"""The speed benchmark: its parts, its arithmetic, and the page that is made of it."""

from __future__ import annotations

import pytest

from benchmarks.report import Options
from benchmarks.speed import PARTS, chosen
from benchmarks.speed_alike import ALIKE
from benchmarks.speed_contenders import CONTRIB, FUSED, GEMM, SB3, TORCH, Entry
from benchmarks.speed_page import PAGE, fill
from benchmarks.speed_profile import INFERENCE, REST, Timers
from benchmarks.speed_rounds import Result, Round
from benchmarks.speed_sizes import JAX, SIZES, Size, against, checks_of, name_of
from benchmarks.speed_start import cpu_of
from benchmarks.speed_work import Work, flops_per_sample, our_outputs
from benchmarks.speed_workers import serial_share


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
    assert [SIZES[name].torch for name in ("mlp64/64", "lstm64/64")] == [1 / 3, 1 / 3]
    assert ALIKE["alike-mlp64/64"].floors == {(FUSED, SB3): 4.0, (FUSED, JAX): 2.0, (TORCH, SB3): 1.1}
    assert ALIKE["alike-lstm64/64"].floors == {(FUSED, CONTRIB): 14.0, (FUSED, JAX): 2.0, (TORCH, CONTRIB): 3.0}
    assert [SIZES[name].share for name in ("mlp64/64", "lstm64/64", "lstm128/64")] == [0.42, 0.52, 0.62]
    assert all((size.work.steps, size.work.quantiles, size.work.particles) == (128, 64, 8) for size in SIZES.values())


def test_ratios_and_the_share_of_the_limit_by_hand() -> None:
    """8192 samples in 40 ms and in 160 ms; the machine was three times as slow in one round, the limit too."""
    work = Work()

    def result(entry: Entry, cpu: float) -> Result:
        turns = tuple(Round(cpu * slow, 2 * cpu * slow, 0.5, {}) for slow in (1.0, 3.0, 1.0))
        return Result(entry, work, turns, 2.0, 0.75, 1.5, 400 * 2**20)

    # Products alone would take 10 of the 40 ms.
    limit = flops_per_sample(work, our_outputs(work)) * work.samples / 0.010
    products = Result(GEMM, work, tuple(Round(1, 1, 0.0, {"512": limit / s}) for s in (1.0, 3.0, 1.0)), 0, 0, 0, 0)
    results = {entry: result(entry, cpu) for entry, cpu in ((FUSED, 0.04), (TORCH, 0.16))}
    checks = {check.name: check for check in checks_of(Size(work, share=0.3), results, products, _options())}

    def value(*parts: str) -> float | None:
        return checks[name_of(work, *parts)].value

    assert value(TORCH.name, "times its steps per CPU-second") == pytest.approx(4.0)
    assert value(FUSED.name, "share of the GEMM limit") == pytest.approx(0.25)
    assert not checks[name_of(work, FUSED.name, "share of the GEMM limit")].passed
    assert value(TORCH.name, "steps per CPU-second") == pytest.approx(51_200)
    assert value(TORCH.name, "steps per second of wall time") == pytest.approx(25_600)
    assert value(TORCH.name, "first iteration, CPU-seconds") == 0.75
    assert value(TORCH.name, "peak memory, MiB") == 400
    absent = checks[name_of(work, SB3.name, "times its steps per CPU-second")]
    assert absent.value is None and absent.passed and "not installed" in absent.detail


def test_a_row_of_the_torch_path_names_it() -> None:
    """Twice as fast as the peer, where 1.1 are wanted; rejects the ratio turned round, and that of the fused path."""
    alike = ALIKE["alike-mlp64/64"]
    speeds = {TORCH: 0.05, SB3: 0.10, FUSED: 0.01}
    results = {e: Result(e, alike.work, (Round(cpu, cpu, None, {}),), 0, 0, 0, 0) for e, cpu in speeds.items()}
    for floor, passed in ((1.1, True), (2.5, False)):
        check = against(alike.work, TORCH, SB3, floor, results, _options())
        assert check.value == pytest.approx(2.0) and check.passed is passed
        assert check.name.endswith("tailwise torch, times its steps per CPU-second")
        assert "one scalar critic" in check.name and "one scalar critic" in check.detail


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
