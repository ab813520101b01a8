"""What fits a terminal of 80 columns, and what Python shows of a run."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from phase_runs import SAMPLES
from recorded_steps import record_steps
from rich.console import Console

import lldscope
from lldscope.cli import cli, views
from lldscope.core import terminal
from lldscope.diagnosis.rule import Alert, Severity


@pytest.fixture
def root(tmp_path):
    for name in ("a-run-with-a-name-of-30-columns", "b"):
        with lldscope.Recorder(tmp_path / name) as recorder:
            record_steps(recorder, range(3))
    lldscope.Recorder(tmp_path / "without-rows").close()
    return tmp_path


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    """A terminal of 80 columns."""
    out = io.StringIO()

    def console(**options: bool) -> Console:
        return Console(file=out, force_terminal=True, no_color=True, width=80, highlight=False)

    monkeypatch.setattr("rich.console.Console", console)
    return out


def widest(screen: io.StringIO) -> int:
    return max(map(len, map(terminal.plain, screen.getvalue().splitlines())))


@pytest.mark.parametrize("command", ["runs", "compare"])
def test_tables_of_runs_fit_80_columns(root, screen, command):
    done = CliRunner().invoke(cli, [command, str(root)])
    assert done.exception is None, done.output
    assert widest(screen) <= 80
    text = " ".join(screen.getvalue().split())
    assert "a-run-with-a-name-of-30-columns" in text
    assert "– ago" not in text
    assert "without-rows" in text


@pytest.mark.parametrize(
    "words", ["check {grpo}", "diagnose {grpo}", "diff {grpo} {grpo}-llds --all", "lint {grpo}",
              "doctor {grpo}", "rules list"],
)
def test_answers_about_a_run_fit_80_columns(screen, words):
    CliRunner().invoke(cli, words.format(grpo=SAMPLES / "grpo").split())
    assert screen.getvalue()
    assert widest(screen) <= 80


def test_a_name_between_colons_is_printed_as_it_is(tmp_path):
    lldscope.Recorder(tmp_path / "lr:key:3e-5").close()
    assert "lr:key:3e-5" in CliRunner().invoke(cli, ["runs", str(tmp_path)]).output


def test_public_names_are_seen_and_a_run_describes_itself(root):
    assert {"Recorder", "open_run", "Run"} <= set(dir(lldscope))
    with lldscope.open_run(root / "b") as run:
        run.info["name"] = "<script>"
        card = run._repr_html_()
        assert "&lt;script&gt;" in card
        assert "3 steps (0–2)" in card
        assert "Too few steps to judge" in card
        assert repr(run) == f"<Run '<script>': {root / 'b'}>"


@pytest.mark.parametrize(
    ("words", "output"),
    [("check ru", "dir,ru\n"), ("acknowledge x lld-d", "plain,lld-decay\n"),
     ("diag", "plain,diagnose\n")],
)
def test_commands_folders_and_rules_complete_in_the_shell(words, output):
    done = CliRunner().invoke(
        cli, prog_name="lldscope",
        env={"_LLDSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": f"lldscope {words}",
             "COMP_CWORD": str(len(words.split()))},
    )
    assert done.output == output


@pytest.mark.parametrize("command", ["runs", "dash"])
def test_where_there_are_no_runs_yet_is_said_what_to_type(command, tmp_path, lldscope_command):
    done = lldscope_command(command, cwd=tmp_path)
    assert done.returncode == 1
    assert 'instrument(trainer, "runs/mine")' in done.stderr
    assert "lldscope demo" in done.stderr


@pytest.mark.parametrize(
    ("step", "episodes", "when"),
    [
        (209, [(209, None)], "step 209"),
        (215, [(209, None)], "step 215 (first at step 209)"),
        (209, [(209, 250), (321, None)], "step 209 (again since step 321)"),
        (330, [(209, 250), (321, None)], "step 330 (first at step 209, again since step 321)"),
    ],
)
def test_the_words_of_an_alarm_stand_beside_their_own_step(step, episodes, when):
    words = dict.fromkeys(("meaning", "evidence", "advice", "false_alarms"), "")
    alert = Alert("score-flat", Severity.WARNING, "firing", step, 4.0, 3.0, "it rose",
                  episodes=tuple(episodes), **words)
    output = views.alert_text(Console(width=200), alert).plain
    assert f"score-flat, {when}: it rose" in output
