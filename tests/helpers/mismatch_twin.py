"""The metrics of verl's rollout correction once more, token by token, and log-probabilities made up
for them: the formulas of `compute_offpolicy_metrics` and `compute_rollout_correction_weights` in
verl 0.9.1, verl/trainer/ppo/rollout_corr_helper.py. In verl's environment test_verl.py asks the
functions themselves.
"""

from __future__ import annotations

import math

import numpy as np

BOUND = 20.0


def twin(old: np.ndarray, rollout: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """verl's metrics, token by token; the importance weights are not truncated."""
    k3, weights, responses = [], [], []
    for i in range(len(mask)):
        whole = 0.0
        for t in range(mask.shape[1]):
            if mask[i, t]:
                log_ratio = old[i, t] - rollout[i, t]
                k3.append(math.exp(log_ratio) - log_ratio - 1)
                weights.append(math.exp(min(max(log_ratio, -BOUND), BOUND)))
                whole += log_ratio
        responses.append(math.exp(2 * min(max(whole, -BOUND), BOUND)))
    w = np.array(weights)
    return {
        "kl": float((rollout - old)[mask].mean()),
        "k3_kl": float(np.mean(k3)),
        "chi2_token": float((w**2).mean() - 1),
        "chi2_seq": float(np.mean(responses) - 1),
        "rollout_is_mean": float(w.mean()),
        "rollout_is_eff_sample_size": float(1 / ((w / w.mean()) ** 2).mean()),
    }


def dump(seed: int, scale: float, far: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """old, rollout (N, T) and the mask: several turns, heavy tails; `far`: beyond the bound too."""
    rng = np.random.default_rng(seed)
    shape = (48, 90)
    mask = np.arange(90) < rng.integers(20, 91, 48)[:, None]
    mask[:, 30:38] = False
    old = -rng.gamma(0.4, 2.0, shape)
    rollout = old + scale * rng.standard_t(4, shape)
    if far:
        rollout[0, 0], rollout[1, 0] = old[0, 0] + 30, old[1, 0] + 25
    return np.float32(old).astype(np.float64), np.float32(rollout).astype(np.float64), mask
