// SPDX-License-Identifier: Apache-2.0
#include "proto/model/spec.h"

#include <math.h>
#include <stdio.h>

#include "proto/model/kv.h"
#include "proto/model/limits.h"

#define BAD(...) common_error_set(err, COMMON_INVALID_ARGUMENT, __VA_ARGS__)

// ---- reading ------------------------------------------------------------------------------------

static struct proto_layer of_spec(const Banyan__Pb__Spec *spec)
{
    return (struct proto_layer){.q_heads = spec->q_heads,
                                .kv_heads = spec->kv_heads,
                                .k_dim = spec->k_dim,
                                .v_dim = spec->v_dim,
                                .scale = spec->scale,
                                .soft_cap = spec->soft_cap,
                                .window = spec->window,
                                .mask_chunk = spec->mask_chunk,
                                .not_causal = spec->not_causal,
                                .v_in_k = spec->v_in_k,
                                .alibi = spec->n_alibi ? spec->alibi : NULL,
                                .sinks = spec->n_sinks ? spec->sinks : NULL};
}

static struct proto_layer of_kind(const Banyan__Pb__LayerKind *kind)
{
    return (struct proto_layer){.q_heads = kind->q_heads,
                                .kv_heads = kind->kv_heads,
                                .k_dim = kind->k_dim,
                                .v_dim = kind->v_dim,
                                .scale = kind->scale,
                                .soft_cap = kind->soft_cap,
                                .window = kind->window,
                                .mask_chunk = kind->mask_chunk,
                                .not_causal = kind->not_causal,
                                .v_in_k = kind->v_in_k,
                                .alibi = kind->n_alibi ? kind->alibi : NULL};
}

float proto_spec_scale(float scale, uint32_t k_dim)
{
    return scale > 0 ? scale : 1.0f / sqrtf((float)k_dim);
}

uint32_t proto_spec_source(const Banyan__Pb__Spec *spec, uint32_t layer)
{
    return spec->n_shares && spec->shares[layer] ? spec->shares[layer] - 1 : layer;
}

struct proto_layer proto_spec_layer(const Banyan__Pb__Spec *spec, uint32_t layer)
{
    struct proto_layer out = {.source = layer};
    if (spec->n_kinds && spec->layer_kind[layer] == PROTO_LAYER_LOCAL)
        return out;
    out = spec->n_kinds ? of_kind(spec->kinds[spec->layer_kind[layer]]) : of_spec(spec);
    out.scale = proto_spec_scale(out.scale, out.k_dim);
    out.source = proto_spec_source(spec, layer);
    if (spec->n_layer_sinks && spec->layer_sinks[layer]->n_sinks)
        out.sinks = spec->layer_sinks[layer]->sinks;
    out.k_row = proto_kv_row_bytes(spec->kv_type, out.kv_heads, out.k_dim);
    out.v_row = out.v_in_k ? 0 : proto_kv_row_bytes(spec->kv_type, out.kv_heads, out.v_dim);
    return out;
}

bool proto_spec_stores(const Banyan__Pb__Spec *spec, uint32_t layer)
{
    return !(spec->n_kinds && spec->layer_kind[layer] == PROTO_LAYER_LOCAL) &&
           proto_spec_source(spec, layer) == layer;
}

uint64_t proto_layer_from(const struct proto_layer *layer, uint64_t position)
{
    uint64_t from = layer->window && position >= layer->window ? position - layer->window + 1 : 0;
    uint64_t start = layer->mask_chunk ? position - position % layer->mask_chunk : 0;
    return from > start ? from : start;
}

uint64_t proto_spec_forgotten(const Banyan__Pb__Spec *spec, uint32_t layer, uint64_t floor)
{
    uint64_t least = UINT64_MAX;
    if (!spec->forget || !proto_spec_stores(spec, layer))
        return 0;
    for (uint32_t l = layer; l < (spec->n_shares ? spec->layers : layer + 1); l++) {
        if (proto_spec_source(spec, l) != layer)
            continue;
        struct proto_layer reader = proto_spec_layer(spec, l);
        uint64_t from = proto_layer_from(&reader, floor);
        least = from < least ? from : least;
    }
    return least;
}

bool proto_spec_keeps(const Banyan__Pb__Spec *spec, uint32_t layer)
{
    const uint64_t far = UINT64_C(1) << 62; // past every window
    return proto_spec_stores(spec, layer) && (!spec->forget || proto_spec_forgotten(spec, layer, far) == 0);
}

uint64_t proto_spec_token_bytes(const Banyan__Pb__Spec *spec)
{
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(spec, l);
        bytes += layer.source == l ? layer.k_row + layer.v_row : 0;
    }
    return bytes;
}

