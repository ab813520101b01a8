"""Logs at an address: `wandb://ENTITY/PROJECT/RUN`, and files of a web server.

Each is fetched into a folder and read from there, as untrusted as any other file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from ..core.errors import LldscopeError, UsageError

WANDB = "wandb://"
SUFFIX = ".wandb-history.jsonl"
SECONDS = 60  # without an answer
MAX_BYTES = 1 << 30  # of a file
_NAME = re.compile(r"[\w.~ -]{1,128}")
_PAGE = re.compile(r"https://wandb\.ai/([^/?#]+)/([^/?#]+)/runs/([^/?#]+)/?(?:[?#].*)?")
_BLOB = re.compile(r"(https://(?:github\.com|huggingface\.co)/(?:datasets/)?[^/]+/[^/]+)/blob/")


def is_address(source: str) -> bool:
    """Whether a source is to be fetched."""
    return source.startswith((WANDB, "http://", "https://"))


def fetched(source: str, folder: Path) -> Path:
    """What is at an address, as a file in a folder. Pages of a run at W&B, and of a file at GitHub
    and Hugging Face, stand for what they show.

    Raises UsageError for what is no such address, LldscopeError if it cannot be fetched.
    """
    if page := _PAGE.fullmatch(source):
        source = WANDB + "/".join(page.groups())
    return _history(source, folder) if source.startswith(WANDB) else _download(source, folder)


def _write(path: Path, write: Callable[[BinaryIO], None]) -> Path:
    """A file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            write(file)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path


def _history(source: str, folder: Path) -> Path:
    """Every row of a run's history at W&B, by the package `wandb`. The key and the server are those
    of the package: WANDB_API_KEY or `wandb login`, and WANDB_BASE_URL."""
    names = source.removeprefix(WANDB).strip("/").split("/")
    if len(names) != 3 or not all(map(_NAME.fullmatch, names)) or set(names) & {".", ".."}:
        raise UsageError(f"{source}: write {WANDB}ENTITY/PROJECT/RUN, the run by its id.")
    try:
        import wandb
    except ImportError:
        raise LldscopeError(
            f"{WANDB} addresses need the package wandb: pip install 'lldscope[import]'"
        ) from None

    def rows(file: BinaryIO) -> None:
        run = wandb.Api(timeout=SECONDS).run("/".join(names))
        for row in run.scan_history():
            file.write(json.dumps(row, default=str).encode(errors="replace") + b"\n")

    try:
        return _write(folder.joinpath(*names[:2], names[2] + SUFFIX), rows)
    except (wandb.Error, ValueError, OSError) as error:
        raise LldscopeError(f"W&B did not give the history of {'/'.join(names)}: {error}") from None


def _download(address: str, folder: Path) -> Path:
    """A file of a web server; redirections lead to web servers only."""
    from http.client import HTTPException
    from urllib import request

    parts = urlsplit(_BLOB.sub(r"\1/resolve/" if "huggingface" in address else r"\1/raw/", address))
    name = Path(unquote(parts.path)).name
    if not parts.hostname or not _NAME.fullmatch(name) or name.startswith("."):
        raise UsageError(f"{address}: name a file, such as https://host/run/trainer_state.json.")
    opener = request.OpenerDirector()  # without file:, ftp: and data:
    for handler in (
        request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.UnknownHandler,
        request.HTTPDefaultErrorHandler, request.HTTPRedirectHandler, request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    key = hashlib.blake2b(address.encode(errors="replace"), digest_size=8).hexdigest()

    def content(file: BinaryIO) -> None:
        with opener.open(parts.geturl(), timeout=SECONDS) as answer:
            size = 0
            while block := answer.read(1 << 20):
                size += file.write(block)
                if size > MAX_BYTES:
                    raise LldscopeError(
                        f"{address} is larger than {MAX_BYTES >> 20:,} MB: download it yourself."
                    )
            if answer.length:
                raise OSError("the answer was cut")

    try:
        return _write(folder / key / name, content)
    except (OSError, ValueError, HTTPException) as error:
        raise LldscopeError(f"{address} was not fetched: {error}") from None
