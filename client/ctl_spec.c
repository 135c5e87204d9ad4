// SPDX-License-Identifier: Apache-2.0
// A session's spec as JSON: what 'session show' says of it, and what 'session create --spec' reads.
#include "client/ctl_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KINDS_MAX  64
#define LAYERS_MAX 1024
#define HEADS_MAX  1024

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
    if (spec->n_kinds)
        return spec->layer_kind[layer] == BANYAN_LAYER_LOCAL ? (banyan_kind){0}
                                                             : spec->kinds[spec->layer_kind[layer]];
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

// ---- showing --------------------------------------------------------------------------------------------

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
    json_t *record =
        json_pack("{s:i, s:s, s:i, s:i, s:o}", "layers", (int)spec->layers, "kv_type",
                  ctl_type_name(spec->kv_type), "chunk_tokens", (int)spec->chunk_tokens, "members_min",
                  (int)spec->members, "idle_ttl_ns", ctl_json_u64(spec->idle_ttl_ns));
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
    char head[128] = "layers of no kind: nothing is held", masks[128] = "", window[40] = "", chunk[48] = "",
         line[420];
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
    for (uint32_t i = 0; i <= spec->n_kinds && spec->n_kinds; i++) {
        json_t *line = kind_line(spec, i < spec->n_kinds ? i : BANYAN_LAYER_LOCAL);
        if (line)
            json_array_append_new(lines, line);
    }
    return lines;
}

// ---- reading --------------------------------------------------------------------------------------------

struct ctl_spec_file { // what a spec that was read points to
    banyan_kind kinds[KINDS_MAX];
    uint32_t layer_kind[LAYERS_MAX], shares[LAYERS_MAX];
    float *sinks[LAYERS_MAX];
    float *lists[KINDS_MAX + LAYERS_MAX + 2]; // of slopes and sinks, to be freed
    uint32_t n_lists;
};

void ctl_spec_file_free(struct ctl_spec_file *file)
{
    for (uint32_t i = 0; file && i < file->n_lists; i++)
        free(file->lists[i]);
    free(file);
}

static bool read_u64(const json_t *object, const char *key, uint64_t most, uint64_t *out, const char **wrong)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return true;
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > most) {
        *wrong = key;
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_u32(const json_t *object, const char *key, uint32_t *out, const char **wrong)
{
    uint64_t value = *out;
    bool ok = read_u64(object, key, UINT32_MAX - 1, &value, wrong);
    *out = (uint32_t)value;
    return ok;
}

static bool read_real(const json_t *object, const char *key, float *out, const char **wrong)
{
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_null(value) && !json_is_number(value))
        *wrong = key;
    else if (json_is_number(value))
        *out = (float)json_number_value(value);
    return *wrong == NULL;
}

static bool read_flag(const json_t *object, const char *key, bool *out, const char **wrong)
{
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_boolean(value) && !json_is_null(value))
        *wrong = key;
    *out = json_is_true(value);
    return *wrong == NULL;
}

// A list of n numbers; null among them is -inf. NULL where there is none.
static bool read_floats(struct ctl_spec_file *file, const json_t *list, uint32_t n, const char *key,
                        const float **out, const char **wrong)
{
    *out = NULL;
    if (!list || json_is_null(list))
        return true;
    float *values = json_is_array(list) && n >= 1 && n <= HEADS_MAX && json_array_size(list) == n
                        ? calloc(n, sizeof *values)
                        : NULL;
    bool ok = values != NULL;
    for (uint32_t i = 0; ok && i < n; i++) {
        const json_t *value = json_array_get(list, i);
        ok = json_is_number(value) || json_is_null(value);
        values[i] = json_is_null(value) ? -__builtin_inff() : (float)json_number_value(value);
    }
    if (values)
        file->lists[file->n_lists++] = values;
    if (!ok)
        *wrong = key;
    *out = values;
    return ok;
}

static bool read_kind(struct ctl_spec_file *file, const json_t *from, banyan_kind *kind, const char **wrong)
{
    if (!json_is_object(from)) {
        *wrong = "kinds";
        return false;
    }
    return read_u32(from, "q_heads", &kind->q_heads, wrong) &&
           read_u32(from, "kv_heads", &kind->kv_heads, wrong) &&
           read_u32(from, "k_dim", &kind->k_dim, wrong) && read_u32(from, "v_dim", &kind->v_dim, wrong) &&
           read_real(from, "scale", &kind->scale, wrong) &&
           read_real(from, "soft_cap", &kind->soft_cap, wrong) &&
           read_u64(from, "window", INT64_MAX, &kind->window, wrong) &&
           read_u64(from, "mask_chunk", INT64_MAX, &kind->mask_chunk, wrong) &&
           read_flag(from, "not_causal", &kind->not_causal, wrong) &&
           read_flag(from, "v_in_k", &kind->v_in_k, wrong) &&
           read_floats(file, json_object_get(from, "alibi"), kind->q_heads, "alibi", &kind->alibi, wrong);
}

