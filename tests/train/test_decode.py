import torch
from decoding import MODEL, SEED, T, to_copy, trained_a_little
from torch import Tensor, nn

from repro.data.tokens import BOS, EOS, PAD
from repro.gpipe import launch
from repro.gpipe.core import layers as gpipe_layers
from repro.models import build


def unsplit() -> nn.Sequential:
    """The model of `made`, without a pipeline."""
    factories = build("translation", **MODEL).layers
    layers = (
        gpipe_layers.build(factory, n, SEED, torch.device("cpu"))
        for n, factory in enumerate(factories)
    )
    return nn.Sequential(*layers).eval()


def sentence_by_sentence(model: nn.Module, sources: Tensor) -> list[list[int]]:
    """Greedy translations by a plain loop, without padding of the target."""
    translations = []
    for source in sources:
        tokens = [BOS]
        while len(tokens) <= T and tokens[-1] != EOS:
            with torch.no_grad():
                logits = model((source.unsqueeze(0), torch.tensor([tokens])))
            tokens.append(int(logits[0, -1].argmax()))
        translations.append(tokens[1:] + [PAD] * (T + 1 - len(tokens)))
    return translations


def test_any_number_of_stages_gives_the_weights_and_the_tokens_of_one():
    tokens, weights = trained_a_little(1)
    of_stages = launch(trained_a_little, 2, stages=2)
    for translations, _ in of_stages:
        assert torch.equal(translations, tokens)
    for name, weight in (of_stages[0][1] | of_stages[1][1]).items():
        assert torch.equal(weight, weights.pop(name)), name
    assert not weights


def test_the_tokens_are_those_of_a_plain_loop_on_the_unsplit_model():
    tokens, weights = trained_a_little(1)
    model = unsplit()
    model.load_state_dict(weights)
    expected = sentence_by_sentence(model, to_copy(9, 0)[0][0])
    assert len({tuple(translation) for translation in expected}) > 1
    assert tokens.tolist() == expected
