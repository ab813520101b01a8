"""Maps foreign metrics to signals: by the atlas of trainers' metrics (core/atlas.toml), otherwise
by the words of the name.

A metric that only resembles a signal keeps its own name, such as the LLDS fork's
`actor/pos_avg_old_log_prob`, which is divided by the tokens of all responses. A different estimator
of the same quantity is named in the table `scalars` and in the notes of the import. If several
metrics of a log mean one signal, the first in the atlas represents it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.atlas import metrics
from ..core.schema import COMPONENT, SIGNALS
from ..core.trainers import trainer_of


@dataclass(frozen=True)
class Meaning:
    """A signal, and how the foreign number differs from lldscope's own measurement."""

    signal: str
    estimator: str | None = None
    rank: int = 0  # place in the atlas
    factor: float = 1.0  # what the foreign number is multiplied by
    caution: str | None = None  # when it is absent or misleading


SIGNAL_NAMES = frozenset(SIGNALS.names)
# What a mean may stand for.
SCALAR_SIGNALS = frozenset(c.name for c in SIGNALS.columns if c.kind == "float")

# By trainer and name: the first of each.
_OF_TRAINERS = {
    (m.trainer, m.bare): Meaning(m.signal, m.differs, rank, m.factor, m.caution)
    for rank, m in reversed([*enumerate(metrics())]) if m.signal is not None
}
# By name alone: the first trainer that uses it.
MEANINGS = {name: m for (_, name), m in _OF_TRAINERS.items()}

# A part of a name that says that it is of held-out questions, and a last part that says that it is
# a score, such as val-core/DATA SOURCE/acc/mean@8 (verl 0.9.1), val/test_score/DATA SOURCE
# (Search-R1), eval_rewards/FUNCTION/mean (TRL), test/env/all/correct (tinker-cookbook).
_HELD_OUT = re.compile(
    r"(?:val|valid|validation|eval|evaluation|test|held_?out)(?:[-_](?:core|env|rewards?))?[/_-]"
    r"(?:.+[/_-])?"
    r"(?:acc|accuracy|correct|score|rewards?|return|success(?:[_-]rate)?|(?:pass|solve|win)[_-]rate"
    r"|pass(?:@|_at_)1|em|exact[_-]match)(?:[/_](?:mean|avg|all|total))*(?:/?(?:mean|avg)@\d+)?"
    r"|(?:val|eval|test)/.+/(?:mean|avg)@\d+|val/test_score/.+",
    re.I,
)
_OF_A_SOURCE = Meaning(
    "eval_score", "of the policy after the step; of several the first", rank=len(metrics())
)

# Words that say nothing of which signal it is, and names of the signals without them.
_FILLING = re.compile(
    r"mean|avg|average|train|trainer|training|metrics|rollout|policy|actor|batch|step|env"
)
_WORDS: dict[str, str] = {
    words: signal
    for signal, names in {
        "reward": "reward|rewards|reward total|total reward|total rewards|reward score|ep rew|"
                  "episode reward|reward selected|score|performance|group return|"
                  "episode return|ep return",
        "reward_sd": "reward std|rewards std|reward sd|std reward|total rewards std",
        "success": "success|success rate|accuracy|acc|pass rate|solve rate|correct|correct rate|"
                   "fraction correct|correct fraction|solved",
        "grad_norm": "gradient norm|grad norm|grad|gradnorm",
        "entropy": "entropy|token entropy",
        "kl": "kl|kl divergence|kl to ref|ref kl|kl ref",
        "step_kl": "approx kl|ppo kl",
        "loss_policy": "loss|total loss|pg loss|gradient loss|surrogate loss",
        "lr": "lr|learning rate",
        "response_tokens": "|".join(
            f"{text} {unit}" for text in ("completion", "response", "output", "generation", "gen")
            for unit in ("length", "len", "tokens")
        ),
        "truncated_share": "truncation rate|truncated rate|truncation share|truncated ratio|"
                           "truncation ratio|clipped ratio|truncated|truncated share|"
                           "truncated fraction|length clip ratio|length cap hit rate",
        "clip_share": "clip fraction|clip frac|clipfrac|clip rate|pg clipfrac",
        "zero_signal_share": "zero std frac|frac zero std|zero std fraction",
        "valid_searches": "|".join(
            f"{count}{search}" for count in ("", "valid ", "number of valid ", "number of ", "num ")
            for search in ("search", "searches", "search calls", "search count")
        ),
    }.items()
    for words in names.split("|")
}


