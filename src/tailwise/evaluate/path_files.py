"""Paths of accounts as Parquet for notebooks and other tools: equity.parquet, decisions.parquet, trades.parquet.

Every column carries its unit and meaning in the metadata of its field; times are UTC. equity.parquet holds everything
that a path consists of, so that `read_paths` gives the same paths back.

    equity.parquet      one row per path and bar, indexed by the open time of the bar
    decisions.parquet   one row per path, decision and asset
    trades.parquet      one row per path and round trip, from flat to flat
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from tailwise.core.atomic import write_bytes
from tailwise.core.errors import DataError
from tailwise.core.parsing import Stored, as_stored, parse_json
from tailwise.market.costs import COMPONENTS
from tailwise.market.path import AccountPath, round_trips, trips_frame
from tailwise.market.records import EVENTS
from tailwise.run.run_files import LARGE, Count, read_parquet

if TYPE_CHECKING:
    import pandas as pd

EQUITY, DECISIONS, TRADES = "equity.parquet", "decisions.parquet", "trades.parquet"
_KEY = b"tailwise"  # of the metadata of a file
_FORMAT = 1
_MONEY = "account currency"
_PER_ASSET = ("close", "target", "units", "order_units", "order_price", "exit_units", "exit_price", "event")
UNITS: Mapping[str, tuple[str, str]] = {  # column -> (unit, meaning)
    "time": ("UTC", "open of the bar"),
    "policy": ("", "the policy or rule whose path this is"),
    "symbol": ("", "the account: its symbol, or all of them"),
    **{name: (_MONEY, f"{name.replace('_', ' ')} in the bar") for name in COMPONENTS},
    "equity_before": (_MONEY, "equity at the close before the bar"),
    "equity": (_MONEY, "equity at the close of the bar"),
    "shortfall": (_MONEY, "how far equity lies below the bankruptcy floor"),
    "close": ("price", "close of the bar"),
    "target": ("multiple of equity", "exposure that the decision at the close before the bar asked for"),
    "units": ("units of the asset", "position at the close; negative: short"),
    "order_units": ("units of the asset", "traded by the order"),
    "order_price": ("price", "of the order, before costs; 0: none"),
    "exit_units": ("units of the asset", "traded by a stop, a take-profit or a liquidation"),
    "exit_price": ("price", "of an exit; of a round trip the mean of what reduced and closed it, or the last close"),
    "event": ("", "why there was an exit"),
    "guard": ("bits", "guards that changed a target or an order"),
    "margin_call": ("1 or 0", "the account was liquidated"),
    "wealth": ("multiple of the start", "equity at the close over the equity at the start"),
    "log_return": ("1", "log-return of the account in the bar"),
    "exposure": ("multiple of equity", "positions at the close, long minus short"),
    # decisions
    "bar_open_utc": ("UTC", "open of the bar that the decision was for; it was made at the close before"),
    "asset": ("", "symbol of the asset"),
    "exposure_before": ("multiple of equity", "position at the close at which the decision was made"),
    "traded": ("multiple of equity", "notional of order and exit in the bar, of the equity before it"),
    # trades
    "side": ("1 or -1", "long or short"),
    "opened_utc": ("UTC", "open of the bar in which the position was opened"),
    "closed_utc": ("UTC", "open of the bar in which it was closed, or of the last bar"),
    "closed": ("", "False: still open at the end, valued at the last close"),
    "bars": ("bars", "in which it was held"),
    "largest": ("units of the asset", "largest position"),
    "costs": (_MONEY, "of its fills"),
    "carry": (_MONEY, "borrow, funding and dividends, as received"),
    "profit": (_MONEY, "after costs and carry"),
    "entered": ("units of the asset", "bought or sold short to open it and to add to it"),
    "left": ("units of the asset", "sold or bought back to reduce and to close it"),
    "entry_price": ("price", "mean of what opened it and added to it, without costs"),
    "return": ("fraction", "profit over entered x entry_price"),
}

Paths = Mapping[str, Mapping[str, AccountPath]]  # account -> name of policy or rule -> path


class _DescribedPath(Stored):
    """What the columns of a path do not say; bars: rows of it; planned: bars of the whole window."""

    account: str
    policy: str
    label: str
    assets: Annotated[list[str], Field(min_length=1)]
    periods_per_year: Annotated[float, Field(gt=0)]
    planned: Count
    bars: Annotated[int, Field(ge=1, le=2**53)]


class _Described(Stored):
    """Metadata of the file, in the order of its rows."""

    paths: Annotated[list[_DescribedPath], Field(min_length=1)]


def save_paths(folder: str | Path, paths: Paths) -> list[Path]:
    """Write the three files into a folder, which is created if need be; each whole or not at all."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    each = [(account, name, path) for account, named in paths.items() for name, path in named.items()]
    if not each:
        raise DataError(f"{target}: there are no paths to write.")
    files = {EQUITY: equity_frame(paths), DECISIONS: decisions_frame(paths), TRADES: trades_frame(paths)}
    facts = [
        {
            "account": account,
            "policy": name,
            "label": path.label,
            "assets": list(path.assets),
            "periods_per_year": path.periods_per_year,
            "planned": path.planned,
            "bars": len(path),
        }
        for account, name, path in each
    ]
    for name, frame in files.items():
        write_bytes(target / name, _parquet(frame, {"format": _FORMAT, "paths": facts}))
    return [target / name for name in files]


