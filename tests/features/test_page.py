"""docs/features.md lists the built-in features as they are declared."""

from __future__ import annotations

from pathlib import Path

from tailwise.features.config import DEFAULT_COLUMNS, FeaturesConfig
from tailwise.features.contract import Feature
from tailwise.features.registry import BUILTIN

PAGE = Path(__file__).parents[2] / "docs" / "features.md"


def _warm_up(feature: Feature) -> str:
    """The declared warm-up in words: a number, or the last parameter, less 1 if so."""
    if not feature.parameters:
        return str(feature.warm_up())
    bars = feature.warm_up(*range(100 - len(feature.parameters), 100))
    return {99: feature.parameters[-1], 98: f"{feature.parameters[-1]} - 1"}[bars]


def builtin_table() -> str:
    rows = ["| column | meaning | unit | warm-up, bars |", "|---|---|---|---|"]
    for feature in BUILTIN.values():
        name = feature.name + "".join(f"_{parameter.upper()}" for parameter in feature.parameters)
        meaning = feature.meaning.replace("|", "\\|")
        rows.append(f"| `{name}` | {meaning} | {feature.unit} | {_warm_up(feature)} |")
    return "\n".join(rows)


def test_the_table_of_built_ins_is_the_registry() -> None:
    """If this fails, put the text of `builtin_table()` into the page."""
    assert builtin_table() in PAGE.read_text(encoding="utf-8")


def test_every_key_and_the_default_columns_are_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [key for key in FeaturesConfig.model_fields if f"`{key}`" not in page] == []
    assert f"`{' '.join(DEFAULT_COLUMNS)}`" in page.replace("\n", " ")
