"""Compiled code is kept between processes, and never outlives one line of the sources that it was made of."""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit, types
from numba.core import event
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError

import tailwise
import tailwise.features
import tailwise.market
from tailwise.core import compiled
from tailwise.core.compiled import (
    FOLDERS_KEPT,
    PREFIX,
    SOURCES,
    Repeated,
    cache_folder,
    compiled_for,
    kernel,
    source_digest,
)

PACKAGE = Path(tailwise.__file__).parent

# An order of 10 units at 100: the kernel of engine.py calls the one of accounting.py, which takes the fee.
ORDER = """
import json, time
import numpy as np
from tailwise.core.compiled import cache_folder
from tailwise.market.costs import CostConfig
from tailwise.market.engine import fill_order
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.records import ACCOUNT, LEDGER, make_rules

account, ledger = np.zeros(1, dtype=ACCOUNT), np.zeros(1, dtype=LEDGER)
account["cash"] = 10_000.0
rules = make_rules(MarketEnvConfig(), CostConfig(taker_fee_bps=10.0))
begin = time.perf_counter()
fill_order(account[0], ledger[0], 0.1, 10_000.0, 100.0, 1e6, 0, rules[0], None, 0)
print(json.dumps({
    "fee": float(ledger["fee"][0]),
    "seconds": time.perf_counter() - begin,
    "loaded": sum(fill_order.stats.cache_hits.values()),
    "compiled": sum(fill_order.stats.cache_misses.values()),
    "path": str(fill_order.stats.cache_path),
    "folder": str(cache_folder()),
}))
"""
FEE = ("notional * rules.taker\n", "notional * rules.taker * 2.0\n")


