"""What to change next, each with the evidence beside it, and only where there is evidence.

Settings are read under the names that the known trainers use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ..core.numbers import percent
from ..diagnosis.assess import Assessment
from ..diagnosis.registry import LOOK_ALIKES, RULES
from ..diagnosis.rule import Alert
from ..diagnosis.rules.numerics import STEP_KL
from .facts import Advice, PostMortem

KL = ("kl_coefficient", "beta", "kl_loss_coef", "kl_coef")  # lldscope, TRL, verl
LLDS = ("llds",)
COEFFICIENT = ("llds_coefficient", "no_reduce_lambda")  # lldscope, the reference code

LARGE_RATIO = 10.0  # importance ratio at which a single token outweighs its batch
CLIPPED = 0.05  # share of clipped tokens from which the updates of a step count as large
NO_SIGNAL = 0.5  # share of groups without a signal
ONE_SEARCH = 1.1  # searches per rollout: the policy never learns a second one
GOOD_FIRST = 0.3  # share of incorrect rollouts that began like a correct one


def advise(assessment: Assessment, facts: PostMortem) -> list[Advice]:
    """Changes in the order in which to make them."""
    changes = [
        Advice(f"First: {rule.action}", rule.advice, rule.meaning,
               [f"{rule.id}: {facts.look_alikes[rule.id].evidence}"])
        for rule in RULES
        if rule.id in facts.supported
    ]
    makers = [*(_LLD if "lld" in facts.supported else ()), _batch]
    changes += [advice for make in makers if (advice := make(assessment, facts))]
    return changes + _alarmed(facts)


def _alarmed(facts: PostMortem) -> list[Advice]:
    """What the alarms ask for that name no cause, and whose advice is not given above."""
    rules = {*LOOK_ALIKES, "lld-decay", "lld-collapse"}
    return [
        Advice(f"Look into {a.rule}", a.advice, a.meaning, [f"step {a.step}: {a.message}"])
        for a in facts.alarms
        if isinstance(a, Alert) and a.severity != "info" and a.rule not in rules
    ]


def setting(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first setting of one of these names, at any depth; None if there is none."""
    for name in names:
        if name in config:
            return config[name]
    inner = (setting(v, names) for v in config.values() if isinstance(v, Mapping))
    return next((v for v in inner if v is not None), None)


def _in_window(assessment: Assessment, name: str, facts: PostMortem) -> pd.Series[float]:
    """Measured values of a signal in the window of the losses."""
    e, losses = assessment.evidence, facts.losses
    values = pd.Series(e.column(name), index=e.step)
    return values[(e.step >= losses.first_step) & (e.step <= losses.last_step)].dropna()


def _checkpoint(_: Assessment, facts: PostMortem) -> Advice | None:
    fall, checkpoint = facts.fall, facts.last_checkpoint_before_fall
    if fall is None:
        return None
    if checkpoint is None:
        return Advice(
            "Save checkpoints more often",
            "Save one every few dozen steps, and one at every decay alarm.",
            "There is none to go back to.",
            [f"the log names no checkpoint before step {fall}, where the fall began"],
        )
    return Advice(
        f"Go back to the checkpoint of step {checkpoint}",
        "Resume from it with the changes below; later ones already contain the decay.",
        "Most such runs do not come back: each step's loss makes the next one larger.",
        [f"the fall began at step {fall}; the last checkpoint before it is of step {checkpoint}"],
    )


def _llds(assessment: Assessment, facts: PostMortem) -> Advice | None:
    gate, coefficient = (setting(facts.run.config, names) for names in (LLDS, COEFFICIENT))
    loss = facts.losses
    evidence = [facts.look_alikes["lld"].evidence]
    if loss.displaced_share is not None:
        evidence.append(
            f"{percent(loss.displaced_share)} of {loss.n_groups:,} mixed groups lost likelihood of "
            f"their correct responses in steps {loss.first_step}–{loss.last_step}"
        )
    why = "It penalises the likelihood that preserved actions lose within a step, and nothing else."
    if gate in (None, "off"):
        evidence.append("the config has LLDS off" if gate else "the config does not name LLDS")
        return Advice("Switch LLDS on", "Action gate, λ = 0.2.", why, evidence)
    evidence.append(f"the config has LLDS on: gate {gate}, λ = {coefficient}")
    if _in_window(assessment, "llds_gate_share", facts).mean() == 0.0:
        evidence.append("its gate was never open")
        how = "Old and new log-probabilities must differ: make several updates per step."
        return Advice("Make LLDS act", how, "With one update per step it has no effect.", evidence)
    if isinstance(coefficient, int | float) and coefficient < 0.2:
        delays = "In the paper λ = 0.01 only delays the collapse and 0.2 prevents it (Fig. 8)."
        return Advice("Raise the LLDS coefficient", "λ = 0.2.", delays, evidence)
    if gate == "token":
        ranks = "In the paper's Table 3 the token gate is the weakest of the three."
        return Advice("Use the action gate of LLDS", "llds = action.", ranks, evidence)
    return None


