"""Environments beside the one of all tests: .envs/NAME, which `make test-all` makes, and where
test_environments.py runs these tests."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
FOLDER = TESTS.parent / ".envs"
# Tests of packages that cannot be in the environment of the others; elsewhere these are not run.
OWN = {
    "stores": ["importers/test_store_tools.py", "integrations/test_step_log.py"],
    "verl": ["integrations/test_verl.py", "integrations/test_verl_live.py"],
}
# Tests that run here, too: with the oldest DuckDB that pyproject.toml allows.
AGAIN = {"oldest": ["query/test_not_a_number.py", "query/test_signals.py"]}
