"""The one way in which files of a run are read: inside the run, regular, within a limit, and parsed into a known shape.

A run folder may come from anybody. Nothing in it is followed out of the folder, nothing is read before its size is
known, and nothing is used before it has the types that this version writes. Everything else is a sentence.

The classes at the end are the shapes of the JSON files: manifest, alerts, evaluations, ids of trackers, and the
training state of a checkpoint (policy_files.py has that of the policy).
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

from pydantic import Field, RootModel

from tailwise.core.errors import CheckpointError, DataError, TailwiseError
from tailwise.core.parsing import Stored, StoredType, as_stored, parse_json
from tailwise.learner.constraint import DELAY

if TYPE_CHECKING:
    import pandas

SMALL = 2**20  # bytes of a manifest, an evaluation of a few numbers
ATTACKED = "attack-"  # how the files of `tailwise attack` begin; they lie beside evaluations and are none
LARGE = 2**28  # bytes of a log, a summary, a table
LARGEST_TENSORS = 2**34  # bytes of the weights or of the training state
LARGEST_COUNT = 2**53  # of steps, updates, rows: whole numbers that a float64 still tells apart
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Positive = Annotated[float, Field(gt=0)]


def inside(path: Path, root: Path, *, must_exist: bool = True) -> Path:
    """The real path of `path`; DataError when it is not there, or when a link leads out of the folder `root`."""
    try:
        real, home = path.resolve(strict=must_exist), root.resolve(strict=True)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; restore it from a copy.") from error
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a NUL in the name
        raise DataError(f"{path} cannot be read ({error}); restore it from a copy.") from error
    if not real.is_relative_to(home):
        raise DataError(
            f"{path} is a link that leads out of {root}, to {real}; nothing outside of it is read or written. "
            "Put the file or folder itself there."
        )
    return real


def check_links(run_dir: Path) -> None:
    """Refuse a run of which anything in its folder, or a checkpoint, is a link that leads out of it.

    Whoever opens a run writes into some of them: metrics, alerts, checkpoints, evaluations.
    """
    for folder in (run_dir, run_dir / "checkpoints", run_dir / "evaluations"):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_symlink():
                inside(entry, run_dir, must_exist=False)  # what is written through a link need not exist yet


class NotOpenedError(OSError):
    """A file cannot be opened for the moment (no permission, too many open files); it may be whole."""


def open_file(path: Path, *, root: Path) -> BinaryIO:
    """A regular file inside `root`, opened for reading; DataError for anything else, NotOpenedError for now."""
    return open_real(inside(path, root))


def open_real(real: Path) -> BinaryIO:
    """The regular file at a path that `inside` returned, opened for reading; see `open_file`."""
    # NOFOLLOW: a link that was put there meanwhile is not followed; NONBLOCK: a pipe without a writer does not block.
    try:
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotOpenedError(error.errno, error.strerror, str(real)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{real} is a folder, a pipe or a device instead of a file; restore it from a copy.")
    return open(handle, "rb")


def read_file(path: Path, *, root: Path, limit: int) -> bytes:
    """The content of a file inside `root` that has at most `limit` bytes; DataError for a larger one."""
    with open_file(path, root=root) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise DataError(f"{path} has {size:,} bytes; at most {limit:,} are read, so it is no file of a run.")
        return file.read(size)  # not `limit`: as many bytes as are asked for are set aside first


def read_end(path: Path, *, root: Path, count: int) -> bytes:
    """The last `count` bytes of a file inside `root`, all of it when it is shorter."""
    with open_file(path, root=root) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - count, 0))
        return file.read(count)


def read_parquet(path: Path, *, root: Path, limit: int = LARGE) -> tuple[pandas.DataFrame, Any]:
    """The frame of a Parquet file inside `root`, and its pyarrow schema."""
    import pyarrow
    import pyarrow.parquet

    data = read_file(path, root=root, limit=limit)
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(data))
        return table.to_pandas(), table.schema
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a whole Parquet file ({first}); restore it from a copy.") from error


def read_json(path: Path, *, root: Path, limit: int = SMALL) -> Any:
    """The value of a JSON file inside `root`."""
    return parse_json(read_file(path, root=root, limit=limit), what=str(path), max_bytes=limit)


def read_stored(path: Path, model: type[StoredType], *, root: Path, limit: int = SMALL) -> StoredType:
    """A JSON file inside `root` in the shape of `model`."""
    return as_stored(model, read_json(path, root=root, limit=limit), source=str(path))


class GitState(Stored):
    """The commit of the repository that a run was started in."""

    commit: str
    changed: bool


class Manifest(Stored):
    """manifest.json. data: purpose -> symbol -> hash of its bars; missing outside the market, as are the two below it.

    threads is missing in runs of older versions.
    """

    format: Literal[1]
    id: str = ""
    seed: Count
    versions: dict[str, str]
    python: str
    platform: str
    threads: Count | None = None
    git: GitState | None = None
    exact_resume: bool
    exact_resume_reason: str
    data: dict[str, dict[str, str]] = Field(default_factory=dict)
    data_hash: str = ""
    label: str = ""


class StoredAlert(Stored):
    """A line of alerts.jsonl, see `Alert`."""

    update: Count
    rule: str
    severity: Literal["info", "warn", "error"]
    evidence: str
    advice: str
    event: Literal["raised", "cleared", "acted"] = "raised"
    action: str = "warn"
    signal: str | None = None
    value: float | None = None


class StoredLimit(Stored):
    """Verdict on a limit; kept None: it could not be judged."""

    kept: bool | None = None


class SymbolSummary(Stored):
    """What an evaluation says about one account. limits: name of policy or rule -> verdict on the limit."""

    symbol: str = ""
    verdict: list[str] = Field(default_factory=list)
    limits: dict[str, StoredLimit | None] = Field(default_factory=dict)


class StoredTraining(Stored):
    """The training behind a policy that was evaluated; limit_acted None: it had no limit."""

    limit_acted: bool | None = None


class EvaluationSummary(Stored):
    """summary.json of an evaluation on a market, or the one file of an evaluation elsewhere."""

    mean_return: float | None = None
    symbols: list[SymbolSummary] = Field(default_factory=list)
    trained: StoredTraining | None = None


class TrackingIds(RootModel[dict[str, str]]):
    """tracking.json: name of the tracker -> id of its run."""


class StoredRule(Stored):
    """See `RuleState`."""

    held: Count
    quiet: Count
    firing: bool
    onset: Count
    last_action: Count


class StoredRules(Stored):
    """See `Health.state`."""

    refused_in_a_row: Count
    rules: dict[str, StoredRule]
    values: dict[str, list[float]]


class StoredSignals(Stored):
    """See `Signals.state`."""

    rollouts: Count
    largest_reward: float
    rewards_varied: bool
    ends_told: bool
    peak_std: float
    returns: Count
    return_mean: float
    return_variance: float


class StoredActions(Stored):
    """See `Actions.state`."""

    counts: dict[str, Count]
    spent: list[str]


class StoredHealth(Stored):
    """See `HealthWatch.state`."""

    rules: StoredRules
    signals: StoredSignals
    actions: StoredActions
    evaluated: dict[str, float]


class StoredPid(Stored):
    """See `PidState`."""

    integral: float
    violation: float
    cost: float
    costs: Annotated[list[float], Field(min_length=DELAY, max_length=DELAY)]


class StoredConstraint(Stored):
    """See `Constraint.state`."""

    multiplier: float
    pid: StoredPid
    seen: Count
    active_since: Count | None
    trusted: bool
    reference: Positive | None
    unit: Positive | None = None  # earlier runs have none: they counted in the reference
    best: float | None
    updates_at_cap: Count
    excess: float | None
    updates_broken: Count
    threshold: float | None


class StoredRisk(Stored):
    """See `RiskWatch.state`."""

    calibration: dict[str, Count] | None
    constraint: StoredConstraint | None


class TrainingState(Stored):
    """training/state.json; environment: as its driver wrote it, see `join_state`."""

    update: Count
    steps: Count
    total_steps: Count
    kl_factor: Positive
    health_factor: Positive
    narrowed: float = 0.0
    entropies: list[float]
    plateau_at: Count | None
    adopted: dict[str, float] = Field(default_factory=dict)
    moments_since: Count = 0
    gradient_noise: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    episodes: list[Annotated[list[float], Field(min_length=2, max_length=2)]]
    best_return: float | None
    evaluations_without_gain: Count
    health: StoredHealth
    risk: StoredRisk
    environment: dict[str, Any]


def check_state(data: Mapping[str, Any]) -> None:
    """Raise unless `data` has the shape of a training state."""
    needed = {name for name, field in TrainingState.model_fields.items() if field.is_required()}
    if missing := sorted(needed - data.keys()):
        raise CheckpointError(f"the training state lacks {', '.join(missing)}")
    try:
        as_stored(TrainingState, dict(data), source="the training state")
    except DataError as error:
        raise CheckpointError(f"{error}\nIt was not written by this version; use another checkpoint.") from error


@contextmanager
def stored_by_this_version(part: str) -> Iterator[None]:
    """Say so when a part of a stored state cannot be put back.

    Names, types and shapes of what environments and windows keep are known to them alone.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, TailwiseError):
            raise
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise CheckpointError(
            f"the stored state of {part} does not fit ({what}); it was damaged or written by another version, use "
            "another checkpoint."
        ) from error
