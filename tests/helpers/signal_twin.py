"""The signals once more: plain Python over rows, one step at a time, nothing shared with the SQL.

Rows are dicts of what was recorded, None where nothing was (NULL); NaN and Inf as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import fmean, median
from typing import Any

from lldscope.core.schema import SIGNALS

Row = dict[str, Any]
Tables = dict[str, list[Row]]

MEANS = {c.name for c in SIGNALS.columns if c.kind == "float"}  # what a foreign mean may stand for
WATCHED = {
    "reward", "entropy", "kl", "loss_policy", "loss_llds", "loss_kl", "grad_norm", "grad_norm_max",
    "ratio_max", "correct_logp", "incorrect_logp",
}


def finite(x: float | None) -> bool:
    return x is not None and math.isfinite(x)


def mean(values: Iterable[float | None]) -> float | None:
    numbers = [float(v) for v in values if v is not None]
    return fmean(numbers) if numbers else None


def ratio(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Σx / Σn over the rows that have both."""
    valid = [(x, n) for x, n in pairs if x is not None and n is not None]
    total = sum(n for _, n in valid)
    return sum(x for x, _ in valid) / total if total else None


def largest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def visible(tables: Tables) -> Tables:
    """Without the rows of a rank from the step on at which it began a later attempt."""
    began: dict[tuple[int, int], int] = {}
    for row in (r for t in ("steps", "updates", "responses", "actions") for r in tables[t]):
        key = row["attempt"], row["rank"]
        began[key] = min(row["step"], began.get(key, row["step"]))

    again = {(r["attempt"], r["rank"], r["step"]) for r in tables["evals"]}

    def stands(table: str, row: Row) -> bool:
        """An evaluation at s is of the policy with which s begins: only another one of the rank
        replaces it."""
        return not any(
            a > row["attempt"]
            and rank == row["rank"]
            and first <= row["step"]
            and (table != "evals" or first < row["step"] or (a, rank, first) in again)
            for (a, rank), first in began.items()
        )

    return {name: [row for row in rows if stands(name, row)] for name, rows in tables.items()}


class Step:
    """The rows of one step, and which rollout an action belongs to."""

    def __init__(self, tables: Tables, step: int) -> None:
        mine = {name: [r for r in rows if r["step"] == step] for name, rows in tables.items()}
        self.steps, self.updates = mine["steps"], mine["updates"]
        self.responses, self.actions = mine["responses"], mine["actions"]
        self.retention = mine["retention"]
        by_id = {(r["rank"], r["response_id"]): r for r in self.responses}
        self.of = [by_id.get((a["rank"], a["response_id"])) for a in self.actions]
        self.groups: dict[tuple, list[Row]] = {}
        for r in self.responses:
            if r["group_id"] is not None:
                self.groups.setdefault((r["data_source"], r["group_id"]), []).append(r)

    def mixed(self, response: Row) -> bool:
        if response["group_id"] is None:
            return True
        group = self.groups[response["data_source"], response["group_id"]]
        return {True, False} <= {r["correct"] for r in group}

    def turns(self, response: Row) -> list[Row]:
        return [a for a, r in zip(self.actions, self.of, strict=True) if r is response]

    def pairs(self, keep: Callable[[Row], bool]) -> list[tuple[Row, Row]]:
        """Actions with their rollout, of the rollouts to keep."""
        both = zip(self.actions, self.of, strict=True)
        return [(a, r) for a, r in both if r is not None and keep(r)]

    def delta(self, response: Row) -> float | None:
        """Δ of a response of a mixed group, if all of its actions were re-scored."""
        turns = self.turns(response)
        both = [(a["logp_old_sum"], a["logp_post_sum"]) for a in turns]
        if not turns or not self.mixed(response) or any(None in b for b in both):
            return None
        total = sum(post - old for old, post in both)
        return total if finite(total) else None


