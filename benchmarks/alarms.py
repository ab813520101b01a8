"""How often the decay alarm is wrong and how late it is: by simulation, and on the bank.

python -m benchmarks alarms
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np

from lldscope.diagnosis import decay_test as decay
from lldscope.diagnosis import detectors as d
from lldscope.diagnosis.assess import DEFAULT_ARL, default_arl

from . import candidates

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]

SERIES = 200
HEALTHY = 60  # steps of gains before a decay
LENGTHS = (200, 1000)  # planned steps

# -- noise; units are standard deviations of a step, or as said -----------------------------------


def normal(mean: float = 0.0) -> Draw:
    return lambda rng, shape: mean + rng.standard_normal(shape)


def student(degrees: float, mean: float = 0.0) -> Draw:
    return lambda rng, shape: mean + rng.standard_t(degrees, shape)


def autocorrelated(phi: float, mean: float = 0.0) -> Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        out = rng.standard_normal(shape)
        for t in range(1, len(out)):
            out[t] = phi * out[t - 1] + np.sqrt(1 - phi**2) * out[t]
        return out + mean

    return draw


def wandering(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A martingale difference: the scale of a step is an AR(1) on its logarithm."""
    return np.exp(0.5 * autocorrelated(0.98)(rng, shape)) * rng.standard_normal(shape)


