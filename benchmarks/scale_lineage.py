"""The same search in one process, in two, on Ray and killed on the way: one lineage, the same scores and weights."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from benchmarks.report import Check, Options
from benchmarks.scale_work import finish, lineage_of, start

KILLS, LONGEST = 3, 12.0  # seconds before a kill


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
        while killed < KILLS:  # those that come too late are none
            started = start(str(folder / "killed"), "one")
            time.sleep(draw.uniform(1.0, LONGEST))
            alive = started.process.poll() is None
            started.process.kill()
            started.process.wait()
            killed += alive
            if not alive:
                break
        finish(start(str(folder / "killed"), "one"))
        options.say(f"  killed {killed} times and resumed")
        if lineage_of(folder / "killed") != lineage_of(folder / "one"):
            differing.append("killed")
        members = sum(len(step) for step in lineage_of(folder / "one"))
        copies = sum(one["member"]["copied"] for step in lineage_of(folder / "one") for one in step)
    detail = f"{members} trainings, {copies} copies; local, Ray, killed {killed} times"
    detail += f"; different: {', '.join(differing)}" if differing else ""
    return [Check("lineage: searches that differ from one process", len(differing), "0", not differing, detail)]
