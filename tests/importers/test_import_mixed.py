"""What stands in a log beside a run's training: evaluations that come late, tables, rollouts of
other batches. None of it is a restart, and none of it is mixed in."""

from __future__ import annotations

import csv
import json
import random
import sqlite3
from pathlib import Path

import pytest
from imported import query

import lldscope
from lldscope.core.errors import UsageError
from lldscope.importers.build import Import, ImportSummary
from lldscope.importers.source import Findings, ImportRequest, Scalars, in_attempts

COUNTED = "SELECT sum(n_responses)::INT FROM steps"
TABLE = {"_type": "trackio.table", "path": "media/0.json"}


def rewards(outcome: ImportSummary) -> dict[int, float]:
    return dict(query(outcome, "SELECT step, reward FROM signals WHERE reward IS NOT NULL"))


# -- evaluations and tables in a log --------------------------------------------------------------


ROWS = ["r", "e"]
STARTS = {  # steps in the order of the log, with names where they are not those of ROWS → attempts
    "a value for step 0 at the end": ([1, 2, 3, 4, 0], [1, 1, 1, 1, 1]),
    "steps between the others, at the end": ([0, 2, 4, 6, 8, 1, 3, 5], [1] * 8),
    "a resume": ([0, 1, 2, 3, 2, 3, 4], [1, 1, 1, 1, 2, 2, 2]),
    "two resumes": ([0, 1, 2, 3, 2, 3, 2, 3, 4], [1] * 4 + [2, 2, 3, 3, 3]),
    "a resume that ended after a step": ([0, 1, 2, 3, 4, 3, 2, 3, 4, 5], [1] * 6 + [2] * 4),
    "a late value after a resume": ([0, 1, 2, 3, 2, 3, 4, 0], [1] * 4 + [2, 2, 2, 1]),
    "evaluations that come late": (
        [1, 2, (1, "v"), (2, "v"), 3, (2, "v"), 4, 2, (2, "v"), 3], [1] * 7 + [2, 2, 2]
    ),
    "a metric that is new": ([1, 2, 3, (1, "v"), (2, "v"), 4], [1] * 6),
    "evaluations that are done again": (
        [0, (0, "v"), 1, 2, (2, "v"), 3, 4, (4, "v"), (0, "v"), (2, "v"), 5], [1] * 11
    ),
    "one step at several calls": ([0, 1, (1, "v"), 2, 1, (1, "v"), 2, (2, "v")], [1] * 4 + [2] * 4),
    "a stamp": ([1, 2, 3, (2, "train/global_step"), (1, "train/global_step")], [1] * 5),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_smaller_step_is_a_resume_only_where_the_log_goes_on_from_it(case):
    steps, attempts = STARTS[case]
    pairs = [step if isinstance(step, tuple) else (step, None) for step in steps]
    rows = [Scalars(step, dict.fromkeys([name] if name else ROWS, 0.0)) for step, name in pairs]
    result = list(in_attempts(rows, Findings()))
    assert [item.attempt for item in result] == attempts
    assert [(item.step, item.values) for item in result] == [(r.step, r.values) for r in rows]
    for n in range(len(rows)):  # what a live import takes for certain stays true
        so_far = [i.attempt for i in in_attempts(rows[:n], Findings()) if not i.is_open]
        assert so_far == attempts[: len(so_far)]


def write_history(path: Path, rows: list[dict]) -> None:
    """A W&B history as CSV, whose `_step` counts the calls."""
    names = ["_step", *dict.fromkeys(name for row in rows for name in row)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({"_step": i} | row for i, row in enumerate(rows))


def openrlhf_rows(steps: int, first: int = 1) -> list[dict]:
    """As OpenRLHF 0.11.2's WandbLogger does; `eval/…` rows have the step under a name of theirs."""
    rows: list[dict] = []
    for step in range(first, steps + 1):
        rows.append({"train/reward": step / 100, "train/global_step": step})
        if step % 10 == 0:
            rows.append({"eval/eval_default_pass1": 0.5, "eval/global_step": step})
    return rows


def test_evaluations_of_openrlhf_are_of_the_step_they_tell(run_import, tmp_path):
    path = tmp_path / "history.csv"
    write_history(path, openrlhf_rows(120))
    outcome = run_import(path)
    assert (outcome.attempts, outcome.steps) == (1, 120)
    assert rewards(outcome) == {step: step / 100 for step in range(1, 121)}
    rows = query(outcome, "SELECT step FROM scalars WHERE name LIKE 'eval/%pass1' ORDER BY step")
    assert [step for (step,) in rows] == list(range(10, 121, 10))


# -- rollouts of other batches in a folder ---------------------------------------------------------


def test_verls_rollouts_of_training_and_validation_are_not_mixed(run_import, tmp_path):
    row = {"input": "q", "output": "a", "gts": "a", "score": 1.0, "step": 1}
    for folder in ("train", "validation"):
        (tmp_path / "dumps" / folder).mkdir(parents=True)
        (tmp_path / "dumps" / folder / "1.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match="in 2 folders: train, validation") as error:
        run_import(tmp_path / "dumps")
    assert "trainer.rollout_data_dir" in str(error.value)
    assert not (tmp_path / "run").exists()
    outcome = run_import(tmp_path / "dumps" / "train")
    assert query(outcome, COUNTED) == [(1,)]


def test_logs_of_several_seeds_are_not_averaged_and_checkpoints_of_one_run_are_one(
    run_import, tmp_path
):
    def state(folder: str, scale: float, steps: int) -> None:
        path = tmp_path / "all" / folder / "trainer_state.json"
        path.parent.mkdir(parents=True)
        rows = [{"step": s, "reward": scale * s} for s in range(steps)]
        path.write_text(json.dumps({"log_history": rows}))

    state("checkpoint-5", 0.1, 5)
    state("checkpoint-10", 0.1, 10)
    outcome = run_import(tmp_path / "all")
    assert (outcome.steps, outcome.attempts) == (10, 1)
    state("other-seed", 0.2, 10)
    with pytest.raises(UsageError, match="are of several runs"):
        run_import(tmp_path / "all", to="mixed")


# -- following -------------------------------------------------------------------------------------


def any_log(choose: random.Random) -> list[tuple[int, dict[str, float]]]:
    """Rows of a run that is resumed at times, with values that come late."""
    rows: list[tuple[int, dict[str, float]]] = []
    step = 0
    for number in range(choose.randrange(5, 40)):
        rows.append((step, {"reward": number / 8, "entropy": 1.0}))
        if step % 3 == 0:
            rows.append((max(0, step - choose.randrange(3)), {"eval/score": number / 8}))
        if choose.random() < 0.15:
            rows.append((choose.randrange(step + 1), {"reward": -number / 8}))
        step = choose.randrange(step + 1) if choose.random() < 0.1 else step + 1
    return rows


def write_rows(path: Path, rows: list[tuple[int, dict[str, float]]]) -> None:
    if path.suffix == ".log":
        lines = [f"step:{s} - " + " - ".join(f"{k}:{v}" for k, v in row.items()) for s, row in rows]
        path.write_text("".join(f"{line}\n" for line in lines))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"step": s} | row) + "\n" for s, row in rows))
    else:
        with sqlite3.connect(path) as db:
            columns = "key, value, timestamp, step, is_nan, run_uuid"
            db.execute("CREATE TABLE IF NOT EXISTS runs (run_uuid, name, lifecycle_stage)")
            db.execute(f"CREATE TABLE IF NOT EXISTS metrics ({columns})")
            db.execute("DELETE FROM runs")
            db.execute("INSERT INTO runs VALUES ('r', 'r', 'active')")
            (n,) = db.execute("SELECT count(*) FROM metrics").fetchone()
            points = [(k, v, i, s, 0, "r") for i, (s, row) in enumerate(rows)
                      for k, v in row.items()]
            db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", points[n:])