def signals(tables: Tables) -> list[Row]:
    """The view `signals`."""
    tables = visible(tables)
    rows = []
    total = None
    steps = {r["step"] for r in tables["steps"]}
    evaluated = {r["step"] for r in tables["evals"] if evaluation([r], r["step"])["eval_score"]}
    for number in sorted(steps | {step for step in evaluated if step > max(steps)}):
        s = Step(tables, number)
        row = {"step": number} | totals(s) | updates(s) | likelihood(s) | groups(s) | conduct(s)
        row |= retention(s)
        row |= of_actions(s) | evaluation(tables["evals"], number)
        row |= {"good_first_action_share": good_first_actions(s)}
        row["n_nonfinite"] = nonfinite(s)
        row |= read_scalars(tables["scalars"], number, row)
        tokens = [r["n_tokens"] for r in s.steps if r["n_tokens"] is not None]
        if tokens:
            total = (total or 0) + sum(tokens)
        rows.append(row | {"tokens_seen": total})
    return rows


def read_scalars(scalars: list[Row], step: int, row: Row) -> Row:
    """Signals that the run's own rows have not got and somebody else's log has; and the count of
    numbers that are none, to which those of the log are added."""
    values: dict[str, list[float]] = {}
    for r in scalars:
        if r["step"] == step and r["value"] is not None:
            values.setdefault(r["name"], []).append(r["value"])
    infinite = {n: [v for v in vs if abs(v) == math.inf] for n, vs in values.items()}
    result = {n: mean(v for v in vs if finite(v)) for n, vs in values.items()}
    result |= {n: max(vs) for n, vs in infinite.items() if vs and result[n] is None}
    new = {n: v for n, v in result.items() if n in MEANS and row[n] is None}
    watched = [vs for n, vs in values.items() if n in WATCHED]
    if watched:
        bad = sum(any(not finite(v) for v in vs) for vs in watched)
        new["n_nonfinite"] = (row["n_nonfinite"] or 0) + bad
    return new


def evaluation(evals: list[Row], step: int) -> Row:
    """The score of the evaluation at a step, and how many questions it had."""
    scores: dict[int, list[Row]] = {}
    for r in evals:
        kinds = ("em_greedy", "acc/mean@", "reward/mean@", "reward")
        matches = (
            r["metric"] == kind or (kind.endswith("@") and r["metric"].startswith(kind))
            for kind in kinds
        )
        place = next((i for i, match in enumerate(matches) if match), None)
        if r["step"] == step and finite(r["value"]) and place is not None:
            scores.setdefault(place, []).append(r)
    rows = scores[min(scores)] if scores else []
    weighted = ratio((None if r["n"] is None else r["value"] * r["n"], r["n"]) for r in rows)
    counts = [r["n"] for r in rows if r["n"] is not None]
    return {
        "eval_score": mean(r["value"] for r in rows) if weighted is None else weighted,
        "eval_n": sum(counts) if counts else None,
    }


SECONDS = [f"seconds_{part}" for part in (
    "rollout", "update", "record", "score", "reference", "sync", "evaluation"
)]


def speed(s: Step) -> float | None:
    """Tokens of all ranks over the slowest rank's seconds of each part."""
    tokens = [r["n_tokens"] for r in s.steps if r["n_tokens"] is not None]
    parts = [largest(r[name] for r in s.steps) for name in SECONDS[:3]]
    if not tokens or None in parts:
        return None
    return sum(tokens) / sum(parts)


