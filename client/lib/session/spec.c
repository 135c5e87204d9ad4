// SPDX-License-Identifier: Apache-2.0
// A session's spec, as the API has it and as it travels.
#include "client/lib/session/spec.h"

#include "client/lib/core/internal.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/core/error.h"
#include "common/tensor/quantise.h"
#include "proto/model/kv.h"
#include "proto/model/spec.h"

#define CHUNK_TOKENS 256

_Static_assert((int)BANYAN_F32 == BANYAN__PB__DTYPE__DTYPE_F32 &&
                   (int)BANYAN_F16 == BANYAN__PB__DTYPE__DTYPE_F16 &&
                   (int)BANYAN_BF16 == BANYAN__PB__DTYPE__DTYPE_BF16 &&
                   (int)BANYAN_INT8 == BANYAN__PB__DTYPE__DTYPE_INT8 &&
                   (int)BANYAN_FP8 == BANYAN__PB__DTYPE__DTYPE_FP8_E4M3,
               "callers and the wire number KV types alike");
_Static_assert(BANYAN_LAYER_LOCAL == PROTO_LAYER_LOCAL, "callers and the wire number local layers alike");

bool banyan_kv_scaled(banyan_kv_type type)
{
    return proto_kv_scaled((uint32_t)type);
}

banyan_code banyan_quantise(banyan_kv_type type, const float *x, size_t rows, uint32_t dim, void *codes,
                            float *scales)
{
    if (!banyan_kv_scaled(type))
        return BANYAN_INVALID_ARGUMENT;
    for (size_t i = 0; i < rows; i++)
        scales[i] = type == BANYAN_INT8 ? common_quantise_int8(x + i * dim, dim, (int8_t *)codes + i * dim)
                                        : common_quantise_fp8(x + i * dim, dim, (uint8_t *)codes + i * dim);
    return BANYAN_OK;
}

// ---- from the wire --------------------------------------------------------------------------------

// False: out of memory. Nothing to copy is NULL.
static bool copy_array(const void *from, size_t n, size_t size, const void **out)
{
    *out = NULL;
    if (n == 0)
        return true;
    void *copy = malloc(n * size);
    if (copy)
        memcpy(copy, from, n * size);
    *out = copy;
    return copy != NULL;
}

static bool copy_floats(const float *from, size_t n, const float **out)
{
    return copy_array(from, n, sizeof *from, (const void **)out);
}

static bool copy_kinds(const Banyan__Pb__Spec *pb, banyan_spec *out)
{
    banyan_kind *kinds = calloc(pb->n_kinds, sizeof *kinds);
    bool ok = kinds != NULL;
    out->kinds = kinds;
    out->n_kinds = ok ? (uint32_t)pb->n_kinds : 0;
    for (uint32_t i = 0; i < out->n_kinds; i++) {
        const Banyan__Pb__LayerKind *from = pb->kinds[i];
        kinds[i] = (banyan_kind){.q_heads = from->q_heads,
                                 .kv_heads = from->kv_heads,
                                 .k_dim = from->k_dim,
                                 .v_dim = from->v_dim,
                                 .scale = proto_spec_scale(from->scale, from->k_dim),
                                 .soft_cap = from->soft_cap,
                                 .window = from->window,
                                 .mask_chunk = from->mask_chunk,
                                 .not_causal = from->not_causal,
                                 .v_in_k = from->v_in_k};
        ok = copy_floats(from->alibi, from->n_alibi, &kinds[i].alibi) && ok;
    }
    return ok && copy_array(pb->layer_kind, pb->n_layer_kind, sizeof *pb->layer_kind,
                            (const void **)&out->layer_kind);
}

static bool copy_shares(const Banyan__Pb__Spec *pb, banyan_spec *out)
{
    if (!pb->n_shares)
        return true;
    uint32_t *shares = calloc(pb->layers, sizeof *shares);
    for (uint32_t l = 0; shares && l < pb->layers; l++)
        shares[l] = pb->shares[l] ? pb->shares[l] - 1 : BANYAN_SHARES_NONE;
    out->shares = shares;
    return shares != NULL;
}

static bool copy_layer_sinks(const Banyan__Pb__Spec *pb, banyan_spec *out)
{
    if (!pb->n_layer_sinks)
        return true;
    const float **sinks = calloc(pb->layers, sizeof *sinks);
    bool ok = sinks != NULL;
    out->layer_sinks = sinks;
    for (uint32_t l = 0; ok && l < pb->layers; l++)
        ok = copy_floats(pb->layer_sinks[l]->sinks, pb->layer_sinks[l]->n_sinks, &sinks[l]);
    return ok;
}

