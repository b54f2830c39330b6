"""Configurations that are shipped: `presets/<name>.yaml`, each with its description as the first comment line."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwise.core.config import load_yaml
from tailwise.core.errors import ConfigError

FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class Preset:
    """A shipped configuration: its name, what it shows in one line, and its YAML."""

    name: str
    description: str
    text: str

    @property
    def path(self) -> Path:
        """The file it is read from."""
        return FOLDER / f"{self.name}.yaml"


@dataclass(frozen=True)
class Source:
    """Where a configuration comes from: `label` begins the sentences about it, `name` names its runs."""

    label: str
    name: str
    data: dict[str, Any]


def preset_names() -> list[str]:
    """All presets, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_preset(name: str) -> Preset:
    """One preset; an unknown name is a sentence with the nearest one."""
    names = preset_names()
    if name not in names:
        raise ConfigError(f"there is no preset '{name}'; {_nearest(name, names)}")
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    if not first.startswith("# "):
        raise ConfigError(f"preset '{name}': its first line must be a comment that describes it, found {first!r}")
    return Preset(name, first.removeprefix("# "), text)


def load_source(config: str) -> Source:
    """`config` is the path of a YAML file or the name of a preset; a file of that name comes first.

    What looks like a path (a separator, or the ending .yaml or .yml) is only looked up as a file.
    """
    path = Path(config)
    if path.suffix.lower() in (".csv", ".parquet", ".pq"):
        raise ConfigError(f"{path} holds bars; write a configuration for them with: tailwise init {path}")
    if path.is_file() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return Source(str(path), path.stem, with_full_paths(load_yaml(path), path.resolve().parent))
    names = preset_names()
    if config not in names:
        raise ConfigError(f"'{config}' is neither a file nor a preset; {_nearest(config, names)}")
    return Source(f"preset {config}", config, load_yaml(FOLDER / f"{config}.yaml"))


def _full_path(name: Any, folder: Path, section: str) -> Any:
    """A file beside `folder`; what else may stand there (the name of an importable module) is left alone."""
    if not isinstance(name, str) or (section != "data" and Path(name.partition(":")[0]).suffix != ".py"):
        return name
    return str(folder / name)


def with_full_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Files that a configuration names lie beside it; their full paths let the run be resumed from anywhere."""
    resolved = dict(data)
    for section, key in (("data", "paths"), ("features", "modules")):
        part = data.get(section)
        if isinstance(part, dict) and isinstance(part.get(key), list):
            resolved[section] = {**part, key: [_full_path(name, folder, section) for name in part[key]]}
    learner = data.get("learner")
    imitation = learner.get("imitation") if isinstance(learner, dict) else None
    source = imitation.get("source") if isinstance(imitation, dict) else None
    if isinstance(learner, dict) and isinstance(imitation, dict) and isinstance(source, dict):
        source = dict(source)
        if isinstance(source.get("paths"), list):
            source["paths"] = [_full_path(name, folder, "data") for name in source["paths"]]
        if "rule" in source:
            source["rule"] = _full_path(source["rule"], folder, "learner")
        resolved["learner"] = {**learner, "imitation": {**imitation, "source": source}}
    env = data.get("env")
    for key in ("base", "reward"):
        part = env.get(key) if isinstance(env, dict) else None
        if isinstance(part, dict) and isinstance(part.get("function"), str):
            named = {**part, "function": _full_path(part["function"], folder, "env")}
            resolved["env"] = {**resolved["env"], key: named}
    return resolved


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"presets: {', '.join(names)}."
