"""What no log needs, so that an import of anything ends in bounded time and memory.

Every bound is far above what a trainer writes; what exceeds one is counted, or refused, with a
sentence. Limits of single formats stand in their modules.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..core.errors import LldscopeError

MAX_FILES = 100_000  # and folders, in a folder
MAX_DEPTH = 32  # of folders in each other
MAX_STEPS = 1_000_000  # of a run, restarted steps counted again
MAX_ATTEMPTS = 1000
MAX_NOTES = 100
MAX_ACTIONS = 10_000  # of a response
MAX_NESTING = 100  # of lists and objects in a JSON value
MAX_VALUES = 4_000_000  # in a line of JSON; 16 token streams of 250,000
MAX_CELLS = 200_000_000  # of a Parquet file, NULL counted
MAX_RATIO = 200  # of a packed file's content to its size, once …
FREE_BYTES = 64 << 20  # … this much has been unpacked
_HOLES = 1 << 30  # from this size on a file that is hardly on the disk is not read
_BLOCK = 512  # bytes in `st_blocks`


def files_under(folder: Path) -> list[Path]:
    """The regular files in a folder and in those within it, sorted; links are not followed.

    Raises LldscopeError if there are more than MAX_FILES.
    """
    files: list[Path] = []
    folders, entries = [(folder, 0)], 0
    while folders:
        here, depth = folders.pop()
        try:
            found = os.scandir(here)
        except OSError:  # may not be read, or is gone
            continue
        with found:
            for entry in found:
                entries += 1
                if entries > MAX_FILES:
                    raise LldscopeError(
                        f"{folder} holds more than {MAX_FILES:,} files. Name the files of the run, "
                        "or the folder that holds nothing else."
                    )
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH:
                        folders.append((Path(entry.path), depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    files.append(Path(entry.path))
    return sorted(files)


def is_mostly_holes(path: Path) -> bool:
    """Whether a large file has next to nothing on the disk, as `truncate` makes it."""
    status = path.stat()
    return status.st_size > _HOLES and status.st_blocks * _BLOCK * 100 < status.st_size
