"""Rewards: exact match and token F1, as published, and the rule for "correct".

EM and the normalisation are those of Search-R1's `qa_em.py`, which are SQuAD's. F1 is HotpotQA's:
SQuAD's token F1, but yes, no or noanswer on one side only scores 0. HotpotQA and 2WikiMultiHopQA
publish it, and FlashRAG applies it to all seven benchmarks; with SQuAD's own, "yes no" would earn
two thirds on every yes/no question, which a policy trained for F1 finds out. `correct` is EM = 1
whatever the reward is, so runs with different rewards stay comparable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from lldscope.recording.transcripts import exact_match, normalized

CORRECT_RULES = {
    "response": "exact match of the last <answer> the policy wrote with a gold answer, after "
    "normalisation",
    "search-r1": "exact match of the last <answer> in prompt and response together, where there "
    "are at least two, with a gold answer, after normalisation",
}
"""The rule for "correct" by the setting `answers_from`."""

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_WHOLE = {"yes", "no", "noanswer"}


def search_r1_answer(transcript: str) -> str | None:
    """The answer as Search-R1 finds it: the last of at least two answer spans in prompt, response
    and tool text together (its prompt holds an example); None if there are fewer. A prompt without
    that example, or tool text with answer tags, misleads it."""
    spans = ANSWER.findall(transcript)
    return spans[-1].strip() if len(spans) > 1 else None


def em(answer: str | None, golds: Sequence[str]) -> float:
    """1.0 if the answer equals a gold answer after normalisation, else 0.0."""
    return float(exact_match(answer, golds))


def f1(answer: str | None, golds: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over normalised tokens, for the best gold answer.

    0.0 where nothing is left of a side after normalisation, as in HotpotQA's
    `hotpot_evaluate_v1.py`.
    """
    if answer is None:
        return 0.0
    text = normalized(answer)
    return max((_f1(text, normalized(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _WHOLE or gold in _WHOLE):
        return 0.0
    tokens, gold_tokens = answer.split(), gold.split()
    common = (Counter(tokens) & Counter(gold_tokens)).total()
    if not common:
        return 0.0
    precision, recall = common / len(tokens), common / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


def valid_format(kinds: Sequence[str]) -> bool:
    """Whether a rollout with these kinds of actions followed the protocol: every turn a
    search or an answer, the last one an answer."""
    return bool(kinds) and kinds[-1] == "answer" and "invalid" not in kinds
