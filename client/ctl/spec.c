// SPDX-License-Identifier: Apache-2.0
// A session's spec in files and as lines: what 'session create --spec' reads and 'session show' says.
#include "client/ctl/spec.h"

#include <stdio.h>
#include <string.h>

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

enum ctl_exit ctl_spec_read(const char *path, banyan_spec *spec, struct snapshot_spec_memory **out)
{
    json_error_t error;
    const char *wrong;
    json_t *from = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!from)
        return ctl_say(CTL_FILE, "--spec: %.200s:%d: %.150s", path, error.line, error.text);
    *out = snapshot_spec_parse(from, spec, &wrong);
    json_decref(from);
    if (*out)
        return CTL_OK;
    return wrong ? ctl_say(CTL_REFUSED, "--spec: %.200s: '%s' is wrong, or its list has the wrong length",
                           path, wrong)
                 : ctl_say(CTL_INTERNAL, "out of memory");
}
