#!/usr/bin/env bash
# math-verify 0.9.0: "50 %" equals 0.5, and it equals 50 as well, whichever of the two is the reference. So where the
# reference is a percentage, an answer that is wrong by a factor of a hundred gets the reward, and equality is not transitive:
# votes of several answers, or groups of equal ones, depend on the order in which they are compared.
# Expected: it equals 0.5, or 50, and not both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 "antlr4-python3-runtime==4.13.2"
cd "$folder"
env/bin/python - <<'PY'
from importlib.metadata import version

from math_verify import parse, verify

def equal(reference, answer):
    return verify(parse(f"${reference}$"), parse(f"${answer}$"))

pairs = [("50\\%", "0.5"), ("50\\%", "50"), ("0.5", "50\\%"), ("50", "50\\%"), ("0.5", "50")]
seen = [equal(*pair) for pair in pairs]
print(version("math-verify"), dict(zip(pairs, seen)))
assert seen == [True, True, True, True, False]
PY
