"""The causal phase classifier: evidence → one phase per step (arXiv 2512.04220 v2, §5.1).

    stagnation  I    the reward rises and the likelihood of correct responses does not
    decay       II   the likelihood of correct responses falls
    collapse    III  decay, and either the fall accelerates while gradient norm or entropy surges,
                     or the reward has crashed

and around them `warmup` (too little data), `healthy`, `recovered` (left decay or collapse). Rising
and falling refer to Δ (Def. 4.1) where it is measured, otherwise to the likelihood level; with
neither, there is no phase. A phase is entered after its condition has held for some steps and left
after it has not held for LEAVE steps; collapse is left only if the reward recovers as well, because
the likelihood rebounds for a while during a collapse (Fig. 2, steps 145–149). Steps on which
nothing was measured are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from . import conditions as c
from . import detectors as d
from .causes import explained_elsewhere
from .conditions import ENTER_DECAY, MEMORY, RISES, is_new, least_rows, steps_held
from .evidence import Cadence, Evidence, once
from .outcome import outcome

Phase = Literal["warmup", "healthy", "stagnation", "decay", "collapse", "recovered"]
ENTER_STAGNATION = 5
ENTER_COLLAPSE = 2
LEAVE = 20  # steps without the condition before a phase is left
RECOVER = 40  # steps of regained reward and rising likelihood before collapse is left
REGAINED = 0.9  # of the best before the collapse


@once
def classify(e: Evidence) -> list[Phase | None]:
    """The phase of every row; None if the log has no likelihood. A fall of the likelihood that a
    cause other than LLD explains (`causes`) is no phase of LLD."""
    explained = explained_elsewhere(e)
    falls, alarms = c.falling(e) & ~explained, c.decay_test_fires(e) & ~explained
    stagnates = (e.reward_rise >= RISES) & ~c.rising(e) & ~explained
    unstable = c.entropy_surges(e) | c.gradient_surges(e) | c.nonfinite(e)
    breaks = ((unstable & c.accelerates(e)) | c.reward_crashed(e)) & ~explained
    conditions = {"falls": falls, "alarms": alarms, "stagnates": stagnates, "breaks": breaks}
    conditions |= {"not_falls": ~falls, "not_stagnates": ~stagnates}
    counts = {name: steps_held(e, flags).tolist() for name, flags in conditions.items()}
    rises, level, best = c.rising(e), outcome(e).level, outcome(e).best
    new = is_new(e).tolist()
    has_likelihood = (e.has_delta | e.has_level).tolist()
    tested = [basis is not None for basis in e.decay.basis]  # levels need a baseline first
    memory, least = e.cadence.rows(MEMORY), least_rows(e)
    phases: list[Phase | None] = []
    # `decayed_at` is in measured steps, like all counts here; `regained` is the reward that ends a
    # collapse, `regained_steps` for how long it is reached.
    state = d.cell()
    start: tuple[Phase, int, float, int] = ("warmup", -memory - 1, 0.0, 0)
    phase, decayed_at, regained, regained_steps = state.value or start
    for t, now in enumerate(e.measured.tolist()):
        if now >= least and has_likelihood[t] and tested[t] and new[t]:
            recovers = rises[t] and level[t] >= regained
            regained_steps = regained_steps + 1 if recovers else 0
            streaks = {name: steps[t] for name, steps in counts.items()}
            streaks["recovers"] = regained_steps
            before, phase = phase, _next(phase, streaks, now - decayed_at <= memory, e.cadence)
            if phase == "decay":
                decayed_at = now
            if phase == "collapse" and before != "collapse":
                regained, regained_steps = REGAINED * best[t], 0
        latched = phase == "collapse"
        phases.append(phase if has_likelihood[t] or latched or now < least else None)
    state.value = phase, decayed_at, regained, regained_steps
    return phases


@dataclass(frozen=True)
class PhaseSpan:
    """A phase from its first to its last step, both included."""

    phase: Phase | None
    start_step: int
    end_step: int


@once
def spans(e: Evidence) -> list[tuple[PhaseSpan, bool]]:
    """Consecutive steps of the same phase so far, and whether Δ was measured at the first one. The
    list grows."""
    state = d.cell()
    of: list[tuple[PhaseSpan, bool]] = [] if state.value is None else state.value
    for step, phase, has_delta in zip(
        e.step.tolist(), classify(e), e.has_delta.tolist(), strict=True
    ):
        if of and of[-1][0].phase == phase:
            of[-1] = replace(of[-1][0], end_step=step), of[-1][1]
        else:
            of.append((PhaseSpan(phase, step, step), has_delta))
    state.value = of
    return of


def _next(phase: Phase, streaks: dict[str, int], after_decay: bool, cadence: Cadence) -> Phase:
    """The phase after one more step; `streaks` count the rows for which each condition has held."""
    if phase == "collapse":
        return "recovered" if streaks["recovers"] >= cadence.rows(RECOVER) else phase
    if (phase == "decay" or after_decay) and streaks["breaks"] >= cadence.rows(ENTER_COLLAPSE):
        return "collapse"
    if streaks["alarms"] or streaks["falls"] >= cadence.rows(ENTER_DECAY):
        return "decay"
    if phase == "decay":
        return "recovered" if streaks["not_falls"] >= cadence.rows(LEAVE) else phase
    if streaks["stagnates"] >= cadence.rows(ENTER_STAGNATION):
        return "stagnation"
    if phase == "stagnation":
        return "healthy" if streaks["not_stagnates"] >= cadence.rows(LEAVE) else phase
    return "healthy" if phase == "warmup" else phase
