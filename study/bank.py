"""The bank: recorded runs as compact files, and what lldscope says of them today.

    sample_runs/bank/
      index.jsonl          one line per run: arm, seed, split, outcome, settings, code
      signals.parquet      one row per run and step: the `signals` view, and what EXTRA names
      windows.parquet      one row per run, WINDOW steps, breakdown, key and correctness
      evaluations.parquet  one row per run and greedy evaluation: `right`, 0 or 1 for each question

Alarms and phases are never stored: `assess_exported` computes them from the signals with the code
that is there.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lldscope import open_run
from lldscope.core.errors import LldscopeError, RunNotFound
from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.assess import DEFAULT_ARL, Assessment, assess
from lldscope.evaluation.bank import rows_of_run
from lldscope.runs import Run
from lldscope.storage.json_files import replace_file, to_json

from .arms import BANK
from .label import label
from .outcome import collapse_row, outcome

WINDOW = 10  # steps
EXTRA = {"correct_deltas": "Δ of each re-scored correct response of a mixed group, nats, to 0.4 %"}

_DELTAS = """
    SELECT step, list(delta::FLOAT ORDER BY response_id) AS correct_deltas
    FROM response_likelihood WHERE correct AND mixed AND delta IS NOT NULL
    GROUP BY step
"""
# key is the index of the action, the number of valid searches, or nothing.
_WINDOWS = f"""
    SELECT step // {WINDOW} * {WINDOW} AS first_step, 'action' AS breakdown, '' AS name,
        a.action_index AS key, l.correct,
        count(*) AS n, sum(a.n_tokens) AS n_tokens,
        sum(a.logp_old_sum::DOUBLE) AS logp_sum,
        count(a.logp_post_sum) FILTER (l.mixed) AS n_delta,
        sum(a.logp_post_sum::DOUBLE - a.logp_old_sum::DOUBLE) FILTER (l.mixed) AS delta_sum,
        NULL::DOUBLE AS value
    FROM actions a JOIN response_likelihood l USING (step, rank, response_id)
    WHERE l.correct IS NOT NULL GROUP BY ALL
    UNION ALL
    SELECT step // {WINDOW} * {WINDOW}, 'searches', '', r.n_searches, l.correct,
        count(*), sum(l.n_tokens), sum(l.logp_old),
        count(l.delta) FILTER (l.mixed), sum(l.delta) FILTER (l.mixed), NULL
    FROM responses r JOIN response_likelihood l USING (step, rank, response_id)
    WHERE l.correct IS NOT NULL GROUP BY ALL
    UNION ALL
    SELECT step // {WINDOW} * {WINDOW}, 'probe', probe, action_index, NULL,
        count(value), NULL, NULL, NULL, NULL, avg(value)
    FROM probes WHERE isfinite(value) GROUP BY ALL
    ORDER BY ALL
"""


_EVALUATIONS = """
    SELECT step, list(em::UTINYINT ORDER BY question) AS right
    FROM eval_questions WHERE name = 'greedy' GROUP BY step ORDER BY step
"""


# -- writing --------------------------------------------------------------------------------------


def export(
    folder: Path, about: dict[str, Any], bank: Path = BANK, snapshots: int = 0
) -> dict[str, Any]:
    """Put a recorded run into the bank under `about["run"]` and return its line of the index: what
    `about` says, and settings, status, times, outcome and evaluations from the record. With
    `snapshots` the outcome is that of the evaluations (`label.py`)."""
    with open_run(folder) as run:
        signals = run.signals().dropna(subset="time")  # steps, not an evaluation after them
        if signals.empty:
            raise LldscopeError(f"{folder} has no steps: nothing to keep")
        line = {**about, **_facts(run, signals)}
        tables = {"signals": _signal_table(run, signals)}
        tables["windows"] = pa.Table.from_pandas(run.sql(_WINDOWS), preserve_index=False)
        evaluations = run.sql(_EVALUATIONS)
        if snapshots:
            result = label(evaluations["step"], np.stack(evaluations["right"]), snapshots)
            line |= {"outcome": result.verdict, "degraded_step": result.step}
        if len(evaluations):
            tables["evaluations"] = pa.Table.from_pandas(evaluations, preserve_index=False)
    enter(line, tables, bank)
    return line


def _facts(run: Run, signals: pd.DataFrame) -> dict[str, Any]:
    reward = signals["reward"].to_numpy(dtype=float, na_value=np.nan)
    row = collapse_row(reward)
    start = float(run.info["attempts"][0]["started"])
    end = float(run.info.get("ended") or signals["time"].iloc[-1])
    return {
        "steps": len(signals),
        "outcome": outcome(reward),
        "collapse_step": None if row is None else int(signals["step"].iloc[row]),
        "status": run.info.get("status"),
        "reason": run.info.get("reason"),
        "seconds": round(end - start, 1),
        "em_greedy": _evaluations(run, "em_greedy"),
        "settings": run.info["config"],
    }


def _evaluations(run: Run, metric: str) -> dict[str, float]:
    """Steps trained → value over all questions of all data sources."""
    frame = run.sql(
        "SELECT step, sum(value * n) / sum(n) AS value FROM evals WHERE metric = ? "
        "GROUP BY step ORDER BY step",
        [metric],
    )
    return {str(r.step): round(float(r.value), 4) for r in frame.itertuples()}


def _signal_table(run: Run, signals: pd.DataFrame) -> pa.Table:
    """Floats as float32: half the size, and far finer than any threshold."""
    frame = signals.merge(run.sql(_DELTAS), "left", "step")
    columns: dict[str, pa.Array] = {}
    for c in SIGNALS.columns:
        values = frame[c.name].to_numpy(dtype=np.float64, na_value=np.nan)
        kind = "float" if c.kind == "float" else c.arrow
        columns[c.name] = pa.array(values, from_pandas=True).cast(kind)
    rows = [_coarse(v) if isinstance(v, np.ndarray) else None for v in frame["correct_deltas"]]
    columns["correct_deltas"] = pa.array(rows, pa.list_(pa.float32()))
    return pa.table(columns)


def _coarse(values: np.ndarray) -> np.ndarray:
    """float32 with 8 bits of mantissa, rounded: the rest is zeros, which compress."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x4000) & np.uint32(0xFFFF8000)).view(np.float32)


