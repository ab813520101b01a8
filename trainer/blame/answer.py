"""The answer of `lldscope blame` about an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, stdev

from lldscope.storage import json_files

AS_IT_WAS, POSITIVE, HALF_RATE = "as it was", "only positive advantages", "half the learning rate"
LLDS, NO_LLDS, MOMENTUM = "LLDS, action gate", "without LLDS", "momentum alone"
LEAST_DRAWS = 6
"""The least number of batches for an interval."""


@dataclass
class Result:
    """A variant: the measurements on the recorded batch, and over the draws (mean, low, high) Δ of
    the correct responses and its difference from the unchanged update, in nats."""

    name: str
    measures: dict[str, float | None]
    delta: tuple[float, float, float] | None = None
    change: tuple[float, float, float] | None = None


@dataclass
class BlameAnswer:
    """`checkpoint`: the step before which the weights were saved. `replay`: for each table, whether
    the replayed rows equal the record bit by bit."""

    run: str
    step: int
    checkpoint: int
    draws: int
    replay: dict[str, bool]
    variants: list[Result]
    schema: int = 1

    def to_json(self) -> str:
        plain = asdict(self) | {"sentence": self.sentence, "same": all(self.replay.values())}
        return json_files.to_json(plain)

    @property
    def sentence(self) -> str:
        """What lowers the likelihood of correct responses, over the draws, in a sentence."""
        results = {r.name: r for r in self.variants}
        was = results[AS_IT_WAS].delta
        if not self.draws:
            return "No new batches were drawn: these are the numbers of one batch."
        if was is None:
            return (
                f"Fewer than {LEAST_DRAWS} draws have a correct response in a mixed group: "
                "there is no Δ to explain."
            )
        does = "lowers" if was[0] < 0 else "does not lower"
        parts = [
            f"This update {does} the log-likelihood of correct responses: {was[0]:+.2f} nats a "
            f"response over {self.draws} new batches from the same weights, 95 % interval "
            f"{was[1]:+.2f} to {was[2]:+.2f}"
        ]
        if was[0] < 0 < was[2]:
            parts.append("chance may explain it")
        others = {
            POSITIVE: "without negative advantages", MOMENTUM: "by momentum alone",
            LLDS: "with LLDS", NO_LLDS: "without LLDS", HALF_RATE: "at half the learning rate",
        }
        for name, words in others.items():
            if was[0] < 0 and name in results and (delta := results[name].delta):
                _, low, high = results[name].change or (0.0, 0.0, 0.0)
                noise = "" if low * high > 0 else ", within noise"
                parts.append(f"{words} it is {delta[0]:+.2f}{noise}")
        return "; ".join(parts) + "."


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
