// SPDX-License-Identifier: Apache-2.0
#include "worker/core/warm.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/log/log.h"
#include "proto/model/spec.h"
#include "worker/core/state.h"
#include "worker/disk/fetch.h"

#define LOOK_NS (2 * COMMON_NS_PER_MS) // between two looks at waits for memory and at deadlines
#define ROOM_NS (5 * COMMON_NS_PER_S)  // a request waits for memory for so long at most

enum {
    WAITS_MAX = 2048,
    AHEADS_MAX = 32,  // sessions' layers that are read before they are asked for
    FETCHES_MAX = 16, // at a time: each thread of the disk has others to go on with
};

struct worker_wait {
    struct common_list link; // in warm.waits or warm.aheads
    struct worker_warm *warm;
    struct worker_wants wants;
    uint32_t asked; // those before it are in memory, or on their way
    uint32_t there; // those before it are in memory
    bool started;   // they are wanted: none that is in memory becomes cold
    struct common_error err;
    uint64_t deadline_ns;
    void (*done)(void *arg, const struct common_error *failed); // NULL: no one waits for what is read ahead
    void *arg;
};

struct fetch {               // under way
    struct common_list link; // in warm.fetches
    struct worker_fetch fetch;
    struct worker_warm *warm;
    struct worker_chunk *chunk; // held back
    uint64_t serial;            // of the file that is read
};

struct parked { // a request
    struct worker *worker;
    struct proto_request *request;
    void (*handle)(void *worker, struct proto_request *request);
};

struct worker_room {         // a call waits for memory
    struct common_list link; // in warm.rooms
    struct worker_warm *warm;
    uint64_t until_ns;
    void (*again)(void *arg);
    void *arg;
};

struct worker_warm {
    struct worker *worker;
    struct common_timer *timer;
    struct common_list waits, aheads, rooms, fetches;
    uint32_t n_waits, n_aheads, n_rooms, under_way;
    uint32_t read_ahead;
    bool closed;
};

// ---- a wait -------------------------------------------------------------------------------------

static void wait_start(struct worker_wait *w)
{
    for (uint32_t i = 0; i < w->wants.n && !w->started; i++) // what is read ahead may go again
        if (w->done)
            worker_chunk_want(w->wants.layers[i].chunk, w->wants.layers[i].layer);
    w->started = true;
}

static void wait_free(struct worker_wait *w)
{
    struct worker_store *store = w->warm->worker->store;
    for (uint32_t i = 0; i < w->wants.n; i++) {
        if (w->started && w->done)
            worker_chunk_unwant(store, w->wants.layers[i].chunk, w->wants.layers[i].layer);
        worker_store_let_go(store, w->wants.layers[i].chunk);
    }
    common_list_remove(&w->link);
    *(w->done ? &w->warm->n_waits : &w->warm->n_aheads) -= 1;
    worker_wants_free(&w->wants);
    free(w);
}

static void wait_end(struct worker_wait *w)
{
    common_list_remove(&w->link);
    if (w->done)
        w->done(w->arg, w->err.code == COMMON_OK ? NULL : &w->err);
    wait_free(w);
}

static struct worker_wait *wait_new(struct worker_warm *warm, struct worker_wants *wants)
{
    struct worker_wait *w = wants->failed || warm->closed ? NULL : calloc(1, sizeof *w);
    if (!w) {
        worker_wants_free(wants);
        return NULL;
    }
    w->warm = warm;
    w->wants = *wants;
    *wants = (struct worker_wants){0};
    for (uint32_t i = 0; i < w->wants.n; i++)
        worker_store_hold_back(w->wants.layers[i].chunk);
    return w;
}

