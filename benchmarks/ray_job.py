"""Judge all runs under an address with Ray Data: as many processes and machines as Ray has.

python -m benchmarks.ray_job ADDRESS     prints what `lldscope runs --json ADDRESS` prints

Needs `pip install 'ray[data]'`. The index in the user's cache is neither read nor written.
"""

from __future__ import annotations

import sys
from typing import Any

from lldscope.cli.shared import print_json
from lldscope.monitor.summary import read_summaries
from lldscope.query.remote import find_remote
from lldscope.storage.json_files import parse, to_json
from lldscope.storage.url import Url

TOGETHER = 100  # runs, at most, that a task judges


def main(address: str) -> None:
    import ray

    root = Url(address)
    names = [url.relative_to(root).as_posix() for url in find_remote(root)]
    runs = ray.data.from_items([{"root": address, "name": name} for name in names])
    judged = runs.map_batches(judge, batch_size=TOGETHER).take_all()
    rows = {one["name"]: parse(one["row"].encode()) for one in judged}
    print_json([rows[name] for name in names])


def judge(batch: dict[str, Any]) -> dict[str, list[str]]:
    """The lines of a few runs, which Ray gives as columns."""
    root = Url(str(batch["root"][0]))
    places = {name: root.at(f"{root.path}/{name}") for name in map(str, batch["name"])}
    rows = {summary.name: to_json(summary.row) for summary in read_summaries(places, root)}
    return {"name": [*rows], "row": [*rows.values()]}


if __name__ == "__main__":
    main(*sys.argv[1:])
