"""Logs written every five steps: whatever carries them, the same signals at the same steps."""

from __future__ import annotations

import json
import math
import pprint
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lldscope
from lldscope.importers.build import Import, ImportSummary
from lldscope.importers.source import ImportRequest
from lldscope.storage import layout

ROOT = Path(__file__).parents[2]
EVERY, PER_EPOCH = 5, 100
Row = dict[str, float]


def rows() -> list[Row]:
    """The sample run that degrades, as if each of its steps were the fifth of a trainer."""
    with lldscope.open_run(ROOT / "sample_runs" / "grpo") as run:
        signals = run.signals()[["reward", "entropy", "grad_norm"]].dropna().to_dict("records")
    return [{"step": EVERY * (i + 1), **row} for i, row in enumerate(signals)]


ROWS = rows()
PLANNED = EVERY * len(ROWS)


def metrics(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "step"}


def printed(row: Row) -> str:
    return repr(metrics(row) | {"epoch": row["step"] / PER_EPOCH}) + "\n"


def bar(row: Row) -> str:
    done = int(row["step"])
    return f"\r {100 * done // PLANNED}%|██   | {done}/{PLANNED} [00:10<01:00,  2.1it/s]"


def verl_line(row: Row) -> str:
    names = {
        "reward": "critic/score/mean",
        "entropy": "actor/entropy",
        "grad_norm": "actor/grad_norm",
    }
    values = " - ".join(f"{names[n]}:{v!r}" for n, v in metrics(row).items())
    return f"(TaskRunner pid=7) step:{row['step']} - {values}\n"


def pairs(row: Row, between: str) -> str:
    return ("  " if between == "=" else " | ").join(
        f"{name}{between}{value!r}" for name, value in metrics(row).items()
    )


def table(header: str) -> str:
    lines = [header, *(",".join(map(repr, row.values())) for row in ROWS)]
    return "\n".join(lines) + "\n"


def objects(of_row: Callable[[Row], object]) -> str:
    return "".join(json.dumps(of_row(row)) + "\n" for row in ROWS)


def wrapped(line: str, width: int) -> str:
    """A line as a terminal's copy has it, without the spaces at the ends."""
    starts = range(0, len(line), width)
    return "\n".join(line[i : i + width].strip("\n").rstrip() for i in starts) + "\n"


def megatron_line(row: Row) -> str:
    return (
        f" iteration {row['step']:8d}/ {PLANNED} | consumed samples:         512 | elapsed time "
        f"per iteration (ms): 12.6 | reward mean: {row['reward']:.16E} | "
        f"entropy: {row['entropy']!r} | grad norm: {row['grad_norm']!r} | "
        "number of nan iterations:   0 |\n"
    )


def progress(row: Row) -> dict:
    """As ms-swift logs."""
    done = {"global_step/max_steps": f"{row['step']}/{PLANNED}", "elapsed_time": "5m 18s"}
    return metrics(row) | {"epoch": row["step"] / PER_EPOCH} | done


def notebook(output: dict) -> str:
    return json.dumps({"cells": [{"source": [], "outputs": [output]}], "nbformat": 4}, indent=1)


def html_table() -> str:
    rows = [["<th>Step</th>", *(f"<th>{name}</th>" for name in metrics(ROWS[0]))]]
    rows += [[f"<td>{value!r}</td>\n" for value in row.values()] for row in ROWS]
    return "<table>" + "".join(f"<tr>\n{''.join(row)}</tr>" for row in rows)


def table_of(between: str) -> str:
    """As people paste it, with a column that is hardly logged."""
    header = ["Step", *metrics(ROWS[0]), "kl"]
    lines = [header, ["--"] * len(header)]
    lines += [[*map(repr, row.values()), "No Log"] for row in ROWS]
    return "\n".join(map(between.join, lines)) + "\n"


