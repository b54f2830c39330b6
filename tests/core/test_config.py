"""A wrong configuration is a sentence with the key, the value and the fix; a right one comes back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from tailwise.core.config import Section, apply_overrides, dump_yaml, load_yaml, parse
from tailwise.core.errors import ConfigError, TailwiseError


class NoCore(Section):
    kind: Literal["none"] = "none"


class LstmCore(Section):
    kind: Literal["lstm"] = "lstm"
    hidden: int = Field(default=64, ge=1, le=4096, description="units of the hidden state")
    # The word "none" is also the tag of another kind: the sentence must not take this field for the tag.
    norm: Literal["none", "layer"] = "none"


AnyCore = Annotated[LstmCore | NoCore, Field(discriminator="kind")]


class Report(Section):
    mode: Literal["report"] = "report"


class Constraint(Section):
    mode: Literal["constraint"] = "constraint"
    limit: float


class ModelSection(Section):
    core: AnyCore = NoCore()
    encoder: tuple[int, ...] = (64, 64)
    extra_cores: tuple[AnyCore, ...] = ()


class LearnerSection(Section):
    clip: float = Field(default=0.2, gt=0, lt=1, description="largest change of the probability ratio")
    dual_clip: float | None = 3.0
    epochs: int = 4
    lam: float = Field(default=0.95, ge=0, le=1, alias="lambda")  # `lambda` is a word of Python
    recompute: bool = False

    @model_validator(mode="after")
    def _dual_clip_lies_above(self) -> Self:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip:
            raise ValueError(f"dual_clip {self.dual_clip} must exceed 1 + clip = {1 + self.clip}; raise it or set null")
        return self


class Tree(Section):
    model: ModelSection = ModelSection()
    learner: LearnerSection = LearnerSection()
    risk: Annotated[Report | Constraint, Field(discriminator="mode")] = Report()  # its tag is not called kind
    seed: int = 0
    env: str


GOOD: dict[str, Any] = {"env": "CartPole-v1"}


def refusal(data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(Tree, data, source="run.yaml")
    assert isinstance(caught.value, TailwiseError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"learner": {"clp": 0.1}}, "key 'learner.clp' is unknown; did you mean 'learner.clip'?"),
        ({"lerner": {}}, "key 'lerner' is unknown; did you mean 'learner'?"),
        ({"epochs": 3}, "key 'epochs' is unknown; did you mean 'learner.epochs'?"),
        ({"zzz": 3}, "key 'zzz' is unknown; keys allowed here: model, learner, risk, seed, env."),
        (
            {"model": {"core": {"kind": "lstm", "hiden": 3}}},
            "key 'model.core.hiden' is unknown where model.core.kind is 'lstm'; did you mean 'model.core.hidden'?",
        ),
        (
            {"model": {"core": {"kind": "none", "hidden": 3}}},
            "key 'model.core.hidden' does not exist where model.core.kind is 'none'; remove it, or set "
            "model.core.kind to lstm.",
        ),
        (
            {"model": {"extra_cores": [{"kind": "none"}, {"kind": "lstm", "hiden": 3}]}},
            "key 'model.extra_cores[1].hiden' is unknown where model.extra_cores[1].kind is 'lstm'; did you mean "
            "'model.extra_cores[1].hidden'?",
        ),
        (
            {"model": {"core": {"kind": "lsmt"}}},
            "key 'model.core.kind' is 'lsmt'; allowed: lstm, none; did you mean 'lstm'?",
        ),
        (
            {"model": {"core": {"hidden": 3}}},  # the default kind, none, is filled in
            "key 'model.core.hidden' does not exist where model.core.kind is 'none'; remove it, or set "
            "model.core.kind to lstm.",
        ),
        (
            {"risk": {"limit": -3}},
            "key 'risk.limit' does not exist where risk.mode is 'report'; remove it, or set risk.mode to constraint.",
        ),
        ({"model": {"core": "lstm"}}, "key 'model.core' is 'lstm'; a mapping of keys to values is needed here."),
        (
            {"model": {"core": {"kind": "lstm", "norm": "batch"}}},
            "key 'model.core.norm' is 'batch'; it should be 'none' or 'layer'.",
        ),
    ],
)
def test_a_wrong_key_or_kind_is_named_with_what_was_meant(data: dict[str, Any], sentence: str) -> None:
    assert refusal({**GOOD, **data}) == f"run.yaml: {sentence}"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"learner": {"clip": 3}},
            "key 'learner.clip' is 3; it should be less than 1 (largest change of the probability ratio).",
        ),
        ({"model": {"core": {"kind": "lstm", "hidden": 0}}}, "key 'model.core.hidden' is 0; it should be greater than"),
        ({"learner": {"lambda": 2}}, "key 'learner.lambda' is 2; it should be less than or equal to 1."),
        ({"learner": {"lambda": True}}, "key 'learner.lambda' is true; a number is needed here, not a truth value."),
        ({"learner": {"lambdda": 1}}, "key 'learner.lambdda' is unknown; did you mean 'learner.lambda'?"),
        ({"learner": {"lam": 1}}, "key 'learner.lam' is unknown; did you mean 'learner.lambda'?"),
        ({"learner": {"clip": float("nan")}}, "key 'learner.clip' is nan; it should be a finite number"),
        ({"learner": {"dual_clip": float("inf")}}, "key 'learner.dual_clip' is inf; it should be a finite number"),
        ({"learner": {"epochs": "many"}}, "key 'learner.epochs' is 'many'; it should be a valid integer"),
        ({"learner": {"epochs": 2.5}}, "key 'learner.epochs' is 2.5; it should be a valid integer"),
        ({"model": {"encoder": [64, "x"]}}, "key 'model.encoder[1]' is 'x'; it should be a valid integer"),
        ({"learner": 3}, "key 'learner' is 3; a mapping of keys to values is needed here."),
        ({"learner": None}, "key 'learner' is None; a mapping of keys to values is needed here."),
        ({"learner": {"dual_clip": 1.1}}, "learner: dual_clip 1.1 must exceed 1 + clip = 1.2; raise it or set null."),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(data: dict[str, Any], sentence: str) -> None:
    assert refusal({**GOOD, **data}).startswith(f"run.yaml: {sentence}")


def test_the_kind_may_be_left_out() -> None:
    """Rejects a discriminated union that needs `kind` again when only one key of the default kind is changed."""

    class Memory(Section):
        core: AnyCore = LstmCore()
        other: AnyCore = NoCore()

    memory = parse(Memory, {"core": {"hidden": 3}, "other": {}}, source="x")
    assert memory.core == LstmCore(hidden=3)
    assert memory.other == NoCore()
    given = {"core": {"hidden": 3}}
    parse(Memory, given, source="x")
    assert given == {"core": {"hidden": 3}}  # what the caller passed is not changed
    assert parse(Memory, {"core": {"kind": "none"}}, source="x").core == NoCore()  # a kind that is given stands

    class Required(Section):
        core: AnyCore

    with pytest.raises(ConfigError, match=r"key 'core\.kind' is required; choose one of lstm, none"):
        parse(Required, {"core": {"hidden": 3}}, source="x")


def test_only_true_and_false_are_truth_values(tmp_path: Path) -> None:
    """Rejects YAML 1.1, in which off, on, yes and no are truth values: `mode: off` would become false."""
    text = "a: off\nb: on\nc: yes\nd: no\ne: Off\nf: y\ng: true\nh: False\ni: 'true'\nj: [off, TRUE]\n"
    (tmp_path / "c.yaml").write_text(text)
    words = {"a": "off", "b": "on", "c": "yes", "d": "no", "e": "Off", "f": "y"}
    assert load_yaml(tmp_path / "c.yaml") == {**words, "g": True, "h": False, "i": "true", "j": ["off", True]}
    assert yaml.safe_load("a: off") == {"a": False}
    assert apply_overrides({}, ["risk.mode=off", "twin=true"]) == {"risk": {"mode": "off"}, "twin": True}


def test_a_word_that_yaml_calls_a_truth_value_survives_writing_and_reading(tmp_path: Path) -> None:
    class Switch(Section):
        mode: Literal["off", "on"] = "off"

    (tmp_path / "c.yaml").write_text(dump_yaml(Switch()))
    assert parse(Switch, load_yaml(tmp_path / "c.yaml"), source="c") == Switch()


def test_off_is_not_the_number_zero() -> None:
    """Rejects plain pydantic, in which `dual_clip: false` silently becomes 0.0."""

    class Plain(BaseModel):
        dual_clip: float | None = 3.0

    assert Plain.model_validate({"dual_clip": False}).dual_clip == 0.0
    expected = "run.yaml: key 'learner.dual_clip' is false; a number is needed here, not a truth value."
    assert refusal({**GOOD, "learner": {"dual_clip": False}}) == expected
    assert parse(Tree, {**GOOD, "learner": {"recompute": True}}, source="x").learner.recompute is True


def test_all_that_is_wrong_is_said_at_once() -> None:
    lines = refusal({"learner": {"clp": 1, "epochs": "x"}, "sed": 1}).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("run.yaml: key '") for line in lines)
    assert {line.split("'")[1] for line in lines} == {"learner.clp", "learner.epochs", "sed", "env"}


@pytest.mark.parametrize("data", [None, [1], "env: x"])
def test_a_top_level_that_is_no_mapping_is_refused(data: Any) -> None:
    assert "run.yaml: a mapping of keys to values is needed" in refusal(data)


def test_a_section_cannot_be_changed_after_it_was_checked() -> None:
    tree = parse(Tree, GOOD, source="x")
    with pytest.raises(ValidationError, match="frozen"):
        tree.learner.clip = 5.0  # type: ignore[misc]


def test_the_effective_yaml_is_complete_ordered_and_reads_back_equal(tmp_path: Path) -> None:
    data = {"env": "x", "seed": 7, "model": {"core": {"kind": "lstm"}}, "learner": {"clip": 0.1 + 0.2, "lambda": 1 / 3}}
    tree = parse(Tree, data, source="x")
    text = dump_yaml(tree)
    assert text.splitlines()[:6] == [
        "model:",
        "  core:",
        "    kind: lstm",
        "    hidden: 64",
        "    norm: none",
        "  encoder: [64, 64]",
    ]
    assert "recompute: false" in text
    assert f"  lambda: {1 / 3}\n" in text
    (tmp_path / "c.yaml").write_text(text)
    assert parse(Tree, load_yaml(tmp_path / "c.yaml"), source="c") == tree  # floats bit for bit


def test_yaml_reads_exponents_as_numbers(tmp_path: Path) -> None:
    """Rejects PyYAML's own reading, in which 3e-4 is a string."""
    (tmp_path / "c.yaml").write_text("a: 3e-4\nb: 1E5\nc: -2e+3\nd: e5\ne: 1_000\nf: 2e3x\n")
    assert load_yaml(tmp_path / "c.yaml") == {"a": 3e-4, "b": 1e5, "c": -2000.0, "d": "e5", "e": 1000, "f": "2e3x"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: this is not valid YAML: key 'a' occurs twice"),
        ("a: [1, 2\n", "line 2, column 1: this is not valid YAML"),
        ("- 1\n- 2\n", "the top level must be a mapping of keys to values, found list"),
        ("a: !!python/object/apply:os.getcwd []\n", "line 1, column 4: this is not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)


def test_absent_folder_and_binary_files_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(b"a: \xff\xfe")
    for path, sentence in [
        (tmp_path / "no.yaml", "there is no such file"),
        (tmp_path, "this is a folder"),
        (tmp_path / "b.yaml", "this is not UTF-8 text"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            load_yaml(path)


def test_an_empty_file_is_an_empty_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert load_yaml(tmp_path / "c.yaml") == {}


def test_overrides_are_applied_in_order_to_a_copy() -> None:
    data: dict[str, Any] = {"learner": {"clip": 0.2, "epochs": 4}, "run": None}
    overrides = ["learner.clip=3e-1", "model.core={kind: lstm}", "learner.clip=0.1", "run.best=null", "env = a=b"]
    assert apply_overrides(data, overrides) == {
        "learner": {"clip": 0.1, "epochs": 4},
        "run": {"best": None},
        "model": {"core": {"kind": "lstm"}},
        "env": "a=b",
    }
    assert data == {"learner": {"clip": 0.2, "epochs": 4}, "run": None}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("learner.clip", "override 'learner.clip' is not key=value"),
        ("=3", "override '=3' is not key=value"),
        ("learner..clip=3", "is not key=value"),
        ("seed.x=3", "'seed' is 1, which has no keys; set 'seed' as a whole"),
        ("learner.clip=[1", "override 'learner.clip=\\[1' line 1.*not valid YAML"),
    ],
)
def test_an_override_that_cannot_be_applied_is_a_sentence(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        apply_overrides({"seed": 1}, [override])


def test_an_overridden_unknown_key_is_found_by_parse() -> None:
    data = apply_overrides(GOOD, ["learner.clp=0.1"])
    with pytest.raises(ConfigError, match=r"command line: key 'learner\.clp' is unknown; did you mean 'learner\.clip'"):
        parse(Tree, data, source="command line")
