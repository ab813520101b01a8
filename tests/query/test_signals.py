"""Signals against their plain twin, over tables with whatever a log can hold or lack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import signal_twin as twin

import lldscope
from lldscope.core.schema import ACTION_SIGNALS, SIGNALS, TABLES, VIEWS
from lldscope.recording import writer
from lldscope.storage import compaction

ROOT = Path(__file__).parents[2]
OF_A_STEP = ("updates", "responses", "actions", "retention", "evals", "probes", "scalars")
METRICS = ("em_greedy", "acc/mean@1", "reward/mean@8", "reward", "f1_greedy", "em_closed_book")
COST = [f"seconds_{part}" for part in ("score", "reference", "sync", "evaluation")]
COST += ["memory_peak"]


class Log:
    """Rows of a made-up run in which anything may be missing, NULL, NaN or Inf; by its seed.

    Ranks number their rollouts alike, groups span ranks, data sources share group numbers, and
    later attempts begin before the end of the one before.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.other = np.random.default_rng(seed)  # what somebody else's log says
        self.retention_rng = np.random.default_rng(seed)
        self.cost = np.random.default_rng(seed)
        self.values = [0.5, -1.5, *([math.nan, math.inf, None] if seed % 2 else [])]
        self.ranks = int(self.rng.integers(1, 4))
        self.null = self.rng.choice([0.0, 0.0, 0.15, 0.4])
        self.bad = self.rng.choice([0.0, 0.0, 0.1])
        names = (
            "steps", "updates", "responses", "actions", "retention", "evals", "probes", "scalars"
        )
        self.tables = {name: [] for name in names}
        # The recorder knows the time itself.
        optional = [
            (t, c.name)
            for t in self.tables
            for c in TABLES[t].columns
            if t != "scalars" and not c.required and c.name not in {"time", *COST}
        ]
        mask = self.rng.random(len(optional)) < self.rng.choice([0.0, 0.1, 0.3])
        self.missing = {name for name, is_lost in zip(optional, mask, strict=True) if is_lost}
        self.missing |= {("steps", name) for name in COST if self.cost.random() < 0.2}
        self.starts: dict[tuple[int, int], int] = {}
        first = 0
        for attempt in range(1, int(self.rng.integers(1, 4)) + 1):
            last = first + int(self.rng.integers(2, 5))
            for step in range(first, last):
                for rank in range(self.ranks):
                    self._write(attempt, rank, step)
            first = max(0, last - int(self.rng.integers(0, 3)))
        if self.other.random() < 0.5:  # when the training has ended
            self._evaluate({"step": last, "attempt": attempt, "rank": 0}, METRICS)
        if self.bad and ("steps", "reward_sum") not in self.missing:
            self.tables["steps"][-1]["reward_sum"] = math.nan

    def _write(self, attempt: int, rank: int, step: int) -> None:
        """What one rank records of one step."""
        rng = self.rng
        stamp = {"step": step, "attempt": attempt, "rank": rank}
        n = int(rng.integers(0, 9))
        self._add("steps", stamp, {
            "time": 1.7e9 + step + rank, "policy_version": step, "n_responses": n,
            "n_correct": rng.integers(0, n + 1), "reward_sum": n * rng.random(),
            "reward_sq_sum": n * (1 + rng.random()), "n_tokens": rng.integers(0, 300) * (n > 0),
            "entropy_sum": rng.random(), "kl_sum": rng.random(), "loss_policy": rng.normal(),
            "loss_llds": rng.random(), "loss_kl": rng.random(), "lr": rng.random(),
            "seconds_rollout": rng.random(), "seconds_update": rng.random(),
            "seconds_record": rng.random(),
            **{name: self.cost.integers(1, 10**9) for name in COST},
        })
        for update in range(int(rng.integers(0, 4))):
            self._add("updates", stamp | {"update": update}, {
                "grad_norm": rng.gamma(2), "grad_finite": rng.random() < 0.9, "skipped": False,
                "ratio_max": 1 + rng.random(), "ratio_p99": 1.0,
                "n_clipped": rng.integers(0, 5), "n_tokens": rng.integers(0, 50),
            })
        for response in range(n):
            self._rollout(stamp | {"response_id": response})
        dice = self.retention_rng
        has_score = dice.random() < 0.7
        for response, age, index in np.ndindex(3, 3, 2):
            if has_score and dice.random() < 0.3:
                row = {"response_id": response, "age": age + 1, "action_index": index}
                for name in ("logp_old_sum", "logp_previous_sum", "logp_post_sum"):
                    is_null = ("retention", name) in self.missing
                    row[name] = None if is_null else dice.choice([-1.5, -0.5, *self.values[2:]])
                self.tables["retention"].append(stamp | row | {"n_tokens": None})
        for probe in rng.choice(["probe_set_logp", "hidden_similarity"], rng.integers(0, 4)):
            self._add("probes", stamp | {"probe": str(probe)}, {
                "group_id": 0, "response_id": 0, "action_index": None, "value": rng.normal(),
            })
        some = self.other.integers(0, 3)
        self._evaluate(stamp, self.other.choice(METRICS, some, replace=False))
        self.tables["scalars"] += [
            stamp | {"name": str(name), "value": self.other.choice(self.values), "estimator": None}
            for name in self.other.choice([*SIGNALS.names, "foreign/name"], 5)
        ]

    def _evaluate(self, stamp: dict[str, int], metrics: Iterable[str]) -> None:
        for metric in metrics:
            source = str(self.other.choice(["nq", "hotpotqa"]))
            self._add("evals", stamp | {"metric": str(metric)}, {
                "data_source": source, "value": self.other.random(), "n": self.other.integers(1, 9),
            })

    def _rollout(self, stamp: dict[str, int]) -> None:
        rng = self.rng
        group, turns = int(rng.integers(0, 4)), int(rng.integers(0, 4))
        correct = bool(rng.random() < (0.0, 0.5, 0.5, 1.0)[group])
        self._add("responses", stamp, {
            "group_id": group, "data_source": str(rng.choice(["nq", "hotpotqa"])),
            "prompt_hash": f"{group}{rng.integers(0, 5) == 0}", "reward": float(correct),
            "advantage": rng.choice([-1.0, 0.0, 1.0]), "correct": correct, "n_actions": turns,
            "n_tokens": rng.integers(0, 90), "n_searches": rng.integers(0, turns + 1),
            "n_invalid": rng.integers(0, turns + 1), "answered": rng.random() < 0.8,
            "truncated": rng.random() < 0.2, "repeat_share": self.other.random(), "text": None,
            "policy_version": stamp["step"],
        })
        rescored = rng.random() < 0.7
        for index in range(turns):
            old = -rng.gamma(2)
            self._add("actions", stamp | {"action_index": index}, {
                "kind": "search", "n_tokens": rng.integers(0, 30),
                "logp_behaviour_sum": old + rng.normal(), "logp_old_sum": old,
                "logp_inner_sum": old + rng.normal(), "logp_ref_sum": old,
                "logp_post_sum": old + rng.choice([-3, -1, 0, 1]) * rng.random()
                if rescored else None,
                "n_tokens_down": rng.integers(0, 9), "drop_sum": rng.random(),
                "rounding_sq_sum": rng.random() / 50,
                "entropy_sum": rng.random(), "error_norm_sum": rng.random(),
                "engine_k3_sum": rng.random(), "engine_ratio_sq_sum": 30 * rng.gamma(2),
                "n_tokens_engine_far": rng.integers(0, 9), "inner_k3_sum": rng.random(),
                "inner_ratio_sq_sum": 30 * rng.gamma(2), "n_tokens_inner_far": rng.integers(0, 9),
                "logp_min": old / 2, "llds_gate": rng.random() < 0.5, "llds_sum": rng.random(),
                "tool_ok": rng.random() < 0.7, "docs_hash": f"d{rng.integers(0, 3)}",
            })

    def _add(self, table: str, stamp: dict[str, Any], values: dict[str, Any]) -> None:
        row: dict[str, Any] = dict(stamp)
        for c in TABLES[table].columns:
            if c.name in stamp:
                continue
            value, rng = values.get(c.name), self.cost if c.name in COST else self.rng
            nothing = (table, c.name) in self.missing or rng.random() < self.null
            if nothing and c.name != "time":
                value = None
            elif c.kind in ("float", "sum") and value is not None:
                if rng.random() < self.bad and c.unit != "s" and c.name != "lr":
                    value = rng.choice([math.nan, math.inf, -math.inf])
                value = float(np.float32(value))
            elif isinstance(value, np.generic):
                value = value.item()
            row[c.name] = value
        self.tables[table].append(row)

    def record(self, path: Path, look: Callable[[], None] | None = None) -> Path:
        """Write it all through the recorder; some of the times that a rank has ended a step, what
        there is is brought to the disk and `look` called."""
        for attempt in sorted({r["attempt"] for r in self.tables["steps"]}):
            recorders = [
                lldscope.Recorder(
                    path, rank=rank, world_size=self.ranks, resume=attempt > 1, attempt=attempt
                ) if rank else lldscope.Recorder(path, resume=attempt > 1)
                for rank in range(self.ranks)
            ]
            mine = {t: [r for r in rows if r["attempt"] == attempt]
                    for t, rows in self.tables.items()}
            for step in sorted({r["step"] for r in (*mine["steps"], *mine["evals"])}):
                for rank, recorder in enumerate(recorders):
                    for table in (*OF_A_STEP, "steps"):
                        rows = [r for r in mine[table] if (r["step"], r["rank"]) == (step, rank)]
                        if rows:
                            self._call(recorder, table, rows)
                    if look and self.rng.random() < 0.6:
                        for r in recorders:
                            r.flush()
                        look()
            for recorder in recorders:
                recorder.close()
                assert not recorder.dropped
        return path

    def _call(self, recorder: lldscope.Recorder, table: str, rows: list[dict[str, Any]]) -> None:
        names = [c for c in TABLES[table].names if c not in ("attempt", "rank")]
        columns = {
            name: [r[name] for r in rows] for name in names if (table, name) not in self.missing
        }
        getattr(recorder, table if table != "steps" else "step")(**columns)