# Name of the file → its content.
LOGS: dict[str, Callable[[], str]] = {
    "metrics.jsonl": lambda: objects(lambda row: row),
    "verl.log": lambda: f"Total training steps: {PLANNED}\n" + "".join(map(verl_line, ROWS)),
    "trl-bars.log": lambda: "".join(bar(r) + "\n" + printed(r) + bar(r) for r in ROWS),
    "trl-settings.log": lambda: (
        f"GRPOConfig(logging_steps={EVERY}, max_steps={PLANNED})\n" + "".join(map(printed, ROWS))
    ),
    "trainer_state.json": lambda: json.dumps({"max_steps": PLANNED, "log_history": ROWS}, indent=1),
    "tinker/metrics.jsonl": lambda: objects(
        lambda r: {"progress/batch": r["step"], "time/total": 2.5, **metrics(r)}
    ),
    "wandb.csv": lambda: table("_step,reward,entropy,grad_norm"),
    "columns.json": lambda: json.dumps({n: [row[n] for row in ROWS] for n in ROWS[0]}),
    "inside.json": lambda: json.dumps({"config": {"betas": [0.9, 0.99]}, "run": {"steps": ROWS}}),
    "by-step.json": lambda: json.dumps({str(row["step"]): metrics(row) for row in ROWS}),
    "pairs.log": lambda: "".join(
        f"12:00:01 INFO | Step {r['step']}/{PLANNED} | " + pairs(r, ": ") + "\n" for r in ROWS
    ),
    "counts.log": lambda: "".join(
        f"[mine]  {r['step']}/{PLANNED} | {pairs(r, '=')}\n" for r in ROWS
    ),
    # one record over several lines, and names of several words
    "verl-wrapped.log": lambda: "".join(wrapped(verl_line(r), 60) + bar(r) + "\n" for r in ROWS),
    "verl-words.log": lambda: "".join(textwrap.fill(verl_line(r), 50) + "\n" for r in ROWS),
    "verl.ipynb": lambda: notebook(
        {"output_type": "stream", "text": [f"\x1b[36m{verl_line(r)}" for r in ROWS]}
    ),
    "table.ipynb": lambda: notebook({"data": {"text/html": html_table()}}),
    "blocks.log": lambda: "".join(
        f"{bar(r)}\n📊 Logging 44 metrics\n{'=' * 60}\n🎯 Reward Metrics:\n"
        f"   reward: {r['reward']!r}\n   ... and 7 more\n📈 Other Metrics:\n"
        f"   entropy: {r['entropy']!r}\n   grad_norm: {r['grad_norm']!r}\n{'=' * 60}\n"
        for r in ROWS
    ),
    "nested.log": lambda: "Config\nactor:\n  lr: 1e-6\n" + "".join(
        f"Step {r['step']}\nactor:\n  entropy: {r['entropy']!r}\n"
        f"  grad_norm: {r['grad_norm']!r}\ncritic:\n  rewards:\n    max: 1.0\n"
        f"    mean: {r['reward']!r}\n" for r in ROWS
    ),
    "bullets.log": lambda: "".join(
        f"\n===== Step {r['step']}/{PLANNED} =====\n▶ Training policy...\n📊 Training Results:\n"
        f"  • Avg Reward: {r['reward']!r}\n  • Entropy: {r['entropy']!r}\n"
        f"  • Grad. Norm:             {r['grad_norm']!r}\n⏱️  Timing:\n  • Total step time: 3.1s\n"
        for r in ROWS
    ),
    "megatron-wrapped.log": lambda: "".join(wrapped(megatron_line(r), 80) for r in ROWS),
    "titled-table.log": lambda: "".join(
        f"   Step {r['step']}\n┏━━━━┳━━━━┓\n┃ Metric ┃ Value ┃\n┡━━━━╇━━━━┩\n"
        f"│ env/all/reward/total │ {r['reward']!r} │\n│ optim/grad_norm │ {r['grad_norm']!r} │\n"
        f"│ entropy │ {r['entropy']!r} │\n└────┴────┘\n" for r in ROWS
    ),
    "key-values.log": lambda: "".join(
        f"{'-' * 20}\n| rollout/ | |\n|    ep_rew_mean | {r['reward']!r} |\n| time/ | |\n"
        f"|    iterations | {r['step']} |\n| train/ | |\n|    entropy | {r['entropy']!r} |\n"
        f"|    grad_norm | {r['grad_norm']!r} |\n" for r in ROWS
    ),
    "step-last.log": lambda: "".join(f"{pairs(r, ': ')}\nstep: {r['step']}\n---\n" for r in ROWS),
    "below-its-step.log": lambda: "".join(
        f"step {r['step']}\n{pprint.pformat(metrics(r), width=30)}\n" for r in ROWS
    ),
    "indented.log": lambda: "".join(
        "[rank0] " + json.dumps({"step": r["step"], "metrics": metrics(r)}, indent=2) + "\n"
        for r in ROWS
    ),
    "bar-postfix.log": lambda: "".join(
        bar(r)[:-1] + ", " + pairs(r, "=").replace("  ", ", ") + "]" for r in ROWS
    ),
    "commas.log": lambda: "".join(
        f"Iter {r['step']}: " + pairs(r, " ").replace(" | ", ", ") + ", It/sec 0.1\n" for r in ROWS
    ),
    "lists.log": lambda: "".join(
        f"[step {r['step']}] correct=3/4 rewards=['{r['reward']!r}'] entropy={r['entropy']!r} "
        f"grad_norm={r['grad_norm']!r} t=3.2s\n" for r in ROWS
    ),
    # slime: rollouts beside updates; minimind: an epoch and its steps, and samples between
    "slime.log": lambda: "".join(
        f"(M pid=7) [2026-05-18 10:00:01] model.py:660 - step {r['step']}: "
        f"{{'train/entropy': {r['entropy']!r}, 'train/grad_norm': {r['grad_norm']!r}}}\n"
        f"(R pid=8) [2026-05-18 10:00:00] rollout.py:990 - rollout {r['step']}: "
        f"{{'rollout/raw_reward': {r['reward']!r}}}\nperf {r['step']}: {{'perf/time': 3.0}}\n"
        for r in ROWS
    ),
    "minimind.log": lambda: "".join(
        f"Epoch:[1/1]({r['step']}/{PLANNED}), Reward: {r['reward']!r}, Entropy: {r['entropy']!r}, "
        f"Grad Norm: {r['grad_norm']!r}\n[DEBUG] step={r['step']}, sample[0]\nStep 1: x = 2\n"
        f"[DEBUG] gen[0] reward=-1.3\n" for r in ROWS
    ),
    "swift.jsonl": lambda: objects(progress),
    "swift.log": lambda: "".join(f"{progress(row)!r}\n" for row in ROWS),
    "tabs.txt": lambda: table_of("\t"),
}


