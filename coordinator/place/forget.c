// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/forget.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/repair.h"
#include "proto/model/spec.h"

// ---- born with a floor ---------------------------------------------------------------------------

enum common_code coordinator_forget_born_check(const Banyan__Pb__Spec *spec, uint64_t floor,
                                               uint64_t max_tokens, struct proto_status *status)
{
    if (floor && !spec->forget)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                "the session cannot begin with a floor (%" PRIu64
                                "): its specification forgets nothing",
                                floor);
    if (floor > max_tokens)
        return proto_status_set(status, COMMON_OUT_OF_RANGE, "LIMIT",
                                "the floor %" PRIu64 " is past the limit of %" PRIu64 " tokens a session",
                                floor, max_tokens);
    if (floor / spec->chunk_tokens > COORDINATOR_FORGET_CHUNKS)
        return proto_status_set(status, COMMON_OUT_OF_RANGE, "LIMIT",
                                "there are more than %u chunks of %u tokens below the floor %" PRIu64
                                ": choose larger ones",
                                COORDINATOR_FORGET_CHUNKS, spec->chunk_tokens, floor);
    return COMMON_OK;
}

void coordinator_forget_born(struct coordinator_session *s, struct coordinator_batch *batch)
{
    uint64_t ct = s->layout.chunk_tokens;
    for (uint32_t l = 0; s->floor && l < s->spec->layers; l++) {
        uint64_t whole = coordinator_session_forgotten(s, l) / ct * ct;
        if (!whole)
            continue;
        if (!coordinator_rangeset_add(&s->layers[l], 0, whole, NULL))
            abort();
        coordinator_batch_range(batch, s->id, l, 0, whole);
    }
    coordinator_session_count_tokens(s);
}

uint64_t coordinator_forget_chunks(const struct coordinator_session *s)
{
    uint64_t most = 0, ct = s->layout.chunk_tokens;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        uint64_t forgotten = coordinator_session_forgotten(s, l);
        most = forgotten > most ? forgotten : most;
    }
    return (most + ct - 1) / ct;
}

// ---- a floor that rises --------------------------------------------------------------------------

// A holder that cannot be told is asked and told again; it keeps rows meanwhile that nobody asks for.
struct floor_message {
    struct coordinator_gather *gather;
    struct coordinator_session *s; // stays: it is counted in s->shared
    struct coordinator_worker *w;
};

static void holder_told(void *arg, enum common_code code, const char *text)
{
    struct floor_message told = *(struct floor_message *)arg;
    free(arg);
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt(told.s, told.w);
    coordinator_gather_finish(told.gather, COMMON_OK, "");
}

static void all_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("floor_told");
    (void)code, (void)text;
    coordinator_session_unshare(arg);
}

static void tell(struct coordinator_session *s, struct coordinator_worker *w,
                 struct coordinator_gather *gather)
{
    struct coordinator_layout_message m = {.session = s->id,
                                           .incarnation = s->incarnation,
                                           .epoch = s->layout.epoch,
                                           .spec = s->spec,
                                           .forgotten = s->floor};
    struct floor_message *message = coordinator_alloc(sizeof(*message));
    *message = (struct floor_message){.gather = gather, .s = s, .w = w};
    coordinator_gather_add(gather);
    struct coordinator_gather *own = coordinator_gather_new(&s->sessions->core->turn, holder_told, message);
    coordinator_layout_send(w, &m, own);
    coordinator_gather_seal(own);
}

static void floor_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("floor_stored");
    struct coordinator_session *s = arg;
    uint64_t floor = s->floor_next;
    (void)text;
    s->floor_next = 0;
    if (code != COMMON_OK) {
        s->forget_again_ns = common_clock_after(COMMON_NS_PER_S);
        coordinator_session_unshare(s);
        return;
    }
    coordinator_session_set_floor(s, floor);
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, all_told, s);
    for (uint32_t i = 0; i < s->n_members; i++) {
        if (coordinator_worker_active(s->members[i]))
            tell(s, s->members[i], gather);
        else
            coordinator_session_dirty(s, s->members[i]);
    }
    coordinator_gather_seal(gather);
}

// Where the layer's newest write began, or the hole before it.
static uint64_t write_of(const struct coordinator_session *s, uint32_t layer)
{
    uint64_t length = coordinator_rangeset_length(&s->layers[layer]);
    return s->newest[layer] < length ? s->newest[layer] : length;
}

void coordinator_forget_wrote(struct coordinator_session *s, uint32_t layer, uint64_t first)
{
    if (!s->newest)
        return;
    s->newest[layer] = first;
    uint64_t least = write_of(s, layer), margin = s->spec->forget, rises = s->floor + s->layout.chunk_tokens;
    if (least < margin || least - margin < rises || s->floor_next || s->sessions->core->stopping ||
        common_clock_ns() < s->forget_again_ns)
        return; // almost always, and without a look at every layer
    for (uint32_t l = 0; l < s->spec->layers; l++)
        if (proto_spec_stores(s->spec, l) && write_of(s, l) < least)
            least = write_of(s, l);
    if (least < margin || least - margin < rises)
        return;
    s->floor_next = least - margin;
    coordinator_session_share(s); // what wants the session alone waits until the holders have heard
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_floor(batch, s->id, s->floor_next);
    coordinator_store_submit(s->sessions->store, batch, floor_stored, s);
}

void coordinator_forget_cut(struct coordinator_session *s, uint64_t length)
{
    for (uint32_t l = 0; s->newest && l < s->spec->layers; l++)
        s->newest[l] = s->newest[l] < length ? s->newest[l] : length;
    if (length == 0)
        coordinator_session_set_floor(s, 0);
}

enum common_code coordinator_forget_check(const struct coordinator_session *s, uint64_t length,
                                          const char *what, struct proto_status *status)
{
    for (uint32_t l = 0; length && l < s->spec->layers; l++) {
        uint64_t forgotten = coordinator_session_forgotten(s, l),
                 needed = proto_spec_forgotten(s->spec, l, length);
        if (needed >= forgotten)
            continue;
        proto_status_set(status, COMMON_FAILED_PRECONDITION, "FORGOTTEN",
                         "%s to %" PRIu64
                         " is refused: a row there sees keys of layer %u from position %" PRIu64
                         " on, and those below %" PRIu64 " are forgotten; %" PRIu64
                         " and beyond are possible, and 0",
                         what, length, l, needed, forgotten, s->floor);
        status->session = s->id;
        status->layer = l;
        proto_status_add_range(status, needed, forgotten - needed);
        return status->code;
    }
    return COMMON_OK;
}
