"""The post-mortem: its numbers against slow twins, every state of a run, and hostile text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from made_up_runs import write_run

import lldscope
from lldscope.report import PostMortem, post_mortem
from lldscope.report.charts import STORY, of_run
from lldscope.report.document import document
from lldscope.report.html import POLICY, html
from lldscope.report.markdown import markdown
from lldscope.report.sentences import duration

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


def page_of(facts: PostMortem) -> str:
    return html(document(facts))


def text_of(facts: PostMortem) -> str:
    return markdown(document(facts))


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def responses_with_delta(run, first: int, last: int) -> pd.DataFrame:
    """Responses of the window with Δ summed over their actions, by hand."""
    actions, responses = run.sql("SELECT * FROM actions"), run.sql("SELECT * FROM responses")
    post, old = actions["logp_post_sum"].astype(float), actions["logp_old_sum"].astype(float)
    actions["delta"] = post - old
    whole = actions.groupby(["step", "response_id"])["delta"].agg(lambda d: d.sum(skipna=False))
    table = responses.set_index(["step", "response_id"]).join(whole).reset_index()
    return table[table["step"].between(first, last)]


def test_losses_match_a_plain_count(died):
    run, facts = died
    losses = facts.losses
    means = {}
    table = responses_with_delta(run, losses.first_step, losses.last_step)
    for key, group in table.groupby(["step", "data_source", "group_id"]):
        right = group[group["correct"].astype(bool)]
        deltas = right["delta"].dropna()
        if 0 < len(right) < len(group) and len(deltas):
            means[key] = deltas.mean()
    assert losses.n_groups == len(means)
    assert losses.n_displaced == sum(m < 0 for m in means.values())


def test_the_worst_tokens_are_the_worst_of_correct_responses_one_of_each_group(died):
    run, facts = died
    tokens = run.sql("SELECT * FROM tokens")
    classes = run.sql("SELECT step, response_id, group_id, correct, mixed FROM response_class")
    tokens = tokens.merge(classes, on=["step", "response_id"])
    inside = tokens["step"].between(facts.losses.first_step, facts.losses.last_step)
    tokens = tokens[inside & tokens["correct"] & tokens["mixed"] & tokens["action_index"].notna()]
    delta = tokens["logp_post"].astype(float) - tokens["logp_old"].astype(float)
    worst = delta[delta.groupby([tokens["step"], tokens["group_id"]]).idxmin()].nsmallest(3)
    assert [t.delta for t in facts.losses.tokens] == pytest.approx(worst.tolist())
    rows = tokens.loc[worst.index, ["step", "response_id"]].itertuples(index=False)
    assert [(t.step, t.response_id) for t in facts.losses.tokens] == [*map(tuple, rows)]
    for token in facts.losses.tokens:
        assert np.log(token.p_post / token.p_old) == pytest.approx(token.delta)
        assert token.before


def test_one_pair_of_steps_for_each_event(died, well):
    _, facts = died
    assert len({event.rule for event in facts.events}) == len(facts.events)
    decay, collapse = facts.event("lld-decay"), facts.event("lld-collapse")
    assert decay.onset_step == facts.fall
    assert (collapse.alarm_step, "collapse") in [(s.start_step, s.phase) for s in facts.phases]
    assert [e.start for e in facts.events] == sorted(e.start for e in facts.events)
    assert not {"reward-decline", "grad-explosion"} & {e.rule for e in facts.events}
    assert well.events == []
    # No other step is given for when something broke than those of its event.
    steps = {facts.run.first_step, facts.run.last_step, facts.signals["reward"].highest_step}
    for e in facts.events:
        steps |= {e.onset_step, e.alarm_step, e.low, e.high}
    box = text_of(facts).split("**Timeline**")[0]
    assert {int(n) for n in re.findall(r"step (\d+)", box)} <= steps


@pytest.mark.parametrize("steps", [0, 1, 10])
def test_runs_with_little_in_them(tmp_path, steps):
    with lldscope.open_run(write_run(tmp_path / "run", steps)) as run:
        facts = post_mortem(run)
    assert facts.state.verdict == "insufficient"
    assert facts.fall is None
    assert page_of(facts).endswith("</html>\n")
    assert ("No step is recorded" in text_of(facts)) == (steps == 0)


def test_a_log_of_rewards_alone_claims_nothing_else(tmp_path):
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in range(120):
            recorder.step(step=step, time=1.7e9 + step)
            reward = float(np.interp(step, [0, 40, 60, 119], [0.2, 0.6, 0.6, 0.3]))
            recorder.scalars(step=step, name=["reward"], value=[reward + 0.02 * (-1) ** step])
    with lldscope.open_run(tmp_path / "run") as run:
        facts = post_mortem(run)
    text = text_of(facts)
    assert facts.state.evidence == "symptoms"
    assert facts.trend == "falling"
    assert "only the reward was logged" in text
    assert "no phase" not in page_of(facts)
    for word in ("nothing wrong", "healthy", "entropy and gradients", "Stop"):
        assert word not in text
    assert facts.losses.n_groups == 0
    assert "What lost likelihood" not in text


def test_the_page_loads_and_runs_nothing(died):
    page = page_of(died[1])
    assert len(page.encode()) < 200_000
    tags = Tags(page).tags
    assert not {"script", "iframe", "img", "object", "form"} & {tag for tag, _ in tags}
    policy = [a for tag, a in tags if tag == "meta" and "http-equiv" in a]
    assert policy[0]["content"] == POLICY
    assert "url(" not in page
    for _, attributes in tags:
        for name in ("href", "src"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
        assert not any(name.startswith("on") for name in attributes)


def test_charts_have_a_name_and_say_their_course_in_words(died):
    _, facts = died
    drawings = of_run(facts)
    assert [d.title for d in drawings[:STORY]] == ["Reward", "Δ of correct responses"]
    for drawing in drawings:
        root = ElementTree.fromstring(drawing.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == drawing.words
        assert drawing.words.startswith(f"{drawing.title}: ")
    reward = facts.signals["reward"]
    assert f"highest {reward.highest:.3g} at step {reward.highest_step}" in drawings[0].words
    assert "held-out score" in drawings[0].words
    assert facts.signals["lr"].highest == facts.signals["lr"].last


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
            recorder.tokens(
                step=step, response_id=0, position=[0, 1, 2], action_index=[None, 0, 0],
                token_id=[1, 2, 3], text=["q", HOSTILE, HOSTILE], logp_old=[None, -1.0, -1.0],
                logp_post=[None, -4.0, -2.0],
            )
            recorder.step(step=step, n_responses=4, n_correct=2, reward_sum=2.0, reward_sq_sum=2.0)
    return path


def test_hostile_text_is_shown_and_not_obeyed(tmp_path):
    with lldscope.open_run(hostile_run(tmp_path / "run")) as run:
        facts = post_mortem(run)
        card = run._repr_html_()
    assert facts.losses.tokens
    page, text = page_of(facts), text_of(facts)
    for markup in (page, card):
        assert "&lt;script&gt;" in markup
        assert not {"script", "img"} & {tag for tag, _ in Tags(markup).tags}
    for out in (page, text, card):
        assert "\x1b" not in out
        assert "\u202e" not in out
    for out in (page, text):
        assert "⟨U+202E⟩" in out
    plain = [line for line in text.splitlines() if not line.startswith("    ")]
    assert not any(re.search(r"(?<!\\)<script", line) for line in plain)


def test_command_writes_files_by_their_names(lldscope_command, tmp_path):
    page = tmp_path / "r.html"
    done = lldscope_command("report", SAMPLES / "grpo-llds", "-o", page)
    assert done.returncode == 0
    assert done.stdout == ""
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    result = lldscope_command("report", SAMPLES / "grpo-llds", "--format", "json")
    facts = json.loads(result.stdout)
    assert facts["schema"] == 2
    assert facts["state"]["verdict"] == "healthy"
    assert len(result.stdout) < 60_000


def test_the_box_on_top_has_cause_action_cost_and_confidence(lldscope_command) -> None:
    run = SAMPLES / "retriever-dies"
    with lldscope.open_run(run) as reader:
        facts = post_mortem(reader)
        signals = reader.signals().dropna(subset="time")
    after = signals[signals["step"] >= 32]
    cost = facts.cost
    assert (cost.rule, cost.step, cost.steps) == ("entropy-surge", 32, len(after))
    assert cost.rollouts == after["n_responses"].sum()
    seconds = signals["time"].diff()[signals["step"] >= 32].sum()  # each step's own
    assert cost.hours == pytest.approx(seconds / 3600)
    assert facts.change is None  # no setting cures a dead retriever
    box = page_of(facts).split('<dl class="box">')[1].split("</dl>")[0]
    assert "Retriever or tool dead (began at step 30)" in box
    assert "8 of 9 checks possible" in box
    assert "fired in 0 of 21 runs of the tiny policy" in box
    assert f"{duration(seconds)} while alarms fired" in box
    tool, reward = facts.event("tool-outage"), facts.event("reward-crash")
    assert (tool.onset_step, reward.onset_step) == (30, 30)
    after = "fired at step 36, after tool-outage, which fired at step 34: "
    assert facts.look_alikes["truncation"].evidence.startswith(after)
    text = lldscope_command("report", run, "--format", "md").stdout
    assert "- **what is wrong:** Retriever or tool dead (began at step 30)." in text