def imported(folder: Path, name: str, content: str) -> ImportSummary:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return Import([path], folder / "run", ImportRequest(), None).build(lambda n: None)


def holds_the_run(outcome: ImportSummary) -> None:
    """One attempt with the values of ROWS; the parts are read without the judge's database."""
    rows: dict[int, Row] = {}
    for item in pq.read_table(outcome.run / "scalars").to_pylist():
        if item["name"] in ROWS[0]:
            rows.setdefault(item["step"], {"step": item["step"]})[item["name"]] = item["value"]
    assert outcome.attempts == 1
    assert [rows[step] for step in sorted(rows)] == [pytest.approx(row, rel=1e-6) for row in ROWS]


TELL_THE_PLANNED_LENGTH = ("verl.log", "trl-bars.log", "trainer_state.json", "pairs.log",
                           "swift.jsonl", "minimind.log", "megatron-wrapped.log")


@pytest.mark.parametrize("name", LOGS)
def test_the_same_log_gives_the_same_signals_at_the_same_steps(name, tmp_path):
    outcome = imported(tmp_path, name, LOGS[name]())
    holds_the_run(outcome)
    if name in TELL_THE_PLANNED_LENGTH:
        assert layout.read_run(outcome.run)["planned_steps"] == PLANNED


def test_a_dictionary_that_lost_its_brace_is_counted(tmp_path):
    texts = [printed(row) for row in ROWS[:9]]
    texts[3] = texts[3].replace("}", "")
    texts[6] = texts[6][:40] + "\n"
    outcome = imported(tmp_path, "train.log", "".join(texts))
    assert (outcome.steps, outcome.findings.counted) == (7, "rows")
    assert outcome.findings.skipped == {"printed dictionaries that are cut": 2}


def test_updates_of_a_rollout_are_of_its_step(tmp_path):
    text = "".join(
        f"rollout {r}: {{'rollout/raw_reward': {r / 10}}}\n"
        + "".join(f"step {3 * r + k}: {{'train/entropy': {k + r}.0}}\n" for k in range(3))
        for r in range(9)
    )
    outcome = imported(tmp_path, "slime.log", text)
    with lldscope.open_run(outcome.run) as run:
        rows = run.signals()[["step", "reward", "entropy"]]
    assert rows.values.tolist() == [[r, r / 10, r + 1.0] for r in range(9)]


def test_epochs_go_on_counting(tmp_path):
    text = "".join(f"Epoch:[{e}/3]({s}/4), Reward: {e}.5\n" for e in (1, 2) for s in range(1, 5))
    outcome = imported(tmp_path, "mini.log", text)
    assert (outcome.steps, outcome.attempts, outcome.findings.planned_steps) == (8, 1, 12)