def enter(line: dict[str, Any], tables: dict[str, pa.Table], bank: Path) -> None:
    """Put a run's line and rows into the bank in place of those it had. The bank is locked:
    several processes may enter runs."""
    bank.mkdir(parents=True, exist_ok=True)
    folder = os.open(bank, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        for name, rows in tables.items():
            _replace_rows(bank / f"{name}.parquet", line["run"], rows)
        lines = index(bank) | {line["run"]: line}
        text = "".join(to_json(lines[name]) + "\n" for name in sorted(lines))
        replace_file(bank / "index.jsonl", text)
    finally:
        os.close(folder)


def _replace_rows(path: Path, run: str, rows: pa.Table) -> None:
    """The table with these rows of the run instead of what it had of it, in the order of runs."""
    table = rows.add_column(0, "run", pa.array([run] * len(rows), pa.string()))
    if path.is_file():
        other = pq.read_table(path)
        others = other.filter(pc.not_equal(other["run"], run))
        table = pa.concat_tables([others, table], promote_options="permissive")
    write_table(path, table.sort_by("run"))


def write_table(path: Path, table: pa.Table) -> None:
    """Small: bytes of floats lie together, and zstd does the rest."""
    leaves = [
        f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name
        for f in table.schema
        if pa.types.is_floating(f.type.value_type if pa.types.is_list(f.type) else f.type)
    ]
    temporary = path.with_suffix(".inprogress")
    pq.write_table(
        table,
        temporary,
        compression="zstd",
        compression_level=19,
        use_dictionary=[f.name for f in table.schema if f.name not in leaves],
        column_encoding=dict.fromkeys(leaves, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        store_schema=False,
    )
    os.replace(temporary, path)


# -- reading --------------------------------------------------------------------------------------


def index(bank: Path = BANK) -> dict[str, dict[str, Any]]:
    """Run name → its line of the index."""
    file = bank / "index.jsonl"
    if not file.is_file():
        return {}
    return {line["run"]: line for line in map(json.loads, file.read_text("utf-8").splitlines())}


def exported_signals(name: str, bank: Path = BANK) -> pd.DataFrame:
    """The stored signals, with the columns of `schema.SIGNALS` and those of EXTRA. A signal that
    did not exist when the run was exported was not measured: NaN."""
    return _rows(bank, "signals", name).reindex(columns=[*SIGNALS.names, *EXTRA])


def exported_windows(name: str, bank: Path = BANK) -> pd.DataFrame:
    """One row per window of WINDOW steps and breakdown: `action` (key: its index in the rollout),
    `searches` (key: valid searches of the rollout) or `probe` (name; value is the mean)."""
    return _rows(bank, "windows", name)


def exported_evaluations(name: str, bank: Path = BANK) -> pd.DataFrame:
    """One row per greedy evaluation: `step`, and `right`, 0 or 1 for each question."""
    return _rows(bank, "evaluations", name)


def assess_exported(name: str, arl: float = DEFAULT_ARL, bank: Path = BANK) -> Assessment:
    """Phases and alarms of a run of the bank, by the code that is there now."""
    return judge(exported_signals(name, bank), arl)


def judge(signals: pd.DataFrame, arl: float = DEFAULT_ARL) -> Assessment:
    """The same, of signals that were read before."""
    return assess(signals[list(SIGNALS.names)], arl)


def _rows(bank: Path, table: str, run: str) -> pd.DataFrame:
    rows = rows_of_run(bank / f"{table}.parquet", run)
    if rows.empty:
        raise RunNotFound(f"{bank / table}.parquet has no rows of {run}")
    return rows
