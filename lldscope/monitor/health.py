"""The state of a run in one object: the same answer for the CLI, the dashboard and scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from ..core.palette import EVIDENCE, NO_ALARM, PHASES, VERDICTS, Sign
from ..core.safe_text import counted_in
from ..core.schema import SIGNALS, signals_in
from ..diagnosis.account import Event
from ..diagnosis.assess import Assessment
from ..diagnosis.evidence import Grade
from ..diagnosis.look_alikes import Answer
from ..diagnosis.phases import Phase, PhaseSpan
from ..diagnosis.registry import STALLED, Rule
from ..diagnosis.rule import Alert, Severity
from ..runs import Run
from ..storage.events import last_checkpoint
from ..storage.heartbeats import Beats
from ..storage.notes import silenced
from .alerts import AnyAlert, StalledAlert
from .headline import Headline, Trouble, headline, missing
from .liveness import Life, Liveness, liveness

CHECK_SCHEMA = 1
BASIS = {  # signal by which a run without likelihoods is judged → its name
    "reward": "reward", "entropy": "entropy", "grad_norm": "gradients",
    "response_tokens": "lengths",
}
_NO_BASIS = {
    "reward_sd", *signals_in("apart"), *(c.name for c in SIGNALS.columns if c.kind != "float")
}

Verdict = Literal["healthy", "warning", "critical", "stalled", "insufficient"]


def verdict(assessment: Assessment, life: Liveness) -> Verdict:
    """The verdict as of the last row; a dead run is `stalled` unless it is critical."""
    of_rows = assessment.verdict
    dead = life.life in ("stalled", "failed") and of_rows != "critical"
    return "stalled" if dead else of_rows


@dataclass(frozen=True)
class RunState:
    """The state of a run as of its last row: the answer of `check`.

    `alerts`: every alarm that ever fired, worst first; `events`: the troubles behind them, with
    their beginnings; `pending`: alarms about to fire. `look_alikes` and `look_alike_evidence` are
    by cause. `life`, `over`, `reason` and `last_row_age_seconds` are those of `Liveness`.
    `damaged`: unreadable files → why; `dropped`: reason of a loss → count. `headline`: cause and
    action, a sentence each. `silenced`: firing alarm → None if it is acknowledged, the end of its
    snooze (Unix time) otherwise. `missing`: what the trainer's adapter could not record → why;
    `unclear`: what is uncertain about which rows count → why.
    """

    run: str
    id: str | None
    path: str
    verdict: Verdict
    evidence: Grade
    phase: Phase | None
    phases: tuple[PhaseSpan, ...]
    alerts: tuple[AnyAlert, ...]
    pending: tuple[AnyAlert, ...]
    look_alikes: dict[str, Answer]
    look_alike_evidence: dict[str, str]
    last_step: int | None
    life: Life
    over: bool
    reason: str | None
    last_row_age_seconds: float | None
    arl: float
    false_alarm_bound: float | None
    damaged: dict[str, str]
    dropped: dict[str, int]
    headline: Headline
    silenced: dict[str, float | None]
    missing: dict[str, str] = field(default_factory=dict)
    unclear: dict[str, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    basis: tuple[str, ...] = ()  # the names in BASIS that were measured, and perhaps "others"
    trend: str = ""  # the course of the reward in a word, see `outcome.trend`
    counted: str = "steps"  # the unit of a step: "rows" for a log without step numbers

    @property
    def firing(self) -> tuple[AnyAlert, ...]:
        """The alarms that fire now, worst first."""
        return tuple(a for a in self.alerts if a.state == "firing")

    @property
    def evidence_words(self) -> str:
        """The grade of the evidence in words. Δ is not mentioned before the first steps."""
        if self.evidence != "symptoms":
            return EVIDENCE[self.evidence]
        if self.verdict == "insufficient" and not self.over:
            return "waiting for the first steps"
        if self.basis == ("reward",):
            return "only the reward was logged"
        *others, last = self.basis or ("",)
        words = f"{', '.join(others)} and {last}" if others else last
        return f"no Δ ({words})" if last else "no Δ"

    @property
    def coverage(self) -> tuple[int, int]:
        """The number of checks that the log allows, and of all checks."""
        answers = list(self.look_alikes.values())
        return len(answers) - answers.count("not_observable"), len(answers)

    @property
    def allows_most_checks(self) -> bool:
        possible, checks = self.coverage
        return 2 * possible >= checks

    @property
    def sign(self) -> Sign:
        """The sign for the verdict. A run without a firing alarm is green only if its reward has
        not fallen beyond its noise and its log allows most checks."""
        sound = self.trend not in ("falling", "dead") and self.allows_most_checks
        if self.verdict != "healthy" or sound:
            return VERDICTS[self.verdict]
        return NO_ALARM

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data, as `lldscope check --json` prints it."""
        words = {"verdict_word": self.sign.word, "phase_word": PHASES[self.phase].word}
        return {"schema": CHECK_SCHEMA, **words, **asdict(self)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The opposite of `to_dict`, even after JSON. Raises KeyError or TypeError."""
        words = ("schema", "verdict_word", "phase_word")
        fields = {name: value for name, value in plain.items() if name not in words}
        fields["phases"] = tuple(PhaseSpan(**span) for span in plain["phases"])
        fields["basis"] = tuple(plain["basis"])
        for name in ("alerts", "pending"):
            fields[name] = tuple(map(_alert_from_dict, plain[name]))
        fields["events"] = tuple(
            Event(**{**event, "severity": Severity(event["severity"])}) for event in plain["events"]
        )
        fields["headline"] = Headline(**plain["headline"])
        return cls(**fields)


def _alert_from_dict(plain: dict[str, Any]) -> AnyAlert:
    kind = StalledAlert if plain["rule"] == STALLED.id else Alert
    episodes = tuple((a, b) for a, b in plain["episodes"])
    return kind(**{**plain, "severity": Severity(plain["severity"]), "episodes": episodes})


def _stalled_alert(
    life: Liveness, last_step: int | None, events: Sequence[Mapping[str, Any]],
    sound: int | None = None,
) -> StalledAlert:
    """The alarm of a dead run. `sound` is the last step before the spoiled steps."""
    message = f"the run has {life.life}: {life.why}"
    advice = "Look at the job's own log; "
    checkpoint = last_checkpoint(events, sound)
    if checkpoint is None:
        which = "to resume from" if sound is None else "from before the trouble"
        advice += f"no checkpoint {which} is recorded."
    else:
        advice += f"resume from checkpoint {checkpoint}."
    age, episodes = life.last_row_age_seconds, ((last_step, None),)
    return StalledAlert(
        step=last_step, value=age, message=message, advice=advice, episodes=episodes
    )


def check(run: Run, arl: float | None = None, rules: Sequence[Rule] | None = None) -> RunState:
    """The state of a run; `rules` are those that raise alarms, by default the built-in ones."""
    assessment = run.assess(arl, rules)
    beats = run.heartbeats()
    life = liveness(run, assessment, beats)
    events, last_step = run.events(), assessment.last_step
    account = assessment.account
    alerts: tuple[AnyAlert, ...] = tuple(assessment.alerts)
    if life.life in ("stalled", "failed"):
        alerts = (_stalled_alert(life, last_step, events, account.sound_step()), *alerts)
    answer = verdict(assessment, life)
    firing = {a.rule: a.start for a in alerts if a.state == "firing"}
    judged = assessment.judged or last_step is None
    trouble = Trouble(
        answer, alerts, account, events, life, assessment.course, judged, run.damaged,
        () if judged else _logged(run),
    )
    state = RunState(
        **_of_the_rows(assessment), **vars(life), run=run.name, id=run.info.get("id"),
        path=run.place, damaged=run.damaged, dropped=_drop_counts(beats), missing=missing(events),
        unclear=run.unclear, verdict=answer, alerts=alerts, headline=headline(trouble),
        silenced=silenced(run.notes(), firing), false_alarm_bound=_bound(run, assessment),
    )
    return state if run.counted == "steps" else _counted_in(run.counted, state)


def _of_the_rows(assessment: Assessment) -> dict[str, Any]:
    findings = assessment.look_alikes()
    return {
        "evidence": assessment.grade, "phase": assessment.phase,
        "phases": tuple(assessment.spans()), "pending": tuple(assessment.pending),
        "look_alikes": {cause: finding.answer for cause, finding in findings.items()},
        "look_alike_evidence": {cause: finding.evidence for cause, finding in findings.items()},
        "last_step": assessment.last_step, "arl": assessment.arl,
        "events": tuple(assessment.account.events), "trend": assessment.course.trend,
        "basis": _basis(assessment.last.observed),
    }


def _counted_in(unit: str, state: RunState) -> RunState:
    """The state of a run with "rows" (or another unit) instead of "steps" in its sentences."""
    def words(text: str) -> str:
        return counted_in(unit, text)

    def of(alerts: Sequence[AnyAlert]) -> tuple[AnyAlert, ...]:
        return tuple(replace(a, message=words(a.message), advice=words(a.advice)) for a in alerts)

    cause, action = words(state.headline.cause), words(state.headline.action)
    evidence = {name: words(text) for name, text in state.look_alike_evidence.items()}
    return replace(
        state, counted=unit, alerts=of(state.alerts), pending=of(state.pending),
        headline=replace(state.headline, cause=cause, action=action), look_alike_evidence=evidence,
    )


def _logged(run: Run) -> list[str]:
    """The names of a run's metrics, likely rewards first."""
    from ..importers.mapping import like_a_reward  # and with it the atlas of metrics

    names = [*run.sql("SELECT DISTINCT name FROM scalars ORDER BY name")["name"]]
    return list(dict.fromkeys([*like_a_reward(names), *names]))


def _basis(measured: Collection[str]) -> tuple[str, ...]:
    others = {*measured} & {*SIGNALS.names} - {*BASIS} - _NO_BASIS
    return *(word for name, word in BASIS.items() if name in measured), *["others"][: len(others)]


def _bound(run: Run, assessment: Assessment) -> float | None:
    """An upper bound on the probability of a false decay alarm in the planned length, or in the
    steps so far without a plan. None if Δ is not tested."""
    if assessment.last_step is None or "delta" not in assessment.bases:
        return None
    return min(1.0, full_length(run, assessment.last_step) / assessment.arl)


def full_length(run: Run, last_step: int) -> int:
    """The planned number of steps, or the number so far if that is larger or there is no plan."""
    return max(run.planned_steps or 0, last_step + 1)


def vanished(state: RunState, why: str) -> RunState:
    """The state of a run that can no longer be read, from its last state."""
    reason = f"the run cannot be read any more: {why}"
    life = Liveness("stalled", reason, state.last_row_age_seconds, over=True)
    others = [alert for alert in state.alerts if alert.rule != STALLED.id]
    return replace(
        state,
        verdict="critical" if state.verdict == "critical" else "stalled",
        alerts=(_stalled_alert(life, state.last_step, ()), *others),
        headline=Headline(f"The run is gone: {why}", ""),
        **vars(life),
    )


def _drop_counts(beats: Beats) -> dict[str, int]:
    """Counts of data dropped by the recorders of all ranks, by reason."""
    total: Counter[str] = Counter()
    for beat in beats.values():
        drops = beat.get("dropped")
        if isinstance(drops, dict):
            total.update({str(k): n for k, n in drops.items() if isinstance(n, int)})
    return dict(total)