@pytest.mark.parametrize("epoch", ["1e999", "nan", "-inf"])
def test_an_epoch_that_is_no_number_beside_progress_bars_is_counted(epoch, tmp_path):
    text = "".join(printed(r) + bar(r) + "\n" for r in ROWS[:3])
    damaged = text + f"{{'reward': 0.5, 'epoch': {epoch}}}\n" + bar(ROWS[3])
    outcome = imported(tmp_path, "train.log", damaged)
    assert outcome.steps == 3
    assert outcome.findings.skipped.total() == 1


def test_an_array_without_steps_is_counted_from_one_and_says_so(tmp_path):
    outcome = imported(tmp_path, "log.json", json.dumps([metrics(row) for row in ROWS]))
    assert outcome.steps == len(ROWS)
    assert any("counted from 1" in note for note in outcome.findings.notes)


def test_a_table_of_steps_in_parquet_is_a_log(run_import, tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "log.parquet")
    holds_the_run(run_import(tmp_path / "log.parquet"))


def test_a_configuration_beside_a_log_is_no_step(run_import, tmp_path):
    (tmp_path / "config.json").write_text('{"learning_rate": 1e-6, "loss": 0.5, "of": {"0": 1}}')
    (tmp_path / "metrics.jsonl").write_text(LOGS["metrics.jsonl"]())
    outcome = run_import(tmp_path)
    assert (outcome.formats, outcome.attempts) == ({"metrics": 1}, 1)


def test_components_of_the_reward_are_kept_as_such(tmp_path):
    """TRL's names, old and new, and those of loops of people's own."""
    names = {"rewards/acc/mean": 0.5, "rewards/acc/std": 0.1, "train/rewards/format": 0.25,
             "reward/length": -0.5, "reward/aime/mean": 0.1, "reward": 0.25}
    outcome = imported(tmp_path, "m.jsonl", json.dumps({"step": 1, **names}) + "\n")
    with lldscope.open_run(outcome.run) as run:
        frame = run.sql("SELECT name, value FROM scalars WHERE name LIKE 'component/%'")
    assert dict(frame.itertuples(index=False, name=None)) == {
        "component/acc": 0.5, "component/format": 0.25, "component/length": -0.5,
    }
    assert not {"rewards/acc/mean", "reward/length"} & set(outcome.findings.names)
    assert {"rewards/acc/std", "reward/aime/mean"} <= set(outcome.findings.names)


def test_miniverls_trajectories_have_levels_of_the_engine(run_import):
    """Written by miniVERL's own writer; the version of the policy counts its updates."""
    fixture = ROOT / "tests" / "fixtures" / "miniverl" / "trajectories.jsonl"
    outcome = run_import(fixture)
    assert outcome.formats == {"rollouts": 1}
    with lldscope.open_run(outcome.run) as run:
        rows = run.sql(
            "SELECT step, policy_version, reward, correct, advantage, n_actions, n_tokens, "
            "data_source FROM responses WHERE response_id = 1 ORDER BY step"
        )
        sums = run.sql("SELECT DISTINCT step, n_tokens, logp_behaviour_sum FROM actions "
                       "ORDER BY step, n_tokens")
    assert list(rows.itertuples(index=False, name=None)) == [
        (step, step, 1.0, True, 1.0, 2, 5, "trivia") for step in (0, 2)
    ]
    assert sums["n_tokens"].tolist() == [2, 3, 2, 3]
    assert sums["logp_behaviour_sum"].tolist() == pytest.approx([-1.0, -1.5, -1.4, -2.1])


@pytest.mark.parametrize("form", ["parquet", "json", "jsonl"])
def test_rollouts_with_log_probabilities_before_and_after_give_a_change(run_import, tmp_path, form):
    rows = [
        {"step": s, "prompt": "q", "response": "a b", "reward": float(i % 2), "group_id": "g",
         "behavior_logprobs": [-1.0, -2.0], "old_logprobs": [-1.1, -2.1],
         "post_logprobs": [-1.0 - 0.1 * i, -2.0], "policy_version": s}
        for s in range(3) for i in range(4)
    ]
    path = tmp_path / f"rollouts.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = run_import(path)
    with lldscope.open_run(outcome.run) as run:
        row = run.signals().iloc[1]
    assert row["engine_gap"] == pytest.approx(0.1, abs=1e-6)
    assert row["delta_correct"] == pytest.approx(0.0, abs=1e-6)  # of i = 1 and 3: 0.1, -0.1
    assert row["delta_incorrect"] == pytest.approx(0.1, abs=1e-6)


