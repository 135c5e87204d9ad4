# SPDX-License-Identifier: Apache-2.0
"""What a model's layers ask of attention, found out by one forward of two tokens through the model itself.

Nothing is read from configurations, which differ from family to family: the probe runs the model with a cache
and an attention function that write down what arrives. A layer that does not ask, asks twice, or asks for
something that the service does not compute, is refused there: before anything is stored.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache

from .faces import faces, stateful
from .masks import Mask, Rule
from .refused import Refused
from .tags import Tag, pending

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Layer:
    """One attention layer.

    Attributes:
        source: the layer whose keys and values it reads: itself, but for models that share them.
        q_heads, kv_heads, k_dim, v_dim: of what the service computes; of the latent form where `latent`.
        scale, soft_cap, rule: of the logits and the mask.
        sinks: the logits of attention sinks, one a query head, or nothing.
        latent: the cache holds a latent (MLA); keys and values are absorbed into the queries and the answer.
    """

    source: int
    q_heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    soft_cap: float
    rule: Rule
    sinks: tuple[float, ...] = ()
    latent: bool = False


# Keywords of attention calls that do not change what is computed, or only for implementations other than
# ours.
_HARMLESS = frozenset(
    {
        "dropout", "scaling", "sliding_window", "softcap", "s_aux", "is_causal", "position_ids", "cache_position", "use_cache",
        "output_attentions", "output_hidden_states", "output_router_logits", "position_embeddings", "logits_to_keep",
        "num_items_in_batch", "return_dict", "past_key_values", "past_key_value", "layer_idx", "mm_token_type_ids",
        "token_type_ids", "inputs_embeds", "input_ids", "labels", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
        "is_sliding", "is_training", "deterministic",
    }
)  # fmt: skip


# Of these, those whose value is looked at.
_SPEAKING = frozenset({"is_causal", "dropout", "output_attentions", "cu_seq_lens_q", "cu_seq_lens_k"})
_SILENT = _HARMLESS - _SPEAKING


def check_keywords(layer: int, keywords: dict[str, Any]) -> None:
    for name, value in keywords.items():
        if name not in _SILENT:
            _check_keyword(f"layer {layer}", name, value)


def _check_keyword(where: str, name: str, value: Any) -> None:
    if name == "is_causal" and value is False:
        raise Refused(f"{where} asks for attention that is not causal")
    if value is None or value is False or (name == "is_causal" and value is True):
        return
    if name == "dropout":
        if value:
            raise Refused(f"{where} asks for dropout: call model.eval() first")
    elif name not in _HARMLESS:
        raise Refused(f"{where} asks for attention with {name}=, which the service does not know")
    elif name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        raise Refused(f"{where} packs several sequences into one: give them as a batch")
    elif name == "output_attentions":
        raise Refused("output_attentions=True: the service gives no attention weights; ask it for masses instead")


def sinks_of(keywords: dict[str, Any]) -> tuple[float, ...]:
    sinks = keywords.get("s_aux")
    return () if sinks is None else tuple(float(x) for x in sinks.detach().float().flatten())


def scale_of(scaling: float | None, query: torch.Tensor) -> float:
    return float(scaling) if scaling is not None else 1.0 / math.sqrt(query.shape[-1])


class Latent:
    """An MLA layer's expansion as two matrices a head: keys = latent · up_k, values = latent · up_v."""

    def __init__(self, module: torch.nn.Module) -> None:
        weight: torch.Tensor = module.kv_b_proj.weight  # type: ignore[union-attr, assignment]
        self.state = Latent.state_of(module)
        self.nope = int(module.qk_nope_head_dim)  # type: ignore[arg-type]
        self.value = int(module.v_head_dim)  # type: ignore[arg-type]
        self.rank = int(weight.shape[1])
        heads = weight.detach().view(-1, self.nope + self.value, self.rank)
        self.up_k, self.up_v = heads[:, : self.nope], heads[:, self.nope :]

    @staticmethod
    def state_of(module: torch.nn.Module) -> tuple[int, int, int]:
        """Changes with the weights."""
        weight: torch.Tensor = module.kv_b_proj.weight  # type: ignore[union-attr, assignment]
        return id(module.kv_b_proj), weight.data_ptr(), 0 if weight.is_inference() else weight._version

    @staticmethod
    def fits(module: torch.nn.Module) -> bool:
        proj = getattr(module, "kv_b_proj", None)
        return (
            isinstance(proj, torch.nn.Linear)
            and proj.bias is None
            and isinstance(getattr(module, "qk_nope_head_dim", None), int)
            and isinstance(getattr(module, "v_head_dim", None), int)
        )

    def query(self, query: torch.Tensor) -> torch.Tensor:
        """[B, H, S, nope + rot] -> [B, H, S, rank + rot]"""
        nope, rot = query[..., : self.nope], query[..., self.nope :]
        return torch.cat((torch.matmul(nope, self.up_k.to(nope.dtype)), rot), dim=-1)

    def answer(self, o: torch.Tensor) -> torch.Tensor:
        """[B, S, H, rank] -> [B, S, H, v_dim]"""
        return torch.einsum("bshr,hvr->bshv", o, self.up_v.to(o.dtype))

    def expanded(self, tag: Tag) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that the model computes attention with, in float64: [B, H, S, …]."""
        latent = tag.keys.double()
        nope = torch.matmul(latent, self.up_k.double().transpose(1, 2))
        rot = tag.values.double().expand(-1, nope.shape[1], -1, -1)
        return torch.cat((nope, rot), dim=-1), torch.matmul(latent, self.up_v.double().transpose(1, 2))


def latent_rows(tag: Tag) -> torch.Tensor:
    """Keys of the latent form, [B, 1, S, rank + rot]; its first `rank` elements are the values."""
    return torch.cat((tag.keys, tag.values), dim=-1)


class Probe:
    """Writes down what arrives in one forward: the owner of its tags."""

    def __init__(self) -> None:
        self.layers: dict[int, Layer] = {}
        self.modules: dict[int, Any] = {}
        self.updates: list[Tag] = []
        self.dtype: torch.dtype | None = None  # of keys
        self.value_dtype: torch.dtype | None = None
        self.columns, self.local = 0, False  # whether every layer keeps its state in the client

    def arrives(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> Tag:
        self.updates.append(Tag(self, index, keys, values, soft=True))
        return self.updates[-1]

    def attend(
        self, module: torch.nn.Module, tag: Tag, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        mask: Any, scaling: float | None, keywords: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        index = tag.index_for(module)
        where = f"layer {index} ({type(module).__name__})"
        check_keywords(index, keywords)
        if not isinstance(mask, Mask):
            raise Refused(f"{where} brings a mask of its own: the service cannot know what it means")
        if not mask.recognised().rule.causal:
            raise Refused(
                f"{where} sees tokens on both sides, as encoders do: what it has computed for a token changes with those that follow, "
                "so there is nothing to keep in a cache"
            )
        tag.opened += 1
        if index in self.layers:
            raise Refused(f"{where} asks for attention several times in one forward over the same keys")
        self.dtype, self.value_dtype = self.dtype or tag.keys.dtype, self.value_dtype or tag.values.dtype
        self.modules[index] = weakref.ref(module)
        shape = (
            _latent_shape(where, module, tag, query, key, value, scale_of(scaling, query))
            if tag.touched
            else _plain_shape(where, tag, query)
        )
        self.layers[index] = Layer(
            tag.layer, query.shape[1], *shape, scale_of(scaling, query), float(keywords.get("softcap") or 0.0), mask.rule,
            sinks_of(keywords), bool(tag.touched),
        )  # fmt: skip
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])

    def result(self) -> dict[int, Layer]:
        unopened = [tag.layer for tag in self.updates if not tag.opened]
        if unopened:
            raise Refused(
                f"layers {unopened[:8]} put keys and values into the cache and did not ask 'banyan' for attention: was the model made with "
                "attn_implementation='banyan', and does it use Transformers' attention interface?"
            )
        if not self.layers and self.local:
            raise Refused("no layer of this model is attention: there are no keys and values to hold")
        if not self.layers:
            raise Refused("no attention call arrived: this model's attention does not go through Transformers' attention interface")
        return dict(sorted(self.layers.items()))


def _plain_shape(where: str, tag: Tag, query: torch.Tensor) -> tuple[int, int, int]:
    """KV heads, dimension of keys, of values."""
    heads, k_dim, v_dim = tag.keys.shape[1], tag.keys.shape[3], tag.values.shape[3]
    if query.shape[3] != k_dim or query.shape[1] % heads or tag.values.shape[1] != heads:
        raise Refused(f"{where} has queries {list(query.shape)}, keys {list(tag.keys.shape)} and values {list(tag.values.shape)}")
    return heads, k_dim, v_dim


def _latent_shape(
    where: str, module: torch.nn.Module, tag: Tag, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[int, int, int]:
    """The same of the latent form, once it is shown to give what the model's own expansion gives."""
    if not Latent.fits(module) or tag.keys.shape[1] != 1:
        raise Refused(
            f"{where} changes cached keys or values ({tag.touched}) before it asks for attention: the service cannot do that for it"
        )
    latent = Latent(module)
    with torch.no_grad():
        k, v = latent.expanded(tag)
        near = [x.shape == y.shape and torch.allclose(x.to(y.dtype), y, rtol=1e-2, atol=1e-3) for x, y in ((k, key), (v, value))]
        rows = latent_rows(tag).double()
        mine = latent.answer(_attention(latent.query(query.double()), rows, rows[..., : latent.rank], scale))
        if not all(near) or not torch.allclose(mine, _attention(query.double(), k, v, scale), rtol=1e-9, atol=1e-12):
            raise Refused(f"{where} expands its latents in a way of its own: the service cannot do that for it")
    return 1, latent.rank + tag.values.shape[3], latent.rank


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """[B, S, H, v_dim], causal, plainly."""
    future = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    x = (torch.matmul(q, k.transpose(2, 3)) * scale).masked_fill(future, -math.inf)
    return torch.matmul(x.softmax(-1), v).transpose(1, 2)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Forwards in here are not in training; afterwards each module is as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.train(False)
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def run_probe(model: PreTrainedModel) -> tuple[dict[int, Layer], tuple[torch.dtype, torch.dtype], dict[int, Any]]:
    """The model's attention layers, the types of its keys and of its values, and its attention modules."""
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "_attn_implementation", None) != "banyan":
        if not model._can_set_attn_implementation():
            raise Refused(f"{type(model).__name__} does not use Transformers' attention interface, so its attention cannot move")
        raise Refused(
            "the model was not made with attn_implementation='banyan': give it to from_pretrained, or call "
            "model.set_attn_implementation('banyan')"
        )
    probe = Probe()
    cache = Cache(layers=faces(config, probe))
    probe.local = all(stateful(layer) for layer in cache.layers)
    embedding: torch.Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    # Of a model that accelerate has put elsewhere the weights are meta tensors, and its hooks move what comes
    # in.
    device = embedding.device if not embedding.is_meta else torch.device("cpu")
    tokens = torch.tensor([[0, min(1, embedding.shape[0] - 1)]], device=device)
    try:
        with torch.no_grad(), evaluating(model):
            model(input_ids=tokens, past_key_values=cache, use_cache=True)
    except Refused:
        raise
    except Exception as error:
        if "past_key_values" not in inspect.signature(model.forward).parameters:
            raise Refused(
                f"{type(model).__name__} takes no past_key_values: what it keeps from one forward to the next are not keys and values"
            ) from error
        raise Refused(
            f"{type(model).__name__} does not run with a cache that is not Transformers' own: {type(error).__name__}: {error}"
        ) from error
    finally:
        pending.tag = None
    layers = probe.result()
    assert probe.dtype is not None and probe.value_dtype is not None
    return layers, (probe.dtype, probe.value_dtype), probe.modules
