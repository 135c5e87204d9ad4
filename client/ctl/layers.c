// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/layers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/spec.h"

// Where a tensor with the name of one of a layer's belongs; NULL: another name.
static const struct common_safetensor **place_of(struct ctl_kv *kv, const char *which)
{
    return strcmp(which, "k") == 0         ? &kv->k
           : strcmp(which, "v") == 0       ? &kv->v
           : strcmp(which, "k_scale") == 0 ? &kv->k_scale
           : strcmp(which, "v_scale") == 0 ? &kv->v_scale
                                           : NULL;
}

// "layers.N.k", ".v", ".k_scale" or ".v_scale".
static bool parse_name(const char *name, uint32_t *layer, const char **which)
{
    unsigned number;
    int len = 0;
    struct ctl_kv none;
    if (sscanf(name, "layers.%4u.%n", &number, &len) != 1 || len == 0 || !place_of(&none, name + len))
        return false;
    char back[32];
    snprintf(back, sizeof back, "layers.%u.%s", number, name + len);
    *layer = number;
    *which = name + len;
    return strcmp(back, name) == 0; // no second spelling
}

enum ctl_exit ctl_layers_collect(const struct common_safetensors *file, const banyan_spec *spec,
                                 uint64_t only, struct ctl_kv *layers, uint32_t *n_layers)
{
    *n_layers = 0;
    for (size_t i = 0; i < common_safetensors_count(file); i++) {
        const struct common_safetensor *t = common_safetensors_at(file, i);
        uint32_t layer;
        const char *which;
        if (!parse_name(t->name, &layer, &which)) {
            fprintf(stderr,
                    "banyanctl: tensor '%.80s' is skipped: names are layers.N.k, layers.N.v, "
                    "layers.N.k_scale and layers.N.v_scale\n",
                    t->name);
            continue;
        }
        if (only != CTL_LAYERS_ALL && layer != only)
            continue;
        if (layer >= spec->layers)
            return ctl_say(CTL_REFUSED, "tensor '%.80s': the session has layers 0 to %u", t->name,
                           spec->layers - 1);
        *place_of(&layers[layer], which) = t;
    }
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        const struct ctl_kv *kv = &layers[layer];
        if (!kv->k && !kv->v && !kv->k_scale && !kv->v_scale)
            continue;
        char prefix[24];
        snprintf(prefix, sizeof prefix, "layers.%u.", layer);
        enum ctl_exit exit_code = ctl_kv_wanted(kv, spec, layer, prefix);
        if (exit_code == CTL_OK)
            exit_code = ctl_kv_check(kv, spec, layer);
        if (exit_code != CTL_OK)
            return exit_code;
        ++*n_layers;
    }
    if (*n_layers > 0)
        return CTL_OK;
    if (only != CTL_LAYERS_ALL)
        return ctl_say(CTL_REFUSED, "layers.%" PRIu64 ".k and layers.%" PRIu64 ".v are not in the file", only,
                       only);
    return ctl_say(CTL_REFUSED, "the file has no tensors named layers.N.k and layers.N.v");
}

static enum ctl_exit send_layer(banyan_session *session, uint32_t layer, const struct ctl_kv *kv,
                                uint64_t first)
{
    const banyan_spec *spec = banyan_session_spec(session);
    struct ctl_kv_rows rows;
    banyan_error error;
    enum ctl_exit exit_code = ctl_kv_rows(kv, spec, &rows);
    if (exit_code != CTL_OK)
        return exit_code;
    uint64_t count = kv->k->dims[0];
    banyan_code code = banyan_kv_scaled(spec->kv_type)
                           ? banyan_attach_scaled(session, layer, first, count, rows.k, rows.k_scale, rows.v,
                                                  rows.v_scale, &error)
                           : banyan_attach(session, layer, first, count, rows.k, rows.v, &error);
    free(rows.memory);
    return code == BANYAN_OK ? CTL_OK : ctl_fail(&error);
}

enum ctl_exit ctl_layers_send(banyan_session *session, const struct ctl_kv *layers, uint64_t first,
                              bool commit, struct ctl_layers_sent *sent)
{
    const banyan_spec *spec = banyan_session_spec(session);
    banyan_error error;
    *sent = (struct ctl_layers_sent){0};
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        const struct ctl_kv *kv = &layers[layer];
        if (!kv->k)
            continue;
        enum ctl_exit exit_code = send_layer(session, layer, kv, first);
        if (exit_code != CTL_OK)
            return exit_code;
        sent->bytes += kv->k->bytes + (kv->v ? kv->v->bytes : 0);
        sent->bytes += (kv->k_scale ? kv->k_scale->bytes : 0) + (kv->v_scale ? kv->v_scale->bytes : 0);
        sent->tokens = kv->k->dims[0] > sent->tokens ? kv->k->dims[0] : sent->tokens;
    }
    for (uint32_t layer = 0; layer < spec->layers && commit; layer++)
        if (layers[layer].k &&
            banyan_commit(session, layer, first, layers[layer].k->dims[0], &error) != BANYAN_OK)
            return ctl_fail(&error);
    return CTL_OK;
}

static void settle(uint32_t *number, uint64_t of_file)
{
    if (*number == 0)
        *number = of_file < UINT32_MAX ? (uint32_t)of_file : UINT32_MAX;
}

void ctl_layers_shape(const struct common_safetensors *file, banyan_spec *spec)
{
    uint32_t layers = 0;
    for (size_t i = 0; i < common_safetensors_count(file); i++) {
        const struct common_safetensor *t = common_safetensors_at(file, i);
        uint32_t layer;
        const char *which;
        if (!parse_name(t->name, &layer, &which))
            continue;
        layers = layer + 1 > layers ? layer + 1 : layers;
        if (t->n_dims != 3) // scales, or what is refused when it is collected
            continue;
        settle(&spec->kv_heads, t->dims[1]);
        settle(strcmp(which, "k") == 0 ? &spec->k_dim : &spec->v_dim, t->dims[2]);
        if (!spec->kv_type)
            spec->kv_type = (banyan_kv_type)t->dtype;
    }
    settle(&spec->layers, layers);
    settle(&spec->q_heads, spec->kv_heads);
    settle(&spec->v_dim, spec->k_dim);
}
