"""Every option of the market changes something that is measured: what training sees, or which bars serve what.

The measured output is a fingerprint of the windows and of 250 steps of the training environment with random actions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise.bars.bars import save_bars
from tailwise.bars.synthetic import jump_diffusion
from tailwise.core.errors import ConfigError, DataError
from tailwise.run.agent import PPO
from tailwise.run.config import Config, parse_config
from tailwise.run.worlds import MarketWorld
from tests.learner.test_option_effects import leaves
from tests.support import merged

Change = dict[str, Any]
STEPS = 250
POSITIONS = {"kind": "positions", "positions": [-2, -1, 0, 1, 2]}
BASE: Change = {
    "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0, 1], "parameters": {"length": 600}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "action": POSITIONS, "episode_length": 60},
    "run": {"environments": 6, "rollout_steps": 8},
}
GUARDED: Change = {"env": {"guards": {"drawdown": 0.01}}}
RESAMPLED: Change = {"share": 0.5, "worlds": 3, "block": 20.0}
UNEQUAL_LIMIT: Change = {
    "env": {"base": {"kind": "volatility_target"}},
    "risk": {"mode": "constraint", "limit": {"of": "buy_and_hold"}},
    "learner": {"gamma": 0.9},
}
DATES: Change = {
    "kind": "dates",
    "train": ["2000-01-01", "2000-01-15"],
    "select": ["2000-01-15", "2000-01-20"],
    "test": ["2000-01-20", "2000-01-24"],
}


def write_files(folder: Path) -> Change:
    """Files of every sort that the options of data[files] tell apart."""
    bars = jump_diffusion(seed=5, length=600)
    save_bars(bars, folder / "a.parquet")
    save_bars(jump_diffusion(seed=6, length=600), folder / "b.parquet")
    frame = bars.to_frame()
    adjusted = frame.assign(**{"adj close": frame["close"] * np.linspace(0.5, 1.0, 600)})
    adjusted.to_parquet(folder / "adjusted.parquet")
    broken = frame.copy()
    broken.iloc[300, broken.columns.get_loc("high")] = broken["low"].iloc[300] * 0.5
    broken.to_parquet(folder / "broken.parquet")
    numbers = frame.reset_index(drop=True)
    numbers.insert(0, "time", np.arange(600) * 3_600_000 + 86_400_000)
    numbers.to_csv(folder / "numbers.csv", index=False)
    frame[["close", "volume"]].to_csv(folder / "closes.csv", index_label="time")
    return {"kind": "files", "paths": [str(folder / "a.parquet")]}


def data(kind: str) -> Callable[[Path], Change]:
    """The section `data` of a kind, and a base that it stands beside."""

    def make(folder: Path) -> Change:
        return {"synthetic": BASE["data"], "builtin": {"kind": "builtin"}, "files": write_files(folder)}[kind]

    return make


def resample_effects(kind: str) -> dict[str, tuple[Change, Change]]:
    """Options of data[kind].resample: (change of the section data, change that is compared)."""
    key = f"data[{kind}].resample"
    changes: Change = {"share": 0.9, "worlds": 5, "block": 3.0, "drift": "remove"}
    return {
        f"{key}.{name}": ({"resample": RESAMPLED}, {"resample": {**RESAMPLED, name: value}})
        for name, value in changes.items()
    }


def pool_effects(kind: str) -> dict[str, tuple[Change, Change]]:
    """Options of data[kind].pool, under a limit: (change of the section data, change that is compared)."""
    key = f"data[{kind}].pool"
    symbols = {
        "builtin": ("SP500", "NASDAQ"),
        "synthetic": ("SYNTHETIC-JUMP-DIFFUSION-0", "SYNTHETIC-JUMP-DIFFUSION-1"),
    }
    first, second = symbols.get(kind, ("a", "b"))

    def units(of_second: float) -> Change:
        return {"pool": {"units": {first: {"unit": 1.0}, second: {"unit": of_second}}}}

    return {
        f"{key}.tails": ({"pool": {"tails": "pooled"}}, {"pool": {"tails": "symbol"}}),
        f"{key}.train_only": ({"pool": {}}, {"pool": {"train_only": [second]}}),
        f"{key}.units": (units(1.0), units(3.0)),
    }


def split_effects(kind: str) -> dict[str, tuple[Change, Change]]:
    """Options of data[kind].split: (change of the base, change that is compared)."""
    years = {
        "kind": "dates",
        "train": ["1999-01-01", "2005-01-01"],
        "select": ["2005-01-01", "2006-01-01"],
        "test": ["2006-01-01", "2008-01-01"],
    }
    dates, ends = (years, "2007-01-01") if kind == "builtin" else (DATES, "2000-01-23")
    first = "2000-01-01" if kind == "builtin" else "2000-01-05"
    shares = {"kind": "shares", "select": 0.15, "test": 0.25}
    key = f"data[{kind}].split"

    def times(**changes: Any) -> Change:
        """The same windows as `dates`, but for the changes."""
        windows = {name: [f"{day}T00:00:00Z" for day in dates[name]] for name in ("train", "select", "test")}
        return {"split": {"kind": "times", **windows, **changes}}

    def ranges(**changes: Any) -> Change:
        """The same windows again, the train window in two pieces."""
        middle = "2002-06-01T00:00:00Z" if kind == "builtin" else "2000-01-08T00:00:00Z"
        windows = times()["split"]
        begin, end = windows["train"]
        pieces = {"train": [[begin, middle], [middle, end]], "select": windows["select"], "test": [windows["test"]]}
        return {"split": {"kind": "ranges", **pieces, **changes}}

    end = f"{dates['train'][1]}T00:00:00Z"
    pieces = ranges()["split"]
    return {
        f"{key}[shares]": ({"split": dates}, {"split": shares}),
        f"{key}[shares].select": ({"split": shares}, {"split": {**shares, "select": 0.2}}),
        f"{key}[shares].test": ({"split": shares}, {"split": {**shares, "test": 0.3}}),
        f"{key}[shares].purge": ({"split": shares}, {"split": {**shares, "purge": 5}}),
        f"{key}[dates]": ({"split": shares}, {"split": dates}),
        f"{key}[dates].train": ({"split": dates}, {"split": {**dates, "train": [first, dates["train"][1]]}}),
        f"{key}[dates].select": ({"split": dates}, {"split": {k: v for k, v in dates.items() if k != "select"}}),
        f"{key}[dates].test": ({"split": dates}, {"split": {**dates, "test": [dates["test"][0], ends]}}),
        f"{key}[times]": ({"split": shares}, times()),
        f"{key}[times].train": (times(), times(train=[f"{first}T12:00:00Z", end])),
        f"{key}[times].select": (times(), times(select=None)),
        f"{key}[times].test": (times(), times(test=[f"{dates['test'][0]}T00:00:00Z", f"{ends}T00:00:00Z"])),
        f"{key}[ranges]": (times(), ranges()),
        f"{key}[ranges].train": (ranges(), ranges(train=pieces["train"][1:])),
        f"{key}[ranges].select": (ranges(), ranges(select=None)),
        f"{key}[ranges].test": (ranges(), ranges(test=[])),
    }


def env(change: Change, **base: Any) -> tuple[Change, Change]:
    return {"env": base}, {"env": merged(base, change)}


def guard(change: Change, base: Change | None = None) -> tuple[Change, Change]:
    return {"env": {"guards": base or {}}}, {"env": {"guards": {**(base or {}), **change}}}


def base(kind: str, before: Change | None = None, **change: Any) -> tuple[Change, Change]:
    """env.base of this kind: `change` against `before`, or against no base at all."""
    changed = {"env": {"base": {"kind": kind, **(before or {}), **change}}}
    return (
        ({}, changed)
        if before is None and not change
        else ({"env": {"base": {"kind": kind, **(before or {})}}}, changed)
    )


BOX = {"kind": "exposure", "low": -1, "high": 1}
WEIGHTS = {"kind": "weights", "low": -1, "high": 1, "gross": 1.5}
STRETCHED = {"env": {"stop_loss": 0.01, "take_profit": 0.01}}

# option -> (changes of the base, changes that are compared with it)
EFFECTS: dict[str, tuple[Change, Change]] = {
    **{
        f"costs.{name}": ({}, {"costs": {name: value}})
        for name, value in (
            ("taker_fee_bps", 5),
            ("half_spread_bps", 5),
            ("slippage_bps", 5),
            ("impact_bps", 50),
            ("borrow_rate", 0.5),
            ("loan_rate", 0.5),
            ("cash_rate", 0.5),
            ("funding_bps", 5),
            ("latency", 1),
            ("lot_size", 300.0),
            ("minimum_notional", 90_000),
        )
    },
    "costs.maker_fee_bps": (STRETCHED, merged(STRETCHED, {"costs": {"maker_fee_bps": 50}})),
    "costs.liquidation_bps": (
        {"env": {"maintenance_margin": 0.495}},
        {"env": {"maintenance_margin": 0.495}, "costs": {"liquidation_bps": 500}},
    ),
    "env[market].action[positions]": ({"env": {"action": BOX}}, {}),
    "env[market].action[positions].positions": ({}, {"env": {"action": {**POSITIONS, "positions": [-1, 0, 1]}}}),
    "env[market].action[exposure]": ({}, {"env": {"action": BOX}}),
    "env[market].action[exposure].low": ({"env": {"action": BOX}}, {"env": {"action": {**BOX, "low": 0}}}),
    "env[market].action[exposure].high": ({"env": {"action": BOX}}, {"env": {"action": {**BOX, "high": 2}}}),
    "env[market].action[weights]": ({"env": {"action": BOX}}, {"env": {"action": WEIGHTS}}),
    "env[market].action[weights].low": ({"env": {"action": WEIGHTS}}, {"env": {"action": {**WEIGHTS, "low": 0}}}),
    "env[market].action[weights].high": ({"env": {"action": WEIGHTS}}, {"env": {"action": {**WEIGHTS, "high": 0.5}}}),
    "env[market].action[weights].gross": ({"env": {"action": WEIGHTS}}, {"env": {"action": {**WEIGHTS, "gross": 0.5}}}),
    "env[market].episode_length": env({"episode_length": 30}),
    "env[market].fill": env({"fill": "close"}),
    "env[market].initial_cash": env({"initial_cash": 1e9}),  # impact grows with it
    "env[market].maintenance_margin": env({"maintenance_margin": 0.495}),
    "env[market].base[buy_and_hold]": base("buy_and_hold", scale=0.5),
    "env[market].base[buy_and_hold].scale": base("buy_and_hold", {"scale": 0.5}, scale=0.7),
    "env[market].base[volatility_target]": base("volatility_target"),
    "env[market].base[volatility_target].target": base("volatility_target", {}, target=0.05),
    "env[market].base[volatility_target].scale": base("volatility_target", {}, scale=0.5),
    "env[market].base[volatility_target].largest": base("volatility_target", {}, largest=0.1),
    "env[market].base[momentum]": base("momentum"),
    "env[market].base[momentum].target": base("momentum", {"look_back": [20]}, target=0.05),
    "env[market].base[momentum].scale": base("momentum", {"look_back": [20]}, scale=0.5),
    "env[market].base[momentum].largest": base("momentum", {"look_back": [20]}, largest=0.1),
    "env[market].base[momentum].look_back": base("momentum", {"look_back": [20]}, look_back=[7]),
    "env[market].start": env({"start": "first"}),
    "env[market].symbol": env({"symbol": "fixed"}),
    "env[market].stop_loss": env({"stop_loss": 0.01}),
    "env[market].take_profit": env({"take_profit": 0.01}),
    "env[market].tolerance": env({"tolerance": 1.0}),
    "env[market].guards.max_exposure": guard({"max_exposure": 0.5}),
    "env[market].guards.order_fraction": guard({"order_fraction": 0.5}),
    "env[market].guards.order_notional": guard({"order_notional": 50_000}),
    "env[market].guards.order_units": guard({"order_units": 100}),
    "env[market].guards.daily_turnover": guard({"daily_turnover": 1.0}),
    "env[market].guards.daily_loss": guard({"daily_loss": 0.01}),
    "env[market].guards.drawdown": guard({"drawdown": 0.01}),
    "env[market].guards.on_halt": guard({"on_halt": "flatten"}, {"drawdown": 0.01}),
    "env[market].guards.absurd_move": guard({"absurd_move": 0.005}),
    "env[market].guards.absurd_volatility": guard({"absurd_volatility": 2.0}),
    "env[market].guards.volatility_bars": guard({"volatility_bars": 10}, {"absurd_volatility": 2.0}),
    **{f"env[market].reward.{name}": env({"reward": {name: 0.1}}) for name in ("drawdown_penalty", "turnover_penalty")},
    "env[market].reward.recovery_bonus": (
        {"env": {"reward": {"drawdown_penalty": 0.1}}},
        {"env": {"reward": {"drawdown_penalty": 0.1, "recovery_bonus": 0.1}}},
    ),
    "features.include": ({}, {"features": {"include": ["return_1", "volatility_10"]}}),
    "features.timeframes": ({}, {"features": {"timeframes": {"4h": ["return_1"]}}}),
    "features.standardise": ({}, {"features": {"standardise": False}}),
    "features.clip": ({}, {"features": {"clip": 0.5}}),
    "features.scales": ({}, {"features": {"scales": "symbol"}}),
    "features.instrument": ({}, {"features": {"instrument": True}}),
    "data[synthetic].market": ({}, {"data": {"market": "random_walk"}}),
    "data[synthetic].seeds": ({}, {"data": {"seeds": [0, 2]}}),
    "data[synthetic].parameters": ({}, {"data": {"parameters": {"length": 601}}}),
    "env[market]": ({}, {}),  # that there is a market at all: the fingerprint itself
    "data[synthetic]": ({}, {}),
}
# Options that need files, gaps or a module: by functions of their own below.
BY_THEMSELVES = {
    "data[builtin]",
    "data[builtin].names",
    "data[files]",
    "data[files].paths",
    "data[files].symbols",
    "data[files].repair",
    "data[files].adjust",
    "data[files].close_only",
    "data[files].time_unit",
    "data[files].periods_per_year",
    "env[market].guards.stale_bars",
    "env[market].guards.absurd_gap",
    "env[market].guards.absurd_flat_bars",
    "env[market].base[function]",
    "env[market].base[function].function",
    "env[market].base[function].scale",
    "env[market].base[function].largest",
    "env[market].report",
    "env[market].reward.function",
    "features.modules",
    "features.leak_check",
}
KINDS = ("builtin", "files", "synthetic")
SPLITS = {key: kind for kind in KINDS for key in split_effects(kind)}
WORLDS = {key: kind for kind in KINDS for key in resample_effects(kind)}
POOLS = {key: kind for kind in KINDS for key in pool_effects(kind)}


def fingerprint(changes: Change) -> str:
    """Of the windows, the names of what is observed, and a seeded episode stream of the training environment."""
    data = changes.get("data")
    base = BASE if data is None or data.get("kind", "synthetic") == "synthetic" else {**BASE, "data": {}}
    config = parse_config(merged(base, changes), source="test")
    world = MarketWorld(config)
    digest = hashlib.sha256(repr(world.dataset.windows).encode())
    digest.update(repr(world.dataset.ranges).encode())
    digest.update(repr([bars.symbol for bars in world.dataset.bars]).encode())
    driver = world.training()
    driver.reset()
    driver.venv.action_space.seed(1)
    for _ in range(STEPS):
        result = driver.step(driver.venv.action_space.sample())
        for values in (result.obs, result.reward, result.terminated, result.truncated, result.mask):
            digest.update(b"-" if values is None else np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def test_table_has_every_option_of_the_market_and_no_other() -> None:
    market = {key for key in leaves(Config) if key.startswith(("data", "features", "costs", "env[market]"))}
    named = EFFECTS.keys() | BY_THEMSELVES | SPLITS.keys() | WORLDS.keys() | POOLS.keys()
    assert sorted(market - named) == []
    assert sorted(named - market) == []


@pytest.mark.parametrize("option", [key for key, (base, change) in EFFECTS.items() if base != change])
def test_option_changes_what_is_measured(option: str) -> None:
    base, change = EFFECTS[option]
    assert fingerprint(base) != fingerprint(change), option


@pytest.mark.parametrize("option", list(SPLITS))
def test_split_changes_the_windows(option: str, tmp_path: Path) -> None:
    kind = SPLITS[option]
    section = data(kind)(tmp_path)
    base, change = split_effects(kind)[option]
    assert fingerprint({"data": {**section, **base}}) != fingerprint({"data": {**section, **change}})


@pytest.mark.parametrize("option", list(WORLDS))
def test_resampling_changes_what_is_trained_on(option: str, tmp_path: Path) -> None:
    section = data(WORLDS[option])(tmp_path)
    base, change = resample_effects(WORLDS[option])[option]
    seen = [fingerprint({"data": {**section, **one}}) for one in ({}, base, change)]
    assert len(set(seen)) == 3


@pytest.mark.parametrize("option", list(POOLS))
def test_pooling_changes_what_is_trained_on(option: str, tmp_path: Path) -> None:
    section = data(POOLS[option])(tmp_path)
    if section["kind"] == "builtin":
        section["names"] = ["sp500", "nasdaq"]
    if section["kind"] == "files":
        section["paths"] = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    base, change = pool_effects(POOLS[option])[option]
    assert fingerprint({"data": {**section, **base}, **UNEQUAL_LIMIT}) != fingerprint(
        {"data": {**section, **change}, **UNEQUAL_LIMIT}
    )


def test_options_of_builtin_bars() -> None:
    assert fingerprint({"data": {"kind": "builtin"}}) != fingerprint({})
    assert fingerprint({"data": {"kind": "builtin"}}) != fingerprint({"data": {"kind": "builtin", "names": ["nasdaq"]}})


def test_options_of_files(tmp_path: Path) -> None:
    section = write_files(tmp_path)

    def of(name: str, **options: Any) -> str:
        return fingerprint({"data": {**section, "paths": [str(tmp_path / name)], **options}})

    plain = of("a.parquet")
    assert plain != of("b.parquet") and plain != fingerprint({})
    assert plain != of("a.parquet", symbols=["NAMED"])
    assert of("broken.parquet", repair="drop") != of("broken.parquet", repair="clip")
    assert of("adjusted.parquet", adjust="consistent") != of("adjusted.parquet", adjust="ignore")
    assert plain != of("a.parquet", periods_per_year=100)
    assert of("numbers.csv", time_unit="ms") != of("numbers.csv", time_unit="s")
    closes = {how: of("closes.csv", close_only=how) for how in ("previous_close", "same_close")}
    assert closes["previous_close"] != closes["same_close"]
    with pytest.raises(DataError, match="--close-only"):
        of("closes.csv")


@pytest.mark.parametrize(
    ("limit", "value", "spoil"),
    [("stale_bars", 2, "gap"), ("absurd_gap", 0.05, "jump"), ("absurd_flat_bars", 3, "flat")],
)
def test_guards_that_need_odd_bars(limit: str, value: float, spoil: str, tmp_path: Path) -> None:
    frame = jump_diffusion(seed=5, length=600).to_frame()
    prices = ["open", "high", "low", "close"]
    if spoil == "gap":
        frame = frame.drop(frame.index[np.concatenate([np.arange(k, k + 5) for k in range(30, 590, 40)])])
    elif spoil == "jump":
        factor = np.where(np.arange(600) // 20 % 2 == 1, 1.2, 1.0)
        frame[prices] = frame[prices].mul(factor, axis=0)
    else:
        for k in range(30, 590, 20):
            frame.iloc[k : k + 6, :4] = frame["close"].iloc[k - 1]
    frame.to_parquet(tmp_path / "odd.parquet")
    section = {"kind": "files", "paths": [str(tmp_path / "odd.parquet")], "periods_per_year": 8760}
    free = fingerprint({"data": section})
    assert free != fingerprint({"data": section, "env": {"guards": {limit: value}}})


def test_leak_check_refuses_or_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "mine.py"
    path.write_text(
        "from tailwise.features.contract import batch_feature\n"
        "@batch_feature('ahead', warm_up=0, unit='ratio', meaning='next close')\n"
        "def ahead(frame):\n    return (frame['close'].shift(-1) / frame['close']).fillna(1.0)\n"
    )
    features = {"include": ["return_1", "ahead"], "modules": [str(path)]}
    checked = MarketWorld(parse_config(merged(BASE, {"features": features}), source="test"))
    with pytest.raises(DataError, match="feature 'ahead' at bar"):
        checked.check_before_training()
    skipped = {"features": {**features, "leak_check": "skip"}}
    verdict = MarketWorld(parse_config(merged(BASE, skipped), source="test")).check_before_training()
    assert verdict["leak_check"]["status"] == "skipped"


def test_modules_bring_features(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from tailwise.features.contract import batch_feature\n"
        "@batch_feature('mine', meaning='the bar itself', unit='fraction', warm_up=0)\n"
        "def mine(frame):\n    return frame['close'] / frame['open'] - 1\n"
    )
    features = {"include": ["return_1", "mine"], "modules": [str(path)]}
    assert fingerprint({"features": features}) != fingerprint({"features": {"include": ["return_1"]}})
    with pytest.raises(ConfigError, match="mine"):
        fingerprint({"features": {"include": ["return_1", "mine"]}})


def test_a_reward_function_changes_what_is_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def reward(step):\n    return 0.01 * step.drawdown\n")
    assert fingerprint({"env": {"reward": {"function": f"{path}:reward"}}}) != fingerprint({})


def test_options_of_ones_own_base(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text(
        "import numpy as np\n"
        "def half(bars):\n    return np.full(len(bars), 0.5)\n"
        "def whole(bars):\n    return np.ones(len(bars))\n"
        "def double(bars):\n    return np.full(len(bars), 2.0)\n"
    )

    def of(name: str, **options: Any) -> str:
        return fingerprint(
            {"env": {"maintenance_margin": 0.1, "base": {"kind": "function", "function": f"{path}:{name}", **options}}}
        )

    assert of("half") != fingerprint({"env": {"maintenance_margin": 0.1}}) and of("half") != of("whole")
    assert of("half", scale=2.0) == of("whole")
    with pytest.raises(DataError, match="largest"):
        of("double")
    assert of("double", largest=2.0, scale=0.5) == of("whole")


LEARNING = {
    "env": {"base": {"kind": "volatility_target"}, "action": {"kind": "exposure", "low": 0, "high": 2}},
    "run": {"total_steps": 96},
}
LIMITED = merged(LEARNING, {"risk": {"mode": "constraint", "limit": {"of": "buy_and_hold", "share": 0.5}}})
PULL = {"kind": "base", "weight": 0.5}
DISCRETE = merged(LEARNING, {"env": {"action": {"kind": "positions", "positions": [0, 0.5, 1]}}})


def disturbed(budget: Change) -> Change:
    """Training against an adversary, of a policy that says something."""
    adversary = {"kind": "sa_ppo", "ramp": 0.0, "weight": 10.0, "budget": budget}
    return {"learner": {"adversary": adversary}, "model": {"actor": {"gain": 1.0}}, "run": {"total_steps": 96}}


def shifted(**changes: Any) -> Change:
    """Training on paths that an adversary shifts, found twice."""
    adversary = {"kind": "path", "size": 0.1, "share": 0.5, "every": 1, "steps": 2, **changes}
    return {"learner": {"adversary": adversary}, "model": {"actor": {"gain": 1.0}}, "run": {"total_steps": 96}}


# option -> (changes of the base, changes that are compared with it): what two updates of training leave behind
LEARNT: dict[str, tuple[Change, Change]] = {
    "learner.prior[base]": (merged(LEARNING, {"learner": {"prior": {"kind": "off"}}}), LEARNING),
    "learner.prior[base].weight": (LEARNING, merged(LEARNING, {"learner": {"prior": PULL}})),
    "learner.prior[base].target": (
        merged(LEARNING, {"learner": {"prior": PULL}}),
        merged(LEARNING, {"learner": {"prior": {**PULL, "target": 0.001}}}),
    ),
    "learner.prior[base].std": (
        merged(LEARNING, {"learner": {"prior": PULL}}),
        merged(LEARNING, {"learner": {"prior": {**PULL, "std": 0.1}}}),
    ),
    "learner.prior[base].mass": (
        merged(DISCRETE, {"learner": {"prior": PULL}}),
        merged(DISCRETE, {"learner": {"prior": {**PULL, "mass": 0.5}}}),
    ),
    "learner.adversary[sa_ppo].budget[bps]": (disturbed({"kind": "std"}), disturbed({"kind": "bps", "size": 20.0})),
    "learner.adversary[sa_ppo].budget[bps].size": (
        disturbed({"kind": "bps", "size": 20.0}),
        disturbed({"kind": "bps", "size": 40.0}),
    ),
    "learner.adversary[path]": (merged(shifted(), {"learner": {"adversary": {"kind": "none"}}}), shifted()),
    "learner.adversary[path].size": (shifted(), shifted(size=0.2)),
    "learner.adversary[path].largest": (shifted(), shifted(largest=1.5)),
    "learner.adversary[path].share": (shifted(), shifted(share=0.9)),
    "learner.adversary[path].every": (shifted(), shifted(every=2)),
    "learner.adversary[path].steps": (shifted(), shifted(steps=1)),
    "risk[constraint].limit.of": (LIMITED, merged(LIMITED, {"risk": {"limit": {"of": "base"}}})),
    "risk[constraint].limit.share": (LIMITED, merged(LIMITED, {"risk": {"limit": {"share": 0.4}}})),
}


def test_table_has_every_option_that_is_learnt_with() -> None:
    learnt = (
        "learner.prior[base]",
        "risk[constraint].limit.",
        "learner.adversary[sa_ppo].budget[bps]",
        "learner.adversary[path]",
    )
    assert {key for key in leaves(Config) if key.startswith(learnt)} == set(LEARNT)


@pytest.mark.parametrize("option", list(LEARNT))
def test_option_changes_what_is_learnt(option: str) -> None:
    def learnt(changes: Change) -> tuple[Any, ...]:
        agent = PPO(config=parse_config(merged(BASE, changes), source="test"))
        agent.learn()
        limits = [row.get("risk/limit") for row in agent.trainer.history]
        return (limits, *(part.detach().numpy().tobytes() for part in agent.trainer.model.parameters()))

    before, after = (learnt(changes) for changes in LEARNT[option])
    assert before != after
    assert learnt(LEARNT[option][1]) == after


def test_report_is_refused_in_a_run() -> None:
    """Training never reads it and playback always reports: a key without effect may not exist."""
    with pytest.raises(ConfigError, match="report is for MarketEnv in Python"):
        parse_config(merged(BASE, {"env": {"report": True}}), source="test")


def test_an_option_that_is_ignored_would_be_noticed() -> None:
    """The fingerprint is the same for the same options, so that a difference means something."""
    assert fingerprint({}) == fingerprint({}) == fingerprint({"costs": {"taker_fee_bps": 2.0}})
