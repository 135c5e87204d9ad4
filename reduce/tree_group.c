// SPDX-License-Identifier: Apache-2.0
// A rank's view of the plan's tree: its children, whom each rank below it is reached by, and in which order
// frames are sent to them: the deepest subtree first, as it answers last; of equals the lower rank first.
#include <stdlib.h>
#include <string.h>

#include "reduce/plan.h"
#include "reduce/topology.h"
#include "reduce/tree.h"

// Sizes of all subtrees, from parents alone. False: no pre-order tree.
static bool measure_subtrees(const struct reduce_group_spec *spec, uint32_t *subtree, uint32_t *next)
{
    if (spec->members[0].parent != -1)
        return false;
    for (uint32_t r = 0; r < spec->n; r++)
        subtree[r] = 1;
    for (uint32_t r = spec->n; r-- > 1;) {
        if (spec->members[r].parent < 0 || (uint32_t)spec->members[r].parent >= r)
            return false;
        subtree[spec->members[r].parent] += subtree[r];
    }
    for (uint32_t r = 0; r < spec->n; r++) { // next[r]: where its next child has to stand
        next[r] = r + 1;
        if (r > 0) {
            uint32_t parent = (uint32_t)spec->members[r].parent;
            if (next[parent] != r)
                return false;
            next[parent] += subtree[r];
        }
    }
    return true;
}

static bool text_ends(const char *text, size_t len)
{
    return memchr(text, 0, len) != NULL;
}

static enum common_code add_children(struct reduce_group *group, const struct reduce_group_spec *spec,
                                     const uint32_t *subtree, struct common_error *err)
{
    for (uint32_t r = group->self + 1; r < group->self + group->subtree; r += subtree[r]) {
        const struct reduce_group_member *member = &spec->members[r];
        if (!text_ends(member->name, sizeof member->name) ||
            !text_ends(member->edge_endpoint, sizeof member->edge_endpoint))
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "member %u: its name or endpoint does not end", r);
        struct reduce_tree_child *child = &group->children[group->n_children];
        child->rank = r;
        child->subtree = subtree[r];
        memcpy(child->name, member->name, sizeof child->name);
        for (uint32_t i = r; i < r + subtree[r]; i++)
            group->child_of[i - group->self] = group->n_children;
        enum common_code code =
            reduce_edge_acquire(group->env.edges, member->edge_endpoint, &child->edge, err);
        if (code != COMMON_OK)
            return code;
        group->n_children++;
    }
    return COMMON_OK;
}

static bool order_sends(struct reduce_group *group, const struct reduce_group_spec *spec)
{
    int32_t *parents = calloc(spec->n, sizeof *parents);
    uint32_t *heights = calloc(spec->n, sizeof *heights), *ranks = calloc(spec->n, sizeof *ranks);
    bool ok = parents && heights && ranks;
    if (ok) {
        for (uint32_t r = 0; r < spec->n; r++)
            parents[r] = spec->members[r].parent;
        for (uint32_t c = 0; c < group->n_children; c++)
            ranks[c] = group->children[c].rank;
        reduce_topology_heights(parents, spec->n, heights);
        reduce_topology_send_order(ranks, group->n_children, heights, group->send_order);
    }
    free(ranks);
    free(heights);
    free(parents);
    return ok;
}

void reduce_tree_free(struct reduce_group *group)
{
    if (!group)
        return;
    for (uint32_t c = 0; c < group->n_children; c++)
        reduce_edge_release(group->children[c].edge);
    if (group->carrier)
        group->carrier->ops->close(group->carrier);
    free(group->children);
    free(group->send_order);
    free(group->child_of);
    free(group->holds);
    free(group);
}

enum common_code reduce_tree_open(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                  struct reduce_group **out, struct common_error *err)
{
    enum common_code code = COMMON_OK;
    struct reduce_group *group = NULL;
    uint32_t *subtree = NULL, *scratch = NULL;
    if (spec->n == 0 || spec->n > REDUCE_PLAN_MEMBERS_MAX || spec->self >= spec->n)
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "rank %u of %u members: a plan has 1 to %d",
                                spec->self, spec->n, REDUCE_PLAN_MEMBERS_MAX);
    else if (!env->edges)
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "reduce_env.edges is not set");
    if (code != COMMON_OK)
        goto out;
    group = calloc(1, sizeof *group);
    subtree = calloc(spec->n, sizeof *subtree);
    scratch = calloc(spec->n, sizeof *scratch);
    if (!group || !subtree || !scratch) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
        goto out;
    }
    if (!measure_subtrees(spec, subtree, scratch)) {
        code = common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the members' parents do not form a pre-order tree");
        goto out;
    }
    group->env = *env;
    group->self = spec->self;
    group->subtree = subtree[spec->self];
    group->children = calloc(group->subtree, sizeof *group->children);
    group->send_order = calloc(group->subtree, sizeof *group->send_order);
    group->child_of = calloc(group->subtree, sizeof *group->child_of);
    group->holds = calloc(group->subtree, sizeof *group->holds);
    if (!group->children || !group->send_order || !group->child_of || !group->holds) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
        goto out;
    }
    code = add_children(group, spec, subtree, err);
    if (code != COMMON_OK)
        goto out;
    if (!order_sends(group, spec)) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
        goto out;
    }
    *out = group;
    group = NULL;

out:
    free(scratch);
    free(subtree);
    reduce_tree_free(group);
    return code;
}
