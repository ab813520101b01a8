"""Inputs that a fuzzer guided by coverage kept, all of them."""

from __future__ import annotations

import fuzz_targets
import pytest

NAMES = sorted(fuzz_targets.TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_input_that_was_kept_holds(name, tmp_path):
    target = fuzz_targets.TARGETS[name](tmp_path)
    inputs = sorted((fuzz_targets.CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        try:
            target(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"{path.name} of the corpus of {name}") from error


def test_a_target_sees_what_is_wrong(tmp_path, monkeypatch):
    """Rows that are gone without a word, a file that is read, and an import that raises."""
    run = fuzz_targets.Manifest(tmp_path)
    read = run._read
    monkeypatch.setattr(run, "_read", lambda path: (read(path)[0], []))
    with pytest.raises(AssertionError, match="wrong without a word"):
        run(bytes([2]))  # the manifest is empty
    sql = fuzz_targets.Sql(tmp_path / "sql")
    monkeypatch.setattr(fuzz_targets, "insist_on_select", lambda *_: None)
    with pytest.raises(AssertionError, match="it reads"):
        sql(f"SELECT '{fuzz_targets.SECRET}'".encode())
    monkeypatch.setattr(fuzz_targets.hostile_files, "messages_of", lambda *_: "")
    with pytest.raises(AssertionError):
        fuzz_targets.Importers(tmp_path)(b"\0{}")
