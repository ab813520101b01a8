"""`lldscope compare -o FILE`: two arms side by side, against slow twins, in every state."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_runs import write_run, write_step

import lldscope
from lldscope.core.errors import UsageError
from lldscope.core.numbers import number, signed, true_minus
from lldscope.report import post_mortem
from lldscope.report.arms import Setting, arms_of, compare_arms, differences, varying
from lldscope.report.arms_document import document
from lldscope.report.facts import RunFacts
from lldscope.report.html import html
from lldscope.report.markdown import markdown
from lldscope.storage.json_files import to_json

SAMPLES = Path(__file__).parents[2] / "sample_runs"
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe \"'><img src=x onerror=alert(2)> `|`"


@pytest.fixture(scope="module")
def two():
    """The sample runs, a run for each arm."""
    with lldscope.open_run(SAMPLES / "grpo") as a, lldscope.open_run(SAMPLES / "grpo-llds") as b:
        yield compare_arms(arms_of([[a], [b]])), a, b


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms of two runs each, made-up numbers: one dies; seeds and lengths differ."""
    root = tmp_path_factory.mktemp("arms")
    for arm, dies in (("dying", True), ("healthy", False)):
        for seed in range(2):
            config = {"seed": seed, "llds": {"gate": "off" if dies else "action"}, "lr": 1e-4}
            path = root / arm / f"run-{seed}"
            with lldscope.Recorder(path, group=arm, config=config) as recorder:
                for step in range(120 + 15 * seed):
                    write_step(recorder, step, dies=dies, at=1.7e9 + 10 * step + seed)
    return root


@pytest.fixture(scope="module")
def four(folder: Path):
    runs = [[lldscope.open_run(folder / arm / f"run-{seed}") for seed in range(2)]
            for arm in ("dying", "healthy")]
    yield compare_arms(arms_of(runs)), runs
    for run in (r for of in runs for r in of):
        run.close()


def test_each_run_has_the_facts_of_its_own_report(two):
    facts, a, b = two
    for arm, run in zip(facts.arms, (a, b), strict=True):
        alone = post_mortem(run)
        for key in ("summary", "phases", "events", "look_alikes", "fall", "alarms", "signals"):
            assert getattr(arm.runs[0], key) == getattr(alone, key), key


def test_what_differs_is_said_with_the_numbers_of_the_runs(two):
    facts, a, b = two
    text = " ".join(facts.summary)
    for arm in facts.arms:
        assert f"{arm.title}: {arm.runs[0].state.headline.cause}." in text
    last = [run.signals()["reward"].astype(float)[-10:].mean() for run in (a, b)]
    assert f"is {number(last[0])} in A and {number(last[1])} in B" in text
    decay, collapse = (facts.arms[0].runs[0].event(r) for r in ("lld-decay", "lld-collapse"))
    ahead = collapse.alarm_step - decay.alarm_step
    assert f"at step {decay.alarm_step}, {ahead} steps before the collapse; in B it never" in text
    assert "One setting differs: llds off in A, action in B." in text
    assert [row.setting for row in facts.settings] == ["llds"]


def test_arms_of_several_runs_are_counted_and_averaged(four):
    facts, runs = four
    assert facts.common_step == 119
    assert [row.setting for row in facts.settings] == ["llds.gate"]
    assert facts.varying == ["seed"]
    for arm, of in zip(facts.arms, runs, strict=True):
        rewards = [run.signals().set_index("step")["reward"].astype(float) for run in of]
        at = [reward.loc[110:119].mean() for reward in rewards]
        spread = arm.reward_at_common
        assert (spread.runs, spread.mean) == (2, pytest.approx(np.mean(at)))
        assert (spread.low, spread.high) == pytest.approx((min(at), max(at)))
    dying = "2 runs: 1 warning [lld-decay 1], 1 critical [lld-collapse 1] (critical: 50 %"
    assert dying in facts.summary[0]
    assert "2 runs: 2 healthy (critical: 0 %" in facts.summary[1]


def test_an_arm_at_zero_is_not_counted_as_sound(tmp_path):
    """Rewards that die without LLD are critical all the same."""
    for arm, dies in (("a", (True, True, False)), ("b", (False, False, False))):
        for seed, dead in enumerate(dies):
            rng = np.random.default_rng([ord(arm), seed])
            with lldscope.Recorder(tmp_path / arm / str(seed)) as recorder:
                for step in range(120):
                    reward = 0.0 if dead and step >= 60 else 0.6 + 0.02 * rng.standard_normal()
                    recorder.step(step=step, time=1.7e9 + step)
                    recorder.scalars(step=step, name=["reward"], value=[reward])
    runs = [[lldscope.open_run(tmp_path / arm / str(i)) for i in range(3)] for arm in "ab"]
    facts = compare_arms(arms_of(runs))
    assert "2 critical [reward-crash 2]" in facts.summary[0]
    assert "(critical: 67 %" in facts.summary[0]
    assert "critical: 0 %" in facts.summary[1]