void client_spec_free(banyan_spec *spec)
{
    free((float *)spec->alibi);
    free((float *)spec->sinks);
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        free((float *)spec->kinds[i].alibi);
    free((banyan_kind *)spec->kinds);
    free((uint32_t *)spec->layer_kind);
    free((uint32_t *)spec->shares);
    for (uint32_t l = 0; spec->layer_sinks && l < spec->layers; l++)
        free((float *)spec->layer_sinks[l]);
    free((float **)spec->layer_sinks);
}

static banyan_code spec_from_pb(const Banyan__Pb__Spec *pb, banyan_spec *out, banyan_error *error)
{
    banyan_spec spec = {
        .layers = pb->layers,
        .q_heads = pb->q_heads,
        .kv_heads = pb->kv_heads,
        .k_dim = pb->k_dim,
        .v_dim = pb->v_dim,
        .kv_type = (banyan_kv_type)pb->kv_type,
        .scale = pb->n_kinds ? 0 : proto_spec_scale(pb->scale, pb->k_dim),
        .soft_cap = pb->soft_cap,
        .window = pb->window,
        .chunk_tokens = pb->chunk_tokens ? pb->chunk_tokens : CHUNK_TOKENS,
        .members = pb->members,
        .idle_ttl_ns = pb->idle_ttl_ns,
        .forget = pb->forget,
        .mask_chunk = pb->mask_chunk,
        .not_causal = pb->not_causal,
        .v_in_k = pb->v_in_k,
        .replicas = pb->replicas ? pb->replicas : 1,
    };
    if (!copy_floats(pb->alibi, pb->n_alibi, &spec.alibi) ||
        !copy_floats(pb->sinks, pb->n_sinks, &spec.sinks) || (pb->n_kinds && !copy_kinds(pb, &spec)) ||
        !copy_shares(pb, &spec) || !copy_layer_sinks(pb, &spec)) {
        client_spec_free(&spec);
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    }
    *out = spec;
    return BANYAN_OK;
}

static struct client_layer layer_from_pb(const Banyan__Pb__Spec *pb, uint32_t nth)
{
    const struct proto_layer layer = proto_spec_layer(pb, nth);
    size_t scales = proto_kv_scaled(pb->kv_type) ? layer.kv_heads * sizeof(float) : 0;
    return (struct client_layer){.q_heads = layer.q_heads,
                                 .kv_heads = layer.kv_heads,
                                 .v_dim = layer.v_dim,
                                 .source = layer.source,
                                 .not_causal = layer.not_causal,
                                 .q_row = (size_t)layer.q_heads * layer.k_dim * sizeof(float),
                                 .o_row = (size_t)layer.q_heads * layer.v_dim * sizeof(float),
                                 .lse_row = (size_t)layer.q_heads * sizeof(float),
                                 .k_row = layer.k_row,
                                 .v_row = layer.v_row,
                                 .scale_row = scales};
}

banyan_code client_spec_from_pb(const Banyan__Pb__Spec *pb, banyan_spec *out, struct client_layer **layers,
                                banyan_error *error)
{
    struct common_error wrong;
    if (!pb || proto_spec_check(pb, &wrong) != COMMON_OK)
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator sent an invalid session spec");
    struct client_layer *made = calloc(pb->layers, sizeof *made);
    if (!made)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    banyan_code code = spec_from_pb(pb, out, error);
    if (code != BANYAN_OK) {
        free(made);
        return code;
    }
    for (uint32_t l = 0; l < pb->layers; l++)
        made[l] = layer_from_pb(pb, l);
    *layers = made;
    return BANYAN_OK;
}

// ---- to the wire ----------------------------------------------------------------------------------

struct lists { // of a spec with kinds; what they point to is the caller's
    Banyan__Pb__LayerKind kinds[PROTO_KINDS_MAX], *kind_pointers[PROTO_KINDS_MAX];
    uint32_t shares[PROTO_LAYERS_MAX];
    Banyan__Pb__LayerSinks sinks[PROTO_LAYERS_MAX], *sink_pointers[PROTO_LAYERS_MAX];
};

static void pack_kind(const banyan_kind *from, Banyan__Pb__LayerKind *to)
{
    banyan__pb__layer_kind__init(to);
    to->q_heads = from->q_heads;
    to->kv_heads = from->kv_heads;
    to->k_dim = from->k_dim;
    to->v_dim = from->v_dim;
    to->scale = from->scale;
    to->soft_cap = from->soft_cap;
    to->window = from->window;
    to->mask_chunk = from->mask_chunk;
    to->not_causal = from->not_causal;
    to->v_in_k = from->v_in_k;
    to->n_alibi = from->alibi ? from->q_heads : 0;
    to->alibi = (float *)from->alibi;
}

