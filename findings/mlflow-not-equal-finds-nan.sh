#!/usr/bin/env bash
# MLflow 3.17.2 on SQLite: a NaN fails every comparison of a search but one: `metrics.loss != 1` finds the run that diverged,
# `> -5` and `< 0.5` do not, and `= 0` does not either, although that is what its row in the table holds, beside a flag. All
# runs below 1, at 1 and above 1 together are fewer than all runs that have the metric.
# Seen: != 1: c, b; > -5: c, a; < 0.5: c; = 0: none; ordered by the metric b stands last both ways.
# Expected: `!= 1` leaves out what is neither below nor above 1, or one of the others finds it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mlflow-skinny==3.17.2 sqlalchemy alembic
cd "$folder"
env/bin/python - <<'PY'
import logging
import math

logging.disable(logging.CRITICAL)
import mlflow

mlflow.set_tracking_uri("sqlite:///runs.db")
client = mlflow.MlflowClient()
for name, loss in (("a", 1.0), ("b", math.nan), ("c", -1.0)):
    with mlflow.start_run(run_name=name):
        mlflow.log_metric("loss", loss)

def names(where="", order="ASC"):
    runs = client.search_runs(["0"], where, order_by=[f"metrics.loss {order}"])
    return "".join(run.info.run_name for run in runs)

seen = {c: names(f"metrics.loss {c}") for c in ("!= 1", "> -5", "< 0.5", "= 0")}
print(mlflow.__version__, seen, names(), names(order="DESC"))
assert list(seen.values()) == ["cb", "ca", "c", ""]
assert names() == "cab" and names(order="DESC") == "acb"
PY