def totals(s: Step) -> Row:
    def over(x: str, n: str) -> float | None:
        return ratio((r[x], r[n]) for r in s.steps)

    def loss(name: str) -> float | None:
        weights = [1 if r["n_tokens"] is None else r["n_tokens"] for r in s.steps]
        values = [r[name] for r in s.steps]
        return ratio(
            (None if v is None else v * w, w) for v, w in zip(values, weights, strict=True)
        )

    squared = [r for r in s.steps if None not in (r["reward_sum"], r["reward_sq_sum"])]
    first = ratio((r["reward_sum"], r["n_responses"]) for r in squared)
    second = ratio((r["reward_sq_sum"], r["n_responses"]) for r in squared)
    variance = None if first is None or second is None else second - first * first
    n = [r["n_responses"] for r in s.steps if r["n_responses"] is not None]
    return {
        "n_responses": sum(n) if n else None,
        "reward": over("reward_sum", "n_responses"),
        "reward_sd": None if variance is None else 0 if variance < 0 else math.sqrt(variance),
        "success": over("n_correct", "n_responses"),
        "entropy": over("entropy_sum", "n_tokens"),
        "kl": over("kl_sum", "n_tokens"),
        **{name: loss(name) for name in ("loss_policy", "loss_llds", "loss_kl")},
        **{
            name: largest(r[name] for r in s.steps)
            for name in ("time", "lr", "memory_peak", *SECONDS)
        },
        "tokens_per_second": speed(s),
    }


def updates(s: Step) -> Row:
    norms = [u["grad_norm"] for u in s.updates if finite(u["grad_norm"])]
    ratios = [u["ratio_max"] for u in s.updates if finite(u["ratio_max"])]
    return {
        "grad_norm": median(norms) if norms else None,
        "grad_norm_max": largest(norms),
        "ratio_max": largest(ratios),
        "clip_share": ratio((u["n_clipped"], u["n_tokens"]) for u in s.updates),
    }


def nonfinite(s: Step) -> int | None:
    """Ranks, updates and actions with a number that is none."""
    sums = ("reward_sum", "entropy_sum", "kl_sum", "loss_policy", "loss_llds", "loss_kl")
    logps = ("logp_behaviour_sum", "logp_old_sum", "logp_post_sum")
    looked = False
    bad: set[tuple] = set()
    for kind, rows, names in (
        ("rank", s.steps, sums),
        ("update", s.updates, ("grad_norm", "ratio_max")),
        ("action", s.actions, logps),
    ):
        for i, row in enumerate(rows):
            values = [row[name] for name in names if row[name] is not None]
            looked |= bool(values)
            wrong = any(not math.isfinite(x) for x in values)
            if kind == "update":
                looked |= row["grad_finite"] is not None
                wrong |= row["grad_finite"] is False
            if wrong:
                bad.add((kind, row["update"] if kind == "update" else i))
    return len(bad) if looked else None


def rounding(s: Step) -> float | None:
    """Independent errors: their squares add up."""
    rows = [r for r in s.responses if r["correct"] is True and s.delta(r) is not None]
    squares = []
    for r in rows:
        of = [a["rounding_sq_sum"] for a in s.turns(r)]
        if None not in of:
            squares.append(sum(of))
    return math.sqrt(sum(squares)) / len(rows) if squares else None


def likelihood(s: Step) -> Row:
    row: Row = {}
    for name, verdict in (("correct", True), ("incorrect", False)):
        pairs = s.pairs(lambda r, verdict=verdict: r["correct"] is verdict)
        row[f"{name}_logp"] = ratio(
            (a["logp_old_sum"], a["n_tokens"]) for a, _ in pairs if finite(a["logp_old_sum"])
        )
        all_deltas = [s.delta(r) for r in s.responses if r["correct"] is verdict]
        deltas = [d for d in all_deltas if d is not None]
        row[f"delta_{name}"] = mean(deltas)
        if verdict:
            acted = any(turn is not None for turn in s.of)
            row["n_delta_correct"] = len(deltas) if acted else None
            row["delta_correct_sum"] = sum(deltas) if deltas else None
            row["delta_correct_rounding"] = rounding(s)
            row["lld_share"] = mean(d <= 0 for d in deltas)
    row["step_kl"] = step_kl(s)
    levels = row["correct_logp"], row["incorrect_logp"]
    row["logp_gap"] = None if None in levels else levels[0] - levels[1]
    per_group = [
        mean(s.delta(r) for r in members if r["correct"] is True) for members in s.groups.values()
    ]
    return row | {"displaced_share": mean(m < 0 for m in per_group if m is not None)}