static void pack_lists(const banyan_spec *spec, struct lists *lists, Banyan__Pb__Spec *pb)
{
    for (uint32_t i = 0; i < spec->n_kinds; i++) {
        pack_kind(&spec->kinds[i], &lists->kinds[i]);
        lists->kind_pointers[i] = &lists->kinds[i];
    }
    for (uint32_t l = 0; l < spec->layers; l++) {
        uint32_t kind = spec->layer_kind[l];
        const float *sinks = spec->layer_sinks && kind < spec->n_kinds ? spec->layer_sinks[l] : NULL;
        lists->shares[l] = spec->shares ? spec->shares[l] + 1 : 0; // none, 2^32 - 1, becomes 0
        banyan__pb__layer_sinks__init(&lists->sinks[l]);
        lists->sinks[l].n_sinks = sinks ? spec->kinds[kind].q_heads : 0;
        lists->sinks[l].sinks = (float *)sinks;
        lists->sink_pointers[l] = &lists->sinks[l];
    }
    pb->n_kinds = spec->n_kinds;
    pb->kinds = lists->kind_pointers;
    pb->n_layer_kind = spec->layers;
    pb->layer_kind = (uint32_t *)spec->layer_kind;
    pb->n_shares = spec->shares ? spec->layers : 0;
    pb->shares = lists->shares;
    pb->n_layer_sinks = spec->layer_sinks ? spec->layers : 0;
    pb->layer_sinks = lists->sink_pointers;
}

// The coordinator checks values; here only what the arrays' lengths rest on.
static banyan_code check_lengths(const banyan_spec *spec, banyan_error *error)
{
    if ((spec->alibi || spec->sinks) && (spec->q_heads < 1 || spec->q_heads > PROTO_KV_HEADS_MAX))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "q_heads is %u: must be 1 to %u",
                                spec->q_heads, PROTO_KV_HEADS_MAX);
    if (spec->n_kinds == 0 && (spec->kinds || spec->layer_kind || spec->shares || spec->layer_sinks))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "n_kinds is 0: kinds, layer_kind, shares and layer_sinks must be NULL");
    if (spec->n_kinds == 0)
        return BANYAN_OK;
    if (spec->n_kinds > PROTO_KINDS_MAX || spec->layers > PROTO_LAYERS_MAX)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "%u kinds of %u layers: at most %u and %u are allowed", spec->n_kinds,
                                spec->layers, PROTO_KINDS_MAX, PROTO_LAYERS_MAX);
    if (!spec->kinds || !spec->layer_kind)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "kinds or layer_kind is NULL");
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        if (spec->kinds[i].q_heads < 1 || spec->kinds[i].q_heads > PROTO_KV_HEADS_MAX)
            return client_error_set(error, BANYAN_INVALID_ARGUMENT, "kind %u: q_heads is %u: must be 1 to %u",
                                    i, spec->kinds[i].q_heads, PROTO_KV_HEADS_MAX);
    for (uint32_t l = 0; spec->layer_sinks && l < spec->layers; l++)
        if (spec->layer_sinks[l] && spec->layer_kind[l] == BANYAN_LAYER_LOCAL)
            return client_error_set(error, BANYAN_INVALID_ARGUMENT, "layer %u holds nothing: it has no sinks",
                                    l);
    return BANYAN_OK;
}

banyan_code client_spec_to_pb(const banyan_spec *spec, Banyan__Pb__Spec *pb, void **memory,
                              banyan_error *error)
{
    *memory = NULL;
    banyan_code code = check_lengths(spec, error);
    if (code != BANYAN_OK)
        return code;
    banyan__pb__spec__init(pb);
    pb->layers = spec->layers;
    pb->q_heads = spec->q_heads;
    pb->kv_heads = spec->kv_heads;
    pb->k_dim = spec->k_dim;
    pb->v_dim = spec->v_dim;
    pb->kv_type = (Banyan__Pb__Dtype)spec->kv_type;
    pb->scale = spec->scale;
    pb->soft_cap = spec->soft_cap;
    pb->window = spec->window;
    pb->chunk_tokens = spec->chunk_tokens;
    pb->members = spec->members;
    pb->replicas = spec->replicas;
    pb->idle_ttl_ns = spec->idle_ttl_ns;
    pb->forget = spec->forget;
    pb->mask_chunk = spec->mask_chunk;
    pb->not_causal = spec->not_causal;
    pb->v_in_k = spec->v_in_k;
    pb->n_alibi = spec->alibi ? spec->q_heads : 0;
    pb->alibi = (float *)spec->alibi;
    pb->n_sinks = spec->sinks ? spec->q_heads : 0;
    pb->sinks = (float *)spec->sinks;
    if (spec->n_kinds == 0)
        return BANYAN_OK;
    struct lists *lists = malloc(sizeof *lists);
    if (!lists)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    pack_lists(spec, lists, pb);
    *memory = lists;
    return BANYAN_OK;
}
