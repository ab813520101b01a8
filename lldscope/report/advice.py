"""What to change next, each with the evidence beside it, and only where there is evidence.

A piece of advice is a dictionary: `change`, `how`, `why`, and `evidence`, a list of sentences with
the numbers of this run. What the config says is read under the names that the known trainers use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..alarms.assess import Assessment
from ..alarms.registry import RULES

KL = ("kl_coefficient", "beta", "kl_loss_coef", "kl_coef")  # lldscope, TRL, verl
LLDS = ("llds",)
COEFFICIENT = ("llds_coefficient", "no_reduce_lambda")  # lldscope, the reference code

LARGE_RATIO = 10.0  # importance ratio at which a single token outweighs its batch
CLIPPED = 0.05  # share of clipped tokens that says the updates of a step go far
NO_SIGNAL = 0.5  # share of groups without a signal
ONE_SEARCH = 1.1  # searches per rollout: the policy never learns a second one
GOOD_FIRST = 0.3  # share of wrong rollouts that began like a correct one


def advise(
    assessment: Assessment, config: Mapping[str, Any], facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Changes in the order in which to make them; `facts` are those of the report so far."""
    causes = facts["look_alikes"]
    found = [
        _piece("Mend the cause that was there first", rule.advice, rule.meaning,
               [f"{rule.id}: {causes[rule.id]['evidence']}"])
        for rule in RULES
        if causes.get(rule.id, {}).get("answer") == "supported"
    ]  # fmt: skip
    if causes.get("lld", {}).get("answer") == "supported":
        found += [piece for make in _LLD if (piece := make(assessment, config, facts))]
    return found + [piece for make in _ALWAYS if (piece := make(assessment, config, facts))]


