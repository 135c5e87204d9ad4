# SPDX-License-Identifier: Apache-2.0
"""Models that see images: image tokens that see each other, towers that compute here."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import IMAGE, IMAGE_TOKENS, PIXELS, VISION, make  # noqa: E402
from generating import telling  # noqa: E402
from transformers import DynamicCache  # noqa: E402

from banyan.transformers import BanyanCache, Refused  # noqa: E402

MOST = 2e-5  # relative to the largest logit
PADDING = 3  # of the second sequence


def model(family):
    return telling(make(family, VISION[family], "eager"), 2, 0.1)


def inputs(family):
    """Two sequences with two images each."""
    torch.manual_seed(4)
    ids, mask = torch.randint(3, 100, (2, 40)), torch.ones(2, 40, dtype=torch.long)
    for row, at in ((0, 5), (0, 20), (1, 9), (1, 30)):
        ids[row, at : at + IMAGE_TOKENS] = IMAGE
    mask[1, :PADDING] = 0
    both = {"token_type_ids": (ids == IMAGE).long()} if family == "gemma3" else {}
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(4, 3, PIXELS, PIXELS), **both}


def forward(made, cache, given):
    out, mask = [made(**given, past_key_values=cache, use_cache=True).logits], given["attention_mask"]
    for token in range(3):
        mask = torch.cat((mask, torch.ones(2, 1, dtype=torch.long)), dim=1)
        out.append(made(input_ids=torch.full((2, 1), 7 + token), attention_mask=mask, past_key_values=cache, use_cache=True).logits)
    logits = torch.cat(out, dim=1)
    logits[1, :PADDING] = 0
    return logits


def difference(client, family):
    """The largest difference of a logit, over the largest logit; and what the service holds."""
    made, given = model(family), inputs(family)
    with torch.no_grad():
        want = forward(made, DynamicCache(config=made.config.get_text_config()), given)
        made.set_attn_implementation("banyan")
        with BanyanCache(made, client, chunk_tokens=16, members=2) as cache:
            got = forward(made, cache, given)
            return float((got - want).abs().max() / want.abs().max()), cache.sessions[0].spec


@pytest.mark.parametrize("family", VISION)
def test_logits(client, family):
    found, _ = difference(client, family)
    assert 0 < found <= MOST


@pytest.mark.parametrize("family", VISION)
def test_generate(client, family):
    made, given = model(family), inputs(family)
    want = made.generate(**given, max_new_tokens=8, do_sample=False)
    made.set_attn_implementation("banyan")
    with BanyanCache(made.config, client, chunk_tokens=16) as cache:
        got = made.generate(**given, past_key_values=cache, max_new_tokens=8, do_sample=False)
    assert got.tolist() == want.tolist()


def test_images_matter(client):
    """Without their types the tokens of an image do not see each other: the test above would see that."""
    made, given = model("gemma3"), inputs("gemma3")
    with torch.no_grad():
        right = made(**given).logits
        given["token_type_ids"] = torch.zeros_like(given["input_ids"])
        assert (made(**given).logits - right).abs().max() > 1e-2 * right.abs().max()


def test_blocks_that_do_not_fit_into_a_window(client):
    options = {**VISION["gemma3"], "text_config": {**VISION["gemma3"]["text_config"], "sliding_window": IMAGE_TOKENS - 1}}
    made, given = make("gemma3", options, "banyan"), inputs("gemma3")
    with torch.no_grad(), BanyanCache(made, client) as cache, pytest.raises(Refused, match=r"a block of 4 tokens.*in a window of 3"):
        made(**given, past_key_values=cache)
