// SPDX-License-Identifier: Apache-2.0
// The inventory: what a worker holds, page by page in ascending order of sessions, and in each by position.
#include "worker/control/inventory.h"

#include <stdlib.h>

#include "common/base/failpoint.h"
#include "worker/control/lose.h"
#include "worker/control/plans.h"
#include "worker/core/kept.h"
#include "worker/core/state.h"
#include "worker/disk/disk.h"

// A page ends with the session that fills it, or inside of it: it may be larger than worker.inventory_bytes by one
// header and one chunk (of 1,024 layers: 30 KiB and 3 KiB).
enum { INVENTORY_HEADER_BYTES = 64 };

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void worker_listing_free(struct worker_listing *listing)
{
    free(listing->ids);
    *listing = (struct worker_listing){0};
}

// The sessions' ids in ascending order. They are sorted at the first page, and again only where sessions have come or
// gone since. False: memory is short.
static bool listing_ready(struct worker *worker)
{
    struct worker_listing *listing = &worker->listing;
    size_t cursor = 0;
    void *value;
    if (listing->ids && listing->changes == worker->sessions.changes)
        return true;
    worker_listing_free(listing);
    listing->ids = malloc((worker->sessions.count + 1) * sizeof *listing->ids);
    if (!listing->ids)
        return false;
    while (worker_map_next(&worker->sessions, &cursor, &value))
        listing->ids[listing->n++] = ((const struct worker_session *)value)->id;
    qsort(listing->ids, listing->n, sizeof *listing->ids, compare_ids);
    listing->changes = worker->sessions.changes;
    worker->listings++;
    return true;
}

