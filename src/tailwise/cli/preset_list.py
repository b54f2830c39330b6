"""`tailwise presets`; apart from the other commands because it needs no torch."""

from __future__ import annotations

from tailwise.run.presets import load_preset, preset_names


def print_presets(name: str | None) -> None:
    """All presets with a line each, or the YAML of one."""
    if name is not None:
        print(load_preset(name).text, end="")
        return
    presets = [load_preset(each) for each in preset_names()]
    width = max(len(preset.name) for preset in presets)
    for preset in presets:
        print(f"{preset.name:<{width}}  {preset.description}")
