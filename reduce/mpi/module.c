// SPDX-License-Identifier: Apache-2.0
// The engine `mpi`: the plan's tree (reduce/tree.h) with MPI messages in place of answers on the stream
// edges.
#include <stdlib.h>
#include <string.h>

#include "reduce/module.h"
#include "reduce/mpi/world.h"
#include "reduce/tree.h"

struct carrier {
    struct reduce_carrier base;
    int parent;  // MPI rank; −1 on the root
    int ranks[]; // MPI ranks by rank in the plan
};

static enum common_code carrier_expect(struct reduce_carrier *base, const struct proto_step *step,
                                       uint32_t rank, size_t bytes, uint32_t traces,
                                       proto_step_done_fn arrived, void *arg, struct reduce_parcel **out,
                                       struct common_error *err)
{
    const struct carrier *carrier = (const struct carrier *)base;
    const struct mpi_expected what = {.step = step,
                                      .source = carrier->ranks[rank],
                                      .bytes = bytes,
                                      .traces = traces,
                                      .arrived = arrived,
                                      .arg = arg};
    return mpi_world_expect(&what, out, err);
}

static void carrier_forget(struct reduce_carrier *base, struct reduce_parcel *parcel)
{
    (void)base;
    mpi_world_forget(parcel);
}

static void carrier_look(struct reduce_carrier *base)
{
    (void)base;
    mpi_world_look();
}

static void carrier_ring(struct reduce_carrier *base, struct reduce_parcel *parcel)
{
    (void)base;
    mpi_world_ring(parcel);
}

static enum common_code carrier_send(struct reduce_carrier *base, const struct proto_step *step,
                                     const struct proto_step_result *result,
                                     const struct common_blob *partials, struct common_error *err)
{
    const struct carrier *carrier = (const struct carrier *)base;
    return mpi_world_send(step, carrier->parent, result, partials, err);
}

static void carrier_close(struct reduce_carrier *base)
{
    mpi_world_release();
    free(base);
}

static const struct reduce_carrier_ops carrier_ops = {
    .expect = carrier_expect,
    .forget = carrier_forget,
    .look = carrier_look,
    .ring = carrier_ring,
    .send = carrier_send,
    .close = carrier_close,
};

static enum common_code carrier_new(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                    struct reduce_carrier **out, struct common_error *err)
{
    struct common_error why;
    if (mpi_world_lost(&why))
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "the engine mpi is lost: %.200s",
                                why.message);
    struct carrier *carrier = calloc(1, sizeof *carrier + spec->n * sizeof *carrier->ranks);
    if (!carrier)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
    carrier->base.ops = &carrier_ops;
    carrier->parent = -1;
    for (uint32_t r = 0; r < spec->n; r++) {
        const char *name = spec->members[r].name;
        carrier->ranks[r] = memchr(name, 0, sizeof spec->members[r].name) ? mpi_world_rank_of(name) : -1;
        if (carrier->ranks[r] < 0) {
            free(carrier);
            return common_error_set(err, COMMON_FAILED_PRECONDITION, "worker %.64s is not in this group",
                                    name);
        }
    }
    int32_t parent = spec->members[spec->self].parent;
    if (parent >= 0)
        carrier->parent = carrier->ranks[parent];
    if (mpi_world_acquire(env->loop) != COMMON_OK) {
        free(carrier);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan");
    }
    *out = &carrier->base;
    return COMMON_OK;
}

static enum common_code mpi_open(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                 struct reduce_group **out, struct common_error *err)
{
    struct reduce_group *group;
    enum common_code code = reduce_tree_open(env, spec, &group, err);
    if (code != COMMON_OK)
        return code;
    code = carrier_new(env, spec, &group->carrier, err);
    if (code != COMMON_OK) {
        reduce_tree_free(group);
        return code;
    }
    *out = group;
    return COMMON_OK;
}

static const struct reduce_engine_ops ops = {
    .name = "mpi",
    .repeatable = true,
    .open = mpi_open,
    .close = reduce_tree_close,
    .begin = reduce_tree_begin,
    .contribute = reduce_tree_contribute,
    .cancel = reduce_tree_cancel,
};

static enum common_code module_join(const struct reduce_module_self *self, struct reduce_module_group *out,
                                    struct common_error *err)
{
    enum common_code code = mpi_world_join(self->worker, out, err);
    strcpy(out->algorithm, "tree-1"); // children in rank order, as `stream`
    return code;
}

extern const struct reduce_module reduce_engine_module_2;
__attribute__((visibility("default"))) const struct reduce_module reduce_engine_module_2 = {
    .abi = REDUCE_MODULE_ABI,
    .size = sizeof(struct reduce_module),
    .build = REDUCE_MODULE_BUILD,
    .ops = &ops,
    .join = module_join,
    .lost = mpi_world_lost,
    .leave = mpi_world_leave,
};
