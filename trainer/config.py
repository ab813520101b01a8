"""Every setting of a training run: declared once, checked at the start, saved with the run."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lldscope.core.errors import UsageError
from lldscope.recording.retention import RESPONSES

from .guard import ACTIONS, CURES, watched
from .settings import above, at_least, convert, one_of, read_settings, setting, share, some_of

BUILT_IN = "countries"
"""Name of the built-in world where a file of questions or documents is asked for."""


@dataclass(frozen=True)
class TrainConfig:
    """The resolved settings of one run. Raises UsageError naming the key, its value and what is
    allowed."""

    name: str = setting("tiny", "Name of the run.")
    seed: int = setting(0, "Decides questions, sampling and minibatch order.", *at_least(0))
    model: str = setting("tiny", "A Hugging Face model directory, or tiny for the shipped policy.")
    device: str = setting(
        "auto",
        "Where the policy lives; auto takes CUDA if there is one.",
        *one_of("auto", "cpu", "cuda"),
    )
    dtype: str = setting(
        "float32",
        "Number format of the arithmetic; the weights that AdamW updates stay float32.",
        *one_of("float32", "bfloat16"),
    )
    head_dtype: str = setting(
        "float32",
        "Precision of the output layer's inputs. Less than float32 is faster on a GPU, but its "
        "error opens LLDS' strict gates.",
        *one_of("float32", "bfloat16"),
    )
    gradient_checkpointing: bool = setting(
        False, "Recompute each layer in the backward pass: less memory, more time."
    )
    lora_rank: int = setting(0, "Train adapters of this rank only; 0 trains all.", *at_least(0))
    lora_alpha: float = setting(16.0, "Scale of the adapters is this over the rank.", *above(0))
    threads: int = setting(1, "CPU threads; more than 1 slows a tiny policy down.", *at_least(1))

    steps: int = setting(100, "RL steps (rollout batches); 0 only evaluates.", *at_least(0))
    prompts: int = setting(8, "Questions per step.", *at_least(1))
    group_size: int = setting(8, "Rollouts per question.", *at_least(2))
    updates: int = setting(
        8, "Minibatch updates per step; with one, LLDS can never act.", *at_least(1)
    )
    buckets: int = setting(2, "Length buckets per minibatch in the scoring forward.", *at_least(1))
    micro_batch: int = setting(
        0,
        "Rollouts per forward and backward pass of an update; 0 takes the whole minibatch.",
        *at_least(0),
    )
    micro_tokens: int = setting(
        0,
        "Tokens per forward and backward pass of an update, padding included, instead of rollouts; "
        "0 takes micro_batch.",
        *at_least(0),
    )
    optimizer: str = setting(
        "torch",
        "What applies the gradients: plain torch, or DeepSpeed's ZeRO.",
        *one_of("torch", "deepspeed"),
    )
    zero_stage: int = setting(2, "DeepSpeed's ZeRO stage.", *one_of(1, 2, 3))

    lr: float = setting(2e-4, "AdamW's learning rate after warm-up.", *above(0))
    warmup_steps: int = setting(0, "Steps over which the rate rises linearly.", *at_least(0))
    weight_decay: float = setting(0.01, "AdamW's weight decay.", *at_least(0))
    grad_clip: float = setting(1.0, "Largest global gradient norm applied.", *above(0))

    objective: str = setting(
        "grpo",
        "Importance ratio per token or per sequence, or per token with a gradient where it is "
        "clipped (CISPO).",
        *one_of("grpo", "gspo", "cispo"),
    )
    aggregation: str = setting(
        "token-mean",
        "How token losses become one number.",
        *one_of("token-mean", "sequence-mean", "dr-grpo"),
    )
    advantage_std: bool = setting(True, "Divide advantages by the group's standard deviation.")
    positive_only: bool = setting(
        False, "A control: in the policy loss, negative advantages count as 0."
    )
    clip_low: float = setting(0.2, "The ratio is clipped below 1 − this.", *share())
    clip_high: float = setting(0.2, "The ratio is clipped above 1 + this.", *at_least(0))
    dual_clip: float | None = setting(None, "Bound c of dual clip; none is off.", *above(1))
    importance_sampling: str = setting(
        "off",
        "Weigh the policy loss by π_old/π_behaviour, of a token or a response, truncated (TIS) or "
        "masked (MIS) at importance_cap: for an engine that samples from another policy than the "
        "trainer's.",
        *one_of("off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    )
    importance_cap: float = setting(2.0, "Largest weight of importance_sampling.", *above(0))
    ess_scaling: bool = setting(
        False,
        "Multiply the step's learning rate by the root of the effective sample size's share of its "
        "responses (arXiv 2602.17616 v1).",
    )
    kl_coefficient: float = setting(
        0.0, "Weight of the k3 KL to the starting policy.", *at_least(0)
    )
    entropy_coefficient: float = setting(
        0.0, "Weight of the entropy bonus; the reference code has 0.001.", *at_least(0)
    )

    llds: str = setting(
        "off",
        "Gate of the LLDS term (arXiv 2512.04220 v2, Eq. 4, 9, 10); ungated is a control, plain "
        "likelihood training on the same tokens.",
        *one_of("off", "token", "response", "action", "ungated"),
    )
    llds_coefficient: float = setting(0.2, "λ of the LLDS term (Eq. 6).", *at_least(0))
    llds_dead_band: float = setting(
        0.0, "Drop in nats a gate ignores; 0 in the paper.", *at_least(0)
    )
    llds_answer_weight: float = setting(
        1.0, "β: weight of the LLDS penalty on answer tokens (Eq. 5); 1 is no masking.", *share()
    )
    llds_answer_span: str = setting(
        "content",
        "Answer tokens are those between the answer's tags, as in the paper, or with the tags, as "
        "in the reference code.",
        *one_of("content", "tags"),
    )
    llds_adaptive: str = setting(
        "off",
        "Take β from the step's mean number of valid searches instead, by the paper's rule or the "
        "reference code's.",
        *one_of("off", "paper", "reference"),
    )
    llds_normalizer: str = setting(
        "preserved", "Tokens the LLDS sum is divided by.", *one_of("preserved", "all")
    )

    engine: str = setting(
        "in-process",
        "What samples: this process, vLLM in this process, or a vLLM server at engine_url.",
        *one_of("in-process", "vllm", "server"),
    )
    engine_url: str = setting("", "Address of the vLLM server, for engine=server.")
    engine_sync: str = setting(
        "file",
        "How a vLLM server gets new weights: from a file on this machine, or over NCCL, on other "
        "GPUs or another machine.",
        *one_of("file", "nccl"),
    )
    engine_tensor_parallel: int = setting(
        1, "Processes, and so GPUs, that share one engine of engine=vllm.", *at_least(1)
    )
    engine_memory: float = setting(
        0.6, "Share of a GPU's memory that vLLM may take.", *share(open_low=True)
    )
    overlap_rollouts: bool = setting(
        False,
        "Sample the next step's rollouts during this step's updates, with the weights from before "
        "them; not across a checkpoint.",
    )
    temperature: float = setting(1.0, "Sampling temperature.", *above(0))
    top_p: float = setting(
        1.0,
        "Nucleus of the sampling; log-probabilities stay those of the full distribution.",
        *share(open_low=True),
    )
    turn_tokens: int = setting(40, "Most tokens in one turn.", *at_least(1))
    observation_tokens: int = setting(64, "Most tokens of one tool answer.", *at_least(1))
    sequence_tokens: int = setting(400, "Most tokens of a rollout, prompt included.", *at_least(16))
    max_turns: int = setting(4, "Turns with a tool; one last generation follows.", *at_least(1))
    invalid_text: str = setting(
        "", "What an action that is neither search nor answer is told; empty is our sentence."
    )
    instruction: str = setting("", "Text before the question, for models that need one.")
    turn_end: str = setting(
        "tag",
        "A turn ends at its first closing tag, or, as in the reference code, at its full length "
        "and is cut afterwards.",
        *one_of("tag", "length"),
    )
    answers_from: str = setting(
        "response",
        "The answer counts if the policy wrote it, or, as in Search-R1, if it is the last of at "
        "least two in prompt and response together.",
        *one_of("response", "search-r1"),
    )
    observation_end: str = setting(
        "closed",
        "A tool answer that is too long keeps its closing tag, or, as in the reference code, "
        "is cut anywhere.",
        *one_of("closed", "cut"),
    )
    tool_tags: str = setting(
        "escaped",
        "Protocol tags inside documents are made harmless, or, as in the reference code, passed "
        "on.",
        *one_of("escaped", "raw"),
    )
    tool_text: str = setting(
        "plain",
        "Documents as the shipped policy learned them, or as the reference code shows them: quoted "
        "titles, no line break after the last document.",
        *one_of("plain", "search-r1"),
    )
    reward: str = setting("em", "Exact match, or token F1.", *one_of("em", "f1"))
    format_reward: float = setting(0.0, "Reward of a wrong answer in the right format.", *share())

    data: str = setting(
        "countries",
        "Files of training questions, commas between, or countries for the built-in world.",
    )
    corpus: str = setting(
        "countries", "File of documents to search, or countries for the built-in world."
    )
    retriever_url: str = setting(
        "", "Address of a Search-R1 retriever that is asked instead of a corpus."
    )
    retriever_seconds: float = setting(30.0, "Longest wait for one retriever call.", *above(0))
    two_hop: float = setting(0.65, "Share of two-hop questions of the built-in world.", *share())
    top_k: int = setting(2, "Documents per search.", *at_least(1))
    miss_rate: float = setting(
        0.25, "Share of queries whose best document the built-in world withholds.", *share()
    )

    rescore_share: float = setting(
        0.25,
        "Share of the rollouts scored again after the step's last update; 0 measures no Δ.",
        *share(),
    )
    retention: int = setting(
        RESPONSES,
        "Correct responses of a step that are kept and scored again after each of the next 16 "
        "steps, at least one on each process; 0 measures no retention.",
        *at_least(0),
    )
    tokens_every: int = setting(
        5, "Steps between samples of texts and tokens; 0 is never.", *at_least(0)
    )
    probes_every: int = setting(
        0,
        "Steps between probes (similarity of hidden states, NTHR influence, likelihood of a fixed "
        "set of correct responses); 0 is never. The set comes from the evaluation before step 0.",
        *at_least(0),
    )
    probe_groups: int = setting(2, "Groups measured by a probe, on each process.", *at_least(0))
    eval_every: int = setting(
        50, "Steps between greedy evaluations; 0 is only start and end.", *at_least(0)
    )
    eval_questions: int = setting(
        128, "Questions per evaluation, of each data source; 0 is none.", *at_least(0)
    )
    eval_temperature: float = setting(
        0.0,
        "Sampling temperature of evaluations; 0 is greedy, anything else is recorded as "
        "em_sampled.",
        *at_least(0),
    )
    eval_max_turns: int = setting(
        0, "Turns with a tool in evaluations, 4 in the paper; 0 is max_turns.", *at_least(0)
    )
    eval_data: str = setting(
        "", "Files of evaluation questions, commas between; empty takes the built-in world's."
    )
    save_policy: bool = setting(False, "Keep the trained policy in the run directory.")
    checkpoint_every: int = setting(0, "Steps between checkpoints; 0 makes none.", *at_least(0))
    checkpoints_kept: int = setting(2, "Checkpoints kept, the newest ones.", *at_least(1))
    guard: str = setting(
        "off",
        "What to do on an alarm, in this order: roll back to the last healthy checkpoint, switch "
        "LLDS on or raise it to guard_coefficient, change what the alarm asks for, save a "
        "checkpoint, stop.",
        *some_of(*ACTIONS),
    )
    guard_on: str = setting("lld-decay,lld-collapse", "Alarms that the guard acts on.")
    guard_margin: int = setting(
        10,
        "Steps before an alarm that count as affected already: a rollback goes behind them.",
        *at_least(0),
    )
    guard_coefficient: float = setting(0.2, "λ that the guard sets.", *above(0))

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = convert(f.name, getattr(self, f.name), kinds[f.name])
            object.__setattr__(self, f.name, value)
            ok = f.metadata["ok"]
            if ok and value is not None and not ok(value):
                raise UsageError(
                    f"{f.name}={value!r} is not allowed: it must be {f.metadata['limit']}"
                )
        if self.prompts * self.group_size < self.updates:
            raise UsageError(
                f"updates={self.updates} is not allowed: it must be at most the "
                f"{self.prompts * self.group_size} rollouts of a step (prompts × group_size)"
            )
        if "rollback" in self.guard and not self.checkpoint_every:
            raise UsageError(
                f"guard={self.guard} is not allowed: rolling back needs checkpoints "
                "(checkpoint_every=N)"
            )
        without = [rule for rule in watched(self.guard_on) if rule not in CURES]
        if "cure" in self.guard.split(",") and without:
            raise UsageError(
                f"guard={self.guard} is not allowed with guard_on={self.guard_on}: there is no "
                f"cure for {without[0]}; there is for {', '.join(CURES)}"
            )
        if self.turn_end == "length" and self.engine == "in-process":
            raise UsageError(
                "turn_end=length needs engine=vllm or engine=server: the in-process sampler feeds "
                "every token back as it draws it, and cannot take back what follows a closing tag"
            )
        if self.overlap_rollouts and self.engine == "vllm":
            raise UsageError(
                "overlap_rollouts is not allowed with engine=vllm, which sleeps during updates: "
                "take engine=server with the server on other GPUs"
            )
        if self.micro_tokens and self.micro_batch:
            raise UsageError(
                f"micro_tokens={self.micro_tokens} is not allowed with "
                f"micro_batch={self.micro_batch}: either says how large a pass is"
            )
        if self.dual_clip is not None and self.objective == "cispo":
            raise UsageError(
                "dual_clip is not allowed with objective=cispo, which has no surrogate"
            )
        if self.engine_tensor_parallel > 1 and self.engine != "vllm":
            raise UsageError(
                f"engine_tensor_parallel={self.engine_tensor_parallel} needs engine=vllm; a server "
                "is started with --tensor-parallel-size, and engine=in-process has no such thing"
            )
        if self.engine_sync == "nccl" and self.engine != "server":
            raise UsageError(
                "engine_sync=nccl needs engine=server: other engines share the trainer's memory"
            )
        if self.engine == "server" and not self.engine_url:
            raise UsageError("engine=server needs engine_url=http://HOST:PORT")
        if self.data != BUILT_IN and self.corpus == BUILT_IN and not self.retriever_url:
            raise UsageError(
                f"data={self.data} has nothing to search in: name a corpus file (corpus=FILE) or a "
                "retriever (retriever_url=http://127.0.0.1:8000/retrieve)"
            )

    @classmethod
    def names(cls) -> list[str]:
        """The settings there are."""
        return [f.name for f in dataclasses.fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return dataclasses.asdict(self)


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file, or a shipped configuration by its name, and apply `key=value` overrides.

    Raises UsageError for a missing file, an unknown key, a value of the wrong kind or out of range.
    """
    return TrainConfig(**read_settings(source, overrides, TrainConfig.names()))