struct worker_wait *worker_warm_wait(struct worker_warm *warm, struct worker_wants *wants,
                                     uint64_t deadline_ns,
                                     void (*done)(void *arg, const struct common_error *failed), void *arg)
{
    struct worker_wait *w = NULL;
    if (warm->n_waits < WAITS_MAX)
        w = wait_new(warm, wants);
    else
        worker_wants_free(wants);
    if (!w)
        return NULL;
    w->deadline_ns = deadline_ns;
    w->done = done;
    w->arg = arg;
    common_list_push(&warm->waits, &w->link);
    warm->n_waits++;
    common_timer_start(warm->timer, 0, false); // not on this stack
    return w;
}

void worker_warm_cancel(struct worker_wait *w)
{
    wait_free(w);
}

// ---- loading ------------------------------------------------------------------------------------

static void pump(struct worker_warm *warm);

// Rows that a call waits for do not arrive.
static void fail_waits(struct worker_warm *warm, const struct worker_chunk *chunk, uint32_t layer, int result)
{
    for (struct common_list *at = warm->waits.next; at != &warm->waits; at = at->next) {
        struct worker_wait *w = common_list_entry(at, struct worker_wait, link);
        for (uint32_t i = w->there; i < w->asked && w->err.code == COMMON_OK; i++)
            if (w->wants.layers[i].chunk == chunk && w->wants.layers[i].layer == layer)
                common_error_set(&w->err, result == -ENOMEM ? COMMON_RESOURCE_EXHAUSTED : COMMON_UNAVAILABLE,
                                 "rows of chunk %" PRIu64 " (position %" PRIu64
                                 ") of layer %u cannot be read from the worker's --store: %s",
                                 worker_chunk_id(chunk), worker_chunk_first(chunk), layer, strerror(-result));
    }
}

// Whether what was read of the file still says something. Not: rows came or went meanwhile, for which all of
// the chunk was loaded on the loop and rewritten; or the layer is not here any more.
static bool still_counts(const struct fetch *f)
{
    return worker_chunk_keep(f->chunk)->serial == f->serial && worker_chunk_cold(f->chunk, f->fetch.layer);
}

// Layers that are on their way no more, and may be cold once again, are asked for once again.
static void ask_again(struct worker_warm *warm)
{
    for (struct common_list *at = warm->waits.next; at != &warm->waits; at = at->next) {
        struct worker_wait *w = common_list_entry(at, struct worker_wait, link);
        w->asked = w->there;
    }
}

static void fetched(void *arg)
{
    struct fetch *f = arg;
    struct worker_warm *warm = f->warm;
    struct worker *worker = warm->worker;
    bool counts = still_counts(f);
    worker_chunk_set_loading(f->chunk, f->fetch.layer, false);
    if (counts && f->fetch.result == 0) {
        worker_store_loaded(worker->store, f->chunk, f->fetch.layer, f->fetch.block, f->fetch.load_ns);
    } else if (!counts) {
        worker_store_dealloc(worker->store, f->fetch.block);
        ask_again(warm);
    } else {
        worker_store_dealloc(worker->store, f->fetch.block);
        fail_waits(warm, f->chunk, f->fetch.layer, f->fetch.result);
        if (worker_fetch_lost(f->fetch.result) &&
            worker_store_find(worker->store, f->fetch.chunk) == f->chunk)
            worker_disk_lost(worker->disk, f->chunk);
        else
            common_log_warn("a chunk cannot be read from --store: %s chunk=%" PRIu64,
                            strerror(-f->fetch.result), f->fetch.chunk);
    }
    worker_shape_unref(f->fetch.shape);
    worker_store_let_go(worker->store, f->chunk);
    common_list_remove(&f->link);
    free(f);
    warm->under_way--;
    worker->n_prepares--;
    worker_disk_tell_lost(worker->disk);
    pump(warm);
    worker_hand_emptied(worker);
}

enum asked { ASKED, ASK_LATER, ASK_NEVER };

