"""What the fused backend does not cover is refused in a sentence that names the option; `auto` takes torch."""

from __future__ import annotations

from typing import Any

import pytest

from tailwise.core.errors import ConfigError
from tailwise.fused.backend import FusedBackend
from tailwise.learner.ppo import TorchBackend
from tailwise.run.backends import make_backend
from tests.support import small_backend, small_run, small_trainer

UNCOVERED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": {"encoder": {"activation": "silu"}}}, "discrete", r"model\.encoder\.activation silu"),
    ({"model": {"norm": "layer"}}, "discrete", r"model\.norm layer"),
    ({"model": {"core": {"kind": "lstm", "layers": 2}}}, "discrete", r"model\.core\.layers 2"),
    ({"model": {"critic": {"kind": "categorical", "particles": 8}}}, "discrete", r"model\.critic\.kind categorical"),
    ({"model": {"critic": {"mean": "quantiles"}}}, "discrete", r"model\.critic\.mean quantiles"),
    ({"model": {"critic": {"clip": {"kind": "mean_only"}}}}, "discrete", r"model\.critic\.clip\.kind mean_only"),
    ({"learner": {"awr": {"kind": "on"}}}, "discrete", r"learner\.awr\.kind on"),
    ({"learner": {"optimiser": {"kind": "upgd"}}}, "discrete", r"learner\.optimiser\.kind upgd"),
    ({"learner": {"optimiser": {"kind": "upgd_w"}}}, "discrete", r"learner\.optimiser\.kind upgd_w"),
    ({"learner": {"optimiser": {"kind": "ada_upgd"}}}, "discrete", r"learner\.optimiser\.kind ada_upgd"),
    (
        {"learner": {"optimiser": {"kind": "adamw", "shrink_perturb": 1e-4}}},
        "discrete",
        r"learner\.optimiser\.shrink_perturb 0\.0001",
    ),
    (
        {"learner": {"variance_scaling": {"kind": "on"}, "microbatches": 2}},
        "discrete",
        r"learner\.variance_scaling\.kind on",
    ),
    ({}, "multidiscrete", "action space is multidiscrete"),
]


@pytest.mark.parametrize(("changes", "action", "sentence"), UNCOVERED)
def test_an_option_outside_the_list(changes: dict[str, Any], action: str, sentence: str) -> None:
    """Rejects a silent torch under `fused`, and a silent choice under `auto`."""
    made = small_backend(model=changes.get("model"), learner=changes.get("learner"), action=action)
    rest = (made.model, made.config, made.streams)
    with pytest.raises(ConfigError, match=f"backend fused: .*{sentence}"):
        make_backend("fused", *rest, threads=1)
    backend, why = make_backend("auto", *rest, threads=1)
    assert type(backend) is TorchBackend and why.startswith("torch, because ")
    with pytest.raises(ConfigError, match=sentence):
        FusedBackend(*rest)


def test_an_auxiliary_loss_is_outside_the_list() -> None:
    made = small_backend()
    rest = (made.model, made.config, made.streams)
    extra = [("teacher", lambda model, features, params, batch: params.sum())]
    with pytest.raises(ConfigError, match="auxiliary loss 'teacher'"):
        make_backend("fused", *rest, threads=1, auxiliary=extra)
    assert make_backend("auto", *rest, threads=1, auxiliary=extra)[1].startswith("torch, because the auxiliary loss")


def test_the_configuration_refuses_early() -> None:
    """Before an environment is made."""
    with pytest.raises(
        ConfigError, match=r"backend fused: model\.norm layer is not covered; use none, or backend torch"
    ):
        small_run(backend="fused", model={"norm": "layer"})


@pytest.mark.parametrize(("wanted", "kind"), [("auto", FusedBackend), ("fused", FusedBackend), ("torch", TorchBackend)])
def test_the_trainer_takes_what_is_wanted_and_says_so(wanted: str, kind: type) -> None:
    trainer = small_trainer(backend=wanted)
    assert type(trainer.backend) is kind
    assert trainer.backend_choice.startswith("torch, as configured" if wanted == "torch" else "fused, ")
