"""GPipe (Huang et al., arXiv:1811.06965), reproduced: library `repro.gpipe`, command `repro`."""