def _first_actions(_: Assessment, facts: PostMortem) -> Advice | None:
    share = facts.good_first_action_share
    by_class = {row["correct"]: row for row in facts.losses.first_actions}
    incorrect = by_class.get(False)
    if share is None or share < GOOD_FIRST or incorrect is None or incorrect["delta"] >= 0:
        return None
    (beside,) = [c for c in facts.losses.contrasts if c["contrast"] == "good_first_action"]
    if not beside["supported"]:
        return None  # correct responses lost no more beside such rollouts than beside others
    evidence = [
        f"{percent(share)} of the incorrect rollouts retrieved with their first action what a "
        "correct one of their group did",
        f"these first actions lost {-incorrect['delta']:.2f} nats each "
        f"({incorrect['n']:,} actions)",
        f"correct responses beside them gained {beside['difference']:+.2f} ± {beside['error']:.2f} "
        "nats against others of the same step",
    ]
    if True in by_class:
        gained = by_class[True]["delta"]
        evidence.append(f"the same actions in correct rollouts: {gained:+.2f} nats")
    return Advice(
        "Do not punish good first actions",
        "Give credit per action, or mask the actions that an incorrect rollout shares with a "
        "correct one.",
        "A penalty on a shared prefix takes likelihood from the correct response as well.",
        evidence,
    )


def _masking(_: Assessment, facts: PostMortem) -> Advice | None:
    kinds = {"low_likelihood": "unlikely", "long": "long"}
    losers = [c for c in facts.losses.contrasts if c["contrast"] in kinds and c["supported"]]
    if not losers:
        return None
    evidence = [
        f"beside {kinds[c['contrast']]} incorrect responses correct ones gain {c['with']:+.2f} "
        f"nats, beside the others of the same step {c['without']:+.2f} (difference "
        f"{c['difference']:+.2f} ± {c['error']:.2f}, {c['n_steps']} steps)"
        for c in losers
    ]
    return Advice(
        f"Mask {' and '.join(kinds[c['contrast']] for c in losers)} incorrect responses, or give "
        "them less weight",
        "Leave out of the loss incorrect responses far below the usual log π per token, or far "
        "above the usual length.",
        "Their prediction error is large, and pushes the correct responses down with it.",
        evidence,
    )


def _kl(_: Assessment, facts: PostMortem) -> Advice | None:
    if setting(facts.run.config, KL) != 0:
        return None
    return Advice(
        "Add a small KL term",
        "k3, coefficient 0.001, beside LLDS and not instead of it.",
        "It bounds how far a step can go; the paper's GRPO runs with 0.001 collapsed all the same.",
        ["the config has a KL coefficient of 0"],
    )


def _clip(assessment: Assessment, facts: PostMortem) -> Advice | None:
    ratio = _in_window(assessment, "ratio_max", facts).max()
    share = _in_window(assessment, "clip_share", facts).mean()
    evidence = []
    if ratio > LARGE_RATIO:
        evidence.append(f"importance ratios up to {ratio:,.0f} in the window of the fall")
    if share > CLIPPED:
        evidence.append(f"{percent(share)} of the tokens were clipped in the window of the fall")
    step_kl = _in_window(assessment, "step_kl", facts).mean()
    if step_kl >= STEP_KL:
        evidence.append(
            f"a step moved the policy by {step_kl:.3f} nats/token in the window of the fall; runs "
            "that held stay under 0.04"
        )
    if not evidence:
        return None
    return Advice(
        "Smaller steps",
        "Lower the learning rate, or make fewer updates per batch; with negative advantages, bound "
        "the ratio from above as well (dual clip).",
        "Clipping does not bound the ratio of tokens with negative advantage.",
        evidence,
    )


def _sampling(_: Assessment, facts: PostMortem) -> Advice | None:
    top_p = setting(facts.run.config, ("top_p",))
    if not isinstance(top_p, int | float) or not 0 < top_p < 1:
        return None
    return Advice(
        "Sample from the whole distribution",
        "top_p = 1, or log-probabilities of the distribution that was sampled from.",
        "Log-probabilities are of the whole distribution: what the sampler leaves out is never "
        "corrected, and what it takes counts as less likely than it was.",
        [f"the config has top_p {top_p:g}"],
    )


def _batch(assessment: Assessment, facts: PostMortem) -> Advice | None:
    share = _in_window(assessment, "zero_signal_share", facts).mean()
    if not share > NO_SIGNAL or facts.kind in ("empty", "short"):
        return None
    return Advice(
        "More groups with a signal",
        "Larger groups, or sampling until enough groups have both classes.",
        "Where all rewards of a group are equal it teaches nothing, and few groups carry a step.",
        [f"{percent(share)} of the groups had equal rewards in steps "
         f"{facts.losses.first_step}–{facts.losses.last_step}"],
    )


def _answers(assessment: Assessment, facts: PostMortem) -> Advice | None:
    searches = _in_window(assessment, "valid_searches", facts).mean()
    indices = {row["action_index"] for row in facts.losses.by_action}
    if not searches < ONE_SEARCH or len(indices) < 2:
        return None
    return Advice(
        "Mask the answer in LLDS",
        "answer weight below 1 (LLDS-MA), growing with the searches per rollout.",
        "The paper uses it where GRPO stays at a single search; it frees the policy to learn more.",
        [f"{searches:.2f} valid searches per rollout in the window of the fall"],
    )


_LLD = (_checkpoint, _clip, _llds, _first_actions, _masking, _kl, _sampling, _answers)