// Has it loaded, if it is not on its way.
static enum asked ask(struct worker_warm *warm, struct worker_chunk *chunk, uint32_t layer)
{
    struct worker *worker = warm->worker;
    bool pinned = false;
    if (!worker_chunk_cold(chunk, layer) || worker_chunk_loading(chunk, layer))
        return ASKED;
    if (warm->under_way >= FETCHES_MAX)
        return ASK_LATER;
    struct worker_shape *shape = (struct worker_shape *)(uintptr_t)worker_chunk_shape(chunk);
    struct fetch *f = calloc(1, sizeof *f);
    uint8_t *block =
        f ? worker_store_alloc(worker->store, worker_shape_form(shape, layer)->block_bytes, &pinned) : NULL;
    if (!block) {
        free(f);
        return pinned || warm->under_way > 0 || worker_disk_hurry(worker->disk) ? ASK_LATER : ASK_NEVER;
    }
    f->warm = warm;
    f->chunk = chunk;
    f->serial = worker_chunk_keep(chunk)->serial;
    f->fetch = (struct worker_fetch){.chunk = worker_chunk_id(chunk),
                                     .first = worker_chunk_first(chunk),
                                     .shape = worker_shape_ref(shape),
                                     .layer = layer,
                                     .block = block,
                                     .ended = fetched,
                                     .arg = f};
    worker_store_hold_back(chunk);
    worker_chunk_set_loading(chunk, layer, true);
    common_list_push(&warm->fetches, &f->link);
    warm->under_way++;
    worker->n_prepares++; // in hand: the process does not end before it has
    worker_disk_fetch(worker->disk, &f->fetch);
    return ASKED;
}

static void no_memory(struct worker_wait *w)
{
    const struct worker_wanted_layer *at = &w->wants.layers[w->asked];
    const struct worker_store *store = w->warm->worker->store;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->wants.n; i++)
        bytes += worker_shape_form(worker_chunk_shape(w->wants.layers[i].chunk), w->wants.layers[i].layer)
                     ->block_bytes;
    common_error_set(
        &w->err, COMMON_RESOURCE_EXHAUSTED,
        "no memory to load the rows of layer %u from --store: the rows needed at once take %" PRIu64
        " bytes, and the worker has %" PRIu64 " for K and V: raise its --memory, or start more workers",
        at->layer, bytes, worker_store_limit(store));
}

// Asks for what it lacks. False: it is to be gone on with when memory or a thread is free.
static bool wait_go_on(struct worker_wait *w)
{
    struct worker_wants *wants = &w->wants;
    wait_start(w);
    while (w->asked < wants->n && w->err.code == COMMON_OK) {
        const struct worker_wanted_layer *at = &wants->layers[w->asked];
        enum asked asked = ask(w->warm, at->chunk, at->layer);
        if (asked == ASK_LATER)
            return false;
        if (asked == ASK_NEVER)
            no_memory(w);
        else
            w->asked++;
    }
    return true;
}

static bool wait_is_over(struct worker_wait *w, uint64_t now_ns)
{
    const struct worker_wants *wants = &w->wants;
    while (w->there < w->asked &&
           !worker_chunk_cold(wants->layers[w->there].chunk, wants->layers[w->there].layer))
        w->there++;
    if (w->err.code == COMMON_OK && w->there < wants->n && now_ns >= w->deadline_ns)
        common_error_set(&w->err, COMMON_DEADLINE_EXCEEDED,
                         "the deadline passed before the rows were loaded from --store");
    return w->err.code != COMMON_OK || w->there == wants->n;
}

// Those that are over end: each by itself, since what it does may begin and end others.
static bool end_one(struct worker_warm *warm, uint64_t now_ns)
{
    for (struct common_list *at = warm->waits.next; at != &warm->waits; at = at->next) {
        struct worker_wait *w = common_list_entry(at, struct worker_wait, link);
        if (!wait_is_over(w, now_ns))
            continue;
        wait_end(w);
        return true;
    }
    return false;
}

// What is read ahead takes what is left. What does not fit is not waited for.
static void pump_ahead(struct worker_warm *warm)
{
    while (!common_list_empty(&warm->aheads)) {
        struct worker_wait *w = common_list_entry(warm->aheads.next, struct worker_wait, link);
        if (!wait_go_on(w) && warm->under_way > 0)
            return;
        wait_free(w);
    }
}

