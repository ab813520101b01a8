"""Tests of packages that cannot be in the environment of the others: in .envs/NAME, which
`make test-all` makes, test_environments.py runs them, and elsewhere they are not collected."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
FOLDER = TESTS.parent / ".envs"
OWN = {
    "stores": ["importers/test_store_tools.py"],
    "verl": [
        "integrations/test_verl.py",
        "integrations/test_verl_atlas.py",
        "integrations/test_verl_lint.py",
        "integrations/test_verl_live.py",
    ],
}
