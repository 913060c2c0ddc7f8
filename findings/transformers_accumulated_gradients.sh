#!/usr/bin/env bash
# transformers 5.24.0 with torch 2.15.0: Trainer trains many models on gradients of the wrong size. It gives num_items_in_batch,
# the number of labels in the whole mini-batch, to each model whose forward has **kwargs, and takes the loss as divided by that
# number.
# 1. With gradient_accumulation_steps=n the gradients of many models are n times too large. Models that classify sequences or
#    tokens, masked language models, BART and others do not divide by it. Their loss stays the mean of a micro-batch, and
#    Trainer sums means.
# 2. The first word of a sequence has no prediction. It is counted if the class of a causal language model is not named
#    ForCausalLM. So GPT-2's gradients for L words are (L - 1) / L of what they should be, without accumulation too.
# The loss that is logged is as wrong. No warning says so. Adam hides most of it, since its steps do not depend on the scale.
# Then max_grad_norm acts as a limit that is n times smaller.
# Seen in one step of SGD on 8 examples with n = 1, 2, 4 and 8, as multiples of a plain step: n in BERT for sequences, for
# tokens and for masked words, in Llama for sequences and in BART; 11/12 in GPT-2 with 12 words; 1 in Llama as a language model
# and in ViT.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 transformers==5.24.0 \
  accelerate==1.15.0
cd "$work"
cat >accumulate.py <<'PY'
import torch
import transformers as hf
from torch.nn.utils import parameters_to_vector

torch.manual_seed(0)
WORDS = torch.randint(3, 90, (8, 12))
PICTURES = torch.randn(8, 3, 16, 16)
BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BART = {"dropout": 0.0, "vocab_size": 90, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 16, "vocab_size": 90, "pad_token_id": 0,
}
ENCODERS = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
ENCODERS |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "max_position_embeddings": 16}
bert = hf.BertConfig(**SIZES, **BERT, num_labels=3)
llama = hf.LlamaConfig(**SIZES, num_labels=3)
gpt2 = hf.GPT2Config(**GPT2, n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=90, bos_token_id=0, eos_token_id=0)
vit = hf.ViTConfig(**SIZES, **BERT, image_size=16, patch_size=8, num_labels=3)


def times_n(n: int) -> int:
    return n


MODELS = [
    (hf.BertForSequenceClassification, bert, torch.arange(8) % 3, times_n),
    (hf.LlamaForSequenceClassification, llama, torch.arange(8) % 3, times_n),
    (hf.BertForTokenClassification, bert, WORDS % 3, times_n),
    (hf.BertForMaskedLM, bert, WORDS, times_n),
    (hf.BartForConditionalGeneration, hf.BartConfig(**BART, **ENCODERS), WORDS, times_n),
    (hf.GPT2LMHeadModel, gpt2, WORDS, lambda n: 11 / 12),
    (hf.LlamaForCausalLM, llama, WORDS, lambda n: 1),
    (hf.ViTForImageClassification, vit, torch.arange(8) % 3, lambda n: 1),
]


def model_of(make, config):
    torch.manual_seed(0)
    return make(config).train()


for make, config, labels, factor in MODELS:
    name = "pixel_values" if config is vit else "input_ids"
    inputs = PICTURES if config is vit else WORDS
    plain = model_of(make, config)
    start = parameters_to_vector(plain.parameters()).detach().clone()
    loss = plain(**{name: inputs}, labels=labels).loss
    loss.backward()
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    right = parameters_to_vector(plain.parameters()).detach() - start
    data = [{name: inputs[i], "labels": labels[i]} for i in range(8)]
    factors = []
    for n in (1, 2, 4, 8):
        model = model_of(make, config)
        arguments = hf.TrainingArguments(
            "out", max_steps=1, per_device_train_batch_size=8 // n, gradient_accumulation_steps=n, optim="sgd",
            learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1, report_to=[],
            use_cpu=True, save_strategy="no", disable_tqdm=True,
        )
        trainer = hf.Trainer(model, arguments, train_dataset=data)
        trainer.train()
        moved = parameters_to_vector(model.parameters()).detach() - start
        logged = trainer.state.log_history[0]["loss"] / loss.item()
        seen = factor(n)
        assert (moved - seen * right).norm() < 1e-4 * right.norm()
        assert abs(logged - seen) < 1e-4 * seen
        factors.append(f"{(moved.norm() / right.norm()).item():.3f}")
    print("RESULT", f"{make.__name__}: gradients times {', '.join(factors)} with n = 1, 2, 4, 8", flush=True)
PY
OMP_NUM_THREADS=1 "$work/venv/bin/python" -W ignore accumulate.py >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
sed -n 's/^RESULT //p' "$work/log"
