"""`make bench`: every benchmark, one after the other. Each prints its figures and their ratios.

python -m tests.bench [NAME …]     only those named
"""

from __future__ import annotations

import sys

from . import alarms, analyzer, check, importing, loggers, page, recording, training, trl

BENCHMARKS = {
    "recording": recording.main,
    "training": training.main,
    "trl": trl.main,
    "check": check.main,
    "import": importing.main,
    "loggers": loggers.main,
    "page": page.main,
    "alarms": alarms.main,
    "analyzer": analyzer.main,
}


def main() -> None:
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"== {name}", flush=True)
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