def setting(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first setting of one of these names, at any depth; None if there is none."""
    for name in names:
        if name in config:
            return config[name]
    inner = (setting(v, names) for v in config.values() if isinstance(v, Mapping))
    return next((v for v in inner if v is not None), None)


def _piece(change: str, how: str, why: str, evidence: list[str]) -> dict[str, Any]:
    return {"change": change, "how": how, "why": why, "evidence": evidence}


def _mean(assessment: Assessment, name: str, facts: Mapping[str, Any]) -> float | None:
    """Mean of a signal over the window of the losses."""
    signals = assessment.evidence.signals
    window = facts["losses"]
    rows = signals["step"].between(window["first_step"], window["last_step"])
    known = signals.loc[rows, name].dropna()
    return float(known.mean()) if len(known) else None


def _checkpoint(_: Assessment, __: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    fall, saved = facts["fall"], facts["last_checkpoint_before_fall"]
    if fall is None:
        return None
    if saved is None:
        return _piece(
            "Save checkpoints more often",
            "Save one every few dozen steps, and one at every decay alarm.",
            "There is none to go back to.",
            [f"the log names no checkpoint before step {fall}, where the fall began"],
        )
    return _piece(
        f"Go back to the checkpoint of step {saved}",
        "Train on from there with the changes below; later ones hold the decay already.",
        "Most such runs do not come back: each step's losses make those of the next larger.",
        [f"the fall began at step {fall}; the last checkpoint before it is of step {saved}"],
    )


def _llds(assessment: Assessment, config: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    gate, coefficient = setting(config, LLDS), setting(config, COEFFICIENT)
    lost = facts["losses"]
    evidence = [facts["look_alikes"]["lld"]["evidence"]]
    if lost["n_groups"]:
        share = lost["n_displaced"] / lost["n_groups"]
        evidence.append(
            f"{share:.0%} of {lost['n_groups']:,} mixed groups lost likelihood of their correct "
            f"responses in steps {lost['first_step']}–{lost['last_step']}"
        )
    why = "It penalises the likelihood that preserved actions lose within a step, and nothing else."
    if gate in (None, "off"):
        evidence.append("the config has LLDS off" if gate else "the config does not name LLDS")
        return _piece("Switch LLDS on", "Action gate, λ = 0.2.", why, evidence)
    evidence.append(f"the config has LLDS on: gate {gate}, λ = {coefficient}")
    open_share = _mean(assessment, "llds_gate_share", facts)
    if open_share == 0.0:
        evidence.append("its gate was never open")
        how = "Old and new log-probabilities must differ: make several updates per step."
        return _piece("Make LLDS act", how, "With one update per step it is silent.", evidence)
    if isinstance(coefficient, int | float) and coefficient < 0.2:
        delays = "In the paper λ = 0.01 only delays the collapse and 0.2 prevents it (Fig. 8)."
        return _piece("Raise the LLDS coefficient", "λ = 0.2.", delays, evidence)
    if gate == "token":
        ranks = "In the paper's Table 3 the token gate is the weakest of the three."
        return _piece("Take the action gate of LLDS", "llds = action.", ranks, evidence)
    return None


def _first_actions(_: Assessment, __: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    share = facts["good_first_action_share"]
    rows = {row["correct"]: row for row in facts["losses"]["first_actions"]}
    wrong = rows.get(False)
    if share is None or share < GOOD_FIRST or wrong is None or wrong["delta"] >= 0:
        return None
    evidence = [
        f"{share:.0%} of the wrong rollouts retrieved with their first action what a correct one "
        "of their group did",
        f"these first actions lost {-wrong['delta']:.2f} nats each ({wrong['n']:,} actions)",
    ]
    if True in rows:
        evidence.append(f"the same actions in correct rollouts: {rows[True]['delta']:+.2f} nats")
    return _piece(
        "Do not punish good first actions",
        "Give credit per action, or mask the actions that a wrong rollout shares with a right one.",
        "A penalty on a shared prefix takes likelihood from the correct response as well.",
        evidence,
    )


def _masking(_: Assessment, __: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    words = {"low_likelihood": "unlikely", "long": "long"}
    held = [c for c in facts["losses"]["contrasts"] if c["contrast"] in words and c["supported"]]
    if not held:
        return None
    kinds = " and ".join(words[c["contrast"]] for c in held)
    evidence = [
        f"beside {words[c['contrast']]} wrong responses correct ones gain {c['with']:+.2f} nats, "
        f"beside the others of the same step {c['without']:+.2f} (difference "
        f"{c['difference']:+.2f} ± {c['error']:.2f}, {c['n_steps']} steps)"
        for c in held
    ]
    return _piece(
        f"Mask {kinds} wrong responses, or give them less weight",
        "Leave out of the loss wrong responses far below the usual log π per token, or far above "
        "the usual length.",
        "Their prediction error is large, and pushes the correct responses down with it.",
        evidence,
    )


def _kl(assessment: Assessment, config: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    value = setting(config, KL)
    if value != 0:
        return None
    return _piece(
        "Add a small KL term",
        "k3, coefficient 0.001, beside LLDS and not instead of it.",
        "It bounds how far a step can go; the paper's GRPO runs with 0.001 collapsed all the same.",
        ["the config has a KL coefficient of 0"],
    )


def _clip(assessment: Assessment, _: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    signals = assessment.evidence.signals
    window = facts["losses"]
    rows = signals["step"].between(window["first_step"], window["last_step"])
    ratio = signals.loc[rows, "ratio_max"].max()
    share = _mean(assessment, "clip_share", facts)
    evidence = []
    if ratio == ratio and ratio > LARGE_RATIO:
        evidence.append(f"importance ratios up to {ratio:,.0f} in the window of the fall")
    if share is not None and share > CLIPPED:
        evidence.append(f"{share:.1%} of the tokens were clipped in the window of the fall")
    if not evidence:
        return None
    return _piece(
        "Smaller steps",
        "Lower the learning rate, or make fewer updates per batch; with negative advantages, bound "
        "the ratio from above as well (dual clip).",
        "Clipping does not bound the ratio of tokens with negative advantage.",
        evidence,
    )


def _batch(assessment: Assessment, _: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    share = _mean(assessment, "zero_signal_share", facts)
    if share is None or share <= NO_SIGNAL or facts["kind"] in ("empty", "short"):
        return None
    return _piece(
        "More groups with a signal",
        "Larger groups, or sampling until enough groups have both classes.",
        "Where all rewards of a group are equal it teaches nothing, and few groups carry a step.",
        [f"{share:.0%} of the groups had equal rewards in steps "
         f"{facts['losses']['first_step']}–{facts['losses']['last_step']}"],
    )  # fmt: skip


def _answers(assessment: Assessment, config: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    searches = _mean(assessment, "valid_searches", facts)
    indices = {row["action_index"] for row in facts["losses"]["by_action"]}
    if searches is None or searches >= ONE_SEARCH or len(indices) < 2:
        return None
    return _piece(
        "Mask the answer in LLDS",
        "answer weight below 1 (LLDS-MA), growing with the searches per rollout.",
        "The paper uses it where GRPO stays at a single search; it frees the policy to learn more.",
        [f"{searches:.2f} valid searches per rollout in the window of the fall"],
    )


_LLD = (_checkpoint, _llds, _first_actions, _masking, _kl, _clip, _answers)
_ALWAYS = (_batch,)
