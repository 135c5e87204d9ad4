# SPDX-License-Identifier: Apache-2.0
"""Models that see images: image tokens that see each other, towers that compute here."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import BASE, IMAGE, IMAGE_TOKENS, PIXELS, VISION, make  # noqa: E402
from generating import telling  # noqa: E402
from transformers import DynamicCache  # noqa: E402

from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402

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


# ---- images that shift positions ----

ROPE = dict(rope_type="default", rope_theta=1e4)
TOWER = dict(
    depth=2, hidden_size=32, out_hidden_size=64, intermediate_size=48, num_heads=2, patch_size=14, spatial_merge_size=2,
    temporal_patch_size=2, in_channels=3,
)  # fmt: skip
SHIFTING = {
    "qwen3_vl": {
        "text_config": {**BASE, "rope_parameters": {**ROPE, "mrope_section": [3, 3, 2], "mrope_interleaved": True}},
        "vision_config": {**TOWER, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64},
        "image_token_id": IMAGE, "video_token_id": 119, "vision_start_token_id": 121, "vision_end_token_id": 122,
    },
    "qwen2_5_vl": {
        "text_config": {**BASE, "head_dim": None, "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]}},
        "vision_config": {**TOWER, "window_size": 56, "fullatt_block_indexes": [1]},
        "image_token_id": IMAGE, "video_token_id": 119, "vision_start_token_id": 121, "vision_end_token_id": 122,
    },
    "glm4v": {
        "text_config": {**BASE, "head_dim": 8, "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0}},
        "vision_config": TOWER, "image_token_id": IMAGE, "video_token_id": 119, "image_start_token_id": 121,
        "image_end_token_id": 122, "video_start_token_id": 123, "video_end_token_id": 124,
    },
}  # fmt: skip


@pytest.fixture(params=SHIFTING)
def shifting(request):
    """With eager attention and over the service; positions have room to matter."""
    return [telling(make(request.param, copy.deepcopy(SHIFTING[request.param]), a), 2, 0.25) for a in ("eager", "banyan")]


def seen(rows=1, tall=8):
    """An image of tall * 4 patches, four of them a token, from the seventh token on."""
    torch.manual_seed(4)
    ids = torch.randint(3, 100, (rows, 40))
    ids[:, 5], ids[:, 6 : 6 + tall], ids[:, 6 + tall] = 121, IMAGE, 122
    pixels = torch.randn(rows * tall * 4, 3 * 2 * 14 * 14)
    return with_types({"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, tall, 4]] * rows)}, ids)


def with_types(given, ids):
    return {**given, "input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int(), "attention_mask": torch.ones_like(ids)}


def longer(ids, n=5):
    torch.manual_seed(9)
    return torch.cat((ids, torch.randint(3, 100, (len(ids), n))), dim=1)


def like(eager, given, ids, got):
    """Whether these are the logits of the last tokens, in one forward over all of the text."""
    with torch.no_grad():
        want = eager(**with_types(given, ids), use_cache=False).logits[:, ids.shape[1] - got.shape[1] :]
    return bool((got - want).abs().max() <= MOST * want.abs().max())


def answer(made, given, cache=None, **more):
    more |= {"use_cache": False} if cache is None else {"past_key_values": cache}
    return made.generate(**given, max_new_tokens=8, do_sample=False, suppress_tokens=list(range(100, 128)), **more)


def test_positions_behind_images(client, shifting):
    """Are kept for each cache: the model has room for those of one text alone."""
    eager, ours = shifting
    given, other = seen(), seen(tall=6)
    ids = given["input_ids"]
    with torch.no_grad(), BanyanCache(ours, client) as cache, BanyanCache(ours, client) as second:
        assert like(eager, given, ids, ours(**given, past_key_values=cache).logits)
        assert like(eager, other, other["input_ids"], ours(**other, past_key_values=second).logits)
        ours(ids[:, :5], use_cache=False)
        with cache.fork() as fork:
            assert like(eager, given, longer(ids), ours(longer(ids)[:, 40:], past_key_values=fork).logits)
            fork.crop(-8)
            assert like(eager, given, longer(ids[:, :37], 3), ours(longer(ids[:, :37], 3)[:, 37:], past_key_values=fork).logits)
            with pytest.raises(Refused, match="some in them that stand for images"):
                fork.crop(-30)
        with pytest.raises(Refused, match="position_ids of sequence 0 go on at 40"):
            ours(longer(ids)[:, 40:], past_key_values=cache, position_ids=torch.arange(40, 45)[None])
        prefill(ours, longer(ids, 30), cache, block=7, attention_mask=torch.ones(1, 70, dtype=torch.long))
        assert like(eager, given, longer(ids, 30), ours(longer(ids, 30)[:, 69:], past_key_values=cache).logits)


@pytest.mark.parametrize("more", [{}, {"num_beams": 3}])
def test_positions_behind_images_are_in_the_session(client, shifting, more):
    eager, ours = shifting
    given = seen(2)
    with BanyanCache(ours, client, "images") as cache:
        out = answer(ours, given, cache)
        assert out.tolist() == answer(eager, given).tolist()
    ids = longer(out)
    want = answer(eager, with_types(given, ids), **more).tolist()
    answer(ours, seen(tall=6), BanyanCache(ours, client))
    for model in (ours, ours.config):
        with BanyanCache(model, client, "images") as cache, cache.fork() as fork:
            text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            assert answer(ours, text, fork, **more).tolist() == want
    with torch.no_grad(), BanyanCache(ours, client, "images") as cache:
        held = cache.get_seq_length()
        assert like(eager, given, ids, ours(ids[:, held:], past_key_values=cache).logits)


def test_blocks_that_do_not_fit_into_a_window(client):
    options = {**VISION["gemma3"], "text_config": {**VISION["gemma3"]["text_config"], "sliding_window": IMAGE_TOKENS - 1}}
    made, given = make("gemma3", options, "banyan"), inputs("gemma3")
    with torch.no_grad(), BanyanCache(made, client) as cache, pytest.raises(Refused, match=r"a block of 4 tokens.*in a window of 3"):
        made(**given, past_key_values=cache)
