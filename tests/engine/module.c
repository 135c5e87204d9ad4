// SPDX-License-Identifier: Apache-2.0
// An engine in a module for tests of what is around it: carries partials as `stream` does, and forms a group
// of all that have the same BANYAN_TEST_GROUP (ID/SIZE). It is lost while the file BANYAN_TEST_LOST is there,
// and refuses plans while BANYAN_TEST_REFUSE is.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reduce/module.h"
#include "reduce/tree.h"

static bool there(const char *variable)
{
    const char *path = getenv(variable);
    return path && access(path, F_OK) == 0;
}

static enum common_code parrot_open(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                    struct reduce_group **out, struct common_error *err)
{
    if (there("BANYAN_TEST_REFUSE") || there("BANYAN_TEST_LOST"))
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "the parrot does not want to");
    return reduce_tree_open(env, spec, out, err);
}

static const struct reduce_engine_ops ops = {
    .name = "parrot",
    .repeatable = true,
    .open = parrot_open,
    .close = reduce_tree_close,
    .begin = reduce_tree_begin,
    .contribute = reduce_tree_contribute,
    .cancel = reduce_tree_cancel,
};

static enum common_code join(const struct reduce_module_self *self, struct reduce_module_group *out,
                             struct common_error *err)
{
    const char *group = getenv("BANYAN_TEST_GROUP");
    *out = (struct reduce_module_group){.algorithm = "repeats-1"};
    if (!group || sscanf(group, "%64[^/]/%u", out->id, &out->size) != 2)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "the parrot has no group");
    out->rank = (uint32_t)atoi(self->worker + 1); // "w0", "w1", ...
    return COMMON_OK;
}

static bool lost(struct common_error *err)
{
    common_error_set(err, COMMON_UNAVAILABLE, "the parrot has flown");
    return there("BANYAN_TEST_LOST");
}

static void leave(int exit_code)
{
    (void)exit_code;
}

extern const struct reduce_module reduce_engine_module_2;
__attribute__((visibility("default"))) const struct reduce_module reduce_engine_module_2 = {
    .abi = REDUCE_MODULE_ABI,
    .size = sizeof(struct reduce_module),
    .build = PARROT_BUILD,
    .ops = &ops,
    .join = join,
    .lost = lost,
    .leave = leave,
};