uint32_t proto_spec_first_layer(const Banyan__Pb__Spec *spec)
{
    uint32_t layer = 0;
    while (!proto_spec_stores(spec, layer)) // one does: proto_spec_check
        layer++;
    return layer;
}

uint32_t proto_spec_heavy_layer(const Banyan__Pb__Spec *spec)
{
    uint32_t heavy = 0;
    size_t most = 0;
    for (uint32_t l = 0; l < spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(spec, l);
        if (layer.k_row + layer.v_row <= most)
            continue;
        most = layer.k_row + layer.v_row;
        heavy = l;
    }
    return heavy;
}

uint32_t proto_spec_most_q_heads(const Banyan__Pb__Spec *spec)
{
    uint32_t most = spec->q_heads;
    for (uint32_t l = 0; spec->n_kinds && l < spec->layers; l++) {
        uint32_t heads = proto_spec_layer(spec, l).q_heads;
        most = heads > most ? heads : most;
    }
    return most;
}

void proto_spec_fill(Banyan__Pb__Spec *spec)
{
    if (!spec->n_kinds)
        spec->scale = proto_spec_scale(spec->scale, spec->k_dim);
    for (size_t i = 0; i < spec->n_kinds; i++)
        spec->kinds[i]->scale = proto_spec_scale(spec->kinds[i]->scale, spec->kinds[i]->k_dim);
}

// ---- checking -----------------------------------------------------------------------------------

static bool finite_all(const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

static bool sinks_right(const float *values, size_t n, uint32_t q_heads)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(values[i]) || values[i] == INFINITY) // -inf is a sink that takes nothing
            return false;
    return n == 0 || n == q_heads;
}

// of: "", or which kind, for the sentence.
static enum common_code check_shape(const struct proto_layer *m, size_t n_alibi, const char *of,
                                    struct common_error *err)
{
    if (m->q_heads < 1 || m->q_heads > PROTO_KV_HEADS_MAX)
        return BAD("%s%u query heads: 1 to %u are allowed", of, m->q_heads, PROTO_KV_HEADS_MAX);
    if (m->kv_heads < 1 || m->q_heads % m->kv_heads)
        return BAD("%s%u query heads over %u KV heads: query heads must be a multiple of KV heads", of,
                   m->q_heads, m->kv_heads);
    if (m->k_dim < 1 || m->k_dim > PROTO_KV_DIM_MAX)
        return BAD("%skeys of dimension %u: 1 to %u are allowed", of, m->k_dim, PROTO_KV_DIM_MAX);
    if (m->v_dim < 1 || m->v_dim > PROTO_KV_DIM_MAX)
        return BAD("%svalues of dimension %u: 1 to %u are allowed", of, m->v_dim, PROTO_KV_DIM_MAX);
    if (m->v_in_k && m->v_dim > m->k_dim)
        return BAD("%svalues of dimension %u cannot be the first elements of keys of dimension %u", of,
                   m->v_dim, m->k_dim);
    if (m->not_causal && (m->window || m->mask_chunk || m->alibi))
        return BAD("%swithout a causal mask there is no window, no chunked mask and no ALiBi", of);
    if (!isfinite(m->scale) || m->scale < 0)
        return BAD("%sscale %g: it must be finite and not negative (0: 1/sqrt(k_dim))", of, (double)m->scale);
    if (!isfinite(m->soft_cap) || m->soft_cap < 0)
        return BAD("%ssoft cap %g: it must be finite and not negative (0: none)", of, (double)m->soft_cap);
    if ((n_alibi && n_alibi != m->q_heads) || !finite_all(m->alibi, n_alibi))
        return BAD("%sthere must be no ALiBi slopes, or a finite one for each query head", of);
    return COMMON_OK;
}

static enum common_code check_alike(const Banyan__Pb__Spec *spec, struct common_error *err)
{
    struct proto_layer shape = of_spec(spec);
    enum common_code code = check_shape(&shape, spec->n_alibi, "", err);
    if (code != COMMON_OK)
        return code;
    if (!sinks_right(spec->sinks, spec->n_sinks, spec->q_heads))
        return BAD("there must be no sinks, or a logit below +inf for each query head");
    if (spec->n_layer_kind || spec->n_shares || spec->n_layer_sinks)
        return BAD("layer_kind, shares and layer_sinks need kinds");
    return COMMON_OK;
}

