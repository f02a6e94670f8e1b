"""A run directory read: manifest, configuration, events and samples as tidy frames on one clock.

A run may be half written (the machine died) or come from a stranger: only JSON, TOML and Arrow are read,
every table is validated before use, and what had to be left out is named, never dropped in silence.
Knows nothing of what the events mean.

In the frames a missing name is "n/a" (never "nan"), a missing `note` or `reason` is None, and a missing
number is NaN. Name columns are categorical.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dflash.contract.arrowlog import LogReader
from dflash.contract.config import TrainConfig, from_values
from dflash.contract.errors import ConfigError, RunError
from dflash.contract.events import event_schema, sample_schema
from dflash.contract.knobs import flatten
from dflash.contract.rundir import RunDir
from profiler.run_status import RunStatus, effective_status

missing_name = "n/a"
_free_text = ("note", "reason")
_needed = {"events": ("t_ns", "kind", "name", "stage"), "samples": ("t_ns", "source", "metric", "value")}
# Arrow's own allocator gives freed pages back at once, though the next part wants as many: half of the time.
_pool = pa.system_memory_pool()
_part_rows = 65_536  # turned at a time
_counts = ("dur_ns", "index", "tid")  # null means none, and 0 says the same


@dataclass(frozen=True, eq=False)
class Run:
    """What a run directory holds."""

    path: Path
    manifest: Mapping[str, Any]
    config_values: Mapping[str, Any]  # {dotted path: value}; empty when the run does not say
    config: TrainConfig | None  # None when the values are absent or not ours
    events: pd.DataFrame  # columns of `event_schema`, sorted by t_ns
    samples: pd.DataFrame  # columns of `sample_schema`, sorted by t_ns
    torn: tuple[str, ...] = ()  # streams whose tail, or all, was lost
    set_aside: Mapping[str, int] = field(default_factory=dict)  # reason -> rows left out

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the run at `path`. Raises RunError for what is not a run of ours."""
        run_dir = RunDir(path)
        manifest = run_dir.manifest()
        events, torn_events = _read_streams(run_dir.events, event_schema, "events")
        samples, torn_samples = _read_streams(run_dir.samples, sample_schema, "samples")
        return cls.of_tables(path, manifest, events, samples, (*torn_events, *torn_samples))

    @classmethod
    def of_tables(
        cls,
        path: Path,
        manifest: Mapping[str, Any],
        events: pa.Table,
        samples: pa.Table,
        torn: tuple[str, ...] = (),
    ) -> Self:
        """The run whose streams hold these rows, in our schemas. Raises RunError."""
        values = _config_values(manifest, RunDir(path).config_path)
        event_frame, odd_events = _sound_events(_to_frame(events))
        sample_frame, odd_samples = _sound_samples(_to_frame(samples))
        return cls(
            path=path,
            manifest=manifest,
            config_values=values,
            config=_config(values),
            events=event_frame,
            samples=sample_frame,
            torn=torn,
            set_aside={k: n for k, n in (odd_events | odd_samples).items() if n},
        )

    @property
    def emulated(self) -> bool | None:
        """True on logical devices; None when the run does not say."""
        value = self.manifest.get("emulated")
        return value if isinstance(value, bool) else None

    @property
    def status(self) -> RunStatus:
        """How the run stands, also when nobody was left to write it down."""
        return effective_status(self.manifest)

    @property
    def start_ns(self) -> int:
        """When the run began, on the monotonic clock: the manifest's anchor, or the first event."""
        first = int(self.events["t_ns"].iloc[0]) if len(self.events) else None
        clock = self.manifest.get("clock")
        anchor = clock.get("monotonic_ns") if isinstance(clock, Mapping) else None
        if isinstance(anchor, int) and (first is None or anchor <= first):
            return anchor
        return first or 0


def _config_values(manifest: Mapping[str, Any], path: Path) -> dict[str, Any]:
    values = manifest.get("config")
    if isinstance(values, Mapping):
        return dict(values)
    try:
        return flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RunError(f"config.toml cannot be read: {error}", where=str(path)) from None


def _config(values: Mapping[str, Any]) -> TrainConfig | None:
    try:
        return from_values(values) if values else None
    except ConfigError:  # written by another version: the raw values still serve
        return None


def _read_streams(directory: Path, schema: pa.Schema, what: str) -> tuple[pa.Table, list[str]]:
    """The streams of a directory as one table, strings as numbers of the few there are, and torn ones."""
    tables, torn = [_encoded(schema.empty_table())], []
    for path in sorted(directory.glob("*.arrow")):
        name = f"{what}/{path.name}"
        try:
            reader = LogReader(path, _pool)
        except RunError:  # killed before the header was flushed, or never a stream
            torn.append(f"{name} (nothing readable)")
            continue
        tables += [_encoded(conform(part, schema, what, path)) for part in _parts(reader)]
        if reader.torn:
            torn.append(name)
    return pa.concat_tables(tables), torn