def test_the_data_of_a_comparison_are_plain(four):
    data = json.loads(to_json(four[0].to_dict()))
    for arm in data["arms"]:
        assert len(arm["runs"]) == 2
        assert "alarms" in arm["runs"][0]
        assert "losses" not in arm["runs"][0]


def test_the_same_is_said_in_html_and_markdown(four, two):
    for facts in (four[0], two[0]):
        page, text = html(document(facts)), markdown(document(facts))
        for out in (page, text):
            for words in ("Alarms", "Settings that differ", "What this comparison cannot tell"):
                assert words in out
            assert "decay" in out
        assert page.count("<figure>") >= 5
        assert "<script" not in page
        assert "−" in page


def run(name: str, **config: Any) -> RunFacts:
    return RunFacts(name, None, "", "t", None, 1, 0, 0, 1, None, None, config)


def test_names_are_no_settings_and_seeds_vary():
    arms = [
        [run("a", run_name="a", seed=0, mode="a"), run("b", run_name="b", seed=1, mode="a")],
        [run("c", run_name="c", seed=1, mode="x"), run("d", run_name="d", seed=0, mode="x")],
    ]
    assert differences(arms) == [Setting("mode", [["a"], ["x"]])]
    assert varying(arms) == ["seed"]


def test_an_empty_run_and_hostile_names_are_reported(tmp_path):
    config = {HOSTILE: HOSTILE, "nested": {"list": [HOSTILE]}}
    with lldscope.Recorder(tmp_path / "evil", name=HOSTILE, config=config) as recorder:
        for step in range(30):
            write_step(recorder, step, dies=False, at=1.7e9 + step)
    write_run(tmp_path / "empty", 0)
    with (
        lldscope.open_run(tmp_path / "evil") as evil,
        lldscope.open_run(tmp_path / "empty") as empty,
    ):
        facts = compare_arms(arms_of([[evil], [empty]]))
        neither = compare_arms({"x": [empty], "y": [empty]})
    assert facts.common_step is None
    assert markdown(document(neither))
    assert "<figure>" not in html(document(neither))
    tags: list[tuple[str, Any]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, attrs))  # type: ignore[method-assign]
    page = html(document(facts))
    parser.feed(page)
    assert not {"script", "img"} & {tag for tag, _ in tags}
    assert not any(name.startswith("on") for _, attrs in tags for name, _ in attrs)
    for out in (page, markdown(document(facts))):
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert "\\<script" in markdown(document(facts))


def test_an_arm_is_a_run_or_a_folder(four):
    _, runs = four
    assert list(arms_of(runs)) == ["dying", "healthy"]
    assert list(arms_of([runs[0][:1], runs[0][1:]])) == ["run-0", "run-1"]
    with pytest.raises(UsageError, match="both sides"):
        arms_of([runs[0], runs[0][:1]])
    with pytest.raises(UsageError, match="name two runs"):
        arms_of([runs[0]])


@pytest.mark.slow
def test_command_writes_a_report_of_two_arms(lldscope_command, folder, tmp_path):
    page, both = tmp_path / "c.html", (folder / "dying", folder / "healthy")
    done = lldscope_command("compare", *both, "-o", page)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert page.read_text().startswith("<!doctype html>")
    result = lldscope_command("compare", *both, "--format", "json")
    facts = json.loads(result.stdout)
    assert facts["schema"] == 2
    assert [len(arm["runs"]) for arm in facts["arms"]] == [2, 2]
    points = lldscope_command("compare", *both, "-o", page, "--every", "50")
    assert points.returncode == 2
    assert "--every" in points.stderr
    two = lldscope_command("compare", *both, "--json", "-o", page)
    assert two.returncode == 2
    assert "--format json" in two.stderr


def test_a_minus_is_a_minus_only_before_numbers():
    text = "mean Δ -1.24 nats (-0.5 to 1e-05), lld-decay on 2026-11-22, steps 3-5, [-1, 1], x-2"
    assert true_minus(text) == (
        "mean Δ −1.24 nats (−0.5 to 1e−05), lld-decay on 2026-11-22, steps 3-5, [−1, 1], x-2"
    )
    assert (number(None), number(-0.001234), signed(-2.0), signed(0.5, ".2f")) == (
        "–", "−0.00123", "−2", "+0.50",
    )
