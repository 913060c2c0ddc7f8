"""Small data sets that need no network: handwritten digits and made-up sentences."""
