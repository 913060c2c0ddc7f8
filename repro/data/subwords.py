"""Sub-words: a sentencepiece model trained on the training text.

The paper has a vocabulary of 64k sub-words (section 5) and does not state how they were made.
"""

import io
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from repro.data.tokens import BOS, EOS, PAD, UNK


class Subwords:
    """A trained vocabulary; its length is the number of rows of an embedding."""

    def __init__(self, model: bytes) -> None:
        from sentencepiece import SentencePieceProcessor

        self._processor: Any = SentencePieceProcessor(model_proto=model)

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, sentence: str) -> list[int]:
        """Ids of a sentence, without BOS and EOS."""
        return self._processor.encode(sentence)

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of the ids before the first EOS, without PAD and BOS.

        A model may have more outputs than there are sub-words; such an id is an unknown word.
        """
        tokens = takewhile(lambda token: token != EOS, map(int, ids))
        return self._processor.decode([token if token < len(self) else UNK for token in tokens])


def learn(sentences: Sequence[str], size: int) -> Subwords:
    """Train a vocabulary of `size` ids, or of fewer if a small text has fewer sub-words.

    The same sentences give the same vocabulary.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    ids: Any = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,  # a smaller vocabulary is no error
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
            **ids,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"vocabulary={size}: sentencepiece cannot learn as many sub-words ({reason}); try "
            "vocabulary=1000"
        ) from None
    return Subwords(model.getvalue())