def run(code: str, source: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own that imports tailwise from `source`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = {**kept, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def order(source: Path, **variables: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(ORDER, source, **variables).stdout)
    print({name: result[name] for name in ("fee", "seconds", "loaded", "compiled")})
    return result


def copy_package(folder: Path) -> Path:
    """The packages that kernels live in, without anything compiled, as `folder`/tailwise."""
    for part in SOURCES:
        shutil.copytree(PACKAGE / part, folder / "tailwise" / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", folder / "tailwise")
    return folder


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path.name} no longer holds {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_kept_across_processes_and_renewed_by_an_edit_of_a_called_file(tmp_path: Path) -> None:
    """Rejects numba's own rule, which looks at the file of the caller alone: see the next test."""
    source = copy_package(tmp_path)
    first = order(source)
    again = order(source)
    assert again["fee"] == first["fee"] > 0
    assert (first["loaded"], first["compiled"]) == (0, 1)
    assert (again["loaded"], again["compiled"]) == (1, 0)

    accounting = source / "tailwise/market/accounting.py"
    replace(accounting, *FEE)
    edited = order(source)
    assert edited["fee"] == 2 * first["fee"]
    assert edited["compiled"] == 1

    replace(accounting, *reversed(FEE))
    back = order(source)
    assert back["fee"] == first["fee"]
    assert back["compiled"] == 0, "the sources of before find what was compiled from them"


def test_the_same_edit_goes_unnoticed_with_the_cache_of_numba_alone(tmp_path: Path) -> None:
    """If this fails, numba has learnt to follow calls into other files, and `kernel` may be no more than njit."""
    source = copy_package(tmp_path)
    plain = '\n\ndef kernel(function):\n    return _njit()(cache=True, error_model="numpy", nogil=True)(function)\n'
    with (source / "tailwise/core/compiled.py").open("a", encoding="utf-8") as file:
        file.write(plain)
    first = order(source)
    replace(source / "tailwise/market/accounting.py", *FEE)
    edited = order(source)
    assert edited["fee"] == first["fee"]
    assert edited["loaded"] == 1


def kernels() -> dict[str, Any]:
    """Every compiled function in tailwise.features and tailwise.market by its full name."""
    found = {}
    modules = [
        *pkgutil.walk_packages(tailwise.features.__path__, "tailwise.features."),
        *pkgutil.walk_packages(tailwise.market.__path__, "tailwise.market."),
    ]
    for module in modules:
        for value in vars(importlib.import_module(module.name)).values():
            function = getattr(value, "update", value)  # a built-in feature holds its function
            if isinstance(function, Dispatcher):
                found[f"{function.py_func.__module__}.{function.py_func.__qualname__}"] = function
    return found


def test_every_compiled_function_of_features_and_market_is_a_kernel() -> None:
    found = kernels()
    assert len(found) > 90
    folder = cache_folder()
    assert folder is not None, "nothing is kept: numba no longer does what compiled.py relies on"
    elsewhere = [
        name for name, function in found.items() if folder not in Path(function.stats.cache_path or "/").parents
    ]
    assert elsewhere == []
    for name, function in found.items():
        options = function.targetoptions
        assert (options["error_model"], options["nogil"], options["nopython"]) == ("numpy", True, True), name


def test_kernels_live_only_where_the_digest_looks() -> None:
    """Rejects a kernel in another package, whose helpers would be outside the digest: add the package to SOURCES."""
    inside = [PACKAGE / part for part in SOURCES]
    users = [path for path in PACKAGE.rglob("*.py") if "core.compiled import" in path.read_text(encoding="utf-8")]
    assert len(users) > 10
    assert [path for path in users if not any(part in path.parents for part in inside)] == []
    others = [path for path in PACKAGE.rglob("*.py") if "cache=True" in path.read_text(encoding="utf-8")]
    assert others == [PACKAGE / "core/compiled.py"]


def test_numba_is_left_as_it_was() -> None:
    """Rejects a cache folder that stays set: functions of others would move into it."""
    config = compiled._config()
    before = config.CACHE_DIR
    kernel(_double)
    assert before == config.CACHE_DIR
    assert PREFIX not in str(njit(cache=True)(_double).stats.cache_path)


def _double(x: float) -> float:
    return 2.0 * x


def test_the_folder_of_the_user_is_used(tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    code = "from tailwise.market import orders; print(orders.target_units.stats.cache_path)"
    path = Path(run(code, PACKAGE.parent, NUMBA_CACHE_DIR=str(chosen)).stdout.strip())
    assert chosen in path.parents
    assert path.parent.name == f"{PREFIX}{source_digest()}"


UNKEPT = """
from tailwise.core.compiled import cache_folder, kernel
def half(x):
    return x / 2
import tailwise.market.orders
print(cache_folder(), kernel(half)(3.0), kernel(half).__class__.__name__)
"""


def test_without_a_folder_to_write_to_it_compiles_each_time_and_says_so() -> None:
    """Rejects a crash at import in a place that cannot be written to, which is what numba alone does."""
    done = run(UNKEPT, PACKAGE.parent, NUMBA_CACHE_LOCATOR_CLASSES="IPythonCacheLocator")
    assert done.stdout.split() == ["None", "1.5", "CPUDispatcher"]
    assert done.stderr.count("compiled code cannot be kept (cannot cache function") == 1
    assert "set the environment variable NUMBA_CACHE_DIR" in done.stderr


def test_where_numba_takes_another_folder_nothing_is_kept() -> None:
    """Rejects trust in a setting of numba that it may stop to honour: the folder is compared with the one it uses."""
    done = run(UNKEPT, PACKAGE.parent, NUMBA_CACHE_LOCATOR_CLASSES="InTreeCacheLocator")
    assert done.stdout.split() == ["None", "1.5", "CPUDispatcher"]
    assert "compiled code cannot be kept (numba does not use" in done.stderr


def test_without_compilation_kernels_are_plain_functions() -> None:
    done = run(UNKEPT, PACKAGE.parent, NUMBA_DISABLE_JIT="1")
    assert done.stdout.split() == ["None", "1.5", "function"]
    assert done.stderr == ""


CALLING = """
import sys
sys.path.insert(0, sys.argv[1])
from outer import twice
print(twice(1.0), sum(twice.stats.cache_hits.values()))
"""


def test_a_kernel_of_ones_own_follows_the_files_that_it_says_it_calls(tmp_path: Path) -> None:
    """Rejects numba's own rule, by which 2.0 would come from the machine code that called the old `once`."""
    inner, outer = tmp_path / "inner.py", tmp_path / "outer.py"
    head = "from tailwise.core.compiled import kernel\n"
    inner.write_text(f"{head}@kernel\ndef once(x):\n    return 1.0 * x\n")
    outer.write_text(
        f"{head}import inner\nfrom inner import once\n"
        "@kernel(calls=[inner.__file__])\ndef twice(x):\n    return 2.0 * once(x)\n"
    )
    code = CALLING.replace("sys.argv[1]", repr(str(tmp_path)))
    kept = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(code, PACKAGE.parent, **kept).stdout.split() == ["2.0", "0"]
    assert run(code, PACKAGE.parent, **kept).stdout.split() == ["2.0", "1"]
    replace(inner, "1.0", "3.0")
    assert run(code, PACKAGE.parent, **kept).stdout.split() == ["6.0", "0"]


def test_a_function_without_a_file_is_compiled_and_not_kept() -> None:
    names: dict[str, Any] = {}
    exec(compile("def third(x):\n    return x / 3.0\n", "<prompt>", "exec"), names)
    made = kernel(names["third"])
    assert made(6.0) == 2.0
    assert made.stats.cache_path is None


def test_the_digest_follows_contents_and_names(tmp_path: Path) -> None:
    """Rejects contents joined without borders: text moved from one file to the next is another set of sources."""
    for part in SOURCES:
        (tmp_path / part).mkdir()
    one, two = tmp_path / "market/a.py", tmp_path / "market/b.py"
    seen = {source_digest(tmp_path)}

    def changed() -> bool:
        before = len(seen)
        seen.add(source_digest(tmp_path))
        return len(seen) > before

    one.write_text("x = 1\ny = 2\n")
    two.write_text("")
    assert changed()
    one.write_text("x = 1\n")
    two.write_text("y = 2\n")
    assert changed()
    two.rename(tmp_path / "core/b.py")
    assert changed()
    (tmp_path / "market/deep").mkdir()
    (tmp_path / "market/deep/c.py").write_text("")
    assert changed()
    (tmp_path / "market/notes.txt").write_text("not a source")
    (tmp_path / "cli.py").write_text("no kernel comes from here")
    os.utime(one, (1, 1))
    assert not changed()


def test_folders_of_old_versions_are_removed_and_the_newest_kept(tmp_path: Path) -> None:
    folders = [tmp_path / f"{PREFIX}{i}" for i in range(FOLDERS_KEPT + 3)]
    for i, folder in enumerate(folders):
        (folder / "market_x").mkdir(parents=True)
        (folder / "market_x/f.nbi").write_text("")
        os.utime(folder, (1000 + i, 1000 + i))
    foreign = tmp_path / "other"
    foreign.mkdir()
    compiled._remove_old(folders[-1])
    assert sorted(tmp_path.iterdir()) == sorted([foreign, *folders[3:]])


class Pair(NamedTuple):
    """Arguments as kernels get them: a tuple of arrays and numbers."""

    values: np.ndarray
    factor: int


def test_code_for_given_types_is_that_of_the_kernel_and_follows_its_arguments() -> None:
    """Rejects code that belongs to the first types ever seen, or that keeps the first arguments."""

    @njit
    def scaled(pair: Pair, shift: float | None) -> float:
        return pair.values[-1] * pair.factor + (100.0 if shift is None else shift)

    single, double = np.array([1.0, 2.0], dtype=np.float32), np.array([1.0, 0.1])
    scaled(Pair(single, 3), 0.5)
    for pair, shift in ((Pair(single, 3), 0.5), (Pair(double, 3), 0.5), (Pair(double, 3), None)):
        made = compiled_for(scaled, (pair, shift))
        assert made(pair, shift) == scaled(pair, shift)
        assert made(pair._replace(factor=7), shift) == scaled(pair._replace(factor=7), shift)
    assert len(scaled.overloads) == 3


def test_a_repeated_kernel_follows_its_arguments() -> None:
    """Rejects one that keeps the first arguments, or that compiles for each call."""

    @njit
    def scaled(pair: Pair) -> float:
        return pair.values[-1] * pair.factor

    again = Repeated(scaled)
    assert [again(Pair(np.array([1.0, x]), 3)) for x in (0.5, 2.0, -1.0)] == [1.5, 6.0, -3.0]
    assert len(scaled.overloads) == 1


def test_without_compiling_the_function_itself_is_used() -> None:
    """As with NUMBA_DISABLE_JIT, where a kernel is the Python function."""

    def plain(x: float) -> float:
        return x + 1.0

    assert compiled_for(plain, (1.0,)) is plain


# ---------------------------------------------------------------- kernels that call kernels


@kernel
def square(x: float) -> float:
    if x < 0.0:
        raise ValueError("below 0")
    return x * x


@kernel
def fill(values: np.ndarray, target: np.ndarray) -> None:
    for i in range(values.shape[0]):
        target[i] = square(values[i])


@kernel
def both(values: np.ndarray, target: np.ndarray) -> float:
    fill(values, target)
    return square(target[0]) + target[1:].sum()  # type: ignore[no-any-return]


RELOADED = """
import numpy as np
from tests.core.test_compiled import both, fill
target = np.zeros(2)
print(both(np.array([3.0, 2.0]), target), sum(both.stats.cache_misses.values()), len(fill.overloads))
try:
    both(np.array([-1.0, 2.0]), target)
except ValueError as error:
    print(error)
"""


def test_what_was_kept_holds_what_it_calls() -> None:
    """Rejects machine code that looks for the kernels it calls in a process that has not compiled them."""
    target = np.zeros(3)
    assert both(np.array([3.0, 2.0, 1.0]), target) == 81.0 + 5.0 and list(target) == [9.0, 4.0, 1.0]
    with pytest.raises(ValueError, match="below 0"):
        both(np.array([1.0, -1.0]), np.zeros(2))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", RELOADED],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["85.0 0 0", "below 0"]


def test_a_kernel_may_be_an_argument() -> None:
    @njit
    def apply(function: Any, x: float) -> float:
        return function(x) + 1.0  # type: ignore[no-any-return]

    apply.compile(types.float64(types.FunctionType(types.float64(types.float64)), types.float64))
    apply.disable_compile()
    square.compile(types.float64(types.float64))
    assert apply(square, 3.0) == 10.0


def test_functions_of_others_may_call_kernels_and_make_arrays() -> None:
    @njit
    def mine(n: int) -> np.ndarray:
        result = np.zeros(n)
        fill(np.arange(n) * 1.0, result)
        return result

    assert list(mine(4)) == [0.0, 1.0, 4.0, 9.0]


def test_a_kernel_that_makes_an_array_does_not_compile() -> None:
    @kernel
    def makes(n: int) -> float:
        return np.zeros(n).sum()

    with pytest.raises(TypingError, match="array"):
        makes(3)


def test_a_kernel_that_returns_an_array_is_refused() -> None:
    """Rejects a silent loss: a caller that counts references would give back one that was never taken."""
    with pytest.raises(TypeError, match=r"'.*same' returns an array"):

        @kernel
        def same(values: np.ndarray) -> np.ndarray:
            return values


@pytest.fixture(params=[True, False])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Python collects garbage, as the program may have decided."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_garbage_collection_pauses_while_kernels_are_compiled(collecting: bool) -> None:
    """Also where one kernel is compiled because another one calls it, and where compiling fails."""
    during = []

    class Watch(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            during.append(gc.isenabled())

        def on_end(self, _: Any) -> None:
            during.append(gc.isenabled())

    inner = njit(lambda x: x + 1.0)  # not cached, so that they are compiled here
    outer = njit(lambda x: inner(x) + 1.0)
    broken = njit(lambda x: x.nothing)
    with event.install_listener("numba:compile", Watch()):
        assert outer(1.0) == 3.0 and gc.isenabled() is collecting
    assert during == [False, False, False, collecting]  # both begin, the inner one ends, the outer one ended
    with pytest.raises(TypingError):
        broken(1.0)
    assert gc.isenabled() is collecting
