// SPDX-License-Identifier: Apache-2.0
// The engine `stream`: each parent calls its children over stream edges and merges their answers in rank
// order, whatever the order of arrival (tree.c).
#include "reduce/tree.h"

const struct reduce_engine_ops reduce_engine_stream = {
    .name = "stream",
    .repeatable = true,
    .open = reduce_tree_open,
    .close = reduce_tree_close,
    .begin = reduce_tree_begin,
    .contribute = reduce_tree_contribute,
    .cancel = reduce_tree_cancel,
};
