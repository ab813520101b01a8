"""The registry is kept both ways: what is written is declared, and what is declared is written."""

from __future__ import annotations

import pytest
from keeper import train
from lldscope_trainer.config import TrainConfig

import lldscope
from lldscope.core.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from lldscope.core.schema import SIGNALS, TABLES, arrow_schema
from lldscope.figures.chart_figures import CHARTS as ON_THE_DASHBOARD
from lldscope.lint import examine
from lldscope.report.charts import CHARTS as IN_REPORTS

# Columns that this run cannot fill, and why.
NOT_WRITTEN = {
    **dict.fromkeys(
        ("actions.logp_behaviour_sum", "actions.engine_k3_sum", "actions.engine_ratio_sq_sum",
         "actions.n_tokens_engine_far", "tokens.logp_behaviour"),
        "the in-process sampler is the trainer's own policy",
    ),
    "actions.rounding_sq_sum": "this trainer's log-probabilities are in float32",
    "responses.reward_parts": "the reward of the task is one number",
    "probes.action_index": "no probe of this trainer is about a single action",
    "steps.memory_peak": "that of a GPU",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> lldscope.Run:
    """A short real training of the shipped policy, every optional loss switched on."""
    path = tmp_path_factory.mktemp("schema") / "run"
    config = TrainConfig(
        steps=3, prompts=4, group_size=4, updates=2, lr=1e-4, kl_coefficient=0.01, llds="action",
        rescore_share=1.0, tokens_every=1, eval_questions=2, probes_every=1,
    )
    with lldscope.Recorder(path) as recorder:
        train(config, recorder)
    assert recorder.dropped == {}, "nothing undeclared is written"
    return lldscope.open_run(path)


def test_lint_finds_nothing_in_what_this_trainer_records(run):
    """The sums of the grains among it."""
    result = examine(run)
    assert result.findings == []
    assert {"token-counts", "token-sums", "batch-sums"} <= {*result.passed}


@pytest.mark.parametrize("table", [t for t in TABLES if t != "scalars"])  # test_import.py's
def test_everything_declared_is_written(run, table):
    counts = ", ".join(f'count("{c}") AS "{c}"' for c in TABLES[table].names)
    (row,) = run.sql(f"SELECT {counts} FROM {table}").to_dict("records")
    empty = {f"{table}.{name}" for name, n in row.items() if n == 0}
    assert empty == {name for name in NOT_WRITTEN if name.startswith(f"{table}.")}


def test_names_are_unique_and_every_column_says_what_it_means():
    for table in TABLES.values():
        assert len(set(table.names)) == len(table.names)
        assert arrow_schema(table.name).names == list(table.names)
        for column in table.columns:
            assert column.meaning.endswith("."), f"{table.name}.{column.name}"


def test_every_line_of_a_chart_is_a_signal_or_computed_by_the_dashboard():
    computed = {EVIDENCE, *(DELTA_OF_ACTION.format(i) for i in range(ACTIONS_SHOWN))}
    for chart in (*ON_THE_DASHBOARD, *IN_REPORTS):
        assert {line.column for line in chart.lines} <= {*SIGNALS.names, *computed}, chart.id
