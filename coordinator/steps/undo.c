// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/undo.h"

#include "common/base/failpoint.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/item.h"
#include "coordinator/sync/repair.h"

struct word { // one holder's
    struct coordinator_gather *gather;
    struct coordinator_session *s; // in use by the item until all have spoken
    struct coordinator_worker *w;  // its record stays
};

static void holder_said(void *arg, const struct proto_reply *reply)
{
    COMMON_FAILPOINT("undo_answered");
    struct word word = *(struct word *)arg;
    bool gone = reply->code == COMMON_NOT_FOUND; // with all that it had of the session
    free(arg);
    if (reply->code != COMMON_OK && !gone)
        coordinator_session_doubt(word.s, word.w);
    coordinator_gather_finish(word.gather, gone ? COMMON_OK : reply->code, reply->text);
}

static void tell(struct coordinator_session *s, const struct coordinator_item *item,
                 struct coordinator_worker *w, struct coordinator_gather *gather)
{
    coordinator_gather_add(gather);
    if (!coordinator_worker_active(w)) {
        coordinator_gather_finish(gather, COMMON_UNAVAILABLE, "a holder is not connected");
        return;
    }
    struct word *word = coordinator_alloc(sizeof(*word));
    *word = (struct word){gather, s, w};
    Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    m.term = s->sessions->core->term;
    m.session = s->id;
    m.incarnation = s->incarnation;
    m.layer = item->ask.layer;
    m.first = coordinator_session_layer_length(s, item->ask.layer);
    m.count = 1;
    m.write = item->write;
    coordinator_worker_call(w, BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base, holder_said, word);
}

void coordinator_undo(struct coordinator_session *s, struct coordinator_item *item,
                      coordinator_gather_fn done)
{
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, done, item);
    uint64_t ct = s->layout.chunk_tokens, end = item->ask.first + item->ask.rows;
    uint32_t from = coordinator_layout_lower(&s->layout, item->ask.first / ct), to = from;
    while (to < s->layout.n && (uint64_t)s->layout.chunks[to].index * ct < end)
        to++;
    for (uint32_t i = from; i < to; i++)
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(&s->layout.chunks[i]); copy++) {
            struct coordinator_worker *w = coordinator_chunk_holder(&s->layout.chunks[i], copy);
            bool told = false;
            for (uint32_t k = from; k < i; k++)
                told = told || coordinator_chunk_copy_at(&s->layout.chunks[k], w) < COORDINATOR_COPIES_MAX;
            if (!told)
                tell(s, item, w, gather);
        }
    coordinator_gather_seal(gather);
}