// Index of the first id that is not below this one.
static size_t listing_from(const struct worker_listing *listing, uint64_t id)
{
    size_t lo = 0, hi = listing->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (listing->ids[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static Banyan__Pb__InventoryChunk *inventory_chunk(const struct worker_chunk *chunk)
{
    const struct worker_shape *shape = worker_chunk_shape(chunk);
    Banyan__Pb__InventoryChunk *pb = malloc(sizeof *pb);
    if (!pb)
        return NULL;
    banyan__pb__inventory_chunk__init(pb);
    pb->layer_rows = malloc(shape->layers * sizeof *pb->layer_rows);
    if (!pb->layer_rows) {
        free(pb);
        return NULL;
    }
    pb->chunk = worker_chunk_id(chunk);
    pb->first = worker_chunk_first(chunk);
    pb->n_layer_rows = shape->layers;
    for (uint32_t i = 0; i < shape->layers; i++)
        pb->layer_rows[i] = worker_chunk_ready(chunk, i);
    return pb;
}

static bool inventory_appended(const struct worker_session *session, Banyan__Pb__InventorySession *pb)
{
    uint32_t layers = session->spec->shape->layers;
    pb->lengths = malloc(layers * sizeof *pb->lengths);
    pb->unconfirmed = malloc(layers * sizeof *pb->unconfirmed);
    if (!pb->lengths || !pb->unconfirmed)
        return false;
    for (uint32_t l = 0; l < layers; l++) {
        const struct worker_appended *appended = &session->appended[l];
        pb->lengths[pb->n_lengths++] = appended->length;
        if (!appended->write)
            continue;
        Banyan__Pb__Unconfirmed *entry = malloc(sizeof *entry);
        if (!entry)
            return false;
        banyan__pb__unconfirmed__init(entry);
        entry->layer = l;
        entry->write = appended->write;
        entry->end = appended->end;
        pb->unconfirmed[pb->n_unconfirmed++] = entry;
    }
    return true;
}

// Adds as many of the session's chunks, from index `from` on, as fit, and one at least, so that each page
// makes progress: the header alone may fill the page. Returns how many, or -1 when memory is short.
static int64_t inventory_session(const struct worker_session *session, uint32_t from, size_t most,
                                 size_t *bytes, Banyan__Pb__InventorySession **out)
{
    Banyan__Pb__InventorySession *pb = malloc(sizeof *pb);
    if (!pb)
        return -1;
    banyan__pb__inventory_session__init(pb);
    pb->session = session->id;
    pb->incarnation = session->incarnation;
    pb->epoch = session->epoch;
    pb->life = session->life;
    pb->doubtful = session->doubtful;
    pb->chunks = malloc((session->n_chunks - from + 1) * sizeof *pb->chunks);
    *out = pb;
    if (!pb->chunks || !inventory_appended(session, pb))
        return -1;
    size_t header = banyan__pb__inventory_session__get_packed_size(pb);
    *bytes += header < INVENTORY_HEADER_BYTES ? INVENTORY_HEADER_BYTES : header;
    for (uint32_t i = from; i < session->n_chunks && (i == from || *bytes < most); i++) {
        Banyan__Pb__InventoryChunk *chunk = inventory_chunk(session->chunks[i].chunk);
        if (!chunk)
            return -1;
        pb->chunks[pb->n_chunks++] = chunk;
        pb->bytes += worker_chunk_bytes(session->chunks[i].chunk);
        *bytes += banyan__pb__inventory_chunk__get_packed_size(chunk) + 8;
    }
    return (int64_t)pb->n_chunks;
}

// Where the listing goes on inside a session: behind chunk `after` at this position.
static uint32_t inventory_from(const struct worker_session *session, const Banyan__Pb__InventoryRequest *body)
{
    const struct worker_session_chunk *after =
        worker_session_chunk(session, body->after_chunk, body->after_first);
    if (after)
        return (uint32_t)(after - session->chunks) + 1;
    for (uint32_t i = 0; i < session->n_chunks; i++) // a caller that does not say the position
        if (worker_chunk_id(session->chunks[i].chunk) == body->after_chunk)
            return i + 1;
    return 0; // gone meanwhile: from its start again
}

// One page of ids[0..n), of which the first one may have begun on the page before. Returns false when memory is short.
static bool inventory_page(struct worker *worker, const Banyan__Pb__InventoryRequest *body,
                           const uint64_t *ids, size_t n, Banyan__Pb__InventoryReply *reply)
{
    size_t bytes = 0, cap = 0;
    for (size_t i = 0; i < n; i++) {
        struct worker_session *session = worker_map_get(&worker->sessions, ids[i]);
        if (!worker_lose_again(worker, session))
            return false;
        bool resumed = body->after_chunk != 0 && ids[i] == body->after_session;
        uint32_t from = resumed ? inventory_from(session, body) : 0;
        if (reply->n_sessions == cap) {
            cap = cap ? 2 * cap : 16;
            Banyan__Pb__InventorySession **more = realloc(reply->sessions, cap * sizeof(*more));
            if (!more)
                return false;
            reply->sessions = more;
        }
        Banyan__Pb__InventorySession *pb = NULL;
        int64_t taken = inventory_session(session, from, worker->inventory_bytes, &bytes, &pb);
        if (pb)
            reply->sessions[reply->n_sessions++] = pb;
        if (taken < 0)
            return false;
        session->lacks = false; // it has been received
        if (bytes < worker->inventory_bytes)
            continue;
        bool whole = from + (uint64_t)taken == session->n_chunks; // else it has given a chunk
        if (!whole || i + 1 < n) {
            reply->next_session = ids[i];
            reply->next_chunk = whole ? 0 : pb->chunks[taken - 1]->chunk;
            reply->next_first = whole ? 0 : pb->chunks[taken - 1]->first;
        }
        break;
    }
    return true;
}

// Of one session, or of all from where the last page ended.
static bool inventory_collect(struct worker *worker, const Banyan__Pb__InventoryRequest *body,
                              Banyan__Pb__InventoryReply *reply)
{
    const struct worker_listing *listing = &worker->listing;
    if (body->session)
        return inventory_page(worker, body, &body->session,
                              worker_map_get(&worker->sessions, body->session) ? 1 : 0, reply);
    if (!listing_ready(worker))
        return false;
    size_t from = listing_from(listing, body->after_session);
    if (from < listing->n && listing->ids[from] == body->after_session && !body->after_chunk)
        from++;
    return inventory_page(worker, body, listing->ids + from, listing->n - from, reply);
}

// A page, which is sent when the files have what it names: the receiver relies on these rows. Free it.
struct page {
    struct worker *worker;
    Banyan__Pb__InventoryReply reply;
    uint64_t refused; // by the files, when it was made
};

static uint64_t refused(const struct worker *worker)
{
    struct worker_disk_stats stats;
    worker_disk_get_stats(worker->disk, &stats);
    return stats.refused;
}

static void page_free(struct page *page)
{
    for (size_t i = 0; i < page->reply.n_sessions; i++)
        banyan__pb__inventory_session__free_unpacked(page->reply.sessions[i], NULL);
    free(page->reply.sessions);
    free(page);
}

static void page_kept(void *arg, struct proto_request *request, const struct common_error *failed)
{
    struct page *page = arg;
    struct worker *worker = page->worker;
    bool stale = page->refused != refused(worker); // rows that it names may have been taken back since
    if (failed)
        worker_fail(request, failed, PROTO_REASON_NONE);
    else if (!stale)
        proto_request_reply(request, &page->reply.base, NULL, 0, NULL, NULL);
    page_free(page);
    if (!failed && stale)
        worker_handle_inventory(worker, request);
}

void worker_handle_inventory(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__InventoryRequest *body =
        (const Banyan__Pb__InventoryRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct page *page = calloc(1, sizeof *page);
    if (!page) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an inventory",
                           NULL, 0);
        return;
    }
    page->worker = worker;
    page->refused = refused(worker);
    Banyan__Pb__InventoryReply *reply = &page->reply;
    banyan__pb__inventory_reply__init(reply);
    reply->instance = worker_membership_instance(worker->membership);
    if (worker->life != body->life && worker->sessions.count > 0)
        COMMON_FAILPOINT("quarantine_entered");
    worker->life = body->life;
    if (body->term > worker->visit_term || body->visit > worker->visit) {
        worker->visit_term = body->term;
        worker->visit = body->visit;
    }
    bool collected = inventory_collect(worker, body, reply);
    if (!body->session && !reply->next_session)
        worker_listing_free(&worker->listing);
    if (collected) {
        worker_kept_all(worker, request, page_kept, page);
        return;
    }
    proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an inventory", NULL,
                       0);
    page_free(page);
}
