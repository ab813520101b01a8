"""`lldscope compare -o FILE`: runs and folders of runs side by side, in every state."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import write_step

import lldscope
from lldscope.core.numbers import number
from lldscope.explore.comparison import compare
from lldscope.report.comparison import document
from lldscope.report.html import html
from lldscope.report.markdown import markdown

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of two runs each, made-up numbers: one dies; seeds and lengths differ."""
    root = tmp_path_factory.mktemp("arms")
    for arm, dies in (("dying", True), ("healthy", False)):
        for seed in range(2):
            config = {"seed": seed, "llds": {"gate": "off" if dies else "action"}, "lr": 1e-4}
            path = root / arm / f"{arm}-{seed}"
            with lldscope.Recorder(path, group=arm, config=config) as recorder:
                for step in range(120 + 15 * seed):
                    write_step(recorder, step, dies=dies, at=1.7e9 + 10 * step + seed)
    return root


def test_two_runs_have_their_verdicts_values_and_settings():
    with lldscope.open_run(SAMPLES / "grpo") as a, lldscope.open_run(SAMPLES / "grpo-llds") as b:
        answer = compare([a, b])
        content = document(answer, [("grpo", [a]), ("grpo-llds", [b])])
        last = [run.signals()["reward"].dropna().astype(float)[-10:].mean() for run in (a, b)]
    text, page = markdown(content), html(content)
    assert text.startswith("# grpo and grpo-llds compared\n\n- grpo: Collapsed at step 69;")
    assert "- lld-decay fired at step 54 in grpo; never in grpo-llds.\n" in text
    assert "- One setting differs: llds off in grpo, action in grpo-llds.\n" in text
    rewards = f"{number(last[0])} in grpo and {number(last[1])} in grpo-llds"
    assert "- At step 129, the last that all have, the reward (mean of ten rows) is " in text
    assert f" (mean of ten rows) is {rewards}" in text
    assert "| grpo | ◆ critical | 45 | warm-up 0–18, no LLD 19–53, decay" in text
    assert "| grpo | ◆ critical | lld-collapse | 69 |" in text
    assert f"| reward | reward | end | {number(last[0])} | {number(last[1])} |" in text
    assert "| llds | off | action |" in text
    assert "lowest run" not in text
    for words in ("Alarms", "Signals", "Settings that differ", "decay", "−"):
        assert words in page
    assert page.count("<figure>") >= 5
    assert "<script" not in page


def test_the_runs_of_a_folder_are_one_line(folder):
    groups = [
        (arm, [lldscope.open_run(folder / arm / f"{arm}-{seed}") for seed in range(2)])
        for arm in ("dying", "healthy")
    ]
    runs = [run for _, of in groups for run in of]
    text = markdown(document(compare(runs), groups))
    alone = markdown(document(compare(groups[0][1]), groups[:1]))
    for run in runs:
        run.close()
    assert "the reward (mean of ten rows; over several runs their mean and range) is 0." in alone
    assert text.startswith("# dying and healthy compared")
    assert "- dying: 2 runs, 1 warning (lld-decay), 1 critical (lld-collapse).\n" in text
    assert "- At step 119, the last that all have, the reward (mean of ten rows; " in text
    assert "- lld-decay fired in 2 of 2 runs (median step " in text
    assert "; never in healthy.\n" in text
    assert "- One setting differs: llds.gate off in dying, action in healthy.\n" in text
    assert "- Reward: dying, mean" in text
    assert " · healthy, mean" in text
    assert "from the lowest run to the highest" in text
    assert "| dying-1 | ◆ critical | " in text
    assert "| llds.gate | off | off | action | action |" in text
