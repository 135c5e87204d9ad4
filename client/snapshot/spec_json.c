// SPDX-License-Identifier: Apache-2.0
#include "client/snapshot/spec_json.h"

#include <stdbool.h>
#include <string.h>

static json_t *u64_json(uint64_t value)
{
    return json_integer(value <= INT64_MAX ? (json_int_t)value : INT64_MAX);
}

const char *snapshot_type_name(banyan_kv_type type)
{
    static const char *const names[] = {"?", "f32", "f16", "bf16", "int8", "fp8"};
    return names[type >= BANYAN_F32 && type <= BANYAN_FP8 ? type : 0];
}

banyan_kv_type snapshot_type_parse(const char *name)
{
    for (banyan_kv_type type = BANYAN_F32; type <= BANYAN_FP8; type++)
        if (strcmp(name, snapshot_type_name(type)) == 0)
            return type;
    return (banyan_kv_type)0;
}

banyan_kind snapshot_layer_kind(const banyan_spec *spec, uint32_t layer)
{
    if (spec->n_kinds && spec->layer_kind[layer] == BANYAN_LAYER_LOCAL)
        return (banyan_kind){0};
    if (spec->n_kinds)
        return spec->kinds[spec->layer_kind[layer]];
    return (banyan_kind){.q_heads = spec->q_heads,
                         .kv_heads = spec->kv_heads,
                         .k_dim = spec->k_dim,
                         .v_dim = spec->v_dim,
                         .scale = spec->scale,
                         .soft_cap = spec->soft_cap,
                         .window = spec->window,
                         .mask_chunk = spec->mask_chunk,
                         .not_causal = spec->not_causal,
                         .v_in_k = spec->v_in_k,
                         .alibi = spec->alibi};
}

// NULL here and below: out of memory. A spec that lacks a field is another spec.
static json_t *floats_json(const float *values, uint32_t n)
{
    if (!values)
        return json_null();
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint32_t i = 0; ok && i < n; i++) // JSON has no infinity: a sink of -inf takes nothing
        ok =
            json_array_append_new(list, values[i] < -3e38f ? json_null() : json_real((double)values[i])) == 0;
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *kind_json(const banyan_kind *kind)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:f, s:o, s:o, s:b, s:b, s:o}", "q_heads", (int)kind->q_heads,
                     "kv_heads", (int)kind->kv_heads, "k_dim", (int)kind->k_dim, "v_dim", (int)kind->v_dim,
                     "scale", (double)kind->scale, "soft_cap", (double)kind->soft_cap, "window",
                     u64_json(kind->window), "mask_chunk", u64_json(kind->mask_chunk), "not_causal",
                     kind->not_causal, "v_in_k", kind->v_in_k, "alibi",
                     floats_json(kind->alibi, kind->q_heads));
}

static bool add_kinds(const banyan_spec *spec, json_t *record)
{
    json_t *kinds = json_array(), *of = json_array(), *shares = json_array(), *sinks = json_array();
    bool ok = true;
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        ok = json_array_append_new(kinds, kind_json(&spec->kinds[i])) == 0 && ok;
    for (uint32_t l = 0; l < spec->layers; l++) {
        bool local = spec->layer_kind[l] == BANYAN_LAYER_LOCAL;
        bool own = !spec->shares || spec->shares[l] == BANYAN_SHARES_NONE;
        json_t *sink = local || !spec->layer_sinks
                           ? json_null()
                           : floats_json(spec->layer_sinks[l], spec->kinds[spec->layer_kind[l]].q_heads);
        ok = json_array_append_new(of, local ? json_null() : json_integer(spec->layer_kind[l])) == 0 && ok;
        ok = json_array_append_new(shares, own ? json_null() : json_integer(spec->shares[l])) == 0 && ok;
        ok = json_array_append_new(sinks, sink) == 0 && ok;
    }
    ok = json_object_set_new(record, "kinds", kinds) == 0 && ok;
    ok = json_object_set_new(record, "layer_kind", of) == 0 && ok;
    ok = json_object_set_new(record, "shares", shares) == 0 && ok;
    return json_object_set_new(record, "layer_sinks", sinks) == 0 && ok;
}

json_t *snapshot_spec_json(const banyan_spec *spec)
{
    json_t *record = json_pack("{s:i, s:s, s:i, s:i, s:i, s:o, s:o}", "layers", (int)spec->layers, "kv_type",
                               snapshot_type_name(spec->kv_type), "chunk_tokens", (int)spec->chunk_tokens,
                               "members_min", (int)spec->members, "replicas", (int)spec->replicas,
                               "idle_ttl_ns", u64_json(spec->idle_ttl_ns), "forget", u64_json(spec->forget));
    bool ok;
    if (spec->n_kinds) {
        ok = add_kinds(spec, record);
    } else {
        const banyan_kind all = snapshot_layer_kind(spec, 0);
        ok = json_object_update_new(record, kind_json(&all)) == 0 &&
             json_object_set_new(record, "sinks", floats_json(spec->sinks, spec->q_heads)) == 0;
    }
    if (ok)
        return record;
    json_decref(record);
    return NULL;
}