def step_kl(s: Step) -> float | None:
    """−mean Δ of a uniform sample of the rollouts of mixed groups, over their mean tokens."""
    loss = tokens = 0.0
    for verdict in (True, False):
        rows = [r for r in s.responses if r["correct"] is verdict and s.mixed(r) and s.turns(r)]
        delta = mean(s.delta(r) for r in rows)
        if delta is None:
            return None
        loss -= delta * len(rows)
        for r in rows:
            tokens += sum(a["n_tokens"] or 0 for a in s.turns(r) if finite(a["logp_old_sum"]))
    return loss / tokens if tokens else None


def retention(s: Step) -> Row:
    """Retention in the view `signals`; counts are NULL in a step that scored nothing."""
    cells: dict[tuple, list[Row]] = {}
    for a in s.retention:
        cells.setdefault((a["rank"], a["age"], a["response_id"]), []).append(a)
    row: Row = {}
    for name, before in (("retention", "logp_old_sum"), ("retention_delta", "logp_previous_sum")):
        moved = [[gain(a, before) for a in actions] for actions in cells.values()]
        whole = [sum(m) for m in moved if None not in m]
        row[name] = mean(whole)
    return row


def gain(a: Row, before: str) -> float | None:
    """log π_post of an action less what it was; None unless it is a number."""
    if None in (a[before], a["logp_post_sum"]):
        return None
    change = a["logp_post_sum"] - a[before]
    return change if finite(change) else None


def groups(s: Step) -> Row:
    sizes = [len(members) for members in s.groups.values()]
    equal, collide, offsets = [], [], []
    right, wrong, tokens = [], [], []
    for members in s.groups.values():
        rewards = [r["reward"] for r in members]
        if all(finite(x) for x in rewards):
            equal.append(len(set(rewards)) == 1)
            counts = [r["n_tokens"] for r in members if r["n_tokens"] is not None]
            if counts:
                tokens.append((sum(counts) if equal[-1] else 0, sum(counts)))
            classes = {r["correct"] for r in members}
            if None not in classes:
                right.append(equal[-1] and classes == {True})
                wrong.append(equal[-1] and classes == {False})
        if prompts := {r["prompt_hash"] for r in members} - {None}:
            collide.append(len(prompts) > 1)
        advantages = [r["advantage"] for r in members]
        if all(finite(x) for x in advantages):
            offsets.append(abs(sum(advantages) / len(advantages)))
    return {
        "n_groups": len(sizes) or None,
        "group_size_max": max(sizes, default=None),
        "zero_signal_share": mean(equal),
        "all_right_share": mean(right),
        "all_wrong_share": mean(wrong),
        "zero_signal_token_share": ratio(tokens),
        "prompt_collision_share": mean(collide),
        "advantage_offset": mean(offsets),
    }


def conduct(s: Step) -> Row:
    def tokens(verdicts: tuple) -> float | None:
        return mean(r["n_tokens"] for r in s.responses if r["correct"] in verdicts)

    merged = [
        len(turns) < r["n_searches"] + 1
        for r in s.responses
        if r["answered"] and (r["n_searches"] or 0) > 0 and (turns := s.turns(r))
    ]
    return {
        "response_tokens": tokens((True, False, None)),
        "correct_tokens": tokens((True,)),
        "incorrect_tokens": tokens((False,)),
        "valid_searches": mean(r["n_searches"] for r in s.responses),
        "answered_share": mean(r["answered"] for r in s.responses),
        "truncated_share": mean(r["truncated"] for r in s.responses),
        "repeat_share": mean(r["repeat_share"] for r in s.responses if finite(r["repeat_share"])),
        "invalid_share": ratio((r["n_invalid"], r["n_actions"]) for r in s.responses),
        "merged_action_share": mean(merged),
    }


