#!/usr/bin/env bash
# MLflow 3.17.2: a run's "latest" metrics are not those logged last. The greatest step counts; among equal steps the later
# time; among equal times the greatest value. A run that was resumed at an earlier step, and a value that fell within a
# millisecond, show numbers of the past.
# Seen: after step 10 (1.0) and step 3 (2.0) the latest is 1.0; after 5, 6, 4 at one step and millisecond it is 6.
# Expected: 2.0 and 4, the values logged last.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mlflow-skinny==3.17.2 sqlalchemy alembic
cd "$folder"
env/bin/python - <<'PY'
import logging

logging.disable(logging.CRITICAL)
import mlflow

mlflow.set_tracking_uri("sqlite:///runs.db")
client = mlflow.MlflowClient()
with mlflow.start_run() as run:
    mlflow.log_metric("resumed", 1.0, step=10)
    mlflow.log_metric("resumed", 2.0, step=3)
    for value in (5.0, 6.0, 4.0):
        client.log_metric(run.info.run_id, "fell", value, timestamp=1000, step=1)
latest = client.get_run(run.info.run_id).data.metrics
print(mlflow.__version__, latest)
assert latest == {"resumed": 1.0, "fell": 6.0}
PY
