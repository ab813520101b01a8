"""GGUF files -> Hugging Face directories, by transformers' reader, once: it takes most of a minute
for the smallest language model, and the result is kept (`preflight.converted`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lldscope.core.errors import LldscopeError, UsageError
from lldscope.storage.file_system import replacing


def convert(file: Path, directory: Path) -> None:
    """Write the model and tokenizer of a GGUF file, weights as float32. Raises UsageError for what
    transformers cannot read as a causal language model, or a tokenizer that cannot end a turn."""
    load: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **load)
        if tokenizer.eos_token_id is None:
            raise UsageError(
                f"model={file}: its tokenizer has no end-of-turn token (eos), so no turn would "
                "end: take a file whose metadata names one"
            )
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, dtype=torch.float32, **load
        )
    except UsageError:
        raise
    except Exception as error:  # what transformers raises for bad files has no common class
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"model={file} cannot be trained ({type(error).__name__}: {reason}): give a GGUF file "
            "of a causal language model whose architecture transformers reads"
        ) from error
    # Dequantized as they are, the weights are no longer GGUF's.
    del model.config.quantization_config
    model.hf_quantizer = None
    with new_directory(directory) as place:
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `directory` when all is written."""
    try:
        with replacing(directory, keep=True) as place:
            yield place
    except OSError as error:
        raise LldscopeError(f"{directory.parent}: {error.strerror or error}") from None