def test_the_last_step_of_a_dump_that_is_half_written_is_left_out(tmp_path):
    def row(step: int) -> str:
        return json.dumps({"step": step, "prompt": "q", "response": "a", "reward": 1.0}) + "\n"

    text = "".join(row(s) * 8 for s in range(4)) + row(4) * 3
    outcome = imported(tmp_path, "rollouts.jsonl", text)
    assert outcome.steps == 4
    assert outcome.findings.skipped == {"rollouts of the last step, which is not complete": 3}


# -- rows that do not name their steps, and a progress bar in a block of its own -------------------


def sweep_log(
    n: int, every: int, *, bars: tuple[int, ...], total: int, of_epoch: float = 230.0,
    rate: Callable[[float], float] | None = None, decimals: int = 2, first: bool = False,
) -> str:
    """What a sweep wrote: the rows of standard output, then the bars of standard error."""
    steps = [every * (i + (0 if first else 1)) or 1 for i in range(n)]
    rows = [
        {"loss": 0.1, "reward": 0.5 + 0.001 * s, "epoch": round(s / of_epoch, decimals)}
        | ({"learning_rate": float(f"{1e-6 * rate(s / total):.4g}")} if rate else {})
        for s in steps
    ]
    stderr = (f"\r {100 * b // total}%|██  | {b}/{total} [00:10<01:00,  2.1it/s]" for b in bars)
    return "".join(f"{row}\n" for row in rows) + "--- stderr ---\n" + "".join(stderr) + "\n"


def in_blocks(log: str) -> str:
    """The same where standard output was flushed in blocks, between pieces of the bar."""
    rows, _, bars = log.partition("--- stderr ---\n")
    lines, pieces = rows.splitlines(keepends=True), bars.split("\r")[1:]
    size = -(-len(lines) // len(pieces))
    blocks = ["".join(lines[i : i + size]) for i in range(0, len(lines), size)]
    return "".join(f"\r{piece}\n{block}" for piece, block in zip(pieces, blocks, strict=True))


def linear(x: float) -> float:
    return 1 - x


def cosine(x: float) -> float:
    return (1 + math.cos(math.pi * x)) / 2


def warm(x: float) -> float:
    return 10 * x if x < 0.1 else cosine((x - 0.1) / 0.9)


@pytest.mark.parametrize(
    ("log", "steps"),
    [
        # the whole run: 40 rows of 200 steps, with epochs of 0.02, 0.04, 0.07, …
        (sweep_log(40, 5, bars=(0, 100, 200), total=200), (5, 200)),
        (in_blocks(sweep_log(40, 5, bars=(40, 120, 160, 200), total=200)), (5, 200)),
        # a run that ended early: as many rows as the bar got to
        (sweep_log(24, 5, bars=(0, 123), total=200), (5, 120)),
        # the learning rate, where the bar does not tell how far it got
        (sweep_log(24, 10, bars=(0,), total=1000, rate=linear), (10, 240)),
        (sweep_log(30, 10, bars=(0,), total=500, rate=cosine), (10, 300)),
        (sweep_log(30, 20, bars=(0,), total=1000, rate=warm), (20, 600)),
        # logging_first_step: 1, 5, 10, …
        (sweep_log(41, 5, bars=(200,), total=200, first=True, decimals=4), (1, 200)),
    ],
)
def test_rows_apart_from_their_bar_have_the_steps_that_fit(tmp_path, log, steps):
    outcome = imported(tmp_path, "stdout-stderr.log", log)
    with lldscope.open_run(outcome.run) as run:
        column = run.signals()["step"].tolist()
        assert (column[0], column[-1], run.counted) == (*steps, "steps")
        assert run.planned_steps is not None


@pytest.mark.parametrize(
    "log",
    [
        sweep_log(40, 5, bars=(), total=200),  # no bar
        sweep_log(7, 14, bars=(100,), total=100),  # 13 or 14 steps
        sweep_log(40, 5, bars=(0,), total=200),  # a bar that does not move, no schedule
        sweep_log(40, 5, bars=(200,), total=200).replace("'epoch': 0.48", "'epoch': 0.61"),
    ],
)
def test_rows_whose_steps_nothing_tells_are_rows(tmp_path, log, lldscope_command):
    outcome = imported(tmp_path, "stdout-stderr.log", log)
    assert (outcome.findings.counted, outcome.findings.planned_steps) == ("rows", None)
    output = lldscope_command("check", str(outcome.run)).stdout
    assert f"row {outcome.steps}" in output
    assert not re.search(r"\bsteps?\b", output)
