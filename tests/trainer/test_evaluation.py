"""Evaluation: what is recorded for whom, by any player, on made-up answers and the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from keeper import ALONE, Keeper, Rank, together
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.environment.protocol import Episode, Scoring
from lldscope_trainer.rollout import evaluation
from lldscope_trainer.rollout.evaluation import evaluate
from lldscope_trainer.rollout.tokens import Rollout

import lldscope
from lldscope.runs import open_run

SEVEN = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
QUERY = re.findall(
    r"```sql\n(.*?)```", (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8"), re.S
)[0]


class Echo:
    """A player whose answer to a question is the text of the question."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def play(self, environment, questions, generator):
        self.sizes.append(len(questions))
        return [
            Rollout(Episode(q, scoring=Scoring(reward="f1", format_reward=0.7),
                            turns=[f"<answer>{q.text}</answer>"], observations=[""]), [], [])
            for q in questions
        ]


def values(keeper: Keeper) -> dict[tuple[str, str], tuple[float, int]]:
    return {(r["data_source"], r["metric"]): (r["value"], r["n"]) for r in keeper.rows("evals")}


def questions_of(source: str, *pairs: tuple[str, str]) -> list[Question]:
    return [Question(text, (gold,), source, str(i)) for i, (text, gold) in enumerate(pairs)]


def test_scores_of_each_source_do_not_depend_on_the_reward():
    questions = [
        *questions_of("a", ("Lima", "the Lima"), ("Lima Peru", "Lima"), ("Oslo", "Lima")),
        *questions_of("b", ("no", "no")),
    ]
    keeper = Keeper()
    mean = evaluate(Echo(), questions, None, keeper, 7, ALONE)
    assert mean == pytest.approx(2 / 4)
    assert values(keeper) == {
        ("a", "em_greedy"): (pytest.approx(1 / 3), 3),
        ("a", "f1_greedy"): (pytest.approx((1 + 2 / 3) / 3), 3),
        ("b", "em_greedy"): (1, 1),
        ("b", "f1_greedy"): (1, 1),
    }
    assert {r["step"] for r in keeper.rows("evals")} == {7}


def test_batches_bound_what_is_played_at_once_and_change_no_score(monkeypatch):
    questions = questions_of("a", *((f"{i}", f"{i % 4}") for i in range(10)))
    whole, parts, info = Keeper(), Keeper(), []
    evaluate(Echo(), questions, None, whole, 0, ALONE, name="sampled")
    monkeypatch.setattr(evaluation, "BATCH", 4)
    player = Echo()
    evaluate(player, questions, None, parts, 0, ALONE, name="sampled",
             on_batch=lambda done, of: info.append((done, of)))
    assert player.sizes == [4, 4, 2]
    assert info == [(4, 10), (8, 10), (10, 10)]
    assert parts.rows("evals") == whole.rows("evals")
    assert values(whole)["a", "em_sampled"] == (0.4, 10)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_questions_and_the_first_records_what_one_would(size):
    questions = [
        *questions_of("a", *((f"{i}", f"{i % 3}") for i in range(7))),
        *questions_of("b", ("Lima Peru", "Lima")),
    ]
    alone = Keeper()
    mean = evaluate(Echo(), questions, None, alone, 0, ALONE)
    players, keepers = ([kind() for _ in range(size)] for kind in (Echo, Keeper))

    def one(rank: Rank) -> float | None:
        return evaluate(players[rank.rank], questions, None, keepers[rank.rank], 0, rank)

    means = together(size, one)
    assert means == [mean] + [None] * (size - 1)
    assert keepers[0].rows("evals") == alone.rows("evals")
    assert not any(keeper.tables for keeper in keepers[1:])
    sizes = [sum(player.sizes) for player in players]
    assert sum(sizes) == 8
    assert max(sizes) - min(sizes) <= 1


def test_the_averages_of_the_page_count_each_benchmark_once(tmp_path):
    shares = [1, 0, 1, 1, 0, 1, 0]
    questions = [
        question
        for i, (source, right) in enumerate(zip(SEVEN, shares, strict=True))
        for question in questions_of(source, *[("Lima", "Lima" if right else "Oslo")] * (i + 1))
    ]
    with lldscope.Recorder(tmp_path / "run", name="seven", trainer="test") as recorder:
        mean = evaluate(Echo(), questions, None, recorder, 3, ALONE)
    assert mean == pytest.approx((1 + 3 + 4 + 6) / 28)  # over questions
    (row,) = open_run(tmp_path / "run").sql(QUERY).to_dict("records")
    assert row == {
        "step": 3,
        "gen_avg": pytest.approx(2 / 3),
        "mh_avg": pytest.approx(2 / 4),
        "avg": pytest.approx(4 / 7),
    }
