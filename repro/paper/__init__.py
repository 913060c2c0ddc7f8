"""The paper's side of every comparison: its published numbers and its closed forms.

`numbers` holds what Huang et al. (arXiv:1811.06965), torchgpipe and Lingvo printed, each number
with its place. `theory` holds the formulas of sections 2.3 and 3. Nothing here is measured.
"""

from repro.paper.numbers import (  # noqa: F401
    BatchSize,
    Size,
    Utilisation,
    breakdown,
    figure,
    figures,
    lingvo,
    table1,
    table1_claims,
    table2,
    table3,
    table4,
    table5,
    torchgpipe,
    translation_models,
    utilisation,
)
