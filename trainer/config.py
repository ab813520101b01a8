"""Every setting of a training run: declared once, checked at the start, saved with the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lldscope.core.errors import UsageError
from lldscope.recording.retention import RESPONSES

from .guard import ACTIONS, CURES, watched
from .settings import Settings, apply_overrides, read_lines

log = logging.getLogger("lldscope")

BUILT_IN = "countries"
"""Name of the built-in world, in place of a file of questions or documents."""

Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
AboveZeroShare = Annotated[float, Field(gt=0, le=1)]
_action = f"({'|'.join(ACTIONS)})"
GuardActions = Annotated[
    str,
    Field(
        pattern=f"^(off|{_action}(,{_action})*)$",
        title=f"off, or one or more of {', '.join(ACTIONS)} with commas between",
    ),
]


class TrainConfig(Settings):
    """The resolved settings of one run. Raises UsageError naming the key, its value and what is
    allowed."""

    name: str = "tiny"
    """Name of the run."""
    seed: Natural = 0
    """Decides questions, sampling and minibatch order."""
    model: str = "tiny"
    """A Hugging Face model directory, a GGUF file or a folder with one, tiny for the shipped
    policy, or smollm2 and search-smollm2 (docs/training.md)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy lives; auto takes CUDA if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the arithmetic; the weights that AdamW updates stay float32."""
    head_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the output layer's inputs. Less than float32 is faster on a GPU, but its error
    opens LLDS' strict gates."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass: less memory, more time."""
    packing: bool = False
    """Join the rows of a pass instead of padding them; on a GPU with
    dtype=bfloat16."""
    shared_prefixes: bool = False
    """Compute once what rows begin with in common (prompt, equal queries and what they find), in
    sampling and in every pass. Worth it for a language model on a CPU."""
    frozen_embeddings: bool = False
    """Leave the embeddings as they are, and with them an output layer that is tied to them."""
    threads: Positive = 1
    """CPU threads; more than 1 slows a tiny policy down."""

    steps: Natural = 100
    """RL steps (rollout batches); 0 only evaluates."""
    prompts: Positive = 8
    """Questions per step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Rollouts per question."""
    updates: Positive = 8
    """Minibatch updates per step; with one, LLDS can never act."""
    micro_tokens: Positive = 2048
    """Tokens per pass of an update or of scoring, padding included; rollouts of similar length
    share a pass."""
    skip_constant_groups: bool = False
    """Leave rollouts without an advantage out of the updates where they give no gradient: without
    LLDS, KL and entropy bonus, with optimizer=torch."""
    optimizer: Literal["torch", "deepspeed"] = "torch"
    """What applies the gradients: plain torch, or DeepSpeed's ZeRO."""
    offload_moments: bool = False
    """Keep AdamW's moments in main memory while rollouts are sampled and scored: 8 bytes a trained
    weight are free on the GPU; with optimizer=torch."""
    zero_stage: Annotated[int, Field(ge=1, le=3)] = 2
    """DeepSpeed's ZeRO stage."""

    lr: Above0 = 2e-4
    """AdamW's learning rate after warm-up."""
    warmup_steps: Natural = 0
    """Steps over which the rate rises linearly."""
    weight_decay: NonNegative = 0.01
    """AdamW's weight decay."""
    grad_clip: Above0 = 1.0
    """Largest global gradient norm applied."""

    objective: Literal["grpo", "gspo"] = "grpo"
    """Importance ratio per token or per sequence."""
    aggregation: Literal["token-mean", "sequence-mean", "dr-grpo"] = "token-mean"
    """How token losses become one number."""
    advantage_std: bool = True
    """Divide advantages by the group's standard deviation."""
    positive_only: bool = False
    """A control: in the policy loss, negative advantages count as 0."""
    clip_low: Share = 0.2
    """The ratio is clipped below 1 − this."""
    clip_high: NonNegative = 0.2
    """The ratio is clipped above 1 + this."""
    dual_clip: Annotated[float | None, Field(gt=1)] = None
    """Bound c of dual clip; none is off."""
    importance_sampling: Literal[
        "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = "off"
    """Weight the policy loss by π_old/π_behaviour, of a token or a response, truncated (TIS) or
    masked (MIS) at importance_cap: for an engine that samples from another policy than the
    trainer's."""
    importance_cap: Above0 = 2.0
    """Largest weight of importance_sampling."""
    kl_coefficient: NonNegative = 0.0
    """Weight of the k3 KL to the starting policy."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the entropy bonus; the reference code has 0.001."""

    llds: Literal["off", "token", "response", "action", "ungated"] = "off"
    """Gate of the LLDS term (arXiv 2512.04220 v2, Eq. 4, 9, 10); ungated is a control, plain
    likelihood training on the same tokens."""
    llds_coefficient: NonNegative = 0.2
    """λ of the LLDS term (Eq. 6)."""
    llds_dead_band: NonNegative = 0.0
    """Drop in nats a gate ignores; 0 in the paper."""
    llds_answer_weight: Share = 1.0
    """β: weight of the LLDS penalty on answer tokens (Eq. 5); 1 is no masking."""
    llds_adaptive: Literal["off", "paper", "reference"] = "off"
    """Take β from the step's mean number of valid searches instead, by the paper's rule or the
    reference code's."""
    llds_normalizer: Literal["preserved", "all"] = "preserved"
    """Tokens the LLDS sum is divided by."""

    engine: Literal["in-process", "vllm"] = "in-process"
    """What samples: the trainer's own sampler, or vLLM in the same process."""
    engine_memory: AboveZeroShare = 0.6
    """Share of a GPU's memory that vLLM may take."""
    temperature: Above0 = 1.0
    """Sampling temperature."""
    top_p: AboveZeroShare = 1.0
    """Nucleus of the sampling; log-probabilities stay those of the full distribution."""
    turn_tokens: Positive = 40
    """Most tokens in one turn."""
    observation_tokens: Positive = 64
    """Most tokens of one tool answer."""
    sequence_tokens: Annotated[int, Field(ge=16)] = 400
    """Most tokens of a rollout, prompt included."""
    max_turns: Positive = 4
    """Turns with a tool; one last generation follows."""
    invalid_text: str = ""
    """Message after an action that is neither search nor answer; empty: ours."""
    instruction: str = ""
    """Text before the question, for models that need one."""
    turn_end: Literal["tag", "length"] = "tag"
    """A turn ends at its first closing tag, or, as in the reference code, at its full length and is
    cut afterwards."""
    answers_from: Literal["response", "search-r1"] = "response"
    """The answer counts if the policy wrote it, or, as in Search-R1, if it is the last of at least
    two in prompt and response together."""
    observation_end: Literal["closed", "cut"] = "closed"
    """A tool answer that is too long keeps its closing tag, or, as in the reference code, is cut
    anywhere."""
    tool_tags: Literal["escaped", "raw"] = "escaped"
    """Protocol tags inside documents are made harmless, or, as in the reference code, passed on."""
    tool_text: Literal["plain", "search-r1"] = "plain"
    """Documents as the shipped policy learned them, or as the reference code shows them: quoted
    titles, no line break after the last document."""
    reward: Literal["em", "f1"] = "em"
    """Exact match, or token F1."""
    format_reward: Share = 0.0
    """Reward of a wrong answer in the right format."""

    data: str = "countries"
    """Files of training questions, commas between, or countries for the built-in world."""
    corpus: str = "countries"
    """File of documents to search, or countries for the built-in world."""
    retriever_url: str = ""
    """Address of a Search-R1 retriever that is asked instead of a corpus."""
    retriever_seconds: Above0 = 30.0
    """Longest wait for one retriever call."""
    two_hop: Share = 0.65
    """Share of two-hop questions of the built-in world."""
    top_k: Positive = 2
    """Documents per search."""
    miss_rate: Share = 0.25
    """Share of queries whose best document the built-in world withholds."""

    rescore_share: Share = 0.25
    """Share of the rollouts scored again after the step's last update; 0 measures no Δ."""
    retention: Natural = RESPONSES
    """Correct responses of a step that are kept and scored again after each of the next 16 steps,
    at least one on each process; 0 measures no retention."""
    tokens_every: Natural = 5
    """Steps between samples of texts and tokens; 0 is never."""
    probes_every: Natural = 0
    """Steps between probes (similarity of hidden states, NTHR influence, likelihood of a fixed set
    of correct responses); 0 is never. The set comes from the evaluation before step 0."""
    probe_groups: Natural = 2
    """Groups measured by a probe, on each process."""
    eval_every: Natural = 50
    """Steps between greedy evaluations; 0 is only start and end."""
    eval_questions: Natural = 128
    """Questions per evaluation, of each data source; 0 is none."""
    eval_temperature: NonNegative = 0.0
    """Sampling temperature of evaluations; 0 is greedy, anything else is recorded as em_sampled."""
    eval_max_turns: Natural = 0
    """Turns with a tool in evaluations, 4 in the paper; 0 is max_turns."""
    eval_data: str = ""
    """Files of evaluation questions, commas between; empty takes the built-in world's."""
    save_policy: bool = False
    """Keep the trained policy in the run directory."""
    checkpoint_every: Natural = 0
    """Steps between checkpoints; 0 makes none."""
    checkpoints_kept: Positive = 2
    """Checkpoints kept, the newest ones."""
    guard: GuardActions = "off"
    """What to do on an alarm, in this order: roll back to the last healthy checkpoint, switch LLDS
    on or raise it to guard_coefficient, change what the alarm asks for, save a checkpoint,
    stop."""
    guard_on: str = "lld-decay,lld-collapse"
    """Alarms that the guard acts on."""
    guard_margin: Natural = 10
    """Steps before an alarm that count as affected already: a rollback goes behind them."""
    guard_coefficient: Above0 = 0.2
    """λ that the guard sets."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
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
                "turn_end=length needs engine=vllm: the in-process sampler feeds every token back "
                "as it draws it, and cannot take back what follows a closing tag"
            )
        reasons = {
            "skip_constant_groups": "all processes make their passes together, and some would "
            "have fewer",
            "offload_moments": "the moments are split over the processes instead",
        }
        for name, reason in reasons.items():
            if getattr(self, name) and self.optimizer == "deepspeed":
                raise UsageError(f"{name}=true needs optimizer=torch: under ZeRO {reason}")
        if self.data != BUILT_IN and self.corpus == BUILT_IN and not self.retriever_url:
            raise UsageError(
                f"data={self.data} has nothing to search in: name a corpus file (corpus=FILE) or a "
                "retriever (retriever_url=http://127.0.0.1:8000/retrieve)"
            )
        return self


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file, or a built-in configuration by name, and apply `key=value` overrides.
    Raises UsageError for a missing file, an unknown key, or an invalid value."""
    return TrainConfig(**apply_overrides(read_lines(source), overrides, TrainConfig.names()))


def recorded_config(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """The settings saved with a run, with `key=value` overrides. Settings unknown to this version
    are left out, with a warning. Raises UsageError like `load_config`."""
    names = TrainConfig.names()
    if unknown := [f"{name}={value}" for name, value in values.items() if name not in names]:
        log.warning("lldscope: settings of another version are left out: %s", ", ".join(unknown))
    lines = {name: value for name, value in values.items() if name in names}
    return TrainConfig(**apply_overrides(lines, overrides, names))