def _by_words(name: str) -> Meaning | None:
    words = re.findall(r"[a-z]+", name.lower().replace("loss/", ""))
    signal = _WORDS.get(" ".join(w for w in words if not _FILLING.fullmatch(w)))
    return Meaning(signal, "by its name", rank=len(metrics()) + len(words)) if signal else None


def meaning(name: str, trainer: str = "", aggregation: str = "") -> Meaning | None:
    """The signal that a foreign name stands for; None if it keeps its own name.

    The prefix `train/` and case are ignored; names of no known trainer are mapped by their words.
    `trainer` is the id of the log's trainer. Under `aggregation`, metrics that the atlas cautions
    against are other quantities.
    """
    bare = name.removeprefix("train/")
    for one in (name, bare, bare.lower()):
        if m := _OF_TRAINERS.get((trainer, one)) or MEANINGS.get(one):
            return None if aggregation and aggregation in (m.caution or "") else m
    if bare in SCALAR_SIGNALS:
        return Meaning(bare)
    if (ours := bare.removeprefix("lldscope/")) in SCALAR_SIGNALS:  # integrations.common.step_log
        return Meaning(ours, "mean of the steps since the entry before")
    return _OF_A_SOURCE if _HELD_OUT.fullmatch(name) else _by_words(name)


# `rewards/NAME/mean` and `rewards/NAME` of TRL, `reward/NAME` of loops of people's own.
_COMPONENT = re.compile(r"(?:train/)?(?:rewards/(.+?)(?:/mean)?|reward/([^/]+?)(?:_mean)?)")
_STATISTIC = re.compile(
    r"(?:.*[/_])?(?:std|sd|var|min|max|sum|total|mean|avg|median|raw|all|count|selected|rate)"
    r"|(?:avg|mean)_.*|.*pass(?:_at_|@)\d+", re.I
)


def component(name: str) -> str | None:
    """`component/NAME` for the mean of one of several added rewards; None for other names."""
    match = _COMPONENT.fullmatch(name)
    part = (match[1] or match[2]) if match else None
    return f"{COMPONENT}{part}" if part and not _STATISTIC.fullmatch(part) else None


def assign(
    names: Iterable[str], choices: Mapping[str, str] | None = None, aggregation: str = ""
) -> dict[str, Meaning]:
    """The recorded name of each metric of one entry. If several mean one signal, the first in the
    atlas represents it; the others keep their names, prefixed by `log/` if the name is a signal's.
    Reward components become `component/NAME`.

    choices: name in the log → the signal chosen by the user.
    """
    names = list(names)
    trainer = trainer_of(names).id
    meanings = {n: meaning(n, trainer, aggregation) for n in names}
    meanings |= {n: Meaning(choices[n]) for n in names if choices and n in choices}
    first: dict[str, str] = {}
    for name, m in sorted(meanings.items(), key=lambda item: item[1].rank if item[1] else 0):
        if m is not None:
            first.setdefault(m.signal, name)
    return {
        name: m
        if m is not None and first[m.signal] == name
        else Meaning(component(name) or (f"log/{name}" if name in SIGNAL_NAMES else name))
        for name, m in meanings.items()
    }


# What people call a reward, for when no --map was given.
_LIKE_A_REWARD = re.compile(
    r"reward|return|score|performance|accuracy|success|win_rate|pass@", re.I
)
_NO_MEAN = re.compile(
    r"std|_sd|/sd|min\b|max\b|var\b|penalty|loss|val|eval|test|time|baseline", re.I
)


def like_a_reward(names: Iterable[str]) -> list[str]:
    """Names that may be the reward, most likely first."""
    candidates = [n for n in names if _LIKE_A_REWARD.search(n) and not _NO_MEAN.search(n)]
    return sorted(candidates, key=lambda n: ("reward" not in n.lower(), len(n), n))
