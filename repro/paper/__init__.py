"""The paper's side of every comparison: its published numbers and its closed forms.

`numbers` holds what Huang et al. (arXiv:1811.06965), torchgpipe and Lingvo printed, each number
with its place. `theory` holds the formulas of sections 2.3 and 3. Nothing here is measured.
"""
