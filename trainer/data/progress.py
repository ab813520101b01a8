"""A progress bar for work on large files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SMALL = 1 << 20
_STEPS = 500  # a bar that moves for each of 20 million documents is slower than they are


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how much was done, out of `total`. The bar is drawn on stderr,
    only on a terminal, and not for what is over in a moment."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if total < _SMALL or not console.is_terminal:
        yield lambda done: None
        return
    waiting = 0

    def advance(done: int) -> None:
        nonlocal waiting
        waiting += done
        if waiting * _STEPS >= total:
            bar.advance(task, waiting)
            waiting = 0

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield advance
