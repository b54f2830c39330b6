"""`tailwise export RUN --onnx`: one file that onnxruntime plays, compared with torch on real observations.

The file holds normaliser, network and return scale, and in its metadata what a program needs to feed it: names of the
observation, feature spec, action, market and digests. What was compared is said with its error; where it is too large
nothing is written.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tailwise.core import VERSION
from tailwise.core.atomic import write_bytes
from tailwise.core.errors import ConfigError, DataError
from tailwise.live.onnx_module import OnnxPolicy, law_levels
from tailwise.model.actor_critic import decide_padded
from tailwise.run.envs import EnvDriver
from tailwise.run.forecast import forecast_of
from tailwise.run.policy import Policy
from tailwise.run.policy_files import policy_tensors

OPSET = 18
FORMAT = "1"
TOLERANCE = 1e-5  # of every output, relative to max(1, |value|)
STEPS = 10_000
_PREFIX = "tailwise."
_ROWS = 2  # of the example that is traced: with one, an exporter may take the number of rows for a constant


@dataclass(frozen=True)
class Exported:
    """What was written and how it compares.

    file       None where it was not written because the comparison failed
    size       bytes
    decisions  that were compared, with the hidden state fed back; resets: episodes that began among them
    errors     largest |difference| / max(1, |value|) of each output
    flipped    decisions with another action
    """

    file: Path | None
    size: int
    decisions: int
    resets: int
    errors: dict[str, float]
    flipped: int

    @property
    def passed(self) -> bool:
        """Whether every output is within the tolerance and no action flipped."""
        return self.flipped == 0 and max(self.errors.values()) <= TOLERANCE

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "file": None if self.file is None else str(self.file),
            "bytes": self.size,
            "decisions": self.decisions,
            "resets": self.resets,
            "tolerance": TOLERANCE,
            "errors": self.errors,
            "flipped": self.flipped,
        }

    def sentences(self) -> list[str]:
        worst = max(self.errors, key=lambda name: self.errors[name])
        compared = (
            f"compared with torch over {self.decisions:,} decisions on real observations, hidden state fed back "
            f"({self.resets:,} episodes): {self.flipped:,} actions differ, largest error {self.errors[worst]:.1e} "
            f"({worst}; at most {TOLERANCE:g} is allowed)"
        )
        if self.file is None:
            return [f"not written: {compared}."]
        return [f"{self.file}: {self.size:,} bytes, {compared}."]


def export_onnx(policy: Policy, path: Path, *, steps: int = STEPS, name: str = "") -> Exported:
    """Write the policy as one ONNX file, after onnxruntime has decided as torch does over `steps` decisions of its own
    environment; name: of the checkpoint, for the metadata."""
    driver = policy.world().eval_env("test", episodes=8, seed=policy.config.seed)
    try:
        driver.reset()
        module = OnnxPolicy(policy.model, masked=driver.mask is not None).eval()
        data = _with_metadata(_traced(module), metadata_of(policy, driver, name))
        compared = _compare(policy, module, data, driver, steps)
    finally:
        driver.close()
    if not compared.passed:
        return compared
    write_bytes(path, data)
    return Exported(path, len(data), compared.decisions, compared.resets, compared.errors, compared.flipped)


def metadata_of(policy: Policy, driver: EnvDriver, name: str) -> dict[str, str]:
    """What the file says of itself, all texts; those with structure are JSON."""
    config, spec = policy.config, policy.features
    settings = config.model_dump(mode="json")
    features = None if spec is None else spec.to_json()
    market = config.env.market
    names = getattr(getattr(driver.venv, "simulator", None), "names", None) if market is not None else None
    digest = hashlib.sha256()
    for key, tensor in sorted(policy_tensors(policy.model).items()):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    risk = settings["risk"]
    values: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "checkpoint": name,
        "policy_sha256": digest.hexdigest(),
        "config_sha256": _digest(settings),
        "features_sha256": _digest(features),
        "features": features,
        "observation": policy.model.observation.to_json(),
        "observation_names": None if names is None else list(names),
        "action": policy.model.action.to_json(),
        "market": settings["env"] if market is not None else None,
        "costs": settings.get("costs"),
        "risk": risk,
        "gamma": config.learner.gamma,
        "quantiles": law_levels(policy.model),
        "state_shape": list(policy.model.state_shape),
    }
    return {
        _PREFIX + key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in values.items()
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def require_onnx() -> None:
    """ConfigError unless the packages of the extra `export` are installed."""
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} is not installed; install the extra: pip install tailwise[export].")


def _traced(module: OnnxPolicy) -> bytes:
    """The module as an ONNX model, any number of rows."""
    require_onnx()
    rows = {name: {0: "rows"} for name in (*module.inputs, *module.outputs)}
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The tracing exporter takes 0.2 s and writes one file; the newer one takes 4 to 10 s. Both warn that the other
        # exists, and the tracer that a branch is fixed, which one step per call is meant to be.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module,
                module.example(_ROWS),
                buffer,  # type: ignore[arg-type]  # it takes what can be written to; its annotation names paths alone
                dynamo=False,
                opset_version=OPSET,
                input_names=module.inputs,
                output_names=module.outputs,
                dynamic_axes=rows,
            )
        except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
            first = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"this network cannot be written as ONNX: {first} A custom encoder must be made of operations that the "
                "exporter knows."
            ) from error
    return buffer.getvalue()


def _with_metadata(data: bytes, values: dict[str, str]) -> bytes:
    import onnx

    model = onnx.load_from_string(data)
    onnx.helper.set_model_props(model, values)
    model.producer_name, model.producer_version = "tailwise", VERSION
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def session_of(data: bytes | str) -> Any:
    """An onnxruntime session with one thread: more only wait for one another in networks this small."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _compare(policy: Policy, module: OnnxPolicy, data: bytes, driver: EnvDriver, steps: int) -> Exported:
    """Play the environment by torch and ask onnxruntime for the same decisions, each with its own hidden state."""
    session, model = session_of(data), policy.model
    obs, mask = driver.reset()
    rows = driver.num_envs
    state = model.initial_state(rows)
    fed = state.numpy().copy()
    errors = dict.fromkeys(module.outputs, 0.0)
    flipped = resets = decisions = 0
    while decisions < steps:
        if not np.isfinite(obs).all():
            raise DataError("the environment shows NaN or infinite numbers; there is nothing to compare on.")
        start = driver.episode_start
        resets += int(np.count_nonzero(start))
        made = decide_padded(
            model,
            torch.from_numpy(obs),
            state,
            torch.from_numpy(start),
            None if mask is None else torch.from_numpy(mask),
            None,
        )
        state = made.state
        action = model.action.to_env(made.action.numpy(), squashed=model.law.squashed)
        given = {"obs": obs, "state": fed, "start": start, "mask": mask}
        answers = dict(zip(module.outputs, session.run(None, {key: given[key] for key in module.inputs}), strict=True))
        fed = answers.get("next_state", fed)
        wanted = _expected(policy, module, made.params, made.features, state, action)
        for key, values in wanted.items():
            gap = np.abs(answers[key].astype(np.float64).reshape(rows, -1) - values.reshape(rows, -1))
            errors[key] = max(errors[key], float((gap / np.maximum(1.0, np.abs(values.reshape(rows, -1)))).max()))
            if key == "action":
                flipped += int((gap > (0 if model.law.discrete else TOLERANCE)).any(axis=1).sum())
        decisions += rows
        result = driver.step(action)
        obs, mask = result.obs, result.mask
    return Exported(None, len(data), decisions, resets, errors, flipped)


def _expected(
    policy: Policy,
    module: OnnxPolicy,
    params: torch.Tensor,
    features: torch.Tensor,
    state: torch.Tensor,
    action: npt.NDArray[Any],
) -> dict[str, npt.NDArray[np.float64]]:
    """What every output should be, by the functions that playback and `law` use."""
    model = policy.model
    forecast = forecast_of(model, policy.config, features)
    values: dict[str, Any] = {"action": action, "expected": forecast.mean}
    if model.law.discrete:
        parts = torch.split(params.double(), list(model.action.sizes), dim=-1)
        values["probabilities"] = torch.cat([part.softmax(-1) for part in parts], dim=-1)
    else:
        values["mean"], log_std = params.double().chunk(2, dim=-1)
        values["std"] = log_std.exp()
    if module.has_law:
        values["quantiles"] = forecast.quantiles
    if module.has_state:
        values["next_state"] = state
    return {key: np.asarray(value, dtype=np.float64) for key, value in values.items()}
