"""Which rows count if a rank has recorded a step more than once.

A run that resumes as a whole goes back to a checkpoint. The earlier rows of a rank, from the first
step that it records again, were given up. A rank that comes back alone goes on beside its sisters:
it replaces only the steps that it records again. The whole run has resumed once every rank is in
the new attempt; until then no row was given up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..storage.part import STEP_TABLES, Owner, Part


@dataclass
class Group:
    """Parts of which the same rows count: those before step `limit`, of steps that no part of
    `replaced` has."""

    limit: int | None
    parts: list[Part] = field(default_factory=list)
    replaced: dict[Part, None] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return self.limit is None and not self.replaced


class Starts:
    """The recorders of a run, by the parts that they sealed; `sizes` are the numbers of ranks of
    the attempts, if known.

    spans     recorder → its first and last step; an incomplete step counts
    resumes   attempt → its first step, of those in which the run began or resumed
    limits    (attempt, rank) → the step from which on its rows were given up
    unclear   attempt → the ranks of earlier attempts that are not in it

    `last_training_step` is the last step that was trained (−2³¹ if none was): later rows that count
    are of evaluations or scalars.
    """

    def __init__(self, parts: Sequence[Part], sizes: Mapping[int, int]) -> None:
        spans: dict[Owner, tuple[int, int]] = {}
        for p in (p for p in parts if p.table in STEP_TABLES):
            first, last = spans.get(p.name.owner, (p.first_step, p.last_step))
            spans[p.name.owner] = min(first, p.first_step), max(last, p.last_step)
        self.spans = dict(sorted(spans.items()))
        firsts: dict[int, dict[int, int]] = defaultdict(dict)  # attempt → rank → first step
        for (attempt, rank, _), (first, _) in self.spans.items():
            firsts[attempt][rank] = min(first, firsts[attempt].get(rank, first))
        self.unclear: dict[int, list[int]] = {}
        ranks: set[int] = set()
        for attempt, of_ranks in firsts.items():
            size = sizes.get(attempt)
            absent = {r for r in ranks if size is None or r < size} - of_ranks.keys()
            if absent:
                self.unclear[attempt] = sorted(absent)
            ranks |= of_ranks.keys()
        self.resumes = {
            attempt: min(of_ranks.values()) for attempt, of_ranks in firsts.items()
            if attempt not in self.unclear or min(ranks) in of_ranks
        }
        self.limits: dict[tuple[int, int], int] = {}
        limits: dict[int, int] = {}  # rank → the limit of its rows in earlier attempts
        for attempt, of_ranks in reversed(firsts.items()):
            self.limits |= {(attempt, rank): limit for rank, limit in limits.items()}
            if attempt in self.unclear:
                continue
            leavers = {r: min(of_ranks.values()) for r in ranks if r >= sizes.get(attempt, r + 1)}
            for rank, first in (leavers | of_ranks).items():
                limits[rank] = min(first, limits.get(rank, first))
        ends = (
            min(p.last_step, self.limits.get(p.name.owner[:2], 2**31) - 1)
            for p in parts if p.table == "steps"
        )
        self.last_training_step = max(ends, default=-(2**31))

    def groups(self, table: str, parts: Sequence[Part]) -> Iterator[Group]:
        """The parts of a table with rows that count, grouped by the rows that do.

        An evaluation at a step is of the policy with which the step begins. An attempt that resumes
        at this step begins with the same policy, so the evaluation counts, unless it was repeated.
        """
        is_eval = table in ("evals", "eval_questions")
        evidence = (table,) if is_eval else STEP_TABLES
        of_owner: dict[Owner, list[Part]] = defaultdict(list)
        for p in parts:
            if p.table in evidence:
                of_owner[p.name.owner].append(p)
        later_ones = [o for o in of_owner if is_eval or o.start > 1 or o.attempt in self.unclear]
        replacements = {
            owner: [p for later in later_ones if self._replaces(later, owner, is_eval)
                    for p in of_owner[later]]
            for owner in {p.name.owner for p in parts if p.table == table}
        }
        groups: dict[tuple[int | None, Owner | None], Group] = {}
        for p in (p for p in parts if p.table == table):
            limit = self.limits.get(p.name.owner[:2])
            if limit is not None and is_eval:
                limit += 1
            if limit is not None and p.first_step >= limit:
                continue
            limit = None if limit is None or p.last_step < limit else limit
            again = [
                q for q in replacements[p.name.owner]
                if q.first_step <= p.last_step and p.first_step <= q.last_step
            ]
            group = groups.setdefault((limit, p.name.owner if again else None), Group(limit))
            group.parts.append(p)
            group.replaced.update(dict.fromkeys(again))
        yield from groups.values()

    def _replaces(self, later: Owner, owner: Owner, is_eval: bool) -> bool:
        """Whether a recorder replaces single steps of another, and not all from a limit on."""
        beside = later.attempt == owner.attempt or later.attempt in self.unclear
        return owner.precedes(later) and (beside or is_eval)

    def sentences(self) -> dict[str, str]:
        """Each open question about the run → why it is open."""
        answer = {}
        for attempt, absent in self.unclear.items():
            owners = [owner for owner in self.spans if owner.attempt == attempt]
            first = min(self.spans[owner][0] for owner in owners)
            answer[f"whether the whole run resumed at step {first}"] = (
                f"{_ranks(o.rank for o in owners)} began attempt {attempt} without "
                f"{_ranks(absent)}; all earlier rows that were not recorded again count"
            )
        return answer


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(set(ranks))]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"rank{'s' * (len(names) > 1)} {', '.join(names[:8])}{more}"


def sizes_of(info: Mapping[str, Any]) -> dict[int, int]:
    """Attempt → how many ranks it has, as far as run.json says."""
    attempts = info.get("attempts") or []
    sizes = {a.get("attempt"): a.get("world_size") for a in attempts}
    if attempts:
        last = attempts[-1].get("attempt")
        sizes[last] = sizes[last] or info.get("world_size")
    return {a: n for a, n in sizes.items() if type(a) is int and type(n) is int and n > 0}
