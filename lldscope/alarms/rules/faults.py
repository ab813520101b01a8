"""Rules that name a cause other than Lazy Likelihood Displacement."""

from __future__ import annotations

from ..rule import Rule
from . import traces as t
from .measures import mean, percent

FAULTS: tuple[Rule, ...] = (
    Rule(
        "tool-outage",
        "critical",
        needs=("tool_fail_share",),
        meaning="More than half of the tool calls fail.",
        evidence="Share of tool calls that failed, mean over five steps.",
        advice="Restart the retriever; discard the steps trained meanwhile. This is not LLD.",
        confused_with="A policy that writes calls the tool refuses, if the trainer counts those as "
        "failed calls: then the share of invalid actions rises with it.",
        holds=lambda e, phases: mean("tool_fail_share", 5)(e) > t.DEAD_CALLS,
        value=mean("tool_fail_share", 5),
        threshold=lambda e: t.DEAD_CALLS,
        unit="of the tool calls",
        for_steps=3,
        message=lambda e, row: (
            f"{percent(mean('tool_fail_share', 5)(e)[row])} of the tool calls failed over five "
            f"steps (limit {percent(t.DEAD_CALLS)})"
        ),
    ),
    Rule(
        "truncation",
        "warning",
        needs=("truncated_share",),
        meaning="More than a third of the rollouts are cut by a length limit.",
        evidence="Share of rollouts cut by a length limit, mean over five steps.",
        advice="Raise the limit, or find out why responses grow.",
        confused_with="A policy that collapses writes without end, so truncation can be the "
        "consequence: which of the two began first decides (see precedence).",
        holds=lambda e, phases: mean("truncated_share", 5)(e) > t.CUT,
        value=mean("truncated_share", 5),
        threshold=lambda e: t.CUT,
        unit="of the rollouts",
        for_steps=5,
        message=lambda e, row: (
            f"{percent(mean('truncated_share', 5)(e)[row])} of the rollouts were cut by a length "
            f"limit over five steps (limit {percent(t.CUT)})"
        ),
    ),
    Rule(
        "engine-mismatch",
        "warning",
        needs=("engine_gap",),
        meaning="The engine that samples and the trainer disagree on the same tokens.",
        evidence="Mean of log π_behaviour − log π_old over action tokens, three steps: beyond "
        "±0.05 nats/token, or beyond ±0.02 where the first 20 steps lay within ±0.002 in the "
        "median. Over what the engine samples, its expectation is KL(behaviour ‖ old), so it is 0 "
        "only where both agree.",
        advice="Check weight sync, precision and the sampling settings of the engine.",
        confused_with="Asynchronous training, where the engine is some versions behind on purpose, "
        "and log-probabilities that the engine reports after top-p or temperature.",
        holds=lambda e, phases: t.gap(e) > t.gap_limit(e),
        value=t.gap,
        threshold=t.gap_limit,
        unit="nats/token",
        for_steps=3,
        message=t.mismatch,
    ),
    Rule(
        "group-collision",
        "warning",
        needs=("prompt_collision_share", "advantage_offset", "group_size_max"),
        meaning="Rollouts of different prompts are compared as one group: rewards are compared "
        "across questions, and the advantages are wrong.",
        evidence="One of three: groups with more than one prompt_hash; advantages that are no "
        "longer relative to the recorded groups (their mean leaves 0, where it had been); without "
        "prompt hashes, a group of at least 1.5 × the largest before.",
        advice="Stop and fix the ids: a group is one prompt of one data source and index. What was "
        "trained meanwhile compared the wrong rewards.",
        confused_with="An advantage estimator that was changed in mid-run. Without prompt hashes, "
        "a group size that was raised, or one prompt drawn twice in a step; a collision since the "
        "first step is then not seen.",
        holds=lambda e, phases: t.collides(e),
        value=t.collision_value,
        threshold=t.collision_limit,
        unit="of the groups, or × the largest before",
        false_alarms="none with prompt hashes: it reports what was recorded; by group sizes: a "
        "threshold, no rate is claimed",
        message=t.collision,
    ),
    Rule(
        "mask-lint",
        "warning",
        needs=("merged_action_share", "action_logp_min", "response_tokens"),
        meaning="Text that the policy did not write counts as its own: tool answers, or tokens "
        "that were appended by force, are trained on.",
        evidence="One of three: fewer actions than turns in more than half of the answered "
        "rollouts that searched; a token in half of the actions that the policy cannot have "
        "sampled (log-probability under −20); rollouts that become 1.4 × as long as ever from one "
        "step to the next with as many searches as before.",
        advice="Print one rollout with its mask, token by token: tool text, template and appended "
        "end tokens must be masked out.",
        confused_with="A length or prompt that was changed on purpose in mid-run. An engine that "
        "disagrees with the trainer gives impossible tokens as well; then engine-mismatch speaks.",
        holds=lambda e, phases: t.merged(e) | t.never_sampled(e) | t.grown_by_tool_text(e),
        value=t.mask_value,
        threshold=t.mask_limit,
        unit="share, nats, or × the longest before",
        for_steps=3,
        message=t.mask,
    ),
    Rule(
        "lr-jump",
        "warning",
        needs=("lr",),
        meaning="The learning rate has jumped: a schedule, a batch size or a resume that it was "
        "not scaled for.",
        evidence="Learning rate of at least 3 × the largest before, from the sixth step on.",
        advice="Go back to a checkpoint from before and lower the rate; scale it with the batch.",
        confused_with="Nothing, unless the jump was meant: declare it as an event `lr_change`.",
        holds=lambda e, phases: t.lr_ratio(e) >= t.LR_JUMP,
        value=t.lr_ratio,
        threshold=lambda e: t.LR_JUMP,
        unit="× the largest before",
        false_alarms="none: it reports what was recorded",
        message=t.jump,
    ),
    Rule(
        "reward-parsing",
        "warning",
        needs=("reward",),
        needs_too=("entropy", "response_tokens"),
        meaning="The reward has halved within three steps, and the policy does what it did before: "
        "what changed is the reward, the questions, or what the tool answers.",
        evidence="Reward of the last three steps against the 20 before, while entropy, length, "
        "searches and answers stay within 0.8 to 1.25 of theirs and tool calls do not fail.",
        advice="Score some old rollouts again with today's reward; look at samples for answers "
        "that are right and get nothing; check data mix and retrieved documents.",
        confused_with="A change of data or of the retriever's index: the log cannot tell them "
        "apart. A reward that is parsed wrongly from the first step on is not seen.",
        holds=lambda e, phases: t.reward_alone_falls(e),
        value=lambda e: t.sudden(e, "reward"),
        threshold=lambda e: t.HALVED,
        unit="× the trailing median",
        for_steps=2,
        message=t.halved,
    ),
)
