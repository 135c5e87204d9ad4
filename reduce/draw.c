// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reduce/plan.h"
#include "reduce/topology.h"

struct text {
    char *out;
    size_t len, used; // used may pass len: it counts what is needed
};

static void put(struct text *text, const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++, text->used++) {
        if (text->used + 1 < text->len)
            text->out[text->used] = s[i];
    }
}

// The strokes in front of rank r: for each ancestor below the root a bar if siblings follow, then its own
// branch.
static void put_strokes(struct text *text, const struct reduce_plan *plan, uint32_t r, uint32_t *path)
{
    uint32_t depth = 0;
    for (uint32_t at = r; plan->nodes[at].parent >= 0; at = (uint32_t)plan->nodes[at].parent)
        path[depth++] = at;
    for (uint32_t i = depth; i-- > 0;) {
        const struct reduce_node *node = &plan->nodes[path[i]];
        uint32_t parent = (uint32_t)node->parent;
        bool last = path[i] + node->subtree == parent + plan->nodes[parent].subtree;
        if (i > 0)
            put(text, last ? "   " : "│  ");
        else
            put(text, last ? "└─ " : "├─ ");
    }
}

size_t reduce_plan_draw(const struct reduce_plan *plan, const struct reduce_member *members, char *out,
                        size_t len)
{
    struct text text = {out, len, 0};
    uint32_t *path = calloc(plan->n, sizeof *path);
    for (uint32_t r = 0; r < plan->n && path; r++) {
        const struct reduce_node *node = &plan->nodes[r];
        const struct reduce_member *m = &members[node->member];
        put_strokes(&text, plan, r, path);
        put(&text, m->name);
        if (node->parent < 0 || strcmp(m->host, members[plan->nodes[node->parent].member].host) != 0) {
            put(&text, " @ ");
            put(&text, m->host);
        }
        put(&text, "\n");
    }
    free(path);
    if (len > 0)
        out[text.used < len ? text.used : len - 1] = 0;
    return text.used;
}
