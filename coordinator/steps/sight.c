// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/sight.h"

bool coordinator_item_looks_ahead(const struct coordinator_item *item, const struct coordinator_session *s)
{
    return coordinator_item_sees_all(item, s) ||
           coordinator_item_visible(item) > coordinator_session_layer_length(s, item->ask.layer);
}

// What its first row sees begins where that of the later ones does, or before; a block may begin before that, and end
// after what its last row sees.
void coordinator_item_sees(const struct coordinator_item *item, const struct coordinator_session *s,
                           uint64_t *from, uint64_t *to)
{
    const struct coordinator_item_ask *ask = &item->ask;
    const struct proto_layer layer = proto_spec_layer(s->spec, ask->layer);
    uint64_t end = ask->first + ask->rows, block_end = ask->block_first + ask->block_count;
    bool in_block = ask->block_first < end && block_end > ask->first;
    *from = proto_layer_from(&layer, ask->first);
    if (in_block && ask->block_first < *from)
        *from = ask->block_first;
    if (in_block && block_end > end)
        end = block_end;
    *to = layer.not_causal || end > item->way.visible ? item->way.visible : end;
    *to = *to > *from ? *to : *from;
}
