"""Checks that a file system can do what a recorder needs, which mounts of object stores cannot; and
files and folders that take their place when they are complete."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..core.errors import LldscopeError
from . import json_files

# Errors of a call that the file system does not support; a full disk gives others.
_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EIO)


def check_file_system(folder: Path, advice: str) -> None:
    """Create the folder if it is missing, and try in it every file operation of a recorder.

    Raises LldscopeError with the advice if the file system lacks an operation, and OSError if it
    refuses this process. Then nothing is left behind.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    probe = folder / f".{uuid.uuid4().hex}{json_files.IN_PROGRESS}"
    target = probe.with_name(f"{probe.name}{json_files.IN_PROGRESS}")
    deed = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # the second time the name is taken
            with open(probe, "wb") as file:
                file.write(b"\n")
                file.flush()
                deed = "make files durable (fsync)"
                os.fsync(file.fileno())
            deed = "rename files"
            os.replace(probe, target)
        deed = "append to files"
        handle = os.open(target, os.O_RDWR | os.O_APPEND)
        try:
            os.write(handle, b"\n")
            os.ftruncate(handle, 1)
        finally:
            os.close(handle)
        deed = "remove files"
        target.unlink()
    except OSError as error:
        for path in (probe, target):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        for path in missing:
            with suppress(OSError):  # another process may have come to use it
                path.rmdir()
        if deed and error.errno in _UNABLE:
            raise LldscopeError(
                f"The file system of {folder} cannot {deed}: {error.strerror}. Mounts of "
                f"object stores behave like this. {advice}"
            ) from error
        raise


@contextmanager
def replacing(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """A temporary place for a new file or folder, which takes the path's place when complete. With
    `keep` a folder that another process has put there meanwhile stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    _remove(new)  # of a process with this number that was killed
    try:
        yield new
        if keep and path.is_dir():
            return
        if path.is_dir() or new.is_dir():
            _remove(path)
        new.replace(path)
    finally:
        _remove(new)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
