"""Audit a run from its files: configuration, versions, code, bars, metrics, checkpoints, course of training."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailwise.core.errors import CheckpointError, DataError, NotFiniteError, TailwiseError, TrustError
from tailwise.doctor import run_course as course
from tailwise.doctor.check import VERDICTS, Check, Verdict
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config
from tailwise.run.metric_store import FILE, parse_row
from tailwise.run.run_files import LARGE, read_file
from tailwise.run.run_folder import CONFIG, origin_of_run, read_config, read_manifest, version_differences
from tailwise.run.seeds import members_of, several
from tailwise.run.training import seed_jobs
from tailwise.run.trust import code_named_by, open_config
from tailwise.run.worlds import make_world


def audit_run(run: str | Path, *, trust: bool = False) -> list[Check]:
    """Check everything about a run that its files show, without changing any of them.

    trust: compute its features again, also if that executes code that somebody else may have written.
    """
    folder = Path(run)
    if not (folder / CONFIG).exists() and not (folder / FILE).exists():
        raise DataError(f"{folder} is not the folder of a run: it has no {CONFIG}; give the folder that train made.")
    configured, config = check_config(folder)
    if config is not None and several(config):
        return [configured, *audit_seeds(folder, config, trust=trust)]
    versions, manifest = check_manifest(folder, config)
    metrics, rows = check_metrics_file(folder)
    saved, weights, newest = check_checkpoints(folder, config, rows)
    return [
        configured,
        versions,
        check_code(folder, config),
        check_bars(folder, config, manifest, trust=trust),
        metrics,
        saved,
        weights,
        check_resume(newest, rows, manifest),
        course.check_progress(folder, rows, config),
        *course.check_alerts(folder, rows),
        course.check_finite(rows),
        *course.check_bands(rows),
        course.check_calibration(rows),
        course.check_limit(rows, config),
        course.check_evaluation(folder),
        course.check_speed(rows),
        course.check_memory(rows),
    ]


def audit_seeds(run: Path, config: Config, *, trust: bool) -> list[Check]:
    """Audit the run of each seed; every check has the verdict of the seed that fares worst."""
    folders = members_of(run, config)
    begun = [one for one in folders if (one / CONFIG).exists()]
    meaning = "the seeds decide together, so the policy is whole when all of them are trained"
    advice = f"tailwise resume {run}"
    if not begun:
        return [Check("seeds", "unknown", f"none of {len(folders)} has begun", meaning, advice)]
    ended = [job for job in seed_jobs(run, config) if job.finished() is not None]
    counted = f"{len(ended)} of {len(folders)} trained to their end, {len(folders) - len(begun)} not begun"
    whole = len(ended) == len(folders)
    checks = [Check("seeds", "ok" if whole else "warn", counted, meaning, "" if whole else advice)]
    found: dict[str, list[tuple[str, Check]]] = {}
    for one in begun:
        for check in audit_run(one, trust=trust)[1:]:  # without the configuration, which is that of the run
            found.setdefault(check.name, []).append((one.name.replace("_", " "), check))
    for same in found.values():
        seed, worst = min(same, key=lambda pair: VERDICTS.index(pair[1].verdict))
        alike = len({check.evidence for _, check in same}) == 1 and len(same) == len(begun)
        checks.append(worst if alike else replace(worst, evidence=f"{seed}: {worst.evidence}"))
    evaluated = course.check_evaluation(run)
    return [evaluated if check.name == evaluated.name else check for check in checks]


def check_config(run: Path) -> tuple[Check, Config | None]:
    """Check config.yaml, read as `resume` would read it."""
    meaning = "config.yaml says everything that the run was started with; resume and evaluate read it"
    try:
        config = read_config(run)
    except TailwiseError as error:
        return Check("configuration", "fail", str(error), meaning, "restore config.yaml from a copy"), None
    evidence = f"valid; seed {config.seed}, {config.run.total_steps:,} steps, core {config.model.core.kind}"
    return Check("configuration", "ok", evidence, meaning), config


def check_manifest(run: Path, config: Config | None) -> tuple[Check, dict[str, Any] | None]:
    """Compare the versions and threads in manifest.json with those of this installation."""
    meaning = "a run continues bit for bit only with the versions and run.threads that it was started with"
    try:
        manifest = read_manifest(run)
    except TailwiseError as error:
        return Check("versions", "fail", str(error), meaning, "restore manifest.json from a copy"), None
    other = version_differences(manifest, config)
    if other:
        advice = "resume the run with those, or accept small differences"
        return Check("versions", "warn", f"made with {', '.join(other)}", meaning, advice), manifest
    evidence = "those of this installation" + ("" if config is None else f", run.threads {config.run.threads}")
    return Check("versions", "ok", evidence, meaning), manifest


def check_code(run: Path, config: Config | None) -> Check:
    """Check whether the run names code outside Tailwise, and whether this user named it."""
    meaning = "resume and evaluate execute what a run names; somebody else's run can name any program"
    if config is None:
        return Check("code", "unknown", "needs config.yaml", meaning, "see the check above")
    code = "; ".join(code_named_by(config, training=True))
    if not code:
        return Check("code", "ok", "names none outside Tailwise and Gymnasium", meaning)
    origin = origin_of_run(run)
    if origin.own:
        return Check("code", "ok", f"names {code}; signed as yours", meaning)
    advice = "read that code before you pass --trust; docs/security.md"
    return Check("code", "warn", f"names {code}; not known to be yours: {origin.reason}", meaning, advice)


def check_bars(run: Path, config: Config | None, manifest: dict[str, Any] | None, *, trust: bool = False) -> Check:
    """Read the bars of a market again and compare their hashes."""
    meaning = "the hashes of the bars were kept when the run began; other bars make its results another experiment"
    if config is None or manifest is None:
        return Check("data", "unknown", "needs config.yaml and manifest.json", meaning, "see the checks above")
    if config.data is None:
        return Check("data", "ok", "a Gymnasium environment, which has no bars", meaning)
    try:
        config = open_config(run, training=False, trust=trust)
    except TrustError as error:
        return Check("data", "unknown", str(error), meaning, "read that code, then pass --trust to compare the bars")
    try:
        world = make_world(config)
        world.check_same_bars(manifest, run=str(run))
    except (TailwiseError, OSError) as error:
        return Check("data", "fail", str(error), meaning, "restore the bars that the run was trained on")
    return Check("data", "ok", f"{world.name}: the same bars by their hashes", meaning)


def check_metrics_file(run: Path) -> tuple[Check, list[dict[str, Any]]]:
    """Check every line of metrics.jsonl; also return the rows that could be read."""
    meaning = "one line per update; everything that is said about the course of the run comes from here"
    path = run / FILE
    if not path.exists():
        return Check("metrics", "unknown", f"there is no {FILE} yet", meaning, "train for at least one update"), []
    rows: list[dict[str, Any]] = []
    bad: list[int] = []
    try:
        *lines, rest = read_file(path, root=run, limit=LARGE).split(b"\n")
    except (DataError, OSError) as error:
        return Check("metrics", "fail", str(error), meaning, "restore the file"), []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(parse_row(line, what=f"line {number}"))
        except DataError:
            bad.append(number)
    updates = [row["update"] for row in rows]
    gaps = [b for a, b in itertools.pairwise(updates) if b != a + 1]
    evidence = f"{len(rows):,} updates"
    if bad:
        advice = "restore the file, or delete those lines; resume refuses to read them"
        return Check("metrics", "fail", f"line {bad[0]} of {FILE} is no row ({len(bad)} bad)", meaning, advice), rows
    if gaps or (updates and updates[0] != 1):
        where = gaps[0] if gaps else updates[0]
        return Check(
            "metrics", "fail", f"{evidence}; updates are missing before {where}", meaning, "restore the file"
        ), rows
    if rest:
        advice = "nothing while it trains; resume cuts the line away"
        return Check("metrics", "warn", f"{evidence}; the last line is torn", meaning, advice), rows
    return Check("metrics", "ok", f"{evidence}, every line whole", meaning), rows


def check_checkpoints(run: Path, config: Config | None, rows: list[dict[str, Any]]) -> tuple[Check, Check, Path | None]:
    """Check every checkpoint by its hashes, and its numbers for NaN; also return the newest good numbered one."""
    name, meaning = "checkpoints", "each file of a checkpoint carries its SHA-256; a broken one is never loaded"
    good: list[Path] = []
    broken: list[tuple[Path, CheckpointError | OSError]] = []
    try:
        paths = ckpt.checkpoints_in(run)
    except CheckpointError as error:
        advice = "put the checkpoints themselves into the run"
        return Check(name, "fail", str(error), meaning, advice), _check_weights([], []), None
    for path in paths:
        try:
            ckpt.verify(path)
        except (CheckpointError, OSError) as error:
            broken.append((path, error))
        else:
            good.append(path)
    weights = _check_weights(paths, [error for _, error in broken if isinstance(error, NotFiniteError)])
    names = ", ".join(path.name for path in good)
    if broken:
        worst: Verdict = "fail" if not good or broken[0][0] == paths[0] else "warn"
        evidence = f"{len(broken)} broken, {len(good)} good ({names or 'none'}): {broken[0][1]}"
        advice = "delete the broken one; resume goes on from the newest good one" if good else "restore one from a copy"
        return Check(name, worst, evidence, meaning, advice), weights, good[0] if good else None
    if good:
        return Check(name, "ok", f"{len(good)} whole: {names}", meaning), weights, good[0]
    due = config is not None and len(rows) >= config.run.checkpoint_every
    advice = "look at the disk and the rights of the folder" if due else "the first one comes with the next updates"
    return Check(name, "fail" if due else "unknown", f"none after {len(rows)} updates", meaning, advice), weights, None


def _check_weights(paths: list[Path], broken: list[NotFiniteError]) -> Check:
    """NaN and infinity in weights and optimiser states; broken: what `verify` said of them."""
    meaning = "a policy whose weights are NaN or infinite answers nothing; it is refused wherever it is loaded"
    if broken:
        evidence = f"{len(broken)} of {len(paths)}: {broken[0]}"
        return Check("weights", "fail", evidence, meaning, "delete that checkpoint")
    if not paths:
        return Check("weights", "unknown", "there is no checkpoint", meaning, "see checkpoints")
    return Check("weights", "ok", f"finite in all of {len(paths)} checkpoints", meaning)


def check_resume(newest: Path | None, rows: list[dict[str, Any]], manifest: dict[str, Any] | None) -> Check:
    """Check whether the run can be continued, and how exactly."""
    meaning = "a run that was killed goes on from its newest good checkpoint as if nothing had happened"
    if newest is None:
        return Check("resume", "warn", "it would start from its beginning", meaning, "see checkpoints")
    try:
        state = ckpt.read_training(newest).json
    except CheckpointError as error:
        return Check("resume", "fail", str(error), meaning, "delete that checkpoint")
    update = state.get("update")
    if type(update) is not int:
        evidence = f"{newest.name} does not say of which update it is"
        return Check("resume", "fail", evidence, meaning, "delete that checkpoint")
    last = rows[-1]["update"] if rows else 0
    if update > last:
        evidence = f"{newest.name} is ahead of the metrics, which end at update {last}"
        return Check("resume", "fail", evidence, meaning, "restore metrics.jsonl, or delete that checkpoint")
    lost = f"; {last - update} updates after it would be made again" if last > update else ""
    if manifest is not None and not manifest.get("exact_resume", False):
        why = manifest.get("exact_resume_reason", "the environment cannot restore its state")
        return Check(
            "resume", "warn", f"from {newest.name}, not exactly: {why}{lost}", meaning, "expect small differences"
        )
    return Check("resume", "ok", f"bit for bit from {newest.name}{lost}", meaning)