def equity_frame(paths: Paths) -> pd.DataFrame:
    """One row per path and bar: `AccountPath.to_frame` and wealth, log-return, exposure, by `policy` and `symbol`."""
    import pandas as pd

    return pd.concat(
        [
            path.to_frame().assign(
                symbol=account,
                policy=name,
                wealth=path.wealth[1:],
                log_return=path.log_returns,
                exposure=path.exposure,
            )
            for account, named in paths.items()
            for name, path in named.items()
        ]
    )


def decisions_frame(paths: Paths) -> pd.DataFrame:
    """One row per path, decision and asset."""
    import pandas as pd

    parts = []
    for account, named in paths.items():
        for name, path in named.items():
            before = np.concatenate([np.zeros((1, len(path.assets))), path.exposures[:-1]])
            for a, asset in enumerate(path.assets):
                columns: dict[str, Any] = {
                    "bar_open_utc": pd.DatetimeIndex(path.time, tz="UTC"),
                    "policy": name,
                    "symbol": account,
                    "asset": asset,
                    "target": path.target[:, a],
                    "exposure_before": before[:, a],
                    "order_units": path.ledger["order_units"][:, a],
                    "order_price": path.ledger["order_price"][:, a],
                    "traded": path.traded,
                }
                parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def trades_frame(paths: Paths) -> pd.DataFrame:
    """One row per path and round trip."""
    import pandas as pd

    parts = []
    for account, named in paths.items():
        for name, path in named.items():
            trips = round_trips(path)
            frame = trips_frame(path, trips).rename(columns={"first_time": "opened_utc", "last_time": "closed_utc"})
            frame["bars"] = np.array([trip.bars for trip in trips], dtype=np.int64)
            frame.insert(0, "policy", name)
            frame.insert(1, "symbol", account)
            parts.append(frame.drop(columns=["first", "last", "equity"]))
    filled = [part for part in parts if len(part)]
    return pd.concat(filled or parts[:1], ignore_index=True)


def read_frame(file: str | Path) -> pd.DataFrame:
    """Read one of the three files; `frame.attrs["units"]` has the unit and meaning of each column."""
    path = Path(file)
    if not path.exists():
        raise DataError(f"{path}: there is no such file; evaluate, walk-forward and backtest(out=...) write it.")
    frame, schema = read_parquet(path, root=path.parent)
    described = [field for field in schema if field.metadata and {b"unit", b"meaning"} <= field.metadata.keys()]
    frame.attrs["units"] = {
        field.name: tuple(field.metadata[key].decode("utf-8", "replace") for key in (b"unit", b"meaning"))
        for field in described
    }
    return frame


