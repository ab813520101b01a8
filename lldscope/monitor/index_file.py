"""Where the index of a folder of runs lies: in the folder, or below the address on a store."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from ..storage import json_files
from ..storage.url import Url

FOLDER, FILE = ".lldscope", "runs.parquet"


def read(root: Path | Url) -> bytes:
    """Raises OSError, ValueError or LldscopeError; a store may have no such object: empty."""
    if isinstance(root, Url):
        from ..storage.objects import ObjectStore

        content = ObjectStore(root).read([_NAME]).get(_NAME, b"")
        json_files.check_size(len(content))
        return content
    with json_files.open_inside(root / _NAME, root) as file:
        json_files.check_size(os.fstat(file.fileno()).st_size)
        return file.read()


def write(root: Path | Url, content: bytes) -> None:
    """Replace the index as a whole. Raises OSError or LldscopeError."""
    if isinstance(root, Url):
        from ..storage.objects import ObjectStore

        ObjectStore(root).put({_NAME: content})
        return
    path = root / _NAME
    path.parent.mkdir(exist_ok=True)
    if not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(root)):
        return  # a link that leads elsewhere
    new = path.with_name(f"{FILE}.{uuid.uuid4().hex}{json_files.IN_PROGRESS}")
    try:
        new.write_bytes(content)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    for old in path.parent.glob(f"{FILE}.*{json_files.IN_PROGRESS}"):
        with suppress(OSError):  # what a kill left
            if time.time() - old.stat().st_mtime > 3600:
                old.unlink()


_NAME = f"{FOLDER}/{FILE}"
