"""What responses say and which lost most: questions against slow twins, previews, search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lldscope
from lldscope.explore import responses as r
from lldscope.explore.responses import (
    PREVIEW,
    ResponseQuery,
    action_map,
    find_responses,
    largest_drops_at,
)
from lldscope.explore.trajectories import (
    Key,
    paired_with,
    read_tokens,
    read_trajectory,
    shared_prefix,
)

SAMPLES = Path(__file__).parents[2] / "sample_runs"
QUESTION = "What is the capital of Peru?"


@pytest.fixture(scope="module")
def sample() -> Iterator[lldscope.Run]:
    with lldscope.open_run(SAMPLES / "grpo") as run:
        yield run


@pytest.fixture(scope="module")
def rows(sample: Any) -> list[dict[str, Any]]:
    """Every response of the sample run with its Δ, computed slowly."""
    table = sample.sql("SELECT * EXCLUDE (text) FROM responses").astype(object)
    deltas: dict[tuple[int, ...], list[float]] = {}
    for a in sample.sql("SELECT * FROM actions").to_dict("records"):
        key = (a["step"], a["rank"], a["response_id"])
        deltas.setdefault(key, []).append(a["logp_post_sum"] - a["logp_old_sum"])
    tokens = sample.sql("SELECT step, rank, response_id FROM tokens")
    keys = set(tokens.itertuples(index=False, name=None))
    result = []
    for row in table.to_dict("records"):
        key = (row["step"], row["rank"], row["response_id"])
        delta = sum(deltas.get(key, [math.nan]))
        result.append(row | {"delta": None if math.isnan(delta) else delta, "told": key in keys})
    return result


def meets(row: dict[str, Any], w: ResponseQuery) -> bool:
    """The filters, one by one; what is unknown meets none."""
    tests = [
        (w.first, row["step"], lambda a, b: b >= a), (w.last, row["step"], lambda a, b: b <= a),
        (w.correct, row["correct"], lambda a, b: a == b),
        (w.tokens, row["told"], lambda a, b: a == b),
    ]
    return all(a is None or (b is not None and holds(a, b)) for a, b, holds in tests)


@pytest.mark.parametrize(
    ("choice", "order", "descending", "offset"),
    [
        (ResponseQuery(), "step", False, 0),
        (ResponseQuery(), "reward", True, 100),
        (ResponseQuery(first=46, last=55, correct=True, tokens=True), "delta", False, 0),
        (ResponseQuery(first=40, correct=False), "tokens", True, 50),
        (ResponseQuery(last=20), "group", False, 0),
        (ResponseQuery(first=5, last=5, tokens=False), "step", True, 0),
    ],
)
def test_pages_of_responses_are_those_of_a_plain_filter_and_sort(
    sample: Any, rows: list[dict[str, Any]], choice: ResponseQuery, order: str, descending: bool,
    offset: int,
) -> None:
    column = {"tokens": "n_tokens", "group": "group_id"}.get(order, order)
    matches = [row for row in rows if meets(row, choice)]
    matches.sort(key=lambda row: (row["step"], row["rank"], row["response_id"]))
    values = [row for row in matches if row[column] is not None]
    values.sort(key=lambda row: float(row[column]), reverse=descending)
    expected = (values + [row for row in matches if row[column] is None])[offset : offset + r.PAGE]
    result = find_responses(sample, choice, order, descending, offset)
    assert result.total == len(matches) > 0
    keys = [(row["step"], row["rank"], row["response_id"]) for row in expected]
    assert list(result.rows[r.KEY].itertuples(index=False, name=None)) == keys
    deltas = [math.nan if row["delta"] is None else row["delta"] for row in expected]
    assert result.rows["delta"].tolist() == pytest.approx(deltas, nan_ok=True)
    assert result.rows["has_tokens"].tolist() == [row["told"] for row in expected]


def test_what_was_not_measured_meets_no_bound(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "run") as recorder:
        recorder.responses(step=0, response_id=[0, 1], reward=[1.0, 0.0], correct=[None, True])
        recorder.actions(step=0, response_id=[0, 1], action_index=0, logp_old_sum=-1.0,
                         logp_post_sum=[None, -1.0])
        recorder.step(step=0, n_responses=2)
    with lldscope.open_run(tmp_path / "run") as run:
        assert find_responses(run, ResponseQuery(correct=True)).rows["response_id"].tolist() == [1]
        assert find_responses(run, ResponseQuery(correct=False)).total == 0
        assert find_responses(run, ResponseQuery(), "delta").rows["response_id"].tolist() == [1, 0]


@pytest.mark.slow
def test_the_map_of_actions_is_a_mean_over_actions(
    sample: Any, rows: list[dict[str, Any]], monkeypatch: Any
) -> None:
    monkeypatch.setattr(r, "MOST_BINS", 20)
    monkeypatch.setattr(r, "MOST_ACTIONS", 3)
    grid = action_map(sample)
    assert (grid["first_step"].min(), grid["last_step"].max()) == (0, 129)
    assert (grid["last_step"] - grid["first_step"]).max() == 6
    groups: dict[tuple[int, int], set[bool]] = {}
    for row in rows:
        groups.setdefault((row["step"], row["group_id"]), set()).add(row["correct"])
    mixed = {
        (row["step"], row["rank"], row["response_id"])
        for row in rows
        if row["correct"] and len(groups[row["step"], row["group_id"]]) == 2
    }
    cells: dict[tuple[int, int], list[float]] = {}
    for a in sample.sql("SELECT * FROM actions").to_dict("records"):
        if (a["step"], a["rank"], a["response_id"]) in mixed:
            delta = a["logp_post_sum"] - a["logp_old_sum"]
            if not math.isnan(delta):
                cells.setdefault((a["step"] // 7, min(a["action_index"], 2)), []).append(delta)
    frame = grid.dropna(subset=["delta"])
    assert len(frame) == len(cells) > 50
    for row in frame.to_dict("records"):
        deltas = cells[row["first_step"] // 7, row["action_index"]]
        assert row["delta"] == pytest.approx(sum(deltas) / len(deltas), rel=1e-5, abs=1e-7)


def test_an_alarm_leads_to_its_last_ten_steps_or_to_the_nearest_with_tokens(
    sample: Any, rows: list[dict[str, Any]]
) -> None:
    drops = {row["step"] for row in rows if row["told"] and row["correct"] and row["delta"] < 0}
    for step in (3, 40, 55, 69, 129):
        result = largest_drops_at(sample, step)
        window = range(max(0, step - 9), step + 1)
        assert result.tokens
        if not drops & set(window):
            nearest = min(abs(s - step) for s in drops)
            assert result.first == result.last
            assert result.first in drops
            assert abs(result.first - step) == nearest
        else:
            assert (result.first, result.last) == (window[0], step)


def test_the_pair_is_the_one_that_begins_most_alike(sample: Any) -> None:
    response = read_trajectory(sample, Key(20, 0, 32))
    assert response is not None
    assert response.about["correct"]
    assert paired_with(sample, response) == Key(20, 0, 33), "the only wrong one with tokens"
    other = read_tokens(sample, Key(20, 0, 33))
    both = []
    for tokens in (response.tokens, other):
        start = tokens["action_index"].isna().tolist().index(False)
        both.append(tokens["text"].tolist()[start:])
    alike = 0
    while both[0][alike] == both[1][alike]:
        alike += 1
    assert shared_prefix(response.tokens, other) == alike > 0


# -- texts ----------------------------------------------------------------------------------------



@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Response 0 has its tokens, 1 its text, 2 neither."""
    path = tmp_path_factory.mktemp("runs") / "run"
    words = [(QUESTION, None), (" I", 0), (" say", 0), (" Lima", 0), (" <b>", None), (" done", 1)]
    with lldscope.Recorder(path) as recorder:
        recorder.responses(
            step=0, response_id=[0, 1, 2], group_id=0, reward=[1.0, 0.0, 0.0],
            correct=[True, False, False], text=[None, "Q" * 200 + " and 100 % Quito", None],
        )
        recorder.tokens(
            step=0, response_id=0, position=list(range(len(words))),
            action_index=[action for _, action in words], text=[text for text, _ in words],
        )
        recorder.step(step=0, n_responses=3, reward_sum=1.0)
    with lldscope.open_run(path) as opened_run:
        yield opened_run


def test_question_and_answer_are_previewed_from_tokens_or_text(run: Any) -> None:
    rows = find_responses(run, ResponseQuery()).rows.set_index("response_id")
    assert rows.loc[0, "question"] == QUESTION
    assert rows.loc[0, "answer"] == " I say Lima <b> done"
    assert rows.loc[1, "question"] == "Q" * PREVIEW
    assert rows.loc[1, "answer"].endswith(" and 100 % Quito")
    assert len(rows.loc[1, "answer"]) == PREVIEW
    assert rows.loc[2, ["question", "answer"]].isna().all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("lima", [0]), ("LIMA <B>", [0]), ("capital of", [0]), ("100 %", [1]), ("1_0", []),
     ("quito", [1]), ("q", [1]), ("", [0, 1, 2])],
)
def test_words_are_found_in_prompt_and_response_as_they_stand(
    run: Any, text: str, expected: list[int]
) -> None:
    page = find_responses(run, ResponseQuery(text=text))
    assert list(page.rows["response_id"]) == expected
    assert page.total == len(expected)
