// SPDX-License-Identifier: Apache-2.0
// The engine `stream`: each parent calls its children over stream edges and merges their answers in rank
// order, whatever the order of arrival (tree.c).
#include "reduce/tree.h"

static enum common_code stream_open(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                    struct reduce_group **out, struct common_error *err)
{
    return reduce_tree_open(env, spec, NULL, out, err);
}

const struct reduce_engine_ops reduce_engine_stream = {
    .name = "stream",
    .repeatable = true,
    .open = stream_open,
    .close = reduce_tree_close,
    .begin = reduce_tree_begin,
    .contribute = reduce_tree_contribute,
    .cancel = reduce_tree_cancel,
};
