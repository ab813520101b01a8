"""verifiers' episodes (`traces.jsonl`), as prime-rl writes them.

verifiers 0.4.0 (`v1/episode.py`, `v1/trace.py`, `v1/graph.py`): a trace is a list of messages, of
which those with `sampled` are the policy's; `logprobs` are the engine's, over the sampled tokens
alone, rounded to four decimals; `trainer_logprobs`, if somebody filled them in, are those of the
trainer's policy before the update.

prime-rl (048a6e2) writes `monitors/file/traces/stream/NNNNN.jsonl[.zst]`, episodes as they arrive,
and beside them annotations, which say what of that was trained on and are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ..recording.episodes import golden_of, short_hash
from .reading import PACKED, as_step, bare_name, first_keys, head, natural_key, number, objects
from .rollouts import Rollouts, as_text
from .source import HEAD_BYTES, Findings, Rows
from .token_logs import floats, sequence


class VerifiersTraces:
    name = "verifiers-traces"
    description = "traces of verifiers or prime-rl"

    def looks_like(self, path: Path, head: bytes) -> bool:
        keys = first_keys(head)
        return (
            {"task", "traces"} <= keys
            or bare_name(path) == "traces.jsonl"
            or {"trace_id", "branches"} <= keys
            or (bare_name(path).endswith(".index.jsonl") and bool({"trace_id", "trace_ids"} & keys))
        )

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        rollouts = Rollouts(findings)
        # The indexes say where in the files a reader finds what is in them.
        files = [p for p in sorted(paths, key=natural_key) if ".index." not in p.name]
        updates = [p for p in files if {"trace_id", "branches"} <= first_keys(head(p, HEAD_BYTES))]
        traces = _unsealed([p for p in files if p not in updates])
        if updates:
            findings.skip("prime-rl's annotations, which are not read", len(updates))
            findings.note(
                "The traces hold every rollout, also those that prime-rl did not train on: which "
                "those are is in its annotations, which are not read."
            )
        for path in traces:
            for episode in objects(path, findings):
                yield from _episode(episode, rollouts)
        yield from rollouts.finish()


def _unsealed(paths: Sequence[Path]) -> list[Path]:
    """The paths without what is there packed as well, as while a full file is being packed."""
    there = {path.with_name(bare_name(path)) for path in paths if path.suffix in PACKED}
    return [path for path in paths if path not in there]


def _episode(episode: dict[str, Any], rollouts: Rollouts) -> Iterator[Rows]:
    work = _dig(episode, "run", "work")
    group = _dig(episode, "group", "id") or _dig(episode, "group")
    source = _dig(episode, "env", "name") or _dig(episode, "env", "id")
    golden = _dig(episode, "task", "data")
    golden = golden_of(golden) if isinstance(golden, dict) else None
    traces = episode.get("traces")
    for trace in traces if isinstance(traces, list) else ():
        step = as_step(_dig(work, "step"))
        if "eval" in (_dig(work, "type"), _dig(trace, "info", "kind")):
            rollouts.findings.skip("episodes of evaluations")
        elif step is None:
            rollouts.findings.skip("episodes without a training step")
        else:
            yield from _trace(step, group, source, golden, trace, rollouts)


def _trace(
    step: int,
    group: Any,
    source: Any,
    golden: Any,
    trace: Any,
    rollouts: Rollouts,
) -> Iterator[Rows]:
    nodes = _dig(trace, "nodes")
    nodes = [n for n in nodes if isinstance(n, dict)] if isinstance(nodes, list) else []
    samples = [n for n in nodes if n.get("sampled")]
    sizes = [_tokens(n) for n in samples]
    if not samples:
        rollouts.findings.skip("traces in which the policy said nothing")
        return
    edges = [0, *accumulate(sizes)]
    reward = _reward(trace.get("rewards"), trace.get("reward"))
    advantages = _concat(samples, "advantages", sizes)
    advantage = advantages[0] if advantages else number(_dig(trace, "info", "advantage"))
    first = next(i for i, node in enumerate(nodes) if node.get("sampled"))
    prompt = "\0".join(_content(n) for n in nodes[:first])
    yield from sequence(
        rollouts,
        step,
        str(group) if isinstance(group, str | int) else None,
        [(a, b) for a, b in pairwise(edges) if b > a],
        {
            "behaviour": _concat(samples, "logprobs", sizes),
            "old": _concat(samples, "trainer_logprobs", sizes),
            "reference": _concat(samples, "reference_logprobs", sizes),
            "entropy": _concat(samples, "entropies", sizes),
        },
        prompt_hash=short_hash(prompt),
        data_source=source if isinstance(source, str) else None,
        reward=reward,
        response=as_text([n.get("message") for n in nodes[first:]]),
        golden=golden,
        advantage=advantage,
        text="\n".join(_content(n) for n in nodes),
    )


def _tokens(node: dict[str, Any]) -> int:
    mask, logps = node.get("mask"), node.get("logprobs")
    if isinstance(mask, list) and mask:
        return sum(bool(m) for m in mask)
    return len(logps) if isinstance(logps, list) else 0


def _concat(nodes: list[dict[str, Any]], name: str, sizes: list[int]) -> list[float] | None:
    """A stream over the sampled tokens of all messages; None if one of them lacks it."""
    stream: list[float] = []
    for node, size in zip(nodes, sizes, strict=True):
        if (part := floats(node.get(name), size)) is None:
            return None
        stream += part
    return stream or None


def _reward(rewards: Any, total: Any) -> float | None:
    """The sum of the weighted rewards: numbers, or objects with a score and a weight."""
    if not isinstance(rewards, dict):
        return number(total)
    scores = []
    for value in rewards.values():
        if isinstance(value, dict):
            score, weight = number(value.get("score")), number(value.get("weight", 1.0))
            scores.append(None if score is None or weight is None else score * weight)
        elif value is not None:
            scores.append(number(value))
    amounts = [v for v in scores if v is not None]
    return sum(amounts) if amounts else None


def _content(node: dict[str, Any]) -> str:
    content = _dig(node, "message", "content")
    if isinstance(content, list):
        content = "".join(str(_dig(part, "text") or "") for part in content)
    return content if isinstance(content, str) else ""


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
