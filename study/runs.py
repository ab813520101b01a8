"""From the plan to the bank: what is done, what is missing, and the jobs that make it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lldscope.core.errors import LldscopeError, UsageError

from .arms import BASE_FILE, LONG_LETTERS, ROOT, SNAPSHOTS, STUDY, Planned, model_file
from .bank import export, index
from .driver import Job

State = Literal["done", "missing", "outdated", "impossible"]

INCIDENTAL = {
    "name", "save_policy", "checkpoint_every", "checkpoints_kept", "probes_every", "probe_groups",
    "tokens_every", "micro_tokens",
}
"""Settings that change nothing in how a run goes, or its rounding alone: a change of theirs makes
no run anew."""


def state(run: Planned, line: dict[str, Any] | None) -> State:
    """`outdated`: in the bank with other settings than the plan has now. `impossible`: the trainer
    does not know a setting of the run."""
    try:
        target = run.resolved()
    except UsageError:
        return "impossible"
    if line is None:
        return "missing"
    return "done" if same(line["settings"], target) else "outdated"


def same(recorded: dict[str, Any], target: dict[str, Any]) -> bool:
    """Whether a run was made with these settings. A setting that the trainer did not have then
    does not count, unless the plan asks for something that was not to be had."""
    from lldscope_trainer.config import TrainConfig

    defaults = TrainConfig().to_dict()
    return all(
        recorded.get(key, defaults[key]) == value
        for key, value in target.items()
        if key not in INCIDENTAL
    )


def code_version() -> str:
    """The commit, and whether trainer or analyzer differ from it."""
    try:
        commit = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--", "trainer", "lldscope")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


# -- jobs -----------------------------------------------------------------------------------------


def jobs(runs: Iterable[Planned]) -> list[Job]:
    """A job for each run, and before the first one that needs it the warm start."""
    queue: list[Job] = []
    for run in runs:
        warm = None if run.warm_start == "tiny" else warm_start_job(run.warm_start)
        if warm and warm.name not in [job.name for job in queue]:
            queue.append(warm)
        queue.append(train_job(run))
    return queue


LARGE = ("--hidden", "256", "--layers", "4", "--steps", "300")  # 3.2 million parameters
SIZES = {"letters-large-": LARGE, "letters-long-": (*LARGE, "--long")}  # of other warm starts


def warm_start_job(name: str) -> Job:
    """Half an hour of supervised training on a busy core; made under another name until whole."""
    final = model_file(name).parent
    folder = final.with_name(f"{name}.making")
    seed = name.rsplit("-", 1)[1]

    def finish(seconds: float) -> str:
        folder.rename(final)
        return f"made in {seconds:.0f} core seconds, sha256 {digest(name)}"

    letters = name.startswith("letters-")
    module = "study.letters" if letters else "study.warm_start"
    size = next((options for prefix, options in SIZES.items() if name.startswith(prefix)), ())
    return Job(
        name, [sys.executable, "-m", module, "--out", str(folder), "--seed", seed, *size], folder,
        finish, done=final.exists,
    )


def train_job(run: Planned) -> Job:
    """`lldscope train` as planned, or with the same arguments `study.faults FAULT` for a
    fault and `study.until_degraded` for the seed bank; the record goes into the bank when it
    has ended."""
    module = ["lldscope", "train"]
    if run.arm.fault is not None:
        module = ["study.faults", run.arm.fault]
    elif run.arm.kind == "seed":
        module = ["study.until_degraded"]
    words = [str(BASE_FILE), *run.overrides(), "--run", str(run.folder)]
    command = [sys.executable, "-m", *module, *words]
    job = Job(run.name, command, run.folder, lambda seconds: keep(run, seconds))
    return replace(
        job,
        needs=model_file(run.warm_start),
        done=lambda: state(run, index(run.bank).get(run.name)) == "done",
        before=lambda: _prepare(run),
    )


def _prepare(run: Planned) -> None:
    _stamp(run).write_text(json.dumps(_circumstances()), "utf-8")
    if run.warm_start.startswith("letters-"):
        from .letters import LONG, SHORT, write_files  # imports torch

        folder = (ROOT / run.arm.settings["data"]).parent
        write_files(folder, LONG if folder == LONG_LETTERS else SHORT)


def keep(run: Planned, cpu_seconds: float | None = None, bank: Path | None = None) -> str:
    """Put a run that has ended into the bank; one line on how it went. What it took of the
    processor is not known (None) if its driver was killed."""
    about = {
        "run": run.name,
        "arm": run.arm.name,
        "seed": run.seed,
        "split": run.split,
        "fault": run.arm.fault,
        "warm_start": f"{run.warm_start} {digest(run.warm_start)}",
        "cpu_seconds": None if cpu_seconds is None else round(cpu_seconds, 1),
        **json.loads(_stamp(run).read_text("utf-8")),
    }
    snapshots = {"alarm": 1, "seed": SNAPSHOTS}.get(run.arm.kind, 0)
    line = export(run.folder, about, bank or run.bank, snapshots)
    went = line["outcome"]
    if (step := line.get("degraded_step", line["collapse_step"])) is not None:
        went += f" at step {step}"
    return f"{went}, {line['steps']} steps in {line['seconds']:.0f} s"


def left_over(runs: Iterable[Planned]) -> list[Planned]:
    """Runs that ended in order, with the settings of the plan, and were never put into the bank:
    their driver was killed."""
    return [run for run in runs if _is_done(run)]


def _is_done(run: Planned) -> bool:
    try:
        info = json.loads((run.folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    finished = info.get("status") in ("finished", "stopped") and _stamp(run).is_file()
    return finished and same(info["config"], run.resolved())


def _stamp(run: Planned) -> Path:
    """Written when a run starts: what the bank will say of its circumstances."""
    return STUDY / f"{run.name}.start.json"


def _circumstances() -> dict[str, Any]:
    return {"code": code_version(), "processor": processor(), "started": round(time.time())}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    return next(
        (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "unknown"
    )


def digest(warm_start: str) -> str:
    """The first 12 digits of the sha256 of the weights."""
    file = model_file(warm_start)
    if not file.is_file():
        raise LldscopeError(f"{file} is missing: python -m study run makes it")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
