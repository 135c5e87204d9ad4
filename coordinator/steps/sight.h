// SPDX-License-Identifier: Apache-2.0
// What an item's rows see: positions alone, without a look at what is there. Pure.
#ifndef COORDINATOR_SIGHT_H
#define COORDINATOR_SIGHT_H

#include "coordinator/session/session.h"
#include "coordinator/steps/item.h"

// Up to its own end and that of its block, unless it says otherwise.
static inline uint64_t coordinator_item_visible(const struct coordinator_item *item)
{
    uint64_t end = item->ask.first + item->ask.rows,
             block_end = item->ask.block_first + item->ask.block_count;
    return item->ask.visible ? item->ask.visible : block_end > end && item->ask.block_count ? block_end : end;
}

// Rows of a layer without a causal mask see all of it, however long it is.
static inline bool coordinator_item_sees_all(const struct coordinator_item *item,
                                             const struct coordinator_session *s)
{
    return !item->ask.visible && proto_spec_layer(s->spec, item->ask.layer).not_causal;
}

// Whether what it looks at may come to be by appends that are ahead of it.
bool coordinator_item_looks_ahead(const struct coordinator_item *item, const struct coordinator_session *s);

// The keys [*from, *to) that its rows see together, of those below way.visible, by the masks of its layer: they stand
// beside each other, and so does what they see.
void coordinator_item_sees(const struct coordinator_item *item, const struct coordinator_session *s,
                           uint64_t *from, uint64_t *to);

#endif
