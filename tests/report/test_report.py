"""The post-mortem: its numbers against slow twins, every state of a run, and hostile text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_runs import write_run

import lldscope
from lldscope.core.numbers import signed
from lldscope.core.safe_text import escape_control
from lldscope.diagnosis.changepoints import refine
from lldscope.diagnosis.registry import CAUSES, LABELS, LOOK_ALIKES
from lldscope.diagnosis.rule import Alert
from lldscope.report import charts, post_mortem
from lldscope.report.drawing import Axis
from lldscope.report.html import POLICY, html
from lldscope.report.losses import contrasts
from lldscope.report.markdown import markdown
from lldscope.report.sentences import summary

SAMPLES = Path(__file__).parents[2] / "sample_runs"
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe \"'><img src=x onerror=alert(2)> `|`"


@pytest.fixture(scope="module")
def died():
    with lldscope.open_run(SAMPLES / "grpo") as run:
        yield run, post_mortem(run)


@pytest.fixture(scope="module")
def well():
    with lldscope.open_run(SAMPLES / "grpo-llds") as run:
        return post_mortem(run)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_alarm_leads_are_counted_from_the_run(died):
    run, facts = died
    signals = run.signals().set_index("step")
    collapse = next(s for s in facts.phases if s.phase == "collapse").start_step
    assert facts.collapse == collapse
    decay = next(a for a in facts.alarms if a.rule == "lld-decay")
    steps, minutes = facts.lead(decay, collapse)
    assert steps == collapse - decay.step > 0
    seconds = signals.loc[collapse, "time"] - signals.loc[decay.step, "time"]
    assert minutes == pytest.approx(seconds / 60)
    (plain,) = (a for a in facts.to_dict()["alarms"] if a["rule"] == "lld-decay")
    assert plain["steps_before_collapse"] == steps
    assert plain["minutes_before_collapse"] == minutes


def test_losses_match_a_plain_count(died):
    run, facts = died
    losses = facts.losses
    first, last = losses.first_step, losses.last_step
    actions = run.sql("SELECT * FROM actions")
    responses = run.sql("SELECT * FROM responses")
    actions["delta"] = actions["logp_post_sum"].astype(float) - actions["logp_old_sum"].astype(
        float
    )
    whole = actions.groupby(["step", "response_id"])["delta"].agg(lambda d: d.sum(skipna=False))
    table = responses.set_index(["step", "response_id"]).join(whole).reset_index()
    table = table[table["step"].between(first, last)]
    means = {}
    for key, group in table.groupby(["step", "data_source", "group_id"]):
        right = group[group["correct"].astype(bool)]
        deltas = right["delta"].dropna()
        if 0 < len(right) < len(group) and len(deltas):
            means[key] = deltas.mean()
    assert losses.n_groups == len(means)
    assert losses.n_displaced == sum(m < 0 for m in means.values())
    worst = losses.groups[0]
    key = (worst["step"], worst["data_source"], worst["group_id"])
    assert worst["delta"] == pytest.approx(min(means.values()))
    assert means[key] == min(means.values())


def test_what_was_not_seen_has_no_onset(died, well):
    _, facts = died
    by_name = {link.link: link for link in facts.links}
    assert by_name["gradient"].measured
    assert by_name["gradient"].seen is None
    assert by_name["gradient"].onset is None
    assert by_name["likelihood"].onset == facts.boundaries[0].step == facts.fall
    onsets = [link.onset for link in facts.links if link.onset is not None]
    assert onsets == sorted(onsets)
    assert all(link.onset is None for link in well.links)


def test_hindsight_stands_beside_live_and_says_so(died):
    run, facts = died
    assert [b.step for b in facts.boundaries] == [b.step for b in refine(run.assess())]
    text = markdown(facts)
    assert "| hindsight |" in text
    assert "| live |" in text


def test_a_healthy_run_is_reported_as_healthy(well):
    assert well.kind == "healthy"
    assert any("no decay of correct responses was shown" in s for s in well.summary)
    assert not any("LLDS" in a.change for a in well.advice)


def alarm(rule: str, severity: Any, step: int) -> Alert:
    return Alert(rule, severity, "firing", step, 1.0, 0.5, "", "", "", "", "", ((step, None),))


def test_sentences_and_the_table_of_alarms_say_the_same(well):
    stalled, note = alarm("stalled", "critical", 129), alarm("lld-stagnation", "info", 40)
    text = " ".join(summary(replace(well, alarms=[])))
    assert "and no alarm fired." in text
    text = " ".join(summary(replace(well, alarms=[stalled])))
    assert "and no decay alarm fired." in text
    assert "The only alarm is that the run makes no more steps." in text
    assert "first alarm" not in text
    text = " ".join(summary(replace(well, alarms=[note])))
    assert "and no warning fired; for information: lld-stagnation." in text
    text = " ".join(summary(replace(well, alarms=[stalled, note])))
    assert "The only warning is that the run makes no more steps." in text
    assert "no alarm fired" not in text
    assert summary(replace(well, kind="failed", alarms=[note]))[-1] == "No warning fired."
    late = alarm("entropy", "warning", 90)
    text = " ".join(summary(replace(well, kind="alarmed", alarms=[stalled, late])))
    assert "The first alarm was entropy at" in text


def test_hover_states_only_what_was_measured_there():
    steps = [*range(50), *range(150, 200)]
    values = [float(i) for i in steps]
    raw = {"name": "", "x": steps, "y": values}
    mean = {"name": "", "x": steps, "y": [-1.0] * 100}
    plot = charts.Plot(Axis(0, 199, 0, 600), {}, 0, 100)
    for name in ("Δ", "A"):
        lines = [raw | {"name": f"{name}, raw"}, mean | {"name": name}]
        parts = [*charts._hover(lines[1:], lines, plot)]
        assert len(parts) == charts.STRIPS
        for i, part in enumerate(parts):
            middle = (i + 0.5) / charts.STRIPS * 199
            title = re.search("<title>(.*)</title>", part)[1]
            if 51 < middle < 148:
                assert title == f"{name} – at step {middle:.0f}"
            elif middle < 49 or middle > 150:
                value, step = re.fullmatch(
                    rf"{name} (\d+) \(mean −1\) at step (\d+)", title
                ).groups()
                assert value == step
                assert abs(int(step) - middle) <= 199 / charts.STRIPS / 2
    sparse = list(range(0, 200, 40))
    assert [sparse[charts.nearest(sparse, at, 0.5)] for at in (19, 21, 195)] == [0, 40, 160]
    assert charts.nearest([7], 7.4, 0.5) == 0
    assert charts.nearest([7], 9.0, 0.5) is None


def test_advice_only_with_evidence(died):
    _, facts = died
    assert all(a.evidence for a in facts.advice)
    changes = {a.change for a in facts.advice}
    assert "Switch LLDS on" in changes
    contrasted = {c["contrast"]: c["supported"] for c in facts.losses.contrasts}
    masks = contrasted["low_likelihood"] or contrasted["long"]
    assert bool(masks) == any(change.startswith("Mask") for change in changes)


def test_every_look_alike_has_a_label_and_every_cause_an_action():
    assert set(LABELS) == set(LOOK_ALIKES)
    assert all(rule.label and rule.action for rule in CAUSES)


def test_the_data_of_a_contrast_name_both_sides(died):
    (contrast, *_) = died[1].to_dict()["losses"]["contrasts"]
    assert list(contrast) == [
        "contrast", "n_steps", "with", "without", "difference", "error", "supported"
    ]


def test_contrast_compares_groups_of_the_same_step():
    """Steps differ by far more than groups do; only within a step do unlikely ones cost 1 nat."""
    rng = np.random.default_rng(0)
    rows = [
        {"step": s, "delta": -10.0 * s - (g < 2) + rng.normal(0, 0.1), "wrong_logp": float(g) - s,
         "wrong_tokens": rng.random(), "n_good_first": np.nan}
        for s in range(20) for g in range(4)
    ]
    by_name = {c["contrast"]: c for c in contrasts(pd.DataFrame(rows))}
    assert by_name["low_likelihood"]["difference"] == pytest.approx(-1.0, abs=0.15)
    assert by_name["low_likelihood"]["supported"]
    assert not by_name["long"]["supported"]
    assert by_name["good_first_action"]["supported"] is None


@pytest.mark.parametrize("steps", [0, 1, 10])
def test_runs_with_little_in_them(tmp_path, steps):
    with lldscope.open_run(write_run(tmp_path / "run", steps)) as run:
        facts = post_mortem(run)
    assert facts.kind == ("empty" if steps == 0 else "short")
    assert facts.fall is None
    assert html(facts).endswith("</html>\n")
    assert markdown(facts)


def test_a_live_run_is_reported_as_of_its_last_row(tmp_path):
    recorder = lldscope.Recorder(tmp_path / "run")
    try:
        with lldscope.open_run(tmp_path / "run") as run:
            facts = post_mortem(run)
        assert "still running" in " ".join(facts.summary)
    finally:
        recorder.close()


def test_symptoms_alone_claim_no_likelihood(tmp_path):
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in range(60):
            recorder.step(
                step=step, n_responses=10, n_correct=5, reward_sum=5, reward_sq_sum=5,
                n_tokens=100, entropy_sum=50.0, time=1.7e9 + step,
            )
    with lldscope.open_run(tmp_path / "run") as run:
        facts = post_mortem(run)
    assert facts.state.evidence == "symptoms"
    assert "cannot be judged" in " ".join(facts.summary)
    likelihood = next(link for link in facts.links if link.link == "likelihood")
    assert not likelihood.measured
    assert facts.losses.n_groups == 0
    assert html(facts)


def test_the_page_loads_and_runs_nothing(died):
    page = html(died[1])
    assert len(page.encode()) < 500_000
    tags = Tags(page).tags
    assert not {"script", "iframe", "img", "object", "form"} & {tag for tag, _ in tags}
    policy = [a for tag, a in tags if tag == "meta" and "http-equiv" in a]
    assert policy[0]["content"] == POLICY
    assert "url(" not in page
    for _, attributes in tags:
        for name in ("href", "src"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
        assert not any(name.startswith("on") for name in attributes)


def hostile_run(path):
    with lldscope.Recorder(path, name=HOSTILE) as recorder:
        for step in range(3):
            old = np.full(4, -5.0)
            recorder.responses(
                step=step, response_id=np.arange(4), group_id=0, data_source=HOSTILE,
                reward=[1.0, 0, 1, 0], correct=[True, False, True, False], n_actions=1, n_tokens=5,
                text=[HOSTILE + " a", HOSTILE + " b"] * 2,
            )
            recorder.actions(
                step=step, response_id=np.arange(4), action_index=0, n_tokens=5,
                logp_old_sum=old, logp_post_sum=old - 1.0,
            )
            recorder.step(step=step, n_responses=4, n_correct=2, reward_sum=2.0, reward_sq_sum=2.0)
    return path


def test_hostile_text_is_shown_and_not_obeyed(tmp_path):
    with lldscope.open_run(hostile_run(tmp_path / "run")) as run:
        facts = post_mortem(run)
    (example, *_) = facts.examples
    assert example.shared_characters == len(HOSTILE) + 1
    page, text = html(facts), markdown(facts)
    assert "&lt;script&gt;" in page
    assert not {"script", "img"} & {tag for tag, _ in Tags(page).tags}
    for out in (page, text):
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "⟨U+202E⟩" in out
    fenced = [line for line in text.splitlines() if not line.startswith("    ")]
    assert not any(re.search(r"(?<!\\)<script", line) for line in fenced)


def test_visible_keeps_words_and_marks_the_rest():
    assert escape_control("Σ ok\n", lines=True) == "Σ ok↵\n"
    assert escape_control("a\x00b\x7fc\u2066d\ud800") == "a␀b␡c⟨U+2066⟩d⟨U+D800⟩"


def test_command_writes_files_by_their_names(lldscope_command, tmp_path):
    page = tmp_path / "r.html"
    done = lldscope_command("report", SAMPLES / "grpo-llds", "-o", page)
    assert done.returncode == 0
    assert done.stdout == ""
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    result = lldscope_command("report", SAMPLES / "grpo-llds", "--format", "json")
    facts = json.loads(result.stdout)
    assert facts["schema"] == 1
    assert facts["kind"] == "healthy"


def test_command_says_what_is_wrong(lldscope_command, tmp_path):
    missing = lldscope_command("report", tmp_path / "none", "-o", tmp_path / "r.html")
    assert missing.returncode != 0
    assert "none" in missing.stderr
    nowhere = lldscope_command("report", SAMPLES / "grpo", "-o", tmp_path / "no" / "r.html")
    assert nowhere.returncode != 0
    assert "There is no folder" in nowhere.stderr


def test_sentences_date_the_steps_they_name(died):
    run, facts = died
    times = run.signals().set_index("step")["time"]
    first_alarm = min(a.step for a in facts.alarms if a.severity != "info")
    for step in (facts.fall, facts.collapse, first_alarm):
        clock = datetime.fromtimestamp(times[step], UTC).strftime("%H:%M UTC")
        assert any(f"step {step} ({clock})" in sentence for sentence in facts.summary)
    later = replace(facts, run=replace(facts.run, first_time=times[0] - 86_400 * 3))
    assert re.search(rf"step {facts.fall} \(\d{{4}}-\d\d-\d\d \d\d:\d\d UTC\)", summary(later)[2])


def test_what_the_shared_prefix_lost_is_a_sum_over_its_tokens(died):
    _, facts = died
    sums = 0
    for x in facts.examples:
        if x.shared_characters is None:
            assert x.shared_delta is None
            continue
        left, deltas = x.shared_characters, []
        for piece in x.correct.pieces:
            left -= len(piece.text)
            if left >= 0 and piece.delta is not None:
                deltas.append(piece.delta)
        assert x.shared_delta == pytest.approx(sum(deltas), abs=1e-3)
        assert f"{signed(x.shared_delta)} nats" in html(facts)
        sums += 1
    assert sums


def test_alarms_stand_in_the_order_in_which_they_fired(died):
    _, facts = died
    rows = re.findall(r"\| [▲◆i] \w+ \| \S+ \| (\d+) \|", markdown(facts))
    assert len(rows) == len(facts.alarms) > 1
    assert rows == sorted(rows, key=int)


def test_the_box_on_top_has_cause_confidence_cost_and_action(lldscope_command) -> None:
    run = Path(__file__).parents[2] / "sample_runs" / "retriever-dies"
    with lldscope.open_run(run) as reader:
        facts = post_mortem(reader, cost_per_hour=36.0)
        signals = reader.signals()
    after = signals[signals["step"] >= 32]
    cost = facts.cost
    assert (cost.rule, cost.step, cost.steps) == ("entropy-surge", 32, len(after))
    assert cost.rollouts == after["n_responses"].sum()
    seconds = after["time"].iloc[-1] - after["time"].iloc[0]
    assert cost.money == pytest.approx(36 * seconds / 3600)
    page = html(facts)
    assert page.index('class="box"') < page.index("What happened")
    box = page.split('<dl class="box">')[1].split("</dl>")[0]
    assert "Retriever or tool dead (began at step 30)" in box
    assert "ruled out: " in box
    assert "fired in 0 of 21 runs of the tiny policy" in box
    assert f"which cost {cost.money:,.2f}" in box
    for anchor in re.findall(r"<nav.*?</nav>", page)[0].split('href="#')[1:]:
        assert f'<h2 id="{anchor.split(chr(34))[0]}">' in page
    with lldscope.open_run(run.parent / "grpo-llds") as reader:
        well = post_mortem(reader)
    assert well.cost is None
    held_out = html(well).split("<b>Held-out evaluation</b>")[1].split("</figcaption>")[0]
    assert "em_greedy" in held_out
    assert "closed_book" not in held_out
    assert well.signals["lr"].mean == well.signals["lr"].value
    assert well.signals["reward"].mean != well.signals["reward"].value
    assert "Tool failures" in html(well)
    text = lldscope_command("report", run, "--format", "md", "--cost-per-hour", "2").stdout
    assert "- **what is wrong:** Retriever or tool dead (began at step 30)." in text
    assert "which cost 0" in text
