"""Every preset trains: three updates for real, kept, with finite metrics and weights that move."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwise.core.config import load_yaml
from tailwise.core.errors import ConfigError
from tailwise.run.config import parse_config
from tailwise.run.presets import load_preset, load_source, preset_names
from tests.run.three_updates import assert_trains

EXPECTED = [
    "acrobot",
    "ar1",
    "cartpole",
    "cartpole-memory",
    "categorical",
    "gru",
    "inverted-pendulum",
    "leak",
    "pendulum",
    "portfolio",
    "random-walk",
    "scalar",
    "sine",
    "sp500",
]


def test_all_presets_are_found() -> None:
    assert preset_names() == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_every_preset_trains(name: str) -> None:
    """Rejects a preset that only parses: an update that is refused, or a part of the model that no gradient reaches."""
    if name == "inverted-pendulum":
        pytest.importorskip("mujoco", reason="this preset needs mujoco, which is in the extra 'bench'")
    source = load_source(name)
    assert_trains(source.data, source=source.label)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_preset_describes_itself_in_one_line(name: str) -> None:
    preset = load_preset(name)
    assert preset.description.endswith(".")
    assert 20 < len(preset.description) < 110
    assert preset.text.startswith(f"# {preset.description}\n")
    assert load_source(name).data == load_yaml(preset.path)


def test_what_a_preset_promises_is_in_its_configuration() -> None:
    """Rejects a preset whose name says one thing and whose YAML trains another."""

    def config(name: str):  # type: ignore[no-untyped-def]
        return parse_config(load_source(name).data, source=name)

    assert config("cartpole-memory").model.core.kind == "lstm"
    assert config("cartpole-memory").env.hide == (1, 3)
    assert config("gru").model.core.kind == "gru"
    assert config("gru").env == config("cartpole-memory").env
    assert config("categorical").model.critic.kind == "categorical"
    assert config("scalar").model.critic.kind == "scalar"
    assert config("scalar").tail_alpha is None
    assert config("cartpole").tail_alpha == 0.05


def test_an_unknown_preset_is_a_sentence_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="there is no preset 'cart-pole'; did you mean 'cartpole'"):
        load_preset("cart-pole")
    with pytest.raises(ConfigError, match="'pendulun' is neither a file nor a preset; did you mean 'pendulum'"):
        load_source("pendulun")
    with pytest.raises(ConfigError, match="'qqqq' is neither a file nor a preset; presets: acrobot, ar1, cartpole"):
        load_source("qqqq")


def test_a_file_comes_before_a_preset_and_names_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cartpole").write_text("seed: 5\n")
    assert load_source("cartpole").data == {"seed": 5}
    Path("mine.yaml").write_text("seed: 6\n")
    source = load_source("mine.yaml")
    assert (source.label, source.name, source.data) == ("mine.yaml", "mine", {"seed": 6})
    with pytest.raises(ConfigError, match=r"cartpole\.yaml: there is no such file"):
        load_source("cartpole.yaml")
