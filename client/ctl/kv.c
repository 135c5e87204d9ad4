// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/kv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/spec.h"

_Static_assert((int)BANYAN_F32 == COMMON_DTYPE_F32 && (int)BANYAN_F16 == COMMON_DTYPE_F16 &&
                   (int)BANYAN_BF16 == COMMON_DTYPE_BF16 && (int)BANYAN_INT8 == COMMON_DTYPE_I8 &&
                   (int)BANYAN_FP8 == COMMON_DTYPE_F8_E4M3,
               "files and the library number KV types alike");

static const char *dtype_name(enum common_dtype dtype)
{
    static const char *const names[] = {"another type", "F32", "F16", "BF16", "I8", "F8_E4M3"};
    return names[dtype <= COMMON_DTYPE_F8_E4M3 ? dtype : 0];
}

static enum ctl_exit wrong_shape(const struct common_safetensor *t, const char *needs)
{
    char shape[COMMON_SAFETENSORS_DIMS * 22 + 1] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < t->n_dims; i++)
        len += (size_t)snprintf(shape + len, sizeof shape - len, "[%" PRIu64 "]", t->dims[i]);
    return ctl_say(CTL_REFUSED, "tensor '%.80s' is %s %s: the session needs %s", t->name,
                   dtype_name(t->dtype), shape, needs);
}

enum ctl_exit ctl_kv_shape(const struct common_safetensor *t, enum common_dtype dtype, uint32_t heads,
                           uint32_t dim)
{
    if (t->dtype == dtype && t->n_dims == 3 && t->dims[0] > 0 && t->dims[1] == heads && t->dims[2] == dim)
        return CTL_OK;
    char needs[96];
    snprintf(needs, sizeof needs, "%s [tokens][%u][%u], of at least one token", dtype_name(dtype), heads,
             dim);
    return wrong_shape(t, needs);
}

static enum ctl_exit scale_shape(const struct common_safetensor *t, uint64_t tokens, uint32_t heads)
{
    if (t->dtype == COMMON_DTYPE_F32 && t->n_dims == 2 && t->dims[0] == tokens && t->dims[1] == heads)
        return CTL_OK;
    char needs[64];
    snprintf(needs, sizeof needs, "F32 [%" PRIu64 "][%u]", tokens, heads);
    return wrong_shape(t, needs);
}

static bool to_quantise(const struct ctl_kv *kv, const banyan_spec *spec)
{
    return banyan_kv_scaled(spec->kv_type) && kv->k->dtype == COMMON_DTYPE_F32;
}

enum ctl_exit ctl_kv_wanted(const struct ctl_kv *kv, const banyan_spec *spec, uint32_t layer,
                            const char *prefix)
{
    const banyan_kind kind = snapshot_layer_kind(spec, layer);
    if (kind.q_heads == 0 || (spec->shares && spec->shares[layer] != BANYAN_SHARES_NONE))
        return ctl_say(CTL_REFUSED, "layer %u of the session has no K and V of its own", layer);
    if (kind.v_in_k && (kv->v || kv->v_scale))
        return ctl_say(CTL_REFUSED, "'%.60s': in layer %u of the session values are part of the keys",
                       (kv->v ? kv->v : kv->v_scale)->name, layer);
    if (!kv->k || (!kv->v && !kind.v_in_k))
        return ctl_say(CTL_REFUSED, "k and v belong together: %s%s is missing in the file", prefix,
                       kv->k ? "v" : "k");
    return CTL_OK;
}

enum ctl_exit ctl_kv_check(const struct ctl_kv *kv, const banyan_spec *spec, uint32_t layer)
{
    const banyan_kind kind = snapshot_layer_kind(spec, layer);
    bool quantise = to_quantise(kv, spec), scales = banyan_kv_scaled(spec->kv_type) && !quantise;
    enum common_dtype dtype = quantise ? COMMON_DTYPE_F32 : (enum common_dtype)spec->kv_type;
    enum ctl_exit exit_code = ctl_kv_shape(kv->k, dtype, kind.kv_heads, kind.k_dim);
    if (exit_code == CTL_OK && kv->v)
        exit_code = ctl_kv_shape(kv->v, dtype, kind.kv_heads, kind.v_dim);
    if (exit_code != CTL_OK)
        return exit_code;
    if (kv->v && kv->k->dims[0] != kv->v->dims[0])
        return ctl_say(CTL_REFUSED, "'%.60s' has %" PRIu64 " tokens and '%.60s' %" PRIu64, kv->k->name,
                       kv->k->dims[0], kv->v->name, kv->v->dims[0]);
    if (scales && (!kv->k_scale || (kv->v && !kv->v_scale)))
        return ctl_say(CTL_REFUSED,
                       "'%.60s_scale' is missing in the file: %s has a scale per token and KV head",
                       kv->k_scale ? kv->v->name : kv->k->name, dtype_name(dtype));
    if (!scales && (kv->k_scale || kv->v_scale))
        return ctl_say(CTL_REFUSED, "'%.60s' is in the file, but K and V of type %s have no scales",
                       (kv->k_scale ? kv->k_scale : kv->v_scale)->name, dtype_name(dtype));
    if (!scales)
        return CTL_OK;
    exit_code = scale_shape(kv->k_scale, kv->k->dims[0], kind.kv_heads);
    return exit_code == CTL_OK && kv->v ? scale_shape(kv->v_scale, kv->k->dims[0], kind.kv_heads) : exit_code;
}

// A file's floats may lie at any address.
static void quantise(banyan_kv_type type, const struct common_safetensor *t, float *row, uint8_t *codes,
                     float *scales)
{
    size_t n = t->dims[0] * t->dims[1], dim = t->dims[2];
    for (size_t i = 0; i < n; i++) {
        memcpy(row, (const uint8_t *)t->data + i * dim * sizeof *row, dim * sizeof *row);
        banyan_quantise(type, row, 1, (uint32_t)dim, codes + i * dim, scales + i);
    }
}

enum ctl_exit ctl_kv_rows(const struct ctl_kv *kv, const banyan_spec *spec, struct ctl_kv_rows *out)
{
    *out = (struct ctl_kv_rows){.k = kv->k->data, .v = kv->v ? kv->v->data : NULL};
    if (!to_quantise(kv, spec)) {
        out->k_scale = kv->k_scale ? kv->k_scale->data : NULL;
        out->v_scale = kv->v_scale ? kv->v_scale->data : NULL;
        return CTL_OK;
    }
    // One row, scales of K and of V, codes of K and of V: of the order of the file's bytes, which were
    // checked.
    size_t v_dim = kv->v ? kv->v->dims[2] : 0, dim = kv->k->dims[2] > v_dim ? kv->k->dims[2] : v_dim;
    size_t heads = kv->k->dims[0] * kv->k->dims[1], k_codes = heads * kv->k->dims[2], v_codes = heads * v_dim;
    float *row = malloc((dim + 2 * heads) * sizeof *row + k_codes + v_codes);
    if (!row)
        return ctl_say(CTL_INTERNAL, "out of memory");
    float *k_scale = row + dim, *v_scale = k_scale + heads;
    uint8_t *k = (uint8_t *)(v_scale + heads), *v = k + k_codes;
    quantise(spec->kv_type, kv->k, row, k, k_scale);
    if (kv->v)
        quantise(spec->kv_type, kv->v, row, v, v_scale);
    *out = (struct ctl_kv_rows){k, kv->v ? v : NULL, k_scale, kv->v ? v_scale : NULL, row};
    return CTL_OK;
}