def shared(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Means over twelve responses, nearly all of whose spread is common to the step."""
    noise = rng.standard_normal(shape) / np.sqrt(12)
    return rng.standard_normal(shape) + 0.3 * noise


def few(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Means over none to three correct responses."""
    n = rng.integers(0, 4, shape)
    return np.where(n > 0, rng.standard_normal(shape) / np.sqrt(np.maximum(n, 1)), np.nan)


def rare(loss: float, share: float, gain: float = 0.2) -> Draw:
    """Gains of 0.2 ± 0.1 nats, and a share of steps that lose `loss`."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        gains = rng.normal(gain, 0.1, shape)
        return np.where(rng.random(shape) < share, -loss, gains)

    return draw


def retention(net: float) -> Draw:
    """What `retention-loss` tests: the mean change of 32 kept responses, two of each of the last 16
    steps, plus half of Δ. A kept response has its own scale, from a heavy tail, as long as it is
    kept; half of the noise is common to a step. Δ is 0.3 ± 0.15, and the mean `net`."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        steps, series = shape
        variance = (rng.lognormal(-1.0, 1.0, (steps + 15, 2, series)) ** 2).sum(axis=1)
        window = np.lib.stride_tricks.sliding_window_view(variance, 16, axis=0).sum(axis=-1)
        noise = rng.standard_normal(shape) * np.sqrt(window) / 32
        change = net - 0.15 + noise + rng.standard_normal(shape) * noise.std()
        return change + 0.5 * rng.normal(0.3, 0.15, shape)

    return draw


def tripling(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.standard_normal(shape) * np.where(np.arange(shape[0]) < 100, 1, 3)[:, None]


NOISE: dict[str, Draw] = {
    "normal, mean 0": normal(),
    "normal, mean +0.1": normal(0.1),
    "shared within a step, mean 0": shared,
    "0 to 3 correct responses, mean 0": few,
    "uniform, mean 0": lambda rng, shape: rng.uniform(-1, 1, shape),
    "scale wanders, mean 0": wandering,
    "t3, mean 0": student(3),
    "t3, mean +0.15": student(3, 0.15),
    "t2, mean 0": student(2),
    "t2, mean +0.25": student(2, 0.25),
    "Cauchy, centre 0": student(1),
    "gains 0.2, 5 % of steps −2": rare(2.0, 0.05),
    "gains 0.2, 2 % of steps −8 (mean +0.04)": rare(8.0, 0.02),
    "kept responses, net 0": retention(0.0),
    "kept responses, net +0.05": retention(0.05),
    "AR(1) 0.8, mean +0.5": autocorrelated(0.8, 0.5),
    "AR(1) 0.9, mean +1": autocorrelated(0.9, 1.0),
    "lognormal, mean 0": lambda rng, shape: rng.lognormal(0, 1, shape) - np.exp(0.5),
    "losses of 0.2, 5 % of steps +3.8 (mean 0)": rare(-3.8, 0.05, -0.2),
    "deviation × 3 from step 100 on, mean 0": tripling,
    "AR(1) 0.3, mean 0 (violates it at times)": autocorrelated(0.3),
    "AR(1) 0.6, mean 0 (violates it at times)": autocorrelated(0.6),
    "AR(1) 0.3, mean +0.3 (violates it at times)": autocorrelated(0.3, 0.3),
    "AR(1) 0.6, mean +0.3 (violates it at times)": autocorrelated(0.6, 0.3),
}


def first_alarms(delta: np.ndarray, arl: float) -> tuple[np.ndarray, float, np.ndarray]:
    """Of each column the step of the first alarm, counted from 1, the length if there is none; the
    mean score, after which the null hypothesis asks; and whether there is an alarm."""
    scores = np.stack([d.loss_score(column) for column in delta.T], axis=1)
    fires = d.e_detector(scores, arl) >= arl
    steps = np.where(fires.any(axis=0), fires.argmax(axis=0) + 1, len(delta))
    values = scores[~np.isnan(scores)]
    return steps, float(values.mean()), fires.any(axis=0)


def false_alarms(arl: float = DEFAULT_ARL, series: int = SERIES) -> None:
    """By noise: the share of runs of a planned length with an alarm, at the rate that is promised
    for it; and steps to an alarm where none is planned, cut at four times `arl`: where the cut
    bites, the mean is a lower bound. The null hypothesis asks for a mean score of at most 0, at
    every step given the past."""
    horizon = int(4 * arl)
    print(f"false alarms: runs with one, by planned length ({', '.join(map(str, LENGTHS))} steps; "
          f"{4 * series} and {series} runs); mean steps to one at A = {arl:g} ({series} series); "
          "mean score")
    for name, draw in NOISE.items():
        shares = []
        for steps, times in zip(LENGTHS, (4, 1), strict=True):
            delta = draw(np.random.default_rng(7), (steps, times * series))
            shares.append(first_alarms(delta, default_arl(steps))[2].mean())
        delta = draw(np.random.default_rng(1), (horizon, series))
        steps_to, mean, _ = first_alarms(delta, arl)
        more = ">" if (steps_to == horizon).mean() > 0.02 else ""
        cells = [*(f"{share:.1%}" for share in shares), f"{more}{steps_to.mean():,.0f}"]
        print(f"| {name} | {' | '.join(cells)} | {mean:+.3f} |", flush=True)


def delays(series: int = SERIES) -> None:
    """Steps from the start of a drift to the alarm, after steps that gain 0.3 of the noise."""
    print("\ndelay: median (10 % to 90 %) steps to the alarm, drift per step in noise; by planned "
          "steps, and where none are planned")
    for drift in (0.1, *DRIFTS):
        delta, cells = drifting(drift, series, 3000), []
        for arl in (*map(default_arl, LENGTHS), DEFAULT_ARL):
            steps = first_alarms(delta, arl)[0] - HEALTHY
            low, middle, high = np.quantile(steps, [0.1, 0.5, 0.9])
            cells.append(f"{middle:.0f} ({low:.0f}–{high:.0f})")
        print(f"| −{drift} | {' | '.join(cells)} |", flush=True)


VARIANTS: dict[str, dict[str, float]] = {  # of the constants of the score
    "used": {"SIZE": d.SIZE},
    "unit a third smaller": {"SIZE": 1.0 / 0.6745},
    "unit a third smaller, tail with 1 standard error": {"SIZE": 1.0 / 0.6745, "TAIL_ERRORS": 1.0},
    "tail with 1 standard error": {"TAIL_ERRORS": 1.0},
    "losses counted to 3 units": {"COUNTED": 3.0},
    "correlation beyond 3 standard errors": {"PHI_ERRORS": 3.0},
    "unit of old sizes alone": {"GAIN": 0.0},
}
NULLS = (
    "normal, mean 0", "t3, mean 0", "AR(1) 0.8, mean +0.5", "lognormal, mean 0",
    "losses of 0.2, 5 % of steps +3.8 (mean 0)", "deviation × 3 from step 100 on, mean 0",
)
DRIFTS = (0.3, 0.5, 1.0)


def drifting(drift: float, series: int, steps: int = 600) -> np.ndarray:
    noise = np.random.default_rng(5).standard_normal((HEALTHY + steps, series))
    return noise + np.where(np.arange(len(noise)) < HEALTHY, 0.3, -drift)[:, None]


def variants(steps: int = 200, series: int = SERIES) -> None:
    """Other constants of the score: median delays and false alarms in runs of a planned length."""
    arl = default_arl(steps)
    print(f"\nother constants, runs of {steps} planned steps, {series} series: median delays of "
          f"drifts of {', '.join(f'−{x}' for x in DRIFTS)}; runs with an alarm, by noise")
    for name, constants in VARIANTS.items():
        with patch.multiple(d, **constants):
            delays = [
                np.median(first_alarms(drifting(x, series), arl)[0]) - HEALTHY
                for x in DRIFTS
            ]
            rates = [
                first_alarms(NOISE[n](np.random.default_rng(7), (steps, series)), arl)
                for n in NULLS
            ]
        cells = [f"{100 * rate[2].mean():.1f} %" for rate in rates]
        print(f"{name:50}{' '.join(f'{x:.0f}' for x in delays):14}{' | '.join(cells)}", flush=True)


def oracle(steps: int = 200, series: int = 2000) -> None:
    """The best delays that any test can have at this promise: likelihood ratios of normal noise of
    known spread against the true drift, or a mixture of all three."""
    arl = default_arl(steps)
    for drift in DRIFTS:
        x = drifting(drift, series, 300)
        cells = []
        for sizes in ((drift,), DRIFTS):
            evidence, first = np.zeros((len(sizes), series)), np.full(series, len(x))
            size = np.array(sizes)[:, None]
            for t, row in enumerate(x):
                evidence = (evidence + 1 / len(sizes)) * np.exp(-size * row - size**2 / 2)
                first = np.where(evidence.sum(axis=0) >= arl, np.minimum(first, t + 1), first)
            cells.append(f"{np.median(first) - HEALTHY:.0f}")
        print(f"drift −{drift}, noise and drift known: {cells[0]}; drift unknown: {cells[1]} steps")


def smooth_declines(series: int = 40) -> None:
    """A fall from +0.3 to −0.3 within 20 steps in a run of 200 planned steps: with little noise it
    looks like correlation at first."""
    level = np.concatenate([np.full(80, 0.3), np.linspace(0.3, -0.3, 20), np.full(400, -0.3)])
    for noise in (0.02, 0.05, 0.1, 0.3, 1.0):
        delta = level[:, None] + noise * np.random.default_rng(6).standard_normal((500, series))
        delay = first_alarms(delta, default_arl(200))[0] - 80
        print(f"smooth decline, noise {noise:g}: median delay {np.median(delay):.0f} steps")


def level_alarms(arl: float = DEFAULT_ARL, series: int = 60) -> None:
    """Run lengths of the fallback on levels that are AR(1) noise around a constant."""
    print(f"\nfallback on levels: mean steps to a false alarm, A = {arl:g}, {series} series")
    steps = decay.BASELINE + int(3 * arl)
    for phi in (0.0, 0.3, 0.6, 0.8):
        lengths = []
        for level in autocorrelated(phi)(np.random.default_rng(3), (steps, series)).T:
            signals = {"correct_logp": level, "delta_correct": np.full(steps, np.nan)}
            test = decay.test(signals, arl)
            fires = np.flatnonzero(test.value >= test.threshold)
            lengths.append(fires[0] + 1 - decay.BASELINE if len(fires) else steps)
        silent = np.mean(np.array(lengths) == steps)
        print(f"AR(1) {phi}: >{np.mean(lengths):.0f} ({silent:.0%} still silent at {3 * arl:g})")


def main() -> None:
    false_alarms()
    delays()
    variants()
    oracle()
    smooth_declines()
    level_alarms()
    candidates.compare()