def of_actions(s: Step) -> Row:
    tools = [a["tool_ok"] for a in s.actions if a["tool_ok"] is not None]
    positive = s.pairs(lambda r: r["advantage"] is not None and r["advantage"] >= 0)
    wrong = s.pairs(lambda r: r["correct"] is False)
    lows = [a["logp_min"] for a in s.actions if finite(a["logp_min"])]
    return {
        "tool_fail_share": mean(not ok for ok in tools),
        "llds_gate_share": mean(a["llds_gate"] for a, _ in positive),
        "dropped_token_share": ratio((a["n_tokens_down"], a["n_tokens"]) for a, _ in positive),
        "engine_gap": ratio(
            (a["logp_behaviour_sum"] - a["logp_old_sum"], a["n_tokens"])
            for a in s.actions
            if finite(a["logp_behaviour_sum"]) and finite(a["logp_old_sum"])
        ),
        **dict.fromkeys(("tool_calls", "rollout_age", "engine_diff", "engine_prob_diff")),
        **spread("engine", s.actions),
        **spread("inner", s.actions),
        "action_logp_min": median(lows) if lows else None,
        "incorrect_error_norm": ratio(
            (a["error_norm_sum"], a["n_tokens"]) for a, _ in wrong if finite(a["error_norm_sum"])
        ),
    }


def spread(pair: str, actions: Iterable[Row]) -> Row:
    """How the tokens' ratios of a pair of policies are distributed."""
    top, bottom = {
        "engine": ("logp_old_sum", "logp_behaviour_sum"),
        "inner": ("logp_inner_sum", "logp_old_sum"),
    }[pair]
    k3, squares, far = f"{pair}_k3_sum", f"{pair}_ratio_sq_sum", f"n_tokens_{pair}_far"
    rows = [
        a for a in actions
        if all(map(finite, (a[top], a[bottom], a[k3], a[squares], a["n_tokens"])))
    ]
    n = sum(a["n_tokens"] for a in rows)
    total = sum(a["n_tokens"] + a[k3] + a[top] - a[bottom] for a in rows)
    square = sum(a[squares] for a in rows)
    result = {
        f"{pair}_k3": ratio((a[k3], a["n_tokens"]) for a in rows),
        f"{pair}_chi2": square / n - 1 if n else None,
        f"{pair}_ess": total**2 / (n * square) if n * square else None,
        f"{pair}_far_share": ratio((a[far], a["n_tokens"]) for a in rows),
    }
    if pair == "engine":
        result["engine_ratio"] = total / n if n else None
    return result


def good_first_actions(s: Step) -> float | None:
    hits: list[bool] = []
    has_docs = False
    for members in s.groups.values():
        firsts = [(a["docs_hash"], r) for r in members if s.mixed(r)
                  for a in s.turns(r) if a["action_index"] == 0]
        good = {docs for docs, r in firsts if r["correct"]} - {None}
        has_docs |= any(docs is not None for docs, _ in firsts)
        hits += [docs in good for docs, r in firsts if r["correct"] is False]
    return mean(hits) if has_docs else None


def action_signals(tables: Tables) -> list[Row]:
    """The view `action_signals`."""
    tables = visible(tables)
    rows = []
    for number in sorted({a["step"] for a in tables["actions"]}):
        s = Step(tables, number)
        cells: dict[tuple, list[tuple[Row, Row]]] = {}
        for a, r in s.pairs(lambda r: r["correct"] is not None):
            cells.setdefault((a["action_index"], r["correct"]), []).append((a, r))
        for (index, correct), pairs in cells.items():
            deltas = [
                a["logp_post_sum"] - a["logp_old_sum"]
                for a, r in pairs
                if s.mixed(r) and finite(a["logp_old_sum"]) and finite(a["logp_post_sum"])
            ]
            rows.append({
                "step": number, "action_index": index, "correct": correct,
                "n_actions": len(pairs), "n_delta": len(deltas), "delta": mean(deltas),
                "lld_share": mean(d <= 0 for d in deltas),
                "logp": ratio((a["logp_old_sum"], a["n_tokens"])
                              for a, _ in pairs if finite(a["logp_old_sum"])),
            })
    return rows