def read_view(run: lldscope.Run, view: str) -> list[dict[str, Any]]:
    """A view with NULL and NaN told apart: None and nan."""
    key = {c.name for c in VIEWS[view].columns if c.kind in ("text", "bool")}
    columns = ", ".join(f"{n}::VARCHAR AS {n}" for n in VIEWS[view].names)
    rows = run.sql(f"SELECT {columns} FROM {view}").astype(object)
    return [
        {n: None if pd.isna(v) else v if n in key else float(v) for n, v in row.items()}
        for row in rows.to_dict("records")
    ]


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if not isinstance(value, str | None):
            value = pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True)
        assert actual[name] == value, name


SEEDS = range(25)


@pytest.fixture(
    scope="module",
    params=[s if s < 5 else pytest.param(s, marks=pytest.mark.slow) for s in SEEDS],
)
def log(request, tmp_path_factory) -> tuple[Log, lldscope.Run]:
    source = Log(request.param)
    path = source.record(tmp_path_factory.mktemp("log") / "run")
    return source, lldscope.open_run(path)


def test_signals_are_those_of_the_twin(log):
    rows, run = log
    actual, expected = read_view(run, "signals"), twin.signals(rows.tables)
    assert len(actual) == len(expected) > 0
    for row, target in zip(actual, expected, strict=True):
        assert_same(row, target)


