"""The process that `export` starts: `python -m lldscope.monitor.export_writers ADDRESS RUN LEGEND`
writes what it reads from stdin to TensorBoard, W&B or Trackio, until stdin ends. It imports little,
so that it starts quickly."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

PHASE, ALARM, STEP = "lldscope/phase", "lldscope/alarm/", "lldscope/step"
_SUFFIX = ".lldscope"


class Writer(Protocol):
    """One tool. `last` is the last step that an earlier `watch` wrote, None if unknown."""

    last: int | None

    def scalars(self, step: int, values: dict[str, float]) -> None: ...

    def alert(self, step: int, title: str, text: str, severity: str) -> None: ...

    def flush(self) -> None:
        """Write what is buffered; most tools do that themselves."""

    def close(self) -> None: ...


class TensorBoard(Writer):
    """Event files of its own in the folder; in that of the trainer they become part of its run."""

    def __init__(self, folder: str, run: str, legend: str) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.last = _last_of(Path(folder))
        self._writer = EventFileWriter(folder, filename_suffix=_SUFFIX)
        self._text(0, "lldscope/legend", f"{PHASE}: {legend}. {ALARM}…: 1 while the alarm fires.")

    def scalars(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        value = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, Summary(value=value))

    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        self._text(step, "lldscope/alerts", f"**{title}**\n\n{text}")

    def _text(self, step: int, tag: str, text: str) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(step, text_pb(tag, text))

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _last_of(folder: Path) -> int | None:
    from ..importers.source import Findings
    from ..importers.tensorboard import TensorBoard as Events

    mine = [*folder.glob(f"*.tfevents.*{_SUFFIX}")]
    steps = [s.step for s in Events().read(mine, Findings()) if PHASE in s.values]  # type: ignore
    return max(steps, default=None)


class Wandb(Writer):
    """`PROJECT`: a run of its own. `PROJECT/RUN_ID`: part of that run, beside the trainer that may
    be writing to it (W&B's shared mode). Steps are a metric of their own, lldscope/step, because
    W&B's steps never go back and belong to the trainer."""

    def __init__(self, place: str, run: str, legend: str) -> None:
        import wandb

        project, _, run_id = place.partition("/")
        mode = os.environ.get("WANDB_MODE") or ("shared" if run_id else None)
        settings = wandb.Settings(
            console="off", x_disable_stats=True, x_disable_meta=True, x_primary=not run_id,
            x_update_finish_state=not run_id,
        )
        self._run = wandb.init(
            project=project, id=run_id or None, name=None if run_id else run, job_type="lldscope",
            mode=mode, resume="allow" if run_id else None, settings=settings,
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("lldscope/*", step_metric=STEP)
        self._run.summary["lldscope/legend"] = legend
        last = self._run.summary.get(STEP)
        self.last = int(last) if isinstance(last, int | float) else None

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._run.log({STEP: step, **values})

    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        level = {"critical": "ERROR", "warning": "WARN"}.get(severity, "INFO")
        self._run.alert(title[:63], f"{title}\n{text}", level=level)

    def close(self) -> None:
        self._run.finish()


class Trackio(Writer):
    """A run of its own in the project, called as the watched one."""

    def __init__(self, project: str, run: str, legend: str) -> None:
        import trackio

        self._trackio = trackio
        self._run = trackio.init(
            project=project, name=f"lldscope {run}", resume="allow", embed=False,
            config={"lldscope/legend": legend}, auto_log_gpu=False, auto_log_cpu=False,
        )
        following = getattr(self._run, "_next_step", 0)  # what a resumed run goes on with
        self.last = following - 1 if following else None

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._trackio.log(values, step=step)

    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        levels = self._trackio.AlertLevel
        level = {"critical": levels.ERROR, "warning": levels.WARN}.get(severity, levels.INFO)
        self._run.alert(title, text=text, level=level, step=step)

    def close(self) -> None:
        self._trackio.finish()


def main(address: str, run: str, legend: str) -> None:
    tool, _, place = address.partition(":")
    kind: type[Any] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}[tool]
    writer: Writer = kind(place, run, legend)
    for line in sys.stdin:
        event = json.loads(line)
        step = event["step"]
        if "alert" in event:
            writer.alert(step, event["alert"], event["text"], event["severity"])
        elif not event["first"] or writer.last is None or step > writer.last:
            phase = {} if event["phase"] is None else {PHASE: event["phase"]}
            writer.scalars(step, phase | {ALARM + rule: on for rule, on in event["alarms"].items()})
        writer.flush()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
