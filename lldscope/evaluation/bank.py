"""A bank: labelled runs on which the alarms are evaluated.

    BANK/
      index.jsonl      one JSON object per run, see `read_bank`
      signals.parquet  one row per run and step: `run`, and the columns of the view `signals`

A line of the index may name a run directory or another Parquet file instead (`path`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import LldscopeError, RunNotFound
from ..core.schema import SIGNALS

Outcome = Literal["held", "declined", "collapsed", "grey", "degraded"]
ENDS: dict[str, str] = {"collapsed": "collapse_step", "degraded": "degraded_step"}
Split = Literal["development", "test", "all"]


@dataclass(frozen=True)
class LabelledRun:
    """A run of the bank.

    `end_step` is the step at which its reward collapsed or its held-out evaluation degraded,
    `fault` a fault injected on purpose, and `path` a run directory or a Parquet file of signals (of
    this run, or with a column `run`). `by_reward` is False if held-out evaluations decided the
    outcome. `evaluations`, each of so many `questions`, replace a missing `eval_score`. Runs of one
    `arm` differ only in their seed.
    """

    name: str
    outcome: Outcome
    end_step: int | None
    test: bool
    fault: str | None
    path: Path
    planned_steps: int | None = None
    evaluations: Mapping[int, float] = field(default_factory=dict)  # step → share of the questions
    questions: int | None = None
    by_reward: bool = True
    arm: str = ""

    @property
    def label(self) -> str:
        """The class of the run: its fault, or else its outcome."""
        return self.fault or self.outcome

    def signals(self) -> pd.DataFrame:
        """One row per step with the columns of `schema.SIGNALS`; NaN for missing columns."""
        if self.path.is_dir():
            from ..runs import open_run

            with open_run(self.path) as run:
                return run.signals()
        if not self.path.is_file():
            raise RunNotFound(f"The bank's run {self.name} should be in {self.path}: no such file.")
        frame = rows_of_run(self.path, self.name)
        if frame.empty:
            raise RunNotFound(f"{self.path} has no rows of the run {self.name}.")
        if "step" not in frame or frame["step"].isna().any():
            raise LldscopeError(f"{self.path} has no step in every row.")
        frame = frame.reindex(columns=list(SIGNALS.names))
        if frame["eval_score"].isna().all():
            frame["eval_score"] = frame["step"].map(self.evaluations)
            frame["eval_n"] = frame["eval_score"].where(frame["eval_score"].isna(), self.questions)
        return frame.sort_values("step", ignore_index=True)


def rows_of_run(file: Path, run: str) -> pd.DataFrame:
    """Rows of a Parquet file that belong to the run, by the column `run`; all rows without such a
    column."""
    try:
        named = "run" in pq.read_schema(file).names
        frame = pq.read_table(file, filters=[("run", "==", run)] if named else None).to_pandas()
    except (OSError, pa.ArrowException) as error:
        raise LldscopeError(f"{file} is not a Parquet file: {error}") from None
    return frame.drop(columns="run", errors="ignore")


def read_bank(bank: Path, split: Split = "all") -> list[LabelledRun]:
    """The runs of a bank, by name.

    Each line of `index.jsonl` has `run` (its name) and `outcome`: by the reward held, declined or
    collapsed (with `collapse_step`); or by held-out evaluations held, grey or degraded (with
    `degraded_step`, null for the others). Optional are `split` ("test" keeps a run out of
    "development"), `arm` (the same for runs of one recipe), `fault`, and `path` (a run directory or
    a Parquet file of signals, from the bank's folder; default `signals.parquet`). A run whose
    signals were exported without evaluations may have `em_greedy`, an object from step to exact
    match, and in `settings` `eval_questions` and the planned `steps`. Other keys are ignored.
    """
    file = bank / "index.jsonl"
    if not file.is_file():
        raise RunNotFound(f"{file} is missing: a bank has one line of JSON there for each run.")
    runs = []
    for number, text in enumerate(file.read_text("utf-8").splitlines(), 1):
        if text.strip():
            runs.append(_run(text, bank, f"{file} line {number}"))
    names = [run.name for run in runs]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise LldscopeError(f"{file} has more than one line for {', '.join(sorted(duplicates))}.")
    selection = [run for run in runs if split == "all" or run.test == (split == "test")]
    return sorted(selection, key=lambda run: run.name)


def _run(text: str, bank: Path, where: str) -> LabelledRun:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise LldscopeError(f"{where} is not JSON: {error}") from None
    if not isinstance(line, dict) or not isinstance(line.get("run"), str):
        raise LldscopeError(f"{where} has no run: the run's name belongs there.")
    outcome: Outcome | None = next((o for o in get_args(Outcome) if o == line.get("outcome")), None)
    if outcome is None:
        outcomes = ", ".join(get_args(Outcome))
        raise LldscopeError(f"{where}: outcome is {line.get('outcome')!r}, not one of {outcomes}.")
    by_reward = "degraded_step" not in line
    ending = "collapsed" if by_reward else "degraded"
    end = line.get(ENDS[ending])
    if (outcome == ending) != isinstance(end, int):
        raise LldscopeError(f"{where}: a {ending} run, and no other, has a {ENDS[ending]}.")
    path = bank / (line.get("path") or "signals.parquet")
    settings = line.get("settings") or {}
    return LabelledRun(
        line["run"], outcome, end, line.get("split") == "test",
        line.get("fault"), path,
        settings.get("steps"),
        {int(step): float(value) for step, value in (line.get("em_greedy") or {}).items()},
        settings.get("eval_questions"), by_reward=by_reward, arm=str(line.get("arm", "")),
    )
