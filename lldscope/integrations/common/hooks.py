"""Hooks into trainers: replaced methods, and modules that are imported later."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Method = Callable[..., Any]


def replace(owner: Any, name: str, method: Method) -> None:
    """Replace the object's own method by `method(original, …)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return method(original, *args, **kwargs)

    setattr(owner, name, replacement)


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Evaluation mode for all modules, then the previous mode of each (some may be frozen in
    evaluation mode)."""
    training = [m for m in model.modules() if m.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` when the module `name` has been imported; immediately if it already is.

    For: verl's trainers (verl.trainer.ppo.v1, verl 0.9). verl loads plug-ins (entry points
    `verl.plugins`) in every process during `import verl`; `register_trainer` takes a class, and a
    subclass needs verl's trainers, whose import takes seconds that only the driver should spend.

    Upstream: worker backends register a loader that runs when they are selected
    (https://github.com/verl-project/verl/pull/6422); trainers have no such loader yet. Remove when
    `verl.trainer.ppo.v1` can register a trainer by a loader or by its import path.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls the action after the module's own code has run; removes itself first."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            exec_module = spec.loader.exec_module

            def exec_module_then_act(module: types.ModuleType) -> None:
                exec_module(module)
                self._action()

            spec.loader.exec_module = exec_module_then_act  # type: ignore[method-assign]
        return spec
