"""One side of `benchmarks.equality`: run a configuration with the `tailwise` that PYTHONPATH names, keep the results.

It runs against two revisions, so it uses only what every one of them has: `PPO`, `Callback`, `Run`, `load`. Files in
the folder that it writes:

    update-<n>/          what `agent.save` wrote after the n-th update
    metrics.json         one object per update, names -> numbers
    predictions.json     what the policy that was saved last decides, opened again
    run/                 a run folder that was broken off in the middle
    opened/              with --earlier, of that side's files: predictions.json, update-<n>/ at the end of its run,
                         continued in a copy, and resumed.json: notes on that, and how many updates it then has
"""

from __future__ import annotations

import argparse
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import tailwise
from benchmarks.equality_cases import CHOICES, Case, Doors

ROWS, DECISIONS = 5, 16  # of the observations for which predictions are compared


class SaveEach(tailwise.Callback):
    """Save the agent after every update."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent: Any = None

    def on_update(self, progress: Any) -> None:
        self.agent.save(self.folder / f"update-{progress.update}")


class StopAt(tailwise.Callback):
    """End the run after so many updates, as a person would with Ctrl-C after a checkpoint."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_update(self, progress: Any) -> bool:
        return bool(progress.update < self.updates)


def run(case: Case, backend: str, updates: int, folder: Path, earlier: Path | None) -> None:
    """Train `updates` updates, train half of them into a run folder, and open what an earlier revision left."""
    settings = dict(case.config)
    per_update = settings["run"]["environments"] * settings["run"]["rollout_steps"]
    settings["run"] = {**settings["run"], "total_steps": updates * per_update}
    config = {**settings, "backend": backend}
    env = (Doors(settings["run"]["environments"]),) if case.doors else ()

    saver = SaveEach(folder)
    agent = saver.agent = tailwise.PPO(*env, config=config, callbacks=[saver])
    agent.learn()
    _write(folder / "metrics.json", agent.history)
    _write(folder / "predictions.json", predictions(case, folder / f"update-{updates}"))

    half = tailwise.PPO(*env, config=config, run_dir=folder / "run", callbacks=[StopAt(updates // 2)])
    half.learn()

    if earlier is None:
        return
    opened = folder / "opened"
    opened.mkdir()
    _write(opened / "predictions.json", predictions(case, earlier / f"update-{updates}"))
    shutil.copytree(earlier / "run", opened / "run")
    resumed, notes = tailwise.PPO.resume(opened / "run", **({"env": env[0]} if env else {}))
    resumed.learn()
    resumed.save(opened / f"update-{updates}")
    _write(opened / "resumed.json", {"notes": notes, "updates": len(tailwise.Run(opened / "run").metrics)})


def predictions(case: Case, folder: Path) -> list[Any]:
    """What the policy in `folder` decides: on seeded observations, or over the test window of its market."""
    policy = tailwise.load(folder)
    if case.observed is None:
        played = policy.evaluate(episodes=1)
        return [played.returns.tolist(), played.lengths.tolist()]
    rng = np.random.default_rng(7)
    state, decided = None, []
    for step in range(DECISIONS):
        obs = rng.standard_normal((ROWS, case.observed)).astype(np.float32)
        start = rng.random(ROWS) < 0.1
        mask = rng.random((ROWS, CHOICES)) < 0.5
        mask[:, 0] = True
        action, state = policy.predict(
            obs, state=state, episode_start=start, mask=mask if case.doors else None, deterministic=step % 2 == 0
        )
        decided.append([np.asarray(action).tolist(), state.flatten().tolist()])
    return decided


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")  # numbers are written so that they read back exactly


def main() -> None:
    """Read the case from a file and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=Path, help="JSON of the fields of a Case")
    parser.add_argument("folder", type=Path, help="where the results go; it exists and is empty")
    parser.add_argument("--tree", type=Path, required=True, help="the source tree that must be running")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--earlier", type=Path, help="what another revision wrote for the same case")
    arguments = parser.parse_args()
    home = Path(tailwise.__file__).resolve()
    if not home.is_relative_to(arguments.tree.resolve()):
        raise SystemExit(f"tailwise is imported from {home}, not from {arguments.tree}; set PYTHONPATH.")
    warnings.simplefilter("ignore")  # short rollouts and coarse tails are meant
    case = Case(**json.loads(arguments.case.read_text(encoding="utf-8")))
    run(case, arguments.backend, arguments.updates, arguments.folder, arguments.earlier)


if __name__ == "__main__":
    main()
