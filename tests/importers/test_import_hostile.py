"""Whatever is given to an importer, it ends: soon, in bounded memory, and with a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hostile_files as hostile
import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
SECONDS = 60.0  # of processor time for a case; the slowest takes 12 on an idle machine
MEMORY = 1400  # MB of a process that has imported all cases

# What is said of a case, where it is not that some steps were read.
SAID = {
    "gzip_of_one_long_line": "lines of more than 16 MB",
    "deep_json": "lines that are not JSON",
    "steps_that_go_to_and_fro": "go back more than 1,000 times",
    "steps_without_end": "more than 1,000,000 steps",
    "half_printed_dictionaries": "dictionaries that are cut",
    "csv_with_a_quote_that_does_not_end": "lines that are no CSV",
    "pipes_and_sockets": "5 × pipes, devices and sockets",
    "a_device": "pipes, devices and sockets",
    "folders_in_folders": "folders deeper than 32",
    "more_files_than_a_run_has": "holds more than 100,000 files",
    "mlflow_with_rowids_far_apart": "4 steps. ",
    "mlflow_without_rowids": "no such column: rowid",
    "mlflow_without_runs": "no such table: runs",
    "mlflow_whose_schema_is_no_text": "mlflow.db cannot be read to its end",
    "name_that_is_no_number": "1 steps. ",
    "events_of_a_length_beyond_any_file": "bytes after the last whole record",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, dict]:
    """What one process says of all cases. Past its memory it is refused more, not killed."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = []
    for name, make in hostile.CASES.items():
        (folder / name).mkdir()
        lines.append(f"{name}\t{make(folder / name)}\n")
    runs = folder / "runs"
    runs.mkdir()
    answer = subprocess.run(
        [sys.executable, hostile.__file__, str(runs)],
        input="".join(lines), capture_output=True, text=True, cwd=ROOT, timeout=1800,
    )
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert answer.returncode == 0, answer.stderr[-2000:]
    return {row["case"]: row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", hostile.CASES)
def test_a_hostile_file_ends_with_a_sentence(answers, name):
    answer = answers[name]
    assert not answer["said"].startswith("fault"), answer["said"]
    assert SAID.get(name, "") in answer["said"]
    assert answer["seconds"] < SECONDS


@pytest.mark.slow
def test_hostile_files_fit_into_little_memory(answers):
    assert max(answer["peak"] for answer in answers.values()) < MEMORY


def test_mutants_of_real_files_are_imported_or_refused(tmp_path):
    """Each file of the fixtures, changed by a generator whose seed is in the message."""
    files = [p for p in sorted(FIXTURES.rglob("*")) if p.is_file() and p.suffix != ".py"]
    assert len(files) > 20
    for seed, source in enumerate(files):
        place = tmp_path / str(seed)
        path = hostile.put(place / source.name, hostile.mutated(source.read_bytes(), seed))
        try:
            assert hostile.messages_of(path, place / "run")
        except Exception as error:
            raise AssertionError(f"seed {seed}, {source.name}") from error
