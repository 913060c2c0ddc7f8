"""Cutting a list of layers into stages."""
