"""What `lldscope blame` answers of an update, and its file in a run directory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from ..storage import json_files

AS_IT_WAS, POSITIVE, HALF_RATE = "as it was", "only positive advantages", "half the learning rate"
FOLDER = "blame"
"""In a run directory: `step-STEP.json` for each step that was explained."""
LEAST_DRAWS = 6
"""Batches that an interval needs."""


@dataclass
class Result:
    """A variant: what was measured on the recorded batch, and over the draws (mean, low, high) of
    Δ of the correct responses and of its difference from the update as it was, in nats."""

    name: str
    measures: dict[str, float | None]
    delta: tuple[float, float, float] | None = None
    change: tuple[float, float, float] | None = None


@dataclass
class BlameAnswer:
    """`checkpoint`: the step before which the weights were saved, None in some older answers.
    `replay`: whether each table's rows of the step came out as recorded, to the bit."""

    run: str
    step: int
    checkpoint: int | None
    draws: int
    replay: dict[str, bool]
    variants: list[Result]
    schema: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"sentence": self.sentence, "same": all(self.replay.values())}

    @property
    def sentence(self) -> str:
        """What lowers the likelihood of correct responses, over the draws."""
        results = {r.name: r for r in self.variants}
        was = results[AS_IT_WAS].delta
        if was is None:
            return (
                f"Fewer than {LEAST_DRAWS} draws have a correct response in a mixed group: "
                "there is no Δ to explain."
            )
        change_once = results[AS_IT_WAS].measures.get("delta_correct")
        once = "has no Δ"
        if change_once is not None:
            once = f"changed it by {change_once:+.2f} nats a response"
        start = (
            f"{{}} the log-likelihood of correct responses: {was[0]:+.2f} nats a response over "
            f"{self.draws} new batches from the same weights, 95 % interval {was[1]:+.2f} to "
            f"{was[2]:+.2f} (the recorded batch {once})"
        )
        if was[0] >= 0:
            return start.format("This update does not lower") + "."
        luck = "; chance may explain it" if was[2] > 0 else ""
        parts = [start.format("This update lowers") + luck]
        if (change := results[POSITIVE].change) is not None:
            noise = "" if change[1] * change[2] > 0 else ", within noise"
            if 0 <= change[0] <= -was[0]:
                parts.append(
                    f"negative advantages account for {-change[0]:+.2f} of {was[0]:+.2f}{noise}"
                )
            elif delta := results[POSITIVE].delta:  # no share of the whole
                parts.append(f"without negative advantages it is {delta[0]:+.2f}{noise}")
        others = (
            ("LLDS, action gate", "with LLDS it is"), ("without LLDS", "without LLDS it is"),
            (HALF_RATE, "at half the learning rate it is"),
        )
        for name, words in others:
            if name in results and (delta := results[name].delta):
                parts.append(f"{words} {delta[0]:+.2f}")
        return "; ".join(parts) + "."

    def write(self, run: Path) -> str:
        """Put the answer into the run's folder; returns its JSON."""
        text = json_files.to_json(self.to_dict())
        folder = run / FOLDER
        folder.mkdir(exist_ok=True)
        json_files.replace_file(folder / f"step-{self.step}.json", text)
        return text


def read_answer(run: Path) -> BlameAnswer | None:
    """The last answer in a run's folder; None where there is none that can be read."""
    try:
        file = max((run / FOLDER).glob("step-*.json"), key=lambda path: path.stat().st_mtime)
        return _parse(json_files.parse(json_files.read_bytes(file, run)))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _parse(plain: Mapping[str, Any]) -> BlameAnswer:
    """From JSON, of which nothing is trusted."""
    variants = [
        Result(
            str(r["name"])[:80],
            {str(k): _number(v) for k, v in dict(r["measures"]).items()},
            _triple(r["delta"]), _triple(r["change"]),
        )
        for r in plain["variants"][:100]
    ]
    checkpoint = plain["checkpoint"]
    answer = BlameAnswer(
        str(plain["run"]), int(plain["step"]), None if checkpoint is None else int(checkpoint),
        int(plain["draws"]), {str(k): bool(v) for k, v in dict(plain["replay"]).items()},
        variants,
    )
    _ = answer.sentence  # raises LookupError where a variant that it needs is not there
    return answer


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _triple(values: Any) -> tuple[float, float, float] | None:
    if values is None:
        return None
    mean, low, high = map(float, values)
    return mean, low, high


def interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and 95 % interval over draws by Student's t, whose quantile is approximated from the
    normal one (Abramowitz and Stegun 1964, 26.7.5; under 0.003 off from six draws on); None for
    fewer than six."""
    if len(values) < LEAST_DRAWS:
        return None
    z, nu = NormalDist().inv_cdf(0.975), len(values) - 1
    t = z + (z**3 + z) / (4 * nu) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3)
    mean, half = fmean(values), t * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half
