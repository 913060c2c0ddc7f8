#!/usr/bin/env bash
# sacrebleu 2.6.0: a corpus without a reference of four words has no 4-grams. Its BLEU is 0 for a perfect translation,
# and smoothing gives a wrong, longer one more than that. A single sentence of four words makes the perfect corpus 100.
# Seen: 0.0, 25.407 and 100.0. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q sacrebleu==2.6.0
"$work/venv/bin/python" - <<'PY'
import sacrebleu

short = ["the red house", "a small dog"]
longer = ["the red house on the hill", "a small dog in the garden"]
perfect = sacrebleu.corpus_bleu(short, [short]).score
wrong = sacrebleu.corpus_bleu(longer, [short]).score
one_long = [*short, "one sentence has four words"]
mixed = sacrebleu.corpus_bleu(one_long, [one_long]).score
print(sacrebleu.__version__, "perfect", perfect, "longer and wrong", round(wrong, 3), "one of four words", mixed)
assert perfect == 0.0 and round(wrong, 3) == 25.407 and round(mixed, 9) == 100.0
PY
