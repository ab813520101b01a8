"""Where a policy is saved, and whether its files are there. Loads no torch, so that what is missing
is named at once."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from lldscope.core.errors import UsageError

BUILT_IN = "tiny"
"""Name of the shipped warm start where a model path is asked for."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Without one of them transformers makes up an empty tokenizer."""

INDEX = "model.safetensors.index.json"
"""Which file holds which weight, where there are several."""


def model_directory(path: str) -> Path:
    """Where the policy is saved: `path`, or the shipped one for "tiny". Raises UsageError, naming
    what is missing, if no model directory is there."""
    directory = (
        Path(str(files("lldscope_trainer") / "warm_start")) if path == BUILT_IN else Path(path)
    )
    if not (directory / "config.json").is_file():
        raise UsageError(
            f"model={path}: no Hugging Face model directory (with config.json) there; "
            f'give the path of one, or "{BUILT_IN}" for the shipped policy'
        )
    if not any(directory.glob("*.safetensors")):
        raise UsageError(
            f"model={path}: there are no weights in that directory (*.safetensors; pickled .bin "
            "weights are not read, since reading them can run code): save the model as safetensors"
        )
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise UsageError(
            f"model={path}: there is no tokenizer in that directory (one of "
            f"{', '.join(TOKENIZER_FILES)}): save the model's tokenizer there"
        )
    if missing := sorted(name for name in _shards(directory) if not (directory / name).is_file()):
        raise UsageError(
            f"model={path}: {len(missing)} files of weights that {INDEX} names are missing, the "
            f"first is {missing[0]}: copy the whole directory"
        )
    return directory


def _shards(directory: Path) -> set[str]:
    """The files over which the weights are spread, if there is an index of them. What it holds is
    somebody else's: one that cannot be understood is left to transformers."""
    try:
        shards = set(json.loads((directory / INDEX).read_text("utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
    return {name for name in shards if isinstance(name, str)}