def read_paths(folder: str | Path, *, root: Path | None = None) -> dict[str, dict[str, AccountPath]]:
    """Read the paths that `save_paths` wrote, as they were: account -> name -> path.

    root: the folder of the run or walk-forward that must hold them; default: `folder` itself.
    """
    file = Path(folder) / EQUITY
    if not file.exists():
        raise DataError(f"{folder} holds no paths: there is no {EQUITY} in it.")
    frame, schema = read_parquet(file, root=Path(folder) if root is None else root)
    metadata = (schema.metadata or {}).get(_KEY)
    if metadata is None:
        raise DataError(f"{file} was written by an older version and cannot be read as paths; evaluate again.")
    described = parse_json(metadata, what=f"{file}, its description", max_bytes=LARGE)
    facts = as_stored(_Described, described, source=f"{file}, its description").paths
    if len(frame) != sum(one.bars for one in facts):
        raise DataError(f"{file} has {len(frame)} rows and speaks of {sum(one.bars for one in facts)}; restore it.")
    paths: dict[str, dict[str, AccountPath]] = {}
    first = 0
    for one in facts:
        part = frame.iloc[first : first + one.bars]
        first += one.bars
        try:
            paths.setdefault(one.account, {})[one.policy] = _path_of(part, one)
        except (KeyError, ValueError, TypeError, AttributeError) as error:  # a column that is not there, or of text
            raise DataError(
                f"{file}: the path of {one.policy} cannot be read ({type(error).__name__} {str(error)[:100]}); restore "
                "it, or evaluate again."
            ) from error
    return paths


def _path_of(frame: pd.DataFrame, facts: _DescribedPath) -> AccountPath:
    assets = tuple(facts.assets)

    def of_assets(name: str) -> Any:
        columns = [name if len(assets) == 1 else f"{name} {asset}" for asset in assets]
        return frame[columns].to_numpy()

    ledger: dict[str, Any] = {}
    derived = ("symbol", "policy", "wealth", "log_return", "exposure")
    for name in frame.columns:
        if name not in derived and not any(name == one or name.startswith(f"{one} ") for one in _PER_ASSET):
            ledger[name] = frame[name].to_numpy()
    for name in _PER_ASSET[2:-1]:
        ledger[name] = of_assets(name).astype(np.float64)
    codes = {name: code for code, name in enumerate(EVENTS)}
    ledger["event"] = np.vectorize(codes.__getitem__, otypes=[np.int64])(of_assets("event"))
    ledger["row"] = np.arange(len(frame))
    return AccountPath(
        facts.account,
        facts.label,
        assets,
        facts.periods_per_year,
        frame.index.tz_convert("UTC").tz_localize(None).to_numpy().astype("datetime64[ns]"),
        ledger,
        of_assets("target").astype(np.float64),
        of_assets("close").astype(np.float64),
        facts.planned,
    )


def _parquet(frame: pd.DataFrame, facts: Mapping[str, Any]) -> bytes:
    """Encode a frame as Parquet with units in the metadata of its fields."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame)
    fields = []
    for field in table.schema:
        unit, meaning = UNITS.get(field.name, UNITS.get(_base(field.name, facts["paths"]), ("", "")))
        fields.append(field.with_metadata({"unit": unit, "meaning": meaning}))
    metadata = {**(table.schema.metadata or {}), _KEY: json.dumps(facts).encode()}
    buffer = io.BytesIO()
    pq.write_table(table.cast(pa.schema(fields, metadata=metadata)), buffer)
    return buffer.getvalue()


def _base(name: str, paths: Sequence[Mapping[str, Any]]) -> str:
    """Strip the asset from a column of a portfolio: "units BTC" becomes "units"."""
    for asset in paths[0]["assets"]:
        if name.endswith(f" {asset}"):
            return name[: -len(asset) - 1]
    return name
