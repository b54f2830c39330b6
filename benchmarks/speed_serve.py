"""A contender in a process of its own, which trains when it is told to.

    python -m benchmarks.speed_serve MAKER WORK [CORE]

MAKER: module:function; WORK: JSON; CORE: the only core it may use. It answers on standard output, a JSON object per
line: one when its first iteration is done, then one for each number of iterations that it reads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from benchmarks.speed_contenders import Contender, Entry
from benchmarks.speed_window import Stopwatch, peak_bytes
from benchmarks.speed_work import Work


def main(arguments: list[str]) -> None:
    maker, work = arguments[0], Work.from_json(arguments[1])
    if len(arguments) > 2 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(arguments[2])})
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not an answer
    contender = Entry(maker, maker, "").make(work)
    start = time.process_time()  # from the start of the interpreter
    _answer(answers, measured(contender, 1) | {"start_cpu": start})
    for line in sys.stdin:
        _answer(answers, measured(contender, int(line)))


def measured(contender: Contender, iterations: int) -> dict[str, Any]:
    """Iterate, and say what it took and what has been done so far."""
    clock = Stopwatch()
    contender.iterate(iterations)
    window = clock.stop()
    return {
        **asdict(window),
        **asdict(contender.done()),
        "iterations": iterations,
        "peak_bytes": peak_bytes(),
        "facts": contender.facts(),
    }


def _answer(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