// One a layer: a number, or null, which is `none`.
static bool read_layers(const json_t *from, const char *key, uint32_t layers, uint32_t none, uint32_t *to,
                        const uint32_t **out, const char **wrong)
{
    const json_t *list = json_object_get(from, key);
    if (!list || json_is_null(list))
        return true;
    bool ok = json_is_array(list) && json_array_size(list) == layers;
    for (uint32_t l = 0; ok && l < layers; l++) {
        const json_t *value = json_array_get(list, l);
        ok = json_is_null(value) || (json_is_integer(value) && json_integer_value(value) >= 0 &&
                                     json_integer_value(value) < LAYERS_MAX);
        to[l] = json_is_null(value) ? none : (uint32_t)json_integer_value(value);
    }
    if (!ok)
        *wrong = key;
    *out = to;
    return ok;
}

static bool read_layer_sinks(struct ctl_spec_file *file, const json_t *from, banyan_spec *spec,
                             const char **wrong)
{
    const json_t *list = json_object_get(from, "layer_sinks");
    bool ok = !list || json_is_null(list) || (json_is_array(list) && json_array_size(list) == spec->layers);
    if (!ok)
        *wrong = "layer_sinks";
    for (uint32_t l = 0; ok && json_is_array(list) && l < spec->layers; l++) {
        uint32_t kind = spec->layer_kind ? spec->layer_kind[l] : BANYAN_LAYER_LOCAL;
        const float *sinks;
        ok = read_floats(file, json_array_get(list, l), kind < spec->n_kinds ? spec->kinds[kind].q_heads : 0,
                         "layer_sinks", &sinks, wrong);
        file->sinks[l] = (float *)sinks;
        spec->layer_sinks = (const float *const *)file->sinks;
    }
    return ok;
}

static bool read_kinds(struct ctl_spec_file *file, const json_t *from, banyan_spec *spec, const char **wrong)
{
    const json_t *kinds = json_object_get(from, "kinds");
    if (!json_is_array(kinds) || json_array_size(kinds) < 1 || json_array_size(kinds) > KINDS_MAX) {
        *wrong = "kinds";
        return false;
    }
    for (size_t i = 0; i < json_array_size(kinds); i++)
        if (!read_kind(file, json_array_get(kinds, i), &file->kinds[i], wrong))
            return false;
    spec->kinds = file->kinds;
    spec->n_kinds = (uint32_t)json_array_size(kinds);
    return read_layers(from, "layer_kind", spec->layers, BANYAN_LAYER_LOCAL, file->layer_kind,
                       &spec->layer_kind, wrong) &&
           read_layers(from, "shares", spec->layers, BANYAN_SHARES_NONE, file->shares, &spec->shares,
                       wrong) &&
           read_layer_sinks(file, from, spec, wrong);
}

static bool read_alike(struct ctl_spec_file *file, const json_t *from, banyan_spec *spec, const char **wrong)
{
    banyan_kind kind = {.q_heads = 0};
    if (!read_kind(file, from, &kind, wrong) ||
        !read_floats(file, json_object_get(from, "sinks"), kind.q_heads, "sinks", &spec->sinks, wrong))
        return false;
    spec->q_heads = kind.q_heads;
    spec->kv_heads = kind.kv_heads;
    spec->k_dim = kind.k_dim;
    spec->v_dim = kind.v_dim;
    spec->scale = kind.scale;
    spec->soft_cap = kind.soft_cap;
    spec->window = kind.window;
    spec->mask_chunk = kind.mask_chunk;
    spec->not_causal = kind.not_causal;
    spec->v_in_k = kind.v_in_k;
    spec->alibi = kind.alibi;
    return true;
}

static bool read_spec(struct ctl_spec_file *file, const json_t *from, banyan_spec *spec, const char **wrong)
{
    const json_t *type = json_object_get(from, "kv_type");
    spec->kv_type = !type                  ? BANYAN_BF16
                    : json_is_string(type) ? ctl_type_parse(json_string_value(type))
                                           : (banyan_kv_type)0;
    if (!json_is_object(from))
        *wrong = "the whole";
    else if (!spec->kv_type)
        *wrong = "kv_type";
    if (*wrong || !read_u32(from, "layers", &spec->layers, wrong) ||
        !read_u32(from, "chunk_tokens", &spec->chunk_tokens, wrong) ||
        !read_u32(from, "members_min", &spec->members, wrong) ||
        !read_u64(from, "idle_ttl_ns", INT64_MAX, &spec->idle_ttl_ns, wrong))
        return false;
    if (spec->layers < 1 || spec->layers > LAYERS_MAX)
        *wrong = "layers";
    if (*wrong)
        return false;
    return json_object_get(from, "kinds") ? read_kinds(file, from, spec, wrong)
                                          : read_alike(file, from, spec, wrong);
}

enum ctl_exit ctl_spec_read(const char *path, banyan_spec *spec, struct ctl_spec_file **out)
{
    json_error_t error;
    const char *wrong = NULL;
    json_t *from = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!from)
        return ctl_say(CTL_FILE, "--spec: %.200s:%d: %.150s", path, error.line, error.text);
    struct ctl_spec_file *file = calloc(1, sizeof *file);
    *spec = (banyan_spec){.layers = 1};
    bool ok = file && read_spec(file, from, spec, &wrong);
    json_decref(from);
    if (ok) {
        *out = file;
        return CTL_OK;
    }
    ctl_spec_file_free(file);
    return file ? ctl_say(CTL_REFUSED,
                          "--spec: %.200s: '%s' is wrong, or its list is not as long as it must be", path,
                          wrong)
                : ctl_say(CTL_INTERNAL, "out of memory");
}
