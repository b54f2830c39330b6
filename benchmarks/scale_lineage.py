"""The same search in one process, in two, on Ray and killed on the way: one lineage, the same scores and weights."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks.report import Check, Options
from benchmarks.scale_work import finish, lineage_of, start, updates_in, wait_for

KILLS, AFTER = 3, 0.3  # kills of one search, each up to so many seconds after an update that was drawn


def checks(options: Options) -> list[Check]:
    """How many of the searches differ from that of one process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        differing = []
        for place in ("one", "local", "ray"):
            finish(start(str(folder / place), place))
            options.say(f"  {place} is done")
            if lineage_of(folder / place) != lineage_of(folder / "one"):
                differing.append(place)
        draw, killed = random.Random(0), 0
        # Drawn among updates, not among seconds, so that every kill comes while the search goes on.
        moments = sorted(draw.sample(range(updates_in(folder / "one") - 1), KILLS))
        for updates in moments:
            started = start(str(folder / "killed"), "one")
            killed += wait_for(started, folder / "killed", updates=updates, then=draw.uniform(0.0, AFTER))
            started.process.kill()
            started.process.wait()
        finish(start(str(folder / "killed"), "one"))
        options.say(f"  killed {killed} times and resumed")
        if lineage_of(folder / "killed") != lineage_of(folder / "one"):
            differing.append("killed")
        members = sum(len(step) for step in lineage_of(folder / "one"))
        copies = sum(one["member"]["copied"] for step in lineage_of(folder / "one") for one in step)
    detail = f"{members} trainings, {copies} copies; local, Ray, killed {killed} times"
    detail += f"; different: {', '.join(differing)}" if differing else ""
    return [
        Check("lineage: searches that differ from one process", len(differing), "0", not differing, detail),
        Check(
            "lineage: kills of the search that was resumed",
            killed,
            str(KILLS),
            killed == KILLS,
            f"after {moments} updates",
        ),
    ]
