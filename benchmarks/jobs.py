"""Independent jobs side by side: one process per core, one thread in each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

Job = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # a function, its arguments, its named arguments


def run_all(jobs: Sequence[Job]) -> list[Any]:
    """The results of jobs in their order. Functions must be importable, because processes are spawned."""
    workers = min(os.cpu_count() or 1, len(jobs))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_single_thread) as pool:
        futures = [pool.submit(function, *args, **kwargs) for function, args, kwargs in jobs]
        return [future.result() for future in futures]


def _single_thread() -> None:
    import torch

    torch.set_num_threads(1)
