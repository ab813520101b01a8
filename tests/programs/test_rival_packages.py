"""The comparison with other packages: what they are asked, and what is counted. None is needed."""

from __future__ import annotations

from rule_cases import frame

from benchmarks import rival_packages
from benchmarks.rival_packages import BY_REWARD, MADE_UP, NOISY, RECORDED, Log, Verdict


def cells(table: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len({len(row) for row in rows}) == 1
    return {name: values for name, *values in rows}


def test_the_table_counts_by_level_and_leads_to_the_fall():
    signals = frame({"step": [0], "reward": [0.5]})
    simple = next(iter(rival_packages.SIMPLE))

    def judged(group, fall, theirs, finished, rule):
        verdicts = {"live": Verdict(theirs), "finished": Verdict(finished), simple: Verdict(rule)}
        return Log(group, signals, fall), verdicts

    undated = {"critical": None, "warning": None}
    columns = cells(
        rival_packages.table(
            [
                judged(RECORDED, 50, {"critical": 40, "warning": 20}, undated, {"warning": 50}),
                judged(RECORDED, 50, {"critical": 60, "warning": 30}, {"warning": None}, {}),
                judged(RECORDED, 50, {}, {}, {"warning": 30}),
                judged(RECORDED, None, {"warning": 7}, {}, {}),
                judged(RECORDED, None, {}, undated, {}),
                judged(NOISY, 50, {"warning": 10}, {}, {}),
                judged(MADE_UP, None, {}, {}, {"warning": 3}),
            ],
            BY_REWARD,
        )
    )
    heading = columns["critical / warning or worse"]
    assert [heading[i] for i in (0, 3, 8)] == [
        "3 falls: found",
        "2 held: false",
        "1 made up: false",
    ]
    assert columns["live"] == [
        "2 / 2", "1 / 2", "0 / 25", "0 / 1", "0 / 1", "0 / 1", "– / 40", "–", "0 / 0"
    ]
    assert columns["finished"][:4] == ["1 / 2", "– / –", "– / –", "1 / 1"]
    assert columns[simple] == ["2", "1", "10", "0", "0", "0", "–", "–", "1"]
