"""The timeline of a report: phases as seen live, where they began with hindsight, and alarms."""

from __future__ import annotations

from html import escape

from ..core import palette
from ..core.safe_text import escape_control
from ..diagnosis.changepoints import Boundary
from .arms.facts import Arm, Comparison
from .drawing import Axis, label, step_ticks, svg
from .facts import PostMortem

WIDTH, LEFT = 1180, 90
LANE, THIN = 34, 17  # heights of a lane: of a single run, of one of several
Parts = list[str]


def of_run(facts: PostMortem) -> str:
    """Three lanes: phases as seen live, their beginnings with hindsight, and the alarms."""
    x = Axis(facts.run.first_step or 0, facts.run.last_step or 0, LEFT, WIDTH - 16)
    parts, bottom = _lanes(facts, x, 0)
    spans = ", ".join(f"{s.phase} {s.start_step}–{s.end_step}" for s in facts.phases)
    return _picture(parts, x, bottom, f"Timeline over steps. Live phases: {spans}")


def of_arms(facts: Comparison) -> str:
    """Both arms over the same steps: three lanes for a single run, a thin one for each of more."""
    x = Axis(*extent(facts), LEFT, WIDTH - 16)
    parts: Parts = []
    top = 0.0
    for arm in facts.arms:
        name = escape_control(f"{arm.letter}: {arm.name}")
        parts.append(label(0, top + 16, name, "start", "var(--ink)"))
        if len(arm.runs) > 1:
            more, top = _thin_lanes(arm, x, top + 24)
        elif arm.runs[0].phases:
            more, top = _lanes(arm.runs[0], x, top + 20)
        else:
            more, top = [], top + 24
        parts += more
    return _picture(parts, x, top, "Phases of both arms over the same steps")


def extent(facts: Comparison) -> tuple[int, int]:
    """First and last step of any run of two arms."""
    steps = [
        step
        for arm in facts.arms
        for run in arm.runs
        for step in (run.run.first_step, run.run.last_step)
        if step is not None
    ]
    return min(steps), max(steps)


def _picture(parts: Parts, x: Axis, bottom: float, title: str) -> str:
    return svg([*parts, *step_ticks(x, 12, bottom + 14)], title, round(bottom + 20), WIDTH)


def _lanes(facts: PostMortem, x: Axis, top: float) -> tuple[Parts, float]:
    """The three lanes of a run from `top` down, and where they end."""
    names = ("live", "hindsight", "alarms")
    parts = [label(0, top + LANE * i + 26, name) for i, name in enumerate(names)]
    parts += phase_bar(facts, x, top + 8, 26)
    parts += [_boundary(mark, x, top + LANE + 21) for mark in facts.boundaries]
    rows: list[float] = []  # where the last text of each row of alarms ends
    alarms = [(a.step, a) for a in facts.alarms if a.step is not None]
    for step, alarm in sorted(alarms, key=lambda pair: pair[0]):
        sign = palette.SEVERITIES[alarm.severity]
        text = f"{sign.shape} {escape_control(alarm.rule)} {step}"
        at, length = x(step), 7.6 * len(text)
        turned = at + length > x.end
        begin = at - length if turned else at
        row = next((i for i, end in enumerate(rows) if end < begin), len(rows))
        rows[row : row + 1] = [begin + length + 8]
        y = top + 2 * LANE + 26 + 20 * row
        parts.append(label(at, y, text, "end" if turned else "start", "var(--ink)"))
    return parts, top + 2 * LANE + 30 + 20 * max(len(rows), 1)


def _thin_lanes(arm: Arm, x: Axis, top: float) -> tuple[Parts, float]:
    """A lane for each run: its phases, and a diamond where the decay alarm fired."""
    parts: Parts = []
    runs = [run for run in arm.runs if run.phases]
    for i, run in enumerate(runs):
        y = top + THIN * i
        name = escape_control(run.run.name)
        parts.append(f"<g><title>{escape(name)}</title>{label(0, y + 11, name[:13])}</g>")
        parts += phase_bar(run, x, y, THIN - 3)
        if (step := run.alarm_step("lld-decay")) is not None:
            parts.append(
                f'<path d="M{x(step):g} {y}l6 7l-6 7l-6 -7z" fill="var(--card)" '
                f'stroke="var(--ink)"><title>lld-decay fired at step {step}</title></path>'
            )
    return parts, top + 6 + THIN * len(runs)


def phase_bar(facts: PostMortem, x: Axis, y: float, height: float) -> Parts:
    """Phases as they were seen live, with their words where these fit."""
    parts = []
    size = min(12, height - 1)
    for span in facts.phases:
        sign = palette.PHASES[span.phase]
        a, b = x(span.start_step), min(x(span.end_step + 1), x.end)
        title = f"{sign.word}, steps {span.start_step}–{span.end_step}"
        parts.append(f'<rect x="{a:g}" y="{y:g}" width="{max(b - a, 1.5):g}" height="{height:g}" '
                     f'rx="2" fill="{sign.color}"><title>{title}</title></rect>')
        texts = (f"{sign.shape} {sign.word}", sign.shape)
        fits = next((text for text in texts if b - a > 0.75 * size * len(text)), "")
        base = y + height / 2 + 0.4 * size
        parts.append(label((a + b) / 2, base, fits, "middle", sign.ink, size))
    return parts


def _boundary(mark: Boundary, x: Axis, y: float) -> str:
    sign = palette.PHASES[mark.phase]
    title = f"{sign.word} from step {mark.step}, 95 %: {mark.low}–{mark.high}"
    a, at, b = x(mark.low), x(mark.step), x(mark.high)
    return (
        f"<g><title>{title}</title>"
        f'<path d="M{a:g} {y}H{b:g}M{a:g} {y - 6}v12M{b:g} {y - 6}v12" stroke="{sign.color}" '
        f'stroke-width="2"/><path d="M{at:g} {y - 7}l6 7l-6 7l-6 -7z" fill="{sign.color}"/>'
        f"{label(b + 9, y + 4, f'{sign.shape} {mark.step}')}</g>"
    )
