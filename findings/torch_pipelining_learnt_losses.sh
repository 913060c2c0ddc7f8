#!/usr/bin/env bash
# torch 2.15.0: a loss with parameters of its own, such as a temperature, a margin or class centres, is not trained as it should be
# by torch.distributed.pipelining. A schedule sums the gradients of M micro-batches, and divides by M those of its stages. The loss
# is in none, so its gradient stays M times too large. The zero-bubble schedules ask autograd for the gradients of the last stage's
# inputs and weights alone, so the loss gets none, and an optimizer skips it. Nothing warns. A gradient that an input requires,
# such as a learnt prompt, is M times too large under all of them.
# Seen with M=4 and a learnt temperature: 4 times a plain step's gradient under GPipe, 1F1B, interleaved 1F1B and LoopedBFS, and
# None under two zero-bubble schedules. The layers' gradients are those of a plain step under all.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

M = 4
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Tempered(nn.Module):
    """Cross entropy with a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits * self.temperature, target)


def gradients(name: str) -> tuple[torch.Tensor | None, torch.Tensor, list[torch.Tensor]]:
    """Those of the temperature, of the inputs and of the layers."""
    torch.manual_seed(0)
    layers, loss = [nn.Linear(4, 4), nn.Linear(4, 5)], Tempered()
    x, y = torch.randn(8, 4, requires_grad=True), torch.randint(5, (8,))
    if name == "plain":
        loss(layers[1](layers[0](x)), y).backward()
    else:
        single = name in ("GPipe", "1F1B")
        modules = [nn.Sequential(*layers)] if single else layers
        stages = [
            pipelining.PipelineStage(m, i, len(modules), torch.device("cpu")) for i, m in enumerate(modules)
        ]
        schedule = getattr(pipelining, f"Schedule{name}")(stages[0] if single else stages, M, loss_fn=loss)
        schedule.step(x, target=y)
    return loss.temperature.grad, x.grad, [p.grad for layer in layers for p in layer.parameters()]


temperature, inputs, weights = gradients("plain")
for name in ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"):
    own, at_inputs, of_layers = gradients(name)
    ratio = None if own is None else round((own / temperature).item(), 4)
    print(f"{name}: the loss gets {'no gradient' if ratio is None else f'{ratio} times its gradient'}")
    assert ratio == (None if "Zero" in name else M)
    assert torch.allclose(at_inputs, M * inputs, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(of_layers, weights, strict=True))
PY