// A wait that ends is out of the list before its `done` runs, which may begin and end others.
static void pump(struct worker_warm *warm)
{
    bool all = true;
    while (end_one(warm, common_clock_ns())) {
    }
    for (struct common_list *at = warm->waits.next; at != &warm->waits && all; at = at->next)
        all = wait_go_on(common_list_entry(at, struct worker_wait, link));
    while (end_one(warm, common_clock_ns())) {
    }
    if (all)
        pump_ahead(warm);
    if (!common_list_empty(&warm->waits) || !common_list_empty(&warm->rooms))
        common_timer_start(warm->timer, LOOK_NS, false);
}

// ---- requests -----------------------------------------------------------------------------------

static struct parked *park(struct worker_warm *warm, void (*handle)(void *, struct proto_request *),
                           struct proto_request *request)
{
    struct parked *p = malloc(sizeof *p);
    if (!p)
        return NULL;
    *p = (struct parked){.worker = warm->worker, .request = request, .handle = handle};
    warm->worker->n_prepares++;
    return p;
}

static struct parked unpark(struct parked *p)
{
    struct parked was = *p;
    free(p);
    was.worker->n_prepares--;
    return was;
}

// Its caller may have gone on to other things while it waited: then what it asks for is not begun.
static void request_go_on(const struct parked *p)
{
    if (proto_request_over(p->request))
        proto_request_fail(p->request, COMMON_CANCELLED, "the deadline passed before the call was started",
                           NULL, 0);
    else
        p->handle(p->worker, p->request);
}

static void request_done(void *arg, const struct common_error *failed)
{
    struct parked p = unpark(arg);
    if (failed)
        worker_fail(p.request, failed, PROTO_REASON_NONE);
    else
        request_go_on(&p);
    worker_hand_emptied(p.worker);
}

void worker_warm_request(struct worker_warm *warm, struct worker_wants *wants,
                         void (*handle)(void *, struct proto_request *), struct proto_request *request)
{
    struct parked *p = park(warm, handle, request);
    if (p && worker_warm_wait(warm, wants, proto_request_deadline(request), request_done, p))
        return;
    if (p)
        (void)unpark(p);
    worker_wants_free(wants);
    proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED,
                       "too many calls are waiting for rows from this worker's --store", NULL, 0);
}

static void request_again(void *arg)
{
    struct parked p = unpark(arg);
    request_go_on(&p);
    worker_hand_emptied(p.worker);
}

bool worker_warm_request_room(struct worker_warm *warm, void (*handle)(void *, struct proto_request *),
                              struct proto_request *request)
{
    uint64_t until_ns = proto_request_arrived(request) + ROOM_NS,
             deadline_ns = proto_request_deadline(request);
    struct parked *p = park(warm, handle, request);
    if (p && worker_warm_room(warm, until_ns < deadline_ns ? until_ns : deadline_ns, request_again, p))
        return true;
    if (p)
        (void)unpark(p);
    return false;
}

struct worker_room *worker_warm_room(struct worker_warm *warm, uint64_t until_ns, void (*again)(void *arg),
                                     void *arg)
{
    bool may = !warm->closed && warm->n_rooms < WAITS_MAX && common_clock_ns() < until_ns &&
               worker_disk_hurry(warm->worker->disk);
    struct worker_room *room = may ? malloc(sizeof *room) : NULL;
    if (!room)
        return NULL;
    *room = (struct worker_room){.warm = warm, .until_ns = until_ns, .again = again, .arg = arg};
    common_list_push(&warm->rooms, &room->link);
    warm->n_rooms++;
    common_timer_start(warm->timer, LOOK_NS, false);
    return room;
}

void worker_warm_room_cancel(struct worker_room *room)
{
    common_list_remove(&room->link);
    room->warm->n_rooms--;
    free(room);
}

