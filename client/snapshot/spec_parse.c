// SPDX-License-Identifier: Apache-2.0
// JSON becomes a banyan_spec. Types and lengths are checked here, values by the coordinator.
#include "client/snapshot/spec_json.h"

#include <stdlib.h>
#include <string.h>

#define KINDS_MAX  64
#define LAYERS_MAX 1024
#define HEADS_MAX  1024

struct snapshot_spec_memory { // what a spec that was read points to
    banyan_kind kinds[KINDS_MAX];
    uint32_t layer_kind[LAYERS_MAX], shares[LAYERS_MAX];
    float *sinks[LAYERS_MAX];
    float *lists[KINDS_MAX + LAYERS_MAX + 2]; // of slopes and sinks, to be freed
    uint32_t n_lists;
};

void snapshot_spec_free(struct snapshot_spec_memory *file)
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
static bool read_floats(struct snapshot_spec_memory *file, const json_t *list, uint32_t n, const char *key,
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

static bool read_kind(struct snapshot_spec_memory *file, const json_t *from, banyan_kind *kind,
                      const char **wrong)
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

static bool read_layer_sinks(struct snapshot_spec_memory *file, const json_t *from, banyan_spec *spec,
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

static bool read_kinds(struct snapshot_spec_memory *file, const json_t *from, banyan_spec *spec,
                       const char **wrong)
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

static bool read_alike(struct snapshot_spec_memory *file, const json_t *from, banyan_spec *spec,
                       const char **wrong)
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

static bool read_spec(struct snapshot_spec_memory *file, const json_t *from, banyan_spec *spec,
                      const char **wrong)
{
    const json_t *type = json_object_get(from, "kv_type");
    spec->kv_type = !type                  ? BANYAN_BF16
                    : json_is_string(type) ? snapshot_type_parse(json_string_value(type))
                                           : (banyan_kv_type)0;
    if (!json_is_object(from))
        *wrong = "the whole";
    else if (!spec->kv_type)
        *wrong = "kv_type";
    if (*wrong || !read_u32(from, "layers", &spec->layers, wrong) ||
        !read_u32(from, "chunk_tokens", &spec->chunk_tokens, wrong) ||
        !read_u32(from, "members_min", &spec->members, wrong) ||
        !read_u32(from, "replicas", &spec->replicas, wrong) ||
        !read_u64(from, "idle_ttl_ns", INT64_MAX, &spec->idle_ttl_ns, wrong) ||
        !read_u64(from, "forget", INT64_MAX, &spec->forget, wrong))
        return false;
    if (spec->layers < 1 || spec->layers > LAYERS_MAX)
        *wrong = "layers";
    if (*wrong)
        return false;
    return json_object_get(from, "kinds") ? read_kinds(file, from, spec, wrong)
                                          : read_alike(file, from, spec, wrong);
}

struct snapshot_spec_memory *snapshot_spec_parse(const json_t *from, banyan_spec *spec, const char **wrong)
{
    struct snapshot_spec_memory *file = calloc(1, sizeof *file);
    *wrong = NULL;
    *spec = (banyan_spec){.layers = 1};
    if (file && read_spec(file, from, spec, wrong))
        return file;
    snapshot_spec_free(file);
    return NULL;
}
