#!/usr/bin/env bash
# numpy 2.4.6: `quantile` interpolates between two neighbours. If the upper one is infinite and the position is at or past the
# middle between them, or exactly on the lower one, the result is NaN: so the median of [1, 2, inf] is 2 by `median` and NaN by
# `quantile`, and a 99th percentile of importance ratios of which one overflowed is NaN or inf by the number of the tokens.
# pyarrow 26.0.1 answers with numbers; numpy does with a method that takes one of the values (inverted_cdf).
# Expected: 2, as `median`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 pyarrow==26.0.1
cd "$folder"
env/bin/python - <<'PY'
import warnings

import numpy as np
import pyarrow.compute as pc

warnings.simplefilter("ignore")  # an invalid value in a multiplication is all that is said
three, five = [1.0, 2.0, np.inf], [1.0, 2.0, 3.0, 4.0, np.inf]
seen = {
    "median": float(np.median(three)),
    "quantile 0.5": float(np.quantile(three, 0.5)),
    "inverted_cdf": float(np.quantile(three, 0.5, method="inverted_cdf")),
    "pyarrow": pc.quantile(three, q=0.5)[0].as_py(),
    "five": [float(np.quantile(five, q)) for q in (0.5, 0.75, 0.8, 0.99)],
}
print(np.__version__, seen)
assert seen["median"] == seen["inverted_cdf"] == seen["pyarrow"] == 2
assert np.isnan(seen["quantile 0.5"])
assert str(seen["five"]) == "[3.0, nan, inf, nan]"
PY