// All of them try again, or those whose time is over; those that still find no room come back, behind the others.
static void try_rooms(struct worker_warm *warm, bool all)
{
    uint64_t now_ns = common_clock_ns();
    for (uint32_t n = warm->n_rooms; n > 0 && !common_list_empty(&warm->rooms); n--) {
        struct worker_room *room = common_list_entry(warm->rooms.next, struct worker_room, link);
        void (*again)(void *) = room->again;
        void *arg = room->arg;
        if (!all && now_ns < room->until_ns) { // looked at
            common_list_remove(&room->link);
            common_list_push(&warm->rooms, &room->link);
            continue;
        }
        worker_warm_room_cancel(room);
        again(arg); // which may end others
    }
}

void worker_warm_sealed(struct worker_warm *warm)
{
    if (!warm)
        return;
    try_rooms(warm, true);
    pump(warm);
}

// ---- reading ahead ------------------------------------------------------------------------------

void worker_warm_begin(struct worker_warm *warm, struct worker_wants *wants)
{
    struct worker_wait *w = wants->cold && warm->n_aheads < AHEADS_MAX ? wait_new(warm, wants) : NULL;
    worker_wants_free(wants);
    if (!w)
        return;
    common_list_push(&warm->aheads, &w->link);
    warm->n_aheads++;
    common_timer_start(warm->timer, 0, false);
}

void worker_warm_ahead(struct worker_warm *warm, const struct worker_compute_item *item)
{
    const struct worker_session *session = item->session;
    struct worker_compute_item next = *item;
    struct worker_cold_stats cold;
    uint32_t left = warm->read_ahead;
    worker_store_get_cold(warm->worker->store, &cold);
    for (uint32_t l = item->layer + 1;
         cold.bytes > 0 && left > 0 && l < session->spec->pb->layers && warm->n_aheads < AHEADS_MAX; l++) {
        struct worker_wants wants = {0};
        next.layer = next.source = l;
        if (!worker_spec_kind(session->spec, l) || proto_spec_source(session->spec->pb, l) != l)
            continue;
        left--;
        worker_compute_wants(&next, &wants);
        worker_warm_begin(warm, &wants);
    }
}

// ---- its life -----------------------------------------------------------------------------------

static void tick(void *arg)
{
    struct worker_warm *warm = arg;
    try_rooms(warm, false);
    pump(warm);
}

void worker_warm_set_read_ahead(struct worker_warm *warm, uint32_t layers)
{
    warm->read_ahead = layers;
}

struct worker_warm *worker_warm_new(struct worker *worker, uint32_t read_ahead)
{
    struct worker_warm *warm = calloc(1, sizeof *warm);
    if (!warm)
        return NULL;
    if (common_timer_new(worker->loop, tick, warm, &warm->timer) != COMMON_OK) {
        free(warm);
        return NULL;
    }
    warm->worker = worker;
    warm->read_ahead = read_ahead;
    common_list_init(&warm->waits);
    common_list_init(&warm->aheads);
    common_list_init(&warm->rooms);
    common_list_init(&warm->fetches);
    return warm;
}

void worker_warm_close(struct worker_warm *warm)
{
    if (!warm || warm->closed)
        return;
    warm->closed = true;
    while (!common_list_empty(&warm->aheads))
        wait_free(common_list_entry(warm->aheads.next, struct worker_wait, link));
    while (!common_list_empty(&warm->waits)) {
        struct worker_wait *w = common_list_entry(warm->waits.next, struct worker_wait, link);
        if (w->err.code == COMMON_OK)
            common_error_set(&w->err, COMMON_UNAVAILABLE, "the worker is leaving");
        wait_end(w);
    }
    try_rooms(warm, true);
}

void worker_warm_free(struct worker_warm *warm)
{
    if (!warm)
        return;
    worker_warm_close(warm);
    assert(warm->under_way == 0 && warm->n_waits == 0 && warm->n_rooms == 0);
    common_timer_free(warm->timer);
    free(warm);
}
