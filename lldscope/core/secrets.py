"""Credentials in a configuration: they are hidden wherever the configuration is shown.

Names such as `api_key`, `hf_token` or `password`, and values such as cloud keys or URLs with a
password, count as credentials; `pad_token` and `max_tokens` do not. The check finds credentials
that were stored by accident, not ones that were disguised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "[hidden]"

_KEY = re.compile(
    r"(^|_)(password|passwd|passphrase|secret|credential|api_?key|access_?key(_id)?|"
    r"secret_?key|private_?key|(auth|access|api|bearer|hf|hub|huggingface|github|gitlab|slack|"
    r"wandb|refresh|session|login|security)_?token)s?$|^token$"
)
_VALUE = re.compile(
    r"(?<=://)[^/\s@]+(?=@)"  # user and password in an address
    r"|(?<=[?&])(token|key|sig|signature|password|X-Amz-\w+)=[^&\s]+"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{35}\b|\bya29\.[\w-]+"  # AWS, Google
    r"|\b(hf_|sk-|sk_live_|gh[opsu]_|github_pat_|glpat-|xox[abpr]-|wandb_v1_|r8_)[\w-]{16,}"
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]+"  # JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(-----END [A-Z ]*PRIVATE KEY-----)?"
)
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def redact(value: Any, key: str = "") -> Any:
    """The value with credentials hidden; `key` is its name."""
    if isinstance(value, Mapping):
        return {name: redact(inner, str(name)) for name, inner in value.items()}
    name = _WORD_START.sub("_", key).lower().replace("-", "_").rpartition(".")[2]
    if value not in (None, "", [], ()) and not isinstance(value, bool) and _KEY.search(name):
        return HIDDEN
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return _VALUE.sub(HIDDEN, value) if isinstance(value, str) else value


def holds(value: Any) -> bool:
    return bool(redact(value) != value)