@pytest.mark.parametrize("names", [["a.log"], ["m.jsonl", "n.jsonl"], ["mlflow.db"]])
def test_a_log_that_is_followed_is_the_log_that_is_imported_whole(tmp_path, names):
    choose = random.Random(0)
    logs = {tmp_path / "logs" / name: any_log(choose) for name in names}
    (tmp_path / "logs").mkdir()
    lengths = dict.fromkeys(logs, 3)

    def write() -> None:
        for path, rows in logs.items():
            write_rows(path, rows[: lengths[path]])

    def stop(seconds: float) -> bool:
        if all(lengths[path] >= len(rows) for path, rows in logs.items()):
            return True
        for path in logs:
            lengths[path] += choose.randrange(8)
        write()
        return False

    write()
    live = Import([tmp_path / "logs"], tmp_path / "live", ImportRequest(), None)
    live.build(lambda n: None, live=True)
    live.follow(stop, lambda outcome: None)
    live.close("over")
    whole = Import([tmp_path / "logs"], tmp_path / "whole", ImportRequest(), None)
    whole.build(lambda n: None)
    answers = []
    for name in ("live", "whole"):
        with lldscope.open_run(tmp_path / name) as run:
            order = "SELECT attempt, step, name, value FROM {} ORDER BY ALL"
            answers.append([run.rows(order.format(t)).rows for t in ("scalars", "all_scalars")])
            answers[-1].append(run.signals()[["step", "reward", "entropy"]].to_numpy().tolist())
    assert answers[0] == answers[1]
