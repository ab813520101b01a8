#!/usr/bin/env bash
# bm25s 0.3.16: `tokenize` drops words of one letter from documents and queries alike. A search for "Malcolm X" is one for
# "Malcolm", which ranks a page about Malcolm III first and the page called "Malcolm X" last; "Vitamin C" and "Vitamin D" find
# the same pages with the same scores. A query of which nothing is left, and one whose words no document has, still get k
# documents, all with a score of 0, so the policy of a search environment is shown pages for noise.
# Expected: the page whose title is the query first; nothing for a query without a match.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check bm25s==0.3.16
cd "$folder"
env/bin/python - <<'PY'
import bm25s

pages = [
    "Malcolm: Malcolm is a name, and Malcolm III was a king.",
    "Malcolm X was an American leader, who spoke of rights in many cities of his time.",
    "Vitamin C is found in fruit.",
    "Vitamin D is made by sunlight.",
    "Paris is a city.",
]
index = bm25s.BM25()
index.index(bm25s.tokenize(pages, show_progress=False), show_progress=False)

def search(query):
    words = bm25s.tokenize(query, show_progress=False)
    found, scores = index.retrieve(words, corpus=pages, k=3, show_progress=False)
    return [(page.split()[1], round(float(score), 3)) for page, score in zip(found[0], scores[0])]

answers = {query: search(query) for query in ("Malcolm X", "Vitamin C", "Vitamin D", "X", "zyx")}
print(bm25s.__version__, answers)
names = [name for name, score in answers["Malcolm X"] if score > 0]
assert names == ["Malcolm", "X"]
assert answers["Vitamin C"] == answers["Vitamin D"]
assert [score for query in ("X", "zyx") for _, score in answers[query]] == [0.0] * 6
PY