def test_signals_by_action_are_those_of_the_twin(log):
    rows, run = log

    def place(row: dict[str, Any]) -> tuple:
        return row["step"], row["action_index"], str(row["correct"]).lower() == "true"

    actual = {place(r): r for r in read_view(run, "action_signals")}
    expected = {place(r): r for r in twin.action_signals(rows.tables)}
    assert actual.keys() == expected.keys()
    for key, target in expected.items():
        assert_same(actual[key] | {"correct": key[2]}, target)


def test_the_logs_hold_what_they_should():
    """Every signal is NULL in some row of them and a number in another; NaN passes where it may."""
    values: dict[str, list] = {name: [] for name in SIGNALS.names}
    for seed in SEEDS:
        for row in twin.signals(Log(seed).tables):
            for name, value in row.items():
                values[name].append(value)
    for name, column in values.items():
        numbers = {v for v in column if v is not None and math.isfinite(v)}
        assert len(numbers) > 1, name
        assert None in column or name in ("step", "time", "n_nonfinite"), name
    assert any(v is not None and math.isnan(v) for v in values["reward"])


@pytest.mark.parametrize("seed", SEEDS[::12])
@pytest.mark.slow
def test_following_a_run_gives_what_reading_it_afresh_gives(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    source, path = Log(seed), tmp_path / "run"
    followed: list[lldscope.Run] = []
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        followed[:] = followed or [lldscope.open_run(path)]
        followed[0].refresh()
        if looks % 4 == 0:
            same(followed[0])

    def same(run: lldscope.Run) -> None:
        run.refresh()
        fresh = lldscope.open_run(path)
        views = ("signals", "action_signals")
        for view in (getattr(lldscope.Run, name) for name in views):
            pd.testing.assert_frame_equal(view(run), view(fresh), check_dtype=False)

    source.record(path, look)
    same(followed[0])
    assert looks > 2
    assert len(followed[0].signals()) == len(twin.signals(source.tables))


def test_views_have_exactly_the_declared_columns(make_run):
    run = lldscope.open_run(make_run(steps=range(3)))
    assert set(run.sql("SELECT * FROM signals").columns) == set(SIGNALS.names)
    assert list(run.signals().columns) == list(SIGNALS.names)
    assert list(run.action_signals().columns) == list(ACTION_SIGNALS.names)


def test_every_signal_is_explained():
    page = (ROOT / "docs" / "signals.md").read_text(encoding="utf-8")
    for table in VIEWS.values():
        for name in set(table.names) - {"step"}:
            assert f"`{name}`" in page, f"docs/signals.md says nothing of {table.name}.{name}"


def test_a_log_without_rows_of_rollouts_has_no_zeros_in_their_place(tmp_path):
    with lldscope.Recorder(tmp_path / "r") as r:
        r.step(step=0, n_responses=4, reward_sum=1.0)
    (row,) = lldscope.open_run(tmp_path / "r").signals().to_dict("records")
    names = {name for name, value in row.items() if not pd.isna(value)}
    assert names == {"step", "time", "n_responses", "reward", "n_nonfinite"}
    assert (row["reward"], row["n_nonfinite"]) == (0.25, 0)


def test_nothing_looked_at_is_not_nothing_wrong(tmp_path):
    with lldscope.Recorder(tmp_path / "r") as r:
        r.step(step=0, lr=1e-6)
    (row,) = lldscope.open_run(tmp_path / "r").signals().to_dict("records")
    assert pd.isna(row["n_nonfinite"])


def test_an_evaluation_after_the_last_step_is_shown_but_not_judged(tmp_path):
    """If training goes on at a later step, it has no row any more."""
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in (0, 10, 20, 30):
            recorder.step(step=step, reward_sum=1.0, n_responses=4)
            if step == 20:
                recorder.evals(step=25, metric="em_greedy", value=0.75, n=64)
            recorder.flush()
            if step == 0:
                run = lldscope.open_run(tmp_path / "run")
            run.refresh()
            with lldscope.open_run(tmp_path / "run") as fresh:
                pd.testing.assert_frame_equal(run.signals(), fresh.signals())
            rows = run.signals()["step"].tolist()
            assert rows == {0: [0], 10: [0, 10], 20: [0, 10, 20, 25], 30: [0, 10, 20, 30]}[step]
            assert (run.assess().last_step, run.assess().rows) == (step, step // 10 + 1)
            assert run.signals()["eval_score"].dropna().tolist() == [0.75] * (step == 20)
