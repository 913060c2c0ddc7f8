"""The first four tokens of every vocabulary of translation."""

PAD, UNK, BOS, EOS = range(4)  # padding, unknown, begin and end of a sentence
SPECIAL = 4  # the number of these tokens
