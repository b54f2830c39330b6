"""Does the software notice its own failures, and stay silent without any?

    python -m benchmarks.faults [--json] [--quick] [--only "disk full"] [--only healthy] [--only presets]

Faults are injected into real small runs (benchmarks/fault_cases.py): each has to raise its alert within the stated
number of updates and to end in the stated state. Sound runs (benchmarks/healthy.py) must raise nothing of severity warn
or above; nor may a shipped preset with any of twenty fresh seeds, which takes an hour and runs only when it is named.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path

from benchmarks.fault_cases import FAULTS, Fault
from benchmarks.healthy import SOUND, Sound, config_of
from benchmarks.jobs import run_all
from benchmarks.report import Check, Options, main

LARGEST_SHARE = 0.03  # of an update that monitoring may take
QUICK_FAULTS, QUICK_SOUND, QUICK_STEPS = 6, 1, 4096
# No limit of a rule was chosen on these.
PRESET_SEEDS = tuple(range(3000, 3020))


def judge_fault(fault: Fault) -> Check:
    """Run a fault; the value is the number of updates that its alert needed."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = fault.run(Path(folder))
        alert, sound = case.first(fault.rule), fault.sound(case)
        run_dir = str(Path(folder) / "run")  # another one each time: results of the same code are to be the same
    needed = None if alert is None else float(alert.update - case.injected_at)
    passed = needed is not None and needed <= fault.within and sound
    found = "the alert did not come" if alert is None else alert.evidence
    if alert is None:
        others = sorted({a.rule for a in case.trainer.alerts if a.update > case.injected_at})
        found += f" (others: {', '.join(others) or 'none'})"
    end = fault.ends if sound else f"NOT {fault.ends}: {case.reason}"
    return Check(
        f"{fault.name}: {fault.rule}",
        needed,
        f"<= {fault.within} updates, then {fault.ends}",
        passed,
        f"{found}; {end}; {time.process_time() - started:.1f} CPU-seconds".replace(run_dir, "RUN"),
    )


def judge_sound(sound: Sound) -> tuple[Check, float]:
    """Train a sound run: (check of its alerts, share of its time that monitoring took)."""
    from tailwise import PPO

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = PPO(config=config_of(sound))
        agent.learn()
    loud = [alert for alert in agent.trainer.alerts if alert.severity != "info"]
    told = "; ".join(f"update {a.update} {a.rule}: {a.evidence}" for a in loud)
    quiet = sum(alert.severity == "info" for alert in agent.trainer.alerts)
    spent = sum(row["time/health"] for row in agent.history)
    whole = sum(row["time/rollout"] + row["time/update"] for row in agent.history) + spent
    detail = told or f"{agent.trainer.update} updates, {quiet} of severity info"
    return Check(f"healthy, {sound.name}: alerts", float(len(loud)), "0", not loud, detail), spent / whole


def preset_alerts(preset: str, seed: int, steps: int | None) -> list[str]:
    """What a run of a shipped preset raised with severity warn or above; steps: another budget than its own."""
    from tailwise import PPO
    from tailwise.run.presets import load_source

    data = load_source(preset).data
    run = {**data.get("run", {}), "tensorboard": False} | ({} if steps is None else {"total_steps": steps})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = PPO(config={**data, "seed": seed, "run": run})
        agent.learn()
    return [f"{a.rule} ({a.evidence})" for a in agent.trainer.alerts if a.severity != "info" and a.event == "raised"]


def presets(options: Options) -> list[Check]:
    """One check per shipped preset: how many of the fresh seeds raised something."""
    from tailwise.run.presets import preset_names

    checks, steps = [], QUICK_STEPS if options.quick else None
    for name in preset_names()[: QUICK_SOUND if options.quick else None]:
        seeds = PRESET_SEEDS[:1] if options.quick else PRESET_SEEDS
        found = run_all([(preset_alerts, (name, seed, steps), {}) for seed in seeds], options)
        loud = [f"seed {seed}: {', '.join(texts)}" for seed, texts in zip(seeds, found, strict=True) if texts]
        detail = "; ".join(loud) or f"seeds {seeds[0]} to {seeds[-1]}"
        checks.append(Check(f"preset {name}: seeds with alerts", float(len(loud)), "0", not loud, detail))
        options.say(f"{'ok    ' if checks[-1].passed else 'FALSE '} {checks[-1].name}: {checks[-1].value} {detail}")
    return checks


def run(options: Options) -> list[Check]:
    """All faults, then the sound runs and what monitoring costs."""
    checks: list[Check] = presets(options) if "presets" in options.only else []
    faults = FAULTS[:QUICK_FAULTS] if options.quick else FAULTS
    for fault in faults:
        if not options.only or fault.name in options.only or "faults" in options.only:
            checks.append(judge_fault(fault))
            options.say(f"{'ok    ' if checks[-1].passed else 'MISSED'} {checks[-1].name}: {checks[-1].value}")
    if options.only and "healthy" not in options.only:
        return checks
    shares = {}
    for sound in SOUND[:QUICK_SOUND] if options.quick else SOUND:
        check, shares[sound.name] = judge_sound(sound)
        checks.append(check)
        options.say(f"{'ok    ' if check.passed else 'FALSE '} {check.name}: {check.value}")
    worst = max(shares, key=lambda name: shares[name])
    told = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    told += "; smoke run: the goal is not judged" if options.quick else ""
    checks.append(
        Check(
            "monitoring: largest share of an update",
            shares[worst],
            f"<= {LARGEST_SHARE:g}, every run",
            options.quick or shares[worst] <= LARGEST_SHARE,
            told,
        )
    )
    return checks


if __name__ == "__main__":
    main("Faults", run)