def _parts(reader: LogReader) -> Iterator[pa.Table]:
    """Batches in tables of some size: a long run's strings never lie in memory all at once."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        held.append(batch)
        rows += batch.num_rows
        if rows >= _part_rows:
            yield pa.Table.from_batches(held, reader.schema)
            held, rows = [], 0
    yield pa.Table.from_batches(held, reader.schema)


def _encoded(table: pa.Table) -> pa.Table:
    columns = [
        pc.dictionary_encode(column, memory_pool=_pool) if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def conform(table: pa.Table, schema: pa.Schema, what: str, path: Path) -> pa.Table:
    """`table` with exactly the columns of `schema`; unknown ones are dropped, absent ones are null.

    `what`: events or samples. Raises RunError when a needed column is absent or the data are not sound.
    """
    columns = []
    try:
        table.validate(full=True)
        for wanted in schema:
            found = table.schema.get_all_field_indices(wanted.name)
            if len(found) == 1:
                columns.append(table.column(found[0]).cast(wanted.type))
            elif found or wanted.name in _needed[what]:
                raise RunError(
                    f"the stream has {len(found)} columns {wanted.name!r}", where=str(path), expected=1
                )
            else:
                columns.append(pa.nulls(table.num_rows, wanted.type))
    except pa.ArrowException as error:
        raise RunError(f"the stream is not sound: {error}", where=str(path)) from None
    return pa.table(columns, schema=schema)


def _to_frame(table: pa.Table) -> pd.DataFrame:
    table = _encoded(table)
    columns: dict[str, Any] = {}
    for spec in table.schema:
        column = table.column(spec.name)
        if spec.name in _free_text:
            columns[spec.name] = _texts(column)
        elif pa.types.is_dictionary(spec.type):
            columns[spec.name] = _names(column)
        elif spec.name in _counts:
            columns[f"{spec.name}_known"] = column.is_valid().to_numpy()
            columns[spec.name] = pc.fill_null(column, 0).to_numpy()
        else:
            columns[spec.name] = column.to_numpy()
    return pd.DataFrame(columns, copy=False)  # each is ours alone


def _texts(column: pa.ChunkedArray) -> pd.Series:
    """Strings, None where there is none. Long columns hold few different ones, each made once."""
    codes, known = _codes(column)
    return pd.Series(np.array([*known, None], dtype=object)[codes], dtype=object)


def _names(column: pa.ChunkedArray) -> pd.Series:
    """Categories in the order in which they appear, a missing name among them."""
    codes, known = _codes(column)
    absent = codes < 0
    if absent.any() and missing_name in known:
        codes = np.where(absent, known.index(missing_name), codes)
    elif absent.any():
        place = int(codes[: int(absent.argmax())].max(initial=-1)) + 1
        codes = np.where(absent, place, codes + (codes >= place))
        known.insert(place, missing_name)
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(known, dtype=object)))


def _codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """The number of each row's string, -1 for none, and the strings."""
    coded = column.unify_dictionaries(_pool).combine_chunks(_pool)
    codes = coded.indices if not coded.null_count else pc.fill_null(coded.indices, -1)
    return codes.to_numpy(), coded.dictionary.to_pylist()


def _sound_events(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    is_span, is_gauge = frame["kind"] == "span", frame["kind"] == "gauge"
    odd = {
        "events without a time": frame["t_ns"].isna(),
        "spans without a duration": is_span & ~frame["dur_ns_known"],
        "spans that end before they start": is_span & (frame["dur_ns"] < 0),
        "gauges without a finite value": is_gauge & ~np.isfinite(frame["value"]),
    }
    kept, counts = _leave_out(frame, odd)
    kept = kept[event_schema.names].astype({"t_ns": "int64"})
    return kept.sort_values("t_ns", kind="stable", ignore_index=True), counts


def _sound_samples(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    odd = {"samples without a time": frame["t_ns"].isna()}
    if not _in_order(frame):
        latest = frame.groupby(["source", "key", "metric"], observed=True)["t_ns"].cummax()
        odd["samples whose clock ran backwards"] = frame["t_ns"] < latest
    kept, counts = _leave_out(frame, odd)
    kept = kept[sample_schema.names].astype({"t_ns": "int64"})
    infinite = np.isinf(kept["value"])
    unexplained = kept["value"].isna() & kept["reason"].isna()
    wrong = infinite | unexplained
    if wrong.any():
        kept.loc[wrong, "reason"] = "not a finite number"
        kept.loc[infinite, "value"] = np.nan
    counts["samples without a finite value or a reason"] = int(wrong.sum())
    return kept.sort_values("t_ns", kind="stable", ignore_index=True), counts


def _in_order(samples: pd.DataFrame) -> bool:
    """Whether times fall only from one source's rows to the next one's: then no clock ran backwards."""
    t_ns, sources = samples["t_ns"].to_numpy(), samples["source"].cat.codes.to_numpy()
    if t_ns.dtype != np.int64:  # some have none
        return False
    edge = sources[1:] != sources[:-1]
    in_one_piece = edge.sum() < max(np.count_nonzero(np.bincount(sources + 1)), 1)
    return bool(in_one_piece and not (t_ns[1:] < t_ns[:-1])[~edge].any())


def _leave_out(frame: pd.DataFrame, odd: Mapping[str, pd.Series]) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows that no mask names, and how many each mask (the first that applies) took."""
    kept = pd.Series(True, index=frame.index)
    counts = {}
    for reason, mask in odd.items():
        counts[reason] = int((kept & mask).sum())
        kept &= ~mask
    # Of a long run a copy is a second's work, and hardly any run has odd rows.
    return frame if kept.all() else frame[kept].copy(), counts
