"""A reproduction of GPipe (Huang et al., arXiv:1811.06965): `repro.gpipe` is the library, `repro` the command."""