static enum common_code check_sharing(const Banyan__Pb__Spec *spec, uint32_t layer, struct common_error *err)
{
    uint32_t from = spec->shares[layer] - 1;
    if (spec->layer_kind[layer] == PROTO_LAYER_LOCAL)
        return BAD("layer %u holds nothing and cannot share another layer's K and V", layer);
    if (from >= layer)
        return BAD("layer %u shares K and V of layer %u: it must be a lower one", layer, from);
    if (!proto_spec_stores(spec, from))
        return BAD("layer %u shares K and V of layer %u, which has none of its own", layer, from);
    struct proto_layer mine = proto_spec_layer(spec, layer), its = proto_spec_layer(spec, from);
    if (mine.kv_heads != its.kv_heads || mine.k_dim != its.k_dim || mine.v_dim != its.v_dim ||
        mine.v_in_k != its.v_in_k)
        return BAD("layer %u shares K and V of layer %u, which have another shape", layer, from);
    return COMMON_OK;
}

static enum common_code check_layer(const Banyan__Pb__Spec *spec, uint32_t layer, struct common_error *err)
{
    uint32_t kind = spec->layer_kind[layer];
    if (kind != PROTO_LAYER_LOCAL && kind >= spec->n_kinds)
        return BAD("layer %u is of kind %u: there are %zu kinds", layer, kind, spec->n_kinds);
    if (spec->n_shares && spec->shares[layer]) {
        enum common_code code = check_sharing(spec, layer, err);
        if (code != COMMON_OK)
            return code;
    }
    uint32_t q_heads = kind == PROTO_LAYER_LOCAL ? 0 : spec->kinds[kind]->q_heads;
    const Banyan__Pb__LayerSinks *sinks = spec->n_layer_sinks ? spec->layer_sinks[layer] : NULL;
    if (sinks && !sinks_right(sinks->sinks, sinks->n_sinks, q_heads))
        return BAD("layer %u: there must be no sinks, or a logit below +inf for each query head", layer);
    return COMMON_OK;
}

static enum common_code check_kinds(const Banyan__Pb__Spec *spec, struct common_error *err)
{
    bool any = false;
    if (spec->q_heads || spec->kv_heads || spec->k_dim || spec->v_dim || spec->scale != 0 ||
        spec->soft_cap != 0 || spec->window || spec->mask_chunk || spec->not_causal || spec->v_in_k ||
        spec->n_alibi || spec->n_sinks)
        return BAD("heads, dimensions, masks and sinks belong to the kinds: with kinds they must be 0");
    if (spec->n_kinds > PROTO_KINDS_MAX)
        return BAD("%zu kinds of layers: at most %u are allowed", spec->n_kinds, PROTO_KINDS_MAX);
    if (spec->n_layer_kind != spec->layers || (spec->n_shares && spec->n_shares != spec->layers) ||
        (spec->n_layer_sinks && spec->n_layer_sinks != spec->layers))
        return BAD("layer_kind needs an entry for each of the %u layers; shares and layer_sinks one for "
                   "each, or none",
                   spec->layers);
    for (size_t i = 0; i < spec->n_kinds; i++) {
        char of[32];
        struct proto_layer shape = of_kind(spec->kinds[i]);
        snprintf(of, sizeof of, "kind %zu: ", i);
        enum common_code code = check_shape(&shape, spec->kinds[i]->n_alibi, of, err);
        if (code != COMMON_OK)
            return code;
    }
    for (uint32_t l = 0; l < spec->layers; l++) { // ascending: what a layer shares is checked before it
        enum common_code code = check_layer(spec, l, err);
        if (code != COMMON_OK)
            return code;
        any = any || proto_spec_stores(spec, l);
    }
    return any ? COMMON_OK : BAD("no layer holds anything: at least one must");
}

enum common_code proto_spec_check(const Banyan__Pb__Spec *spec, struct common_error *err)
{
    if (spec->layers < 1 || spec->layers > PROTO_LAYERS_MAX)
        return BAD("%u layers: 1 to %u are allowed", spec->layers, PROTO_LAYERS_MAX);
    enum common_code code = spec->n_kinds ? check_kinds(spec, err) : check_alike(spec, err);
    if (code != COMMON_OK)
        return code;
    if (proto_kv_element_bytes(spec->kv_type) == 0)
        return BAD("KV type %d: F32, F16, BF16, INT8 or FP8_E4M3 are allowed", (int)spec->kv_type);
    if (spec->chunk_tokens &&
        (spec->chunk_tokens < 16 || spec->chunk_tokens > 4096 || spec->chunk_tokens % 16))
        return BAD("chunks of %u tokens: a multiple of 16 from 16 to 4096 is allowed (0: 256)",
                   spec->chunk_tokens);
    size_t bytes = banyan__pb__spec__get_packed_size(spec);
    if (bytes > PROTO_SPEC_BYTES)
        return BAD("it has %zu bytes, mostly slopes and sinks: at most %u are allowed", bytes,
                   PROTO_SPEC_BYTES);
    return COMMON_OK;
}
