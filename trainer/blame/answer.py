"""What `lldscope blame` answers of an update, and its file in a run directory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from lldscope.storage import json_files

AS_IT_WAS, POSITIVE, HALF_RATE = "as it was", "only positive advantages", "half the learning rate"
FOLDER = "blame"
"""In a run directory, as `lldscope.explore.experiments` reads it: `step-STEP.json`."""
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
    """`checkpoint`: the step before which the weights were saved.
    `replay`: whether each table's rows of the step came out as recorded, to the bit."""

    run: str
    step: int
    checkpoint: int
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
