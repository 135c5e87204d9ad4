# SPDX-License-Identifier: Apache-2.0
"""A model in float64, beside which float32 engines are held: Transformers' own, with vLLM's rotary table and
norms in float64.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch
from engine import Output
from transformers import AutoModelForCausalLM


class Exact:
    """Of gpt-oss. rope: Engine.rope: the frequencies are float32 numbers, of which libraries have different
    last bits.
    """

    def __init__(self, path: Path, rope: Any) -> None:
        table = torch.from_numpy(rope).double()
        half = table.shape[1] // 2

        def rotary(_: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            at = table[position_ids]
            return at[..., :half], at[..., half:]

        def norm(self: Any, x: torch.Tensor) -> torch.Tensor:  # Transformers' goes by float32
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        )
        for part in self._model.modules():
            name = type(part).__name__
            if name.endswith("RotaryEmbedding"):
                part.forward = types.MethodType(rotary, part)
            elif name.endswith("RMSNorm"):
                part.forward = types.MethodType(norm, part)

    def apart(self, prompt: list[int], out: Output) -> float:
        """The largest difference of a log-probability of the prompt or the answer."""
        with torch.no_grad():
            want = self._model(torch.tensor([[*prompt, *out.tokens]]), use_cache=False).logits[0].log_softmax(-1)
        places = [*out.prompt_logprobs, *out.logprobs]
        return max(abs(found - want[i, token].item()) for i, place in enumerate(places) for token, found in place.items())
