"""`wandb://ENTITY/PROJECT/RUN`: every row of a run's history, by the package `wandb`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ..core.errors import LldscopeError, UsageError

SCHEME = "wandb://"
SUFFIX = ".wandb-history.jsonl"
SECONDS = 60  # for an answer
_NAME = re.compile(r"[\w.~ -]{1,128}")


def fetched(source: str, folder: Path) -> Path:
    """The history of a run as a file in a folder, one row a line; `source` begins with SCHEME.

    The key and the server are those of the package: WANDB_API_KEY or `wandb login`, and
    WANDB_BASE_URL. Raises UsageError for what is no such address, LldscopeError without the package
    or if the server does not give the history.
    """
    names = source.removeprefix(SCHEME).strip("/").split("/")
    if len(names) != 3 or not all(map(_NAME.fullmatch, names)) or set(names) & {".", ".."}:
        raise UsageError(f"{source}: write {SCHEME}ENTITY/PROJECT/RUN, the run by its id.")
    try:
        import wandb
    except ImportError:
        raise LldscopeError(
            f"{SCHEME} addresses need the package wandb: pip install 'lldscope[import]'"
        ) from None
    path = folder.joinpath(*names[:2], names[2] + SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        run = wandb.Api(timeout=SECONDS).run("/".join(names))
        with new.open("w", encoding="utf-8", errors="replace") as file:
            for row in run.scan_history():
                file.write(json.dumps(row, default=str) + "\n")
        new.replace(path)
    except (wandb.Error, ValueError, OSError) as error:
        raise LldscopeError(f"W&B did not give the history of {'/'.join(names)}: {error}") from None
    finally:
        new.unlink(missing_ok=True)
    return path
