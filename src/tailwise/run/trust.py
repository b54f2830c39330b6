"""The door to runs: what opening one would execute, and whether this user wants that.

A configuration can name code that lies outside Tailwise and Gymnasium: modules with features, environments, programs
that are told about alerts. In a run of one's own that is nothing new. In a run that came from elsewhere it is a program
of a stranger, so it is executed only where the caller says so: --trust, in Python trust=True. See docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import gymnasium as gym

from tailwise.core.errors import TrustError
from tailwise.core.signature import Origin
from tailwise.learner.config import Demonstrations
from tailwise.run.config import Config
from tailwise.run.notify import VARIABLE
from tailwise.run.run_folder import CONFIG, origin_of_run, read_config

Trust = bool | Config  # True: whatever is named; a configuration of the caller's: the code that it names
_OWN_PACKAGES = ("tailwise", "gymnasium")
_MOST_LISTED, _LONGEST = 10, 200


def open_config(run_dir: Path, *, training: bool, trust: Trust = False) -> Config:
    """The configuration of a run, to be acted on; TrustError if that would execute the code of somebody else.

    training: also what only training does, which is to tell others about alerts. `read_config` is for those who only
    look at a run and execute nothing.
    """
    config = read_config(run_dir)
    code = code_named_by(config, training=training)
    if code:
        origin = origin_of_run(run_dir)
        if origin.own and read_config(run_dir) != config:  # exchanged between the reading and the check
            origin = Origin(False, f"its {CONFIG} is changing while it is read")
        require_trust(str(run_dir), code, origin, trust)
    return config


def require_trust(what: str, code: Sequence[str], origin: Origin, trust: Trust) -> None:
    """Raise TrustError unless `what` is the user's own, executes nothing, or is trusted."""
    allowed = code_named_by(trust, training=True) if isinstance(trust, Config) else code if trust else ()
    foreign = [name for name in code if name not in allowed]
    if foreign and not origin.own:
        raise TrustError(
            f"{what}: using it would execute code that is no part of Tailwise: {_listed(foreign)}. It is not known to "
            f"be yours: {origin.reason}. Read that code first; if it may do on this computer whatever it wants, pass "
            "--trust (in Python trust=True)."
        )


def code_named_by(config: Config, *, training: bool, modules: Iterable[str] = ()) -> tuple[str, ...]:
    """Everything outside Tailwise and Gymnasium that acting on a configuration executes or calls, a phrase each.

    modules: those that a policy's features name beside the configuration.
    """
    named = [*(() if config.features is None else config.features.modules), *modules]
    code = [f"features.modules {name!r}" for name in dict.fromkeys(named)]
    market = config.env.market
    if market is not None and market.base is not None and market.base.code is not None:
        code.append(f"env.base.function {market.base.code!r}")
    if training and market is not None and market.reward.function is not None:
        code.append(f"env.reward.function {market.reward.function!r}")
    if config.env.gym_id is not None:
        code += _environment_code(config.env.gym_id)
    imitation = config.learner.imitation
    if training and isinstance(imitation, Demonstrations) and imitation.source.code is not None:
        code.append(f"learner.imitation.source.rule {imitation.source.code!r}")
    if training:
        code += [f"notify.commands {' '.join(map(repr, command.argv))}" for command in config.notify.commands]
        code += [_webhook(webhook.url) for webhook in config.notify.webhooks]
    return tuple(code)


def _environment_code(identifier: str) -> list[str]:
    """The module that an id names, or the entry point that it is registered with, unless it is Gymnasium's or ours."""
    module, separator, _ = identifier.partition(":")
    if separator:
        return [f"env.id {identifier!r}, which imports the module {module!r}"]
    # Gymnasium takes the newest version of an id that is given without one.
    specs = [spec for name, spec in gym.registry.items() if name == identifier or name.startswith(f"{identifier}-v")]
    homes = [_home(spec.entry_point) for spec in specs]
    return [
        f"env.id {identifier!r}, which is {home}"
        for home in dict.fromkeys(homes)
        if home.partition(":")[0].partition(".")[0] not in _OWN_PACKAGES
    ]


def _webhook(url: str) -> str:
    """Where alerts would be sent, and what of this user's environment with them; not the path, which may be secret."""
    variables = ", ".join(VARIABLE.findall(url))
    host = urlsplit(VARIABLE.sub("X", url)).hostname
    return f"notify.webhooks to {host!r}" + (f" with the environment variables {variables}" if variables else "")


def _home(entry_point: object) -> str:
    """module:name of what builds an environment."""
    if isinstance(entry_point, str):
        return entry_point
    return f"{getattr(entry_point, '__module__', '?')}:{getattr(entry_point, '__qualname__', '?')}"


def _listed(code: Sequence[str]) -> str:
    parts = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in code[:_MOST_LISTED]]
    more = [f"{len(code) - _MOST_LISTED} more"] if len(code) > _MOST_LISTED else []
    return "; ".join(parts + more)
