"""Safe input and output, in pure Python, so that every other part of the project may use it."""
