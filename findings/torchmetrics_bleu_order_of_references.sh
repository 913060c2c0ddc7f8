#!/usr/bin/env bash
# torchmetrics 1.9.0: BLEU depends on the order in which a sentence's references are listed. Its brevity penalty needs the length of
# the reference that is closest in length. Of two that are equally far, a shorter and a longer one, torchmetrics takes the first;
# sacrebleu takes the shorter in any order. So one test set gives two scores.
# BLEUScore and SacreBLEUScore, which is named after sacrebleu and has its tokenizers, both do. Nothing warns.
# Seen for a translation of 10 words with references of 9 and 11: 88.0 if the shorter is first and 79.6 if the longer is;
# sacrebleu 2.6.0 gives 88.0 for both. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 \
  torchmetrics==1.9.0 sacrebleu==2.6.0
cd "$work"
"$work/venv/bin/python" -W error::UserWarning - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import sacrebleu
from torchmetrics.text import BLEUScore, SacreBLEUScore

translation = "the quick brown fox jumps over the lazy dog today"
shorter = "the quick brown fox jumps over the lazy dog"
longer = "the quick brown fox jumps over the lazy dog in sun"
for references, seen in (([shorter, longer], 88.0), ([longer, shorter], 79.6)):
    own = [100 * score([translation], [references]).item() for score in (BLEUScore(), SacreBLEUScore())]
    reference = sacrebleu.corpus_bleu([translation], [[text] for text in references]).score
    print(f"first reference of {len(references[0].split())} words: torchmetrics {own}, sacrebleu {reference:.2f}")
    assert all(abs(score - seen) < 0.05 for score in own) and abs(reference - 88.0) < 0.05
PY
