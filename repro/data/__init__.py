"""Small data sets that need no network: handwritten digits, drawn letters and made-up sentences."""
