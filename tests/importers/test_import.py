"""Importing: the formats, what becomes of their numbers, bad input, importing again, following."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from imported import query, signals

import lldscope
from lldscope.cli import import_
from lldscope.core import atlas
from lldscope.core.errors import LldscopeError, RunExists, UsageError
from lldscope.core.schema import SIGNALS
from lldscope.importers import build, metrics, records
from lldscope.importers.build import Import
from lldscope.importers.mapping import MEANINGS, SCALAR_SIGNALS, meaning
from lldscope.importers.source import Findings, ImportRequest
from lldscope.monitor.health import check

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
VERL, TRL, TEXT = FIXTURES / "verl", FIXTURES / "trl", FIXTURES / "text"


@pytest.fixture
def text(tmp_path):
    def write(content: str | bytes, name: str = "train.log") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def verl_line(step: int, **values: float) -> str:
    metrics = {"critic/score/mean": 0.5, "actor/entropy": 1.0, "actor/grad_norm": 0.1} | values
    return " - ".join([f"step:{step}", *(f"{k}:{v!r}" for k, v in metrics.items())]) + "\n"


# -- formats ---------------------------------------------------------------------------------------


def test_verl_console_with_all_that_ray_puts_around_it(run_import):
    """Written by verl's own code: numpy scalars, a resume at step 3, other processes' lines."""
    outcome = run_import(VERL / "console.log")
    assert outcome.formats == {"console": 1}
    assert (outcome.steps, outcome.attempts) == (7, 2)
    rows = signals(outcome)
    for step in range(1, 7):
        assert rows[step]["entropy"] == pytest.approx(0.9 - 0.01 * step)
        assert rows[step]["reward"] == pytest.approx(0.1 * step)
        assert rows[step]["grad_norm"] == pytest.approx(0.2 + 0.003 * step)
    assert query(outcome, "SELECT count(*) FROM all_steps WHERE step IN (3, 4)") == [(4,)]
    assert outcome.findings.skipped == {
        "metric lines without a metric": 1,
        "metrics whose value is not a number": 1,
        "last metrics of a line that is half written": 1,
    }
    # What is measured otherwise is labelled and not renamed.
    scalars = dict(query(outcome, "SELECT name, estimator FROM scalars"))
    assert "actor/pos_avg_old_log_prob" in scalars
    assert "correct_logp" not in scalars
    assert "critic/rewards/mean" in scalars  # the score stands for the reward
    assert scalars["grad_norm"] == "mean over the step's updates, not their median"
    assert "actor/pos_avg_old_log_prob" in outcome.findings.names


def test_trl_console_completions_and_state_are_one_run(run_import):
    """Written by TRL itself, the three ways that it writes."""
    outcome = run_import(TRL)
    assert outcome.formats == {"console": 1, "metrics": 1, "rollouts": 4}
    assert set(outcome.rows) == {"steps", "scalars", "responses", "actions"}
    state = json.loads((TRL / "trainer_state.json").read_text())["log_history"]
    rows = signals(outcome)
    for entry in state:
        row = rows[entry["step"]]
        assert row["reward"] == pytest.approx(entry["reward"], abs=1e-6)  # from the rollouts
        assert row["entropy"] == pytest.approx(entry["entropy"], rel=1e-3)  # printed shorter
        prompts = pq.read_table(TRL / f"completions_{entry['step']:05d}.parquet")["prompt"]
        assert (row["n_responses"], row["n_groups"]) == (8, len(prompts.unique()))
    alone = signals(run_import(TRL / "console.log", to="alone"))
    assert [alone[e["step"]]["reward"] for e in state] == [
        pytest.approx(e["reward"], rel=1e-3) for e in state
    ]


def test_verl_rollouts_give_actions_groups_and_verdicts(run_import):
    outcome = run_import(VERL / "rollouts")
    assert outcome.formats == {"rollouts": 3}
    one = "FROM responses WHERE step = 10 ORDER BY response_id"
    assert query(outcome, f"SELECT reward, correct, n_searches, n_invalid, answered {one}") == [
        (1.0, True, 1, 0, True),
        (0.0, False, 1, 0, True),
        (1.0, True, 0, 1, True),
        (0.0, False, 0, 0, False),
    ]
    row = signals(outcome)[10]
    assert (row["reward"], row["success"], row["n_groups"]) == (0.5, 0.5, 1)
    assert row["valid_searches"] == 0.5
    assert row["good_first_action_share"] == 0.5


def test_exact_match_is_computed_anew_on_request(run_import, text):
    row = {"input": "<search> Who?", "output": "<answer>the Dune!</answer>", "gts": ["Dune"],
           "score": 0.0, "step": 1}
    path = text(json.dumps(row) + "\n", "1.jsonl")
    assert query(run_import(path, exact_match=True), "SELECT correct FROM responses") == [(True,)]
    assert query(run_import(path, to="b"), "SELECT correct FROM responses") == [(False,)]
    lenient = run_import(path, to="c", correct_from=0.0)
    assert query(lenient, "SELECT correct FROM responses") == [(True,)]
    with lldscope.open_run(lenient.run) as run:
        assert "reward ≥ 0" in run.info["correct_rule"]


def test_token_log_probabilities_become_levels_and_never_delta(run_import):
    """Actions are the runs of the mask."""
    outcome = run_import(TEXT / "nemo")
    rows = signals(outcome)
    assert rows.keys() == {1, 2}
    row = rows[2]
    # Σ over 5 trained tokens, per token
    assert (row["correct_logp"], row["engine_gap"], row["response_tokens"]) == pytest.approx(
        (-0.75, -0.5 + 0.75, 5), abs=1e-6
    )
    assert math.isnan(row["delta_correct"])
    one = "step = 1 AND response_id = 0"
    actions = f"SELECT action_index, n_tokens, logp_old_sum FROM actions WHERE {one}"
    assert query(outcome, actions) == [(0, 3, -2.25), (1, 2, -1.5)]


def test_a_table_with_names_of_ones_own(run_import, text):
    path = text("it;r;loss\n1;0.25;1\n2;0.5;nan\n", "mine.csv")
    columns = {"step": "it", "reward": "r"}
    lines = text('{"it": 1, "r": 0.25, "loss": 1}\n{"it": 2, "r": 0.5, "loss": NaN}\n', "mine.txt")
    for source in (path, lines):  # found by the name that was given
        rows = signals(run_import(source, to=source.suffix, columns=columns))
        assert [rows[s]["reward"] for s in (1, 2)] == [0.25, 0.5]
        assert rows[2]["n_nonfinite"] == 1  # the loss
    with pytest.raises(LldscopeError, match="none of the known formats"):
        run_import(path, to="none", columns={"step": "nothing"})


def test_a_table_of_several_runs_is_read_one_run_at_a_time(run_import, text):
    lines = [f"{arm},{seed},{s},0.{s}{seed}" for arm in "ab" for seed in (0, 1) for s in (1, 2, 3)]
    path = text("\n".join(["arm,seed,step,reward", *lines]) + "\n", "runs.csv")
    with pytest.raises(UsageError, match=r"holds 4 runs; .*: a 0, a 1, b 0, b 1"):
        run_import(path, to="all")
    rows = signals(run_import(path, to="one", run="b 1"))
    assert [rows[s]["reward"] for s in (1, 2, 3)] == [0.11, 0.21, 0.31]
    resumed = text("run_id,step,reward\nx,1,0.1\nx,2,0.2\ny,3,0.3\n", "resumed.csv")
    assert run_import(resumed, to="resumed").steps == 3  # one run, under another id since step 3


def test_rows_after_a_configuration_with_a_long_text(run_import, text):
    settings = json.dumps({"type": "config", "lr": 1e-5, "command": "x" * 300})
    rows = [json.dumps({"step": s, "mean_reward": s / 8}) for s in (1, 2, 3)]
    outcome = run_import(text("\n".join([settings, *rows]) + "\n", "log.jsonl"))
    assert [row["reward"] for row in signals(outcome).values()] == [0.125, 0.25, 0.375]


def test_a_mean_under_the_name_of_a_signal_decides_the_grade_of_evidence(run_import, text):
    """As docs/importing.md says; Δ falls from step 20 on."""
    for name, grade in (
        ("other", "symptoms"),
        ("correct_logp", "level"),
        ("delta_correct", "delta"),
    ):
        lines = [
            f"{s},{0.3 + 0.002 * s},{0.3 - 0.012 * max(0, s - 20) + 0.04 * (s % 3 - 1)},1"
            for s in range(120)
        ]
        path = text("\n".join([f"step,reward,{name},entropy", *lines]) + "\n", f"{name}.csv")
        with lldscope.open_run(run_import(path, to=name).run) as run:
            state = check(run)
        assert state.evidence == grade
        assert ("decay" in {s.phase for s in state.phases}) == (grade != "symptoms")


def test_pickles_are_passed_over_with_what_to_do(run_import, text, tmp_path):
    path = text(b"\x80\x04x", "0.pkl")
    with pytest.raises(LldscopeError, match="write its rollouts as JSON lines"):
        run_import(path)
    outcome = run_import(path, VERL / "console.log")  # the rest is imported
    assert outcome.steps == 7
    assert outcome.findings.skipped["pickles, which are not loaded"] == 1


# -- scalars ---------------------------------------------------------------------------------------


def test_every_mean_among_the_signals_can_come_from_a_log(run_import, text):
    values = {name: i + 0.5 for i, name in enumerate(sorted(SCALAR_SIGNALS))}
    path = text(json.dumps({"step": 3} | values) + "\n", "mine.jsonl")
    row = signals(run_import(path))[3]
    assert {name: row[name] for name in values} == pytest.approx(values)


def test_the_table_of_names_leads_to_signals_that_are_means():
    examples = {
        **dict.fromkeys(("mean_reward", "reward_mean", "avg_reward", "performance", "score",
                         "critic/score/mean", "train_reward", "rollout/rewards"), "reward"),
        "gradient_norm": "grad_norm", "trainer_metrics/loss/grad_norm": "grad_norm",
        "token_entropy": "entropy", "completion_length_mean": "response_tokens",
        "completion_tokens": "response_tokens", "truncation_rate": "truncated_share",
        "clip_fraction": "clip_share", "kl_divergence": "kl", "success_rate": "success",
        "actor/kl_loss": "kl", "actor/ppo_kl": "step_kl", "actor/pg_clipfrac": "clip_share",
        "tool_call_counts/mean": "tool_calls", "rollout_corr/kl": "engine_gap",
        "rollout_corr/rollout_is_eff_sample_size": "engine_ess", "reward/selected_mean": "reward",
        "tools/call_frequency": "tool_calls", "train/gen_kl_error": "engine_k3",
        "sampling/sampling_logp_difference/mean": "engine_diff", "mismatch_kl/mean": "engine_k3",
        "train/train_rollout_logprob_abs_diff": "engine_diff", "train/lr-pg_0": "lr",
        **dict.fromkeys(("env/num_searches", "search_calls", "Valid Searches"), "valid_searches"),
        "Grad. Norm": "grad_norm", "Avg Response Len": "response_tokens",
        "Actor Loss": "loss_policy", "KL_ref": "kl", "reward mean": "reward",
        "Zero Std Frac": "zero_signal_share",
    }
    assert {name: m.signal for name in examples if (m := meaning(name))} == examples
    assert {m.signal for m in MEANINGS.values()} <= SCALAR_SIGNALS
    units = {c.name: c.unit for c in SIGNALS.columns}  # none per response for one per token
    assert not [m for m in atlas.metrics() if m.signal and units[m.signal] not in ("", m.unit)]
    assert meaning("train/reward") == MEANINGS["reward"]
    for name in ("n_responses", "reward_max", "policy_entropy_loss", "kl_coef",
                 "completions/min_length", "mean_format_rewards"):
        assert meaning(name) is None
    assert "n_responses" in SIGNALS.names


def test_a_metric_is_what_its_trainer_means_by_it(run_import, text):
    """The same name of two trainers; another sign; a square that is no first-order estimate."""
    logs = {
        "areal.jsonl": ("ppo_actor/update/approx_kl/avg", -0.25, "step_kl", 0.25),
        "roll.jsonl": ("actor/approxkl", 0.25, "actor/approxkl", 0.25),
        "slime.jsonl": ("train/ppo_kl", 0.25, "step_kl", 0.25),
    }
    more = {"roll.jsonl": {"actor/ppo_ratio_clipfrac": 0.1}, "slime.jsonl": {"train/ois": 1.0,
            "train/train_rollout_logprob_abs_diff": 0.1}}
    estimators = {}
    for file, (name, value, ours, expected) in logs.items():
        row = {"step": 1, name: value} | more.get(file, {})
        outcome = run_import(text(json.dumps(row) + "\n", file), to=f"run-{file}")
        rows = query(outcome, "SELECT name, value, estimator FROM scalars")
        assert {(n, v) for n, v, _ in rows} >= {(ours, expected)}
        estimators.update((file, e) for n, _, e in rows if n == ours)
    assert "each response weighing the same" in estimators["slime.jsonl"]
    assert meaning("ppo_kl", "openrlhf").estimator != meaning("ppo_kl", "slime").estimator
    assert len({meaning("kl", t).estimator for t in ("trl", "ms-swift", "unsloth")}) == 3


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum-norm"])
def test_what_is_summed_over_a_response_is_no_number_of_a_token(run_import, text, mode):
    row = verl_line(1, **{"actor/kl_loss": 12.5, "actor/ppo_kl": 0.25})
    outcome = run_import(text(f" 'loss_agg_mode': '{mode}',\n{row}"))
    values = dict(query(outcome, "SELECT name, value FROM scalars"))
    assert values["kl" if mode == "token-mean" else "actor/kl_loss"] == 12.5
    assert ("kl" in values) == (mode == "token-mean")
    assert values["step_kl"] == 0.25
    assert any(mode[:18] in note for note in outcome.findings.notes) == (mode != "token-mean")


# -- bad input -------------------------------------------------------------------------------------


def test_runs_that_wrote_into_one_log_at_once_are_said_to_be_mixed(run_import, text):
    """Nothing is lost, and nobody takes it for one run."""
    both = "".join(verl_line(step + 100) + verl_line(step) for step in range(30))
    outcome = run_import(text(both))
    assert query(outcome, "SELECT count(*) FROM all_scalars WHERE name = 'reward'") == [(60,)]
    assert any("several runs" in note for note in outcome.findings.notes)
    one = run_import(VERL / "console.log", to="one")  # started twice
    assert not any("several runs" in note for note in one.findings.notes)


def test_rollouts_belong_to_the_attempt_whose_step_stands(run_import):
    """The dumps of steps 1, 2 and 10 beside a console that was resumed at step 3."""
    rows = signals(run_import(VERL / "console.log", VERL / "rollouts"))
    assert [rows[s]["n_responses"] for s in (1, 2, 10)] == [4, 4, 4]
    assert rows[5]["entropy"] == pytest.approx(0.85)


@pytest.mark.parametrize("line", [
    "step:{} - actor/lr:{} - actor/grad_norm:0.000 - critic/score/mean:0.000\n",
    "Step {}/9 | lr: {} | grad_norm: 0.0000 | reward: 0.000\n",
])
@pytest.mark.parametrize(("lr", "rate"), [("0.000", {}), ("0.0", {"lr": 0.0})])
def test_a_rate_of_which_rounding_leaves_nothing_is_not_0(run_import, text, line, lr, rate):
    outcome = run_import(text("".join(line.format(step, lr) for step in (1, 2))))
    row = {name: v for name, v in signals(outcome)[2].items() if v == v and v is not None}
    assert {name: row[name] for name in ("lr", "grad_norm", "reward") if name in row} == {
        "reward": 0.0, **rate
    }


def test_half_written_lines_and_garbage_are_counted(run_import, text):
    good = json.dumps({"step": 1, "reward": 0.5})
    path = text(
        good.encode() + b'\n\x00\xff\x13garbage\n[1]\n{"step": -1}\n{"step": 2, "rew', "m.jsonl"
    )
    outcome = run_import(path)
    assert outcome.steps == 1
    assert outcome.findings.skipped == {
        "lines that are not JSON": 1,
        "lines that are not a JSON object": 1,
        "rows without a step": 1,
        "last lines that are half written": 1,
    }


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 5000, bytes(range(256)) * 40, b"no metric here\n", b"{"]
)
def test_nothing_to_import_is_an_error_that_leaves_nothing(run_import, text, content, tmp_path):
    path = text(content, "in/train.log")
    for choice in (None, "console", "metrics", "rollouts"):
        with pytest.raises(LldscopeError):
            run_import(path, format_name=choice)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_line_without_end_does_not_fill_the_memory(run_import, text, monkeypatch):
    monkeypatch.setattr("lldscope.importers.reading.MAX_LINE", 1 << 20)
    outcome = run_import(text(verl_line(1) + "x" * (5 << 20) + "\n" + verl_line(2)))
    assert outcome.steps == 2
    assert any("lines of more than 1 MB" in reason for reason in outcome.findings.skipped)


def test_errors_of_the_one_who_asks(run_import, tmp_path):
    with pytest.raises(UsageError, match="There are: tensorboard"):
        run_import(VERL / "console.log", format_name="nonsense")
    with pytest.raises(LldscopeError, match="does not exist"):
        run_import(tmp_path / "nothing.log")


def test_a_log_with_more_names_than_any_trainer_has_is_bounded(run_import, text, monkeypatch):
    monkeypatch.setattr("lldscope.importers.run_writer.MAX_NAMES", 3)
    lines = [{"step": s, "a": s, f"b{s}": s} for s in range(6)]
    outcome = run_import(text("".join(json.dumps(line) + "\n" for line in lines), "m.jsonl"))
    names = query(outcome, "SELECT name, count(*) FROM scalars GROUP BY name ORDER BY name")
    assert names == [("a", 6), ("b0", 1), ("b1", 1)]
    assert outcome.findings.skipped == {"values of metrics beyond the first 3": 4}


def test_the_values_of_a_console_line():
    lines = {
        "a:1 - b/c:-2.5e-3 - d@x:nan": {"a": 1, "b/c": -0.0025, "d@x": math.nan},
        "grad_norm:mean:0.5 - a:1": {"grad_norm:mean": 0.5, "a": 1},
        "a:1 - b:word - c:2": {"a": 1, "c": 2},
        "a:1 - b:np.float64(2.0) - c:np.int64(3)": {"a": 1, "b": 2, "c": 3},
        "a:1 - a:2": {"a": 2},
        "x:1 - 2:3:4": {"x": 1, "2:3": 4},
    }
    for line, expected in lines.items():
        assert records.verl_values(line, True, Findings()) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"step": 1, "a": 2, "b": 0.5}', {"a": 2, "b": 0.5}),
        ('{"step": 1, "a": NaN, "b": -Infinity}', {"a": math.nan, "b": -math.inf}),
        ('{"step": 1, "a": "NaN", "b": "inf", "c": null}', {"a": math.nan, "b": math.inf}),
        ('{"step": 1, "data": {"a": 2, "b": {"c": 3}}}', {"a": 2, "b/c": 3}),
        ('{"step": 1, "a": true, "b": 1}', {"b": 1}),
        ('{"step": 1, "a": 1%s, "b": 1}' % ("0" * 400), {"b": 1}),
    ],
)
def test_numbers_of_a_line_whichever_way_they_are_read(text, line, expected):
    (row,) = metrics.Metrics().read([text(line + "\n", "m.jsonl")], Findings())
    assert row.values == pytest.approx(expected, nan_ok=True)


# -- importing again, following --------------------------------------------------------------------


def test_importing_again_gives_the_same_run(run_import, text):
    path = text(verl_line(1))
    first, again = run_import(path), run_import(path)
    assert (first.unchanged, again.unchanged) == (False, True)
    text(verl_line(1) + verl_line(2))
    assert run_import(path).steps == 2
    assert query(first, "SELECT count(*) FROM all_steps") == [(2,)]
    assert run_import(path, columns={"kl": "actor/entropy"}).unchanged is False


def test_other_peoples_directories_are_not_overwritten(run_import, make_run, tmp_path):
    make_run("recorded")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    for place in ("recorded", "notes"):
        before = sorted((tmp_path / place).rglob("*"))
        with pytest.raises(RunExists):
            run_import(VERL / "console.log", to=place)
        assert sorted((tmp_path / place).rglob("*")) == before


def test_rollouts_that_are_written_one_by_one_are_all_there_in_the_end(tmp_path):
    """The last step waits for the next one while it may be half written."""
    rows = [{"step": i // 4, "prompt": f"q{i // 2}", "response": "a", "reward": i % 2}
            for i in range(12)]
    log = tmp_path / "rollouts.jsonl"

    def write(n: int) -> None:
        log.write_text("".join(json.dumps(row) + "\n" for row in rows[:n]))

    write(7)
    task = Import([log], tmp_path / "run", ImportRequest(), None)
    assert task.build(lambda n: None, live=True).rows["responses"] == 4
    lengths, counts = [11, 12], []

    def stop(seconds: float) -> bool:
        if lengths:
            write(lengths.pop(0))
            return False
        return True

    task.follow(stop, lambda outcome: counts.append(outcome.rows["responses"]))
    task.close("over")
    assert counts == [8, 8]
    with lldscope.open_run(tmp_path / "run") as run:
        assert run.sql("SELECT count(*) AS n FROM responses GROUP BY step")["n"].tolist() == [4] * 3


def test_following_waits_for_the_first_step(text, tmp_path, monkeypatch, capsys):
    path = text("")
    writes = ["starting Ray\n", "starting Ray\n" + verl_line(1)]
    monkeypatch.setattr(import_.time, "sleep", lambda seconds: text(writes.pop(0)))
    task, outcome = import_.imported((path,), tmp_path / "run", ImportRequest(), None, follow=True)
    assert (outcome.steps, next(iter(task.sources)).name) == (1, "console")
    assert capsys.readouterr().err.count("waiting") == 1  # said once


def test_an_import_that_fails_leaves_the_earlier_one(run_import, text, monkeypatch):
    path = text(verl_line(1))
    first = run_import(path)
    text(verl_line(1) + verl_line(2))

    def full(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(build.RunWriter, "flush", full)
    with pytest.raises(OSError, match="no space"):
        run_import(path)
    assert signals(first).keys() == {1}
    assert {p.name for p in path.parent.iterdir()} == {"run", "train.log"}


# -- end to end ------------------------------------------------------------------------------------

def test_the_command_says_what_it_passed_over_and_obeys_no_file(text, tmp_path, lldscope_command):
    evil = "step:1 - critic/score/mean:0.5 - \x1b]0;owned\x07evil:1 - a\u202eb:2\n"
    result = lldscope_command("import", str(text(evil)), "--to", str(tmp_path / "r"))
    assert result.returncode == 0
    assert "kept under their own names" in result.stderr
    assert not set("\x1b\x07\u202e") & set(result.stderr + result.stdout)
    empty = lldscope_command("import", str(text("nothing\n")), "--to", str(tmp_path / "s"))
    assert empty.returncode == 1
    assert "Nothing was imported" in empty.stderr
    wrong = lldscope_command(
        "import", str(text(evil)), "--to", str(tmp_path / "s"), "--map", "nonsense=x"
    )
    assert wrong.returncode == 2
    assert "OURS=THEIRS" in wrong.stderr


def test_gzip_is_unpacked(run_import, tmp_path):
    (tmp_path / "a.log.gz").write_bytes(gzip.compress((VERL / "console.log").read_bytes()))
    assert run_import(tmp_path / "a.log.gz").steps == 7
