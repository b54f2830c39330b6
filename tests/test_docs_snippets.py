"""Every block of code in the documentation runs: Python of a page in one namespace, from top to bottom, in an empty
folder; YAML is a valid configuration; command lines have options that exist, and those marked `sh` are run too.

Blocks that need what a page does not make (bars, a run, a feed) find it by the code of SETUP.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tailwise.cli.main import app, main
from tailwise.run.config import parse_config

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
ELSEWHERE = {
    "python.md": "test_docs_pages.py",
    "migration.md": "test_docs_pages.py",
    "nautilus.md": "live/test_nautilus.py, where the package is installed",
    "mutants.md": "benchmarks/mutants.py, of which it shows one entry",
}
BARS = """
from tailwise.bars.builtin import sp500
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
bars = sp500()
config = FeaturesConfig(include=("return_1", "volatility_20"))
spec = FeatureSpec.fit(config, [bars.between(None, "2010-01-01")])
features = spec.table(bars)
"""
RUN = """
import tailwise
_small = {
    "data": {"kind": "builtin", "names": ["sp500"]},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "action": {"kind": "positions", "positions": [0, 1]}},
    "learner": {"gamma": 0.9},
    "run": {"total_steps": 256, "environments": 4, "rollout_steps": 64},
}
_agent = tailwise.PPO(config=_small, run_dir="runs/demo-1")
_agent.learn(progress=False)
"""
FEED = """
import numpy as np
from tailwise.market.account import FeedBar
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
feature_names, config, costs = features.names, MarketEnvConfig(), CostConfig()
_bars = [
    (bars.time[i], FeedBar(bars.open[i], bars.high[i], bars.low[i], bars.close[i], bars.volume[i], features.values[i]))
    for i in range(100, 110)
]
warm_up, feed = _bars[:5], _bars[5:]
policy = lambda observation: 1
"""
# What a page takes for granted, run before its first block.
SETUP = {
    "features.md": "import numpy as np\ntime, open, high, low, close, volume = 0, 1.0, 1.0, 1.0, 1.0, 1.0\n",
    "market.md": BARS + FEED,
    "bars.md": "from tailwise.bars.bars import save_bars\nfrom tailwise.bars.builtin import sp500\n"
    "save_bars(sp500(), 'btc.csv')\n",
    "portfolio.md": BARS + "from tailwise.bars.builtin import nasdaq\n"
    "assets = [(bars, features), (nasdaq(), spec.table(nasdaq()))]\n",
    "evidence.md": RUN + "tailwise.judge('runs/demo-1', stress=False)\n",
    "commands/data-leak-check.md": BARS,
    "commands/export.md": RUN
    + "import numpy as np\nfrom pathlib import Path\nfrom tailwise.live.export import export_onnx\n"
    "export_onnx(_agent, Path('policy.onnx'), steps=20)\n"
    "np.save('observations.npy', np.zeros((3, _agent.model.observation.size), dtype=np.float32))\n",
}
FULL = {"env": {"kind": "market"}, "data": {"kind": "builtin", "names": ["sp500"]}, "features": {}, "costs": {}}


def pages() -> list[str]:
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """(kind, text) of the blocks of these kinds."""
    return [found for found in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")) if found[0] in kinds]


def with_code(*kinds: str) -> list[str]:
    return [page for page in pages() if blocks(page, *kinds) and page not in ELSEWHERE]


@pytest.mark.parametrize("page", with_code("python", "sh"))
@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # its runs are far too small
@pytest.mark.timeout(600)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a page that shows a name, an argument or an option which is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": "__page__"}
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        exec(SETUP.get(page, ""), names)
        for kind, text in blocks(page, "python", "sh"):
            if kind == "python":
                exec(compile(text, page, "exec"), names)
                continue
            for line in text.strip().splitlines():
                words = shlex.split(line)
                assert words[0] == "tailwise", line
                assert main(words[1:]) == 0, line
    assert time.process_time() - began < 60, "a page is not read that long"


def test_all_pages_with_code_are_run_somewhere() -> None:
    """Rejects a page that was deleted and is still excused, and a setup for a page without code."""
    known = set(pages())
    assert set(ELSEWHERE) <= known and set(SETUP) <= set(with_code("python"))
    assert len(with_code("python", "sh")) >= 15


def command_of(words: list[str]) -> None:
    """Parse a command line as the program would, without running it."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(" ".join(words[: len(words) - len(rest)]), list(rest))


def typed_lines() -> list[tuple[str, str]]:
    """(page, line) of every command line that a reader could type: no synopsis, whose brackets say what is optional."""
    lines = []
    for page in pages():
        for _, text in blocks(page, "", "sh", "text", "console"):
            for line in re.sub(r"\\\n\s*", "", text).splitlines():
                typed = re.split(r" [|>] | +#| \.\.\.", line.removeprefix("$ "))[0]
                if typed.startswith("tailwise ") and not re.search(r"[\[{|]|\.\.\.|[A-Z]{3}", typed):
                    lines.append((page, typed))
    return lines


def test_command_lines_have_options_that_exist() -> None:
    """Rejects an option that was renamed and a command that is gone."""
    lines, wrong = typed_lines(), []
    for page, line in lines:
        try:
            command_of(shlex.split(line))
        except typer.Exit:
            continue  # --help, --version
        except typer.TyperException as error:
            wrong.append(f"{page}: {line}: {error}")
    assert wrong == [] and len(lines) >= 30
    with pytest.raises(typer.TyperException, match="--seeds"):
        command_of(["tailwise", "train", "x.yaml", "--seeds", "5"])


@pytest.mark.parametrize("page", [page for page in with_code("yaml") if page != "commands/tune.md"])
def test_the_yaml_of_a_page_is_a_configuration(page: str) -> None:
    """Rejects a key that the page shows and the configuration does not have."""
    for _, text in blocks(page, "yaml"):
        shown = yaml.safe_load(text)
        base = {} if shown.get("env", {}).get("kind") == "gym" or "id" in shown.get("env", {}) else FULL
        full = {
            key: {**base.get(key, {}), **value} if isinstance(value, dict) else value for key, value in shown.items()
        }
        if "kind" in shown.get("data", {}):
            full["data"] = shown["data"]
        assert set(shown) <= parse_config({**base, **full}, source=page).model_fields_set
