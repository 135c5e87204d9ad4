// SPDX-License-Identifier: Apache-2.0
// A session's spec as JSON and as lines: what 'session show' says of it.
#include "client/ctl/spec.h"

#include <stdio.h>
#include <string.h>

const char *ctl_type_name(banyan_kv_type type)
{
    static const char *const names[] = {"?", "f32", "f16", "bf16", "int8", "fp8"};
    return names[type >= BANYAN_F32 && type <= BANYAN_FP8 ? type : 0];
}

banyan_kv_type ctl_type_parse(const char *name)
{
    for (banyan_kv_type type = BANYAN_F32; type <= BANYAN_FP8; type++)
        if (strcmp(name, ctl_type_name(type)) == 0)
            return type;
    return (banyan_kv_type)0;
}

banyan_kind ctl_layer_kind(const banyan_spec *spec, uint32_t layer)
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

static json_t *floats_json(const float *values, uint32_t n)
{
    if (!values)
        return json_null();
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) // JSON has no infinity: a sink of -inf takes nothing
        json_array_append_new(list, values[i] < -3e38f ? json_null() : json_real((double)values[i]));
    return list;
}

static json_t *kind_json(const banyan_kind *kind)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:f, s:o, s:o, s:b, s:b, s:o}", "q_heads", (int)kind->q_heads,
                     "kv_heads", (int)kind->kv_heads, "k_dim", (int)kind->k_dim, "v_dim", (int)kind->v_dim,
                     "scale", (double)kind->scale, "soft_cap", (double)kind->soft_cap, "window",
                     ctl_json_u64(kind->window), "mask_chunk", ctl_json_u64(kind->mask_chunk), "not_causal",
                     kind->not_causal, "v_in_k", kind->v_in_k, "alibi",
                     floats_json(kind->alibi, kind->q_heads));
}

static void add_kinds(const banyan_spec *spec, json_t *record)
{
    json_t *kinds = json_array(), *of = json_array(), *shares = json_array(), *sinks = json_array();
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        json_array_append_new(kinds, kind_json(&spec->kinds[i]));
    for (uint32_t l = 0; l < spec->layers; l++) {
        bool local = spec->layer_kind[l] == BANYAN_LAYER_LOCAL;
        bool own = !spec->shares || spec->shares[l] == BANYAN_SHARES_NONE;
        json_array_append_new(of, local ? json_null() : json_integer(spec->layer_kind[l]));
        json_array_append_new(shares, own ? json_null() : json_integer(spec->shares[l]));
        json_array_append_new(sinks, local || !spec->layer_sinks
                                         ? json_null()
                                         : floats_json(spec->layer_sinks[l],
                                                       spec->kinds[spec->layer_kind[l]].q_heads));
    }
    json_object_set_new(record, "kinds", kinds);
    json_object_set_new(record, "layer_kind", of);
    json_object_set_new(record, "shares", shares);
    json_object_set_new(record, "layer_sinks", sinks);
}

json_t *ctl_spec_json(const banyan_spec *spec)
{
    json_t *record = json_pack("{s:i, s:s, s:i, s:i, s:i, s:o}", "layers", (int)spec->layers, "kv_type",
                               ctl_type_name(spec->kv_type), "chunk_tokens", (int)spec->chunk_tokens,
                               "members_min", (int)spec->members, "replicas", (int)spec->replicas,
                               "idle_ttl_ns", ctl_json_u64(spec->idle_ttl_ns));
    json_object_set_new(record, "forget", ctl_json_u64(spec->forget));
    if (spec->n_kinds) {
        add_kinds(spec, record);
        return record;
    }
    const banyan_kind all = ctl_layer_kind(spec, 0);
    json_object_update_new(record, kind_json(&all));
    json_object_set_new(record, "sinks", floats_json(spec->sinks, spec->q_heads));
    return record;
}

// Numbers of layers as "0-4 6 8-9".
struct runs {
    char text[160];
    size_t used;
    uint32_t first, last;
    bool any;
};

static void runs_end(struct runs *r)
{
    char one[32];
    int n = !r->any               ? 0
            : r->first == r->last ? snprintf(one, sizeof one, " %u", r->first)
                                  : snprintf(one, sizeof one, " %u-%u", r->first, r->last);
    if (r->any && r->used + (size_t)n + 5 < sizeof r->text)
        r->used += (size_t)snprintf(r->text + r->used, sizeof r->text - r->used, "%s", one);
    else if (r->any && !strstr(r->text, " …"))
        strcat(r->text, " …");
    r->any = false;
}

static void runs_add(struct runs *r, uint32_t layer)
{
    if (r->any && layer != r->last + 1)
        runs_end(r);
    r->first = r->any ? r->first : layer;
    r->last = layer;
    r->any = true;
}

static json_t *kind_line(const banyan_spec *spec, uint32_t kind)
{
    struct runs runs = {.used = 0};
    char head[128] = "layers without a kind: nothing is held", masks[128] = "", window[40] = "",
         chunk[48] = "", line[420];
    for (uint32_t l = 0; l < spec->layers; l++)
        if (spec->layer_kind[l] == kind)
            runs_add(&runs, l);
    runs_end(&runs);
    if (kind != BANYAN_LAYER_LOCAL) {
        const banyan_kind *k = &spec->kinds[kind];
        snprintf(head, sizeof head, "%u heads over %u, keys of %u, values of %u%s", k->q_heads, k->kv_heads,
                 k->k_dim, k->v_dim, k->v_in_k ? " in them" : "");
        if (k->window)
            snprintf(window, sizeof window, ", window %llu", (unsigned long long)k->window);
        if (k->mask_chunk)
            snprintf(chunk, sizeof chunk, ", mask chunks of %llu", (unsigned long long)k->mask_chunk);
        snprintf(masks, sizeof masks, "%s%s%s%s", window, chunk, k->not_causal ? ", not causal" : "",
                 k->alibi ? ", ALiBi" : "");
    }
    snprintf(line, sizeof line, "%s%s: layers%s", head, masks, runs.text);
    return runs.used ? json_string(line) : NULL;
}

json_t *ctl_spec_lines(const banyan_spec *spec)
{
    json_t *lines = json_array();
    if (spec->not_causal)
        json_array_append_new(lines, json_string("all: not causal"));
    if (spec->v_in_k)
        json_array_append_new(lines, json_string("all: values are the first elements of keys"));
    for (uint32_t i = 0; i <= spec->n_kinds && spec->n_kinds; i++) {
        json_t *line = kind_line(spec, i < spec->n_kinds ? i : BANYAN_LAYER_LOCAL);
        if (line)
            json_array_append_new(lines, line);
    }
    return lines;
}
