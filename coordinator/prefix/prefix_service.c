// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prefix/prefix_service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/prefix/prefix.h"
#include "coordinator/rows/reshape.h"
#include "coordinator/session/spec.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/unavailable.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/spec.h"

#define LIST_MAX   PROTO_PREFIX_LIST_MAX
#define TTL_MOST   (UINT64_MAX >> 2) // the store keeps it in 63 bits
#define DROPS_ONCE 64

// ---- find ---------------------------------------------------------------------------------------

void coordinator_handle_prefix_find(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__PrefixFindRequest *m = (const void *)proto_request_message(request)->body;
    uint32_t tenant = proto_request_identity(request)->tenant;
    struct proto_status status;
    enum common_code code = m->spec ? coordinator_prefix_check(&m->prefix, &status)
                                    : proto_status_set(&status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                                       "the specification is missing");
    Banyan__Pb__Spec *spec = code == COMMON_OK ? coordinator_spec_copy(m->spec) : NULL;
    if (spec)
        code = coordinator_spec_check(spec, &status);
    Banyan__Pb__PrefixFindReply reply = BANYAN__PB__PREFIX_FIND_REPLY__INIT;
    if (code == COMMON_OK && !spec->forget)
        coordinator_prefix_find(sessions, tenant, spec, &m->prefix, &reply.length);
    if (spec)
        banyan__pb__spec__free_unpacked(spec, NULL);
    if (code == COMMON_OK)
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    else
        proto_request_fail_status(request, &status);
}

// ---- keep ---------------------------------------------------------------------------------------

struct keeping { // one call
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    uint64_t session, instead, length; // instead: kept already, with the same text
    char why[256];
};

static const Banyan__Pb__PrefixKeepRequest *asked(const struct keeping *k)
{
    return (const void *)proto_request_message(k->request)->body;
}

static uint64_t ttl_asked(const Banyan__Pb__PrefixKeepRequest *m)
{
    return m->ttl_ns < TTL_MOST ? m->ttl_ns : 0;
}

static void keep_answer(struct keeping *k, uint64_t session)
{
    Banyan__Pb__PrefixKeepReply reply = BANYAN__PB__PREFIX_KEEP_REPLY__INIT;
    reply.session = session;
    reply.length = session ? k->length : 0;
    reply.why = k->why;
    proto_request_reply(k->request, &reply.base, NULL, 0, NULL, NULL);
    free(k);
}

static void keep_fail(struct keeping *k, const struct proto_status *status)
{
    proto_request_fail_status(k->request, status);
    free(k);
}

static void keep_discarded(void *arg, enum common_code code)
{
    struct keeping *k = arg;
    struct proto_status status;
    if (code == COMMON_OK || code == COMMON_NOT_FOUND) {
        keep_answer(k, k->instead);
        return;
    }
    proto_status_set(&status, code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code,
                     coordinator_store_reason(code), "the session could not be ended: try again");
    keep_fail(k, &status);
}

// It ends, and is not kept itself.
static void keep_discard(struct keeping *k, struct coordinator_session *s)
{
    struct proto_status status;
    if (coordinator_session_discard(s, "it has ended, and is not kept as cache", keep_discarded, k))
        return;
    proto_status_set(&status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                     "too many operations are waiting for this session: try again");
    keep_fail(k, &status);
}

static uint8_t *hashes_of(const struct coordinator_kept *kept)
{
    uint8_t *hashes = coordinator_alloc((size_t)kept->n * PROTO_PREFIX_HASH);
    for (uint32_t i = 0; i < kept->n; i++)
        memcpy(hashes + (size_t)i * PROTO_PREFIX_HASH, kept->entries[i].hash, PROTO_PREFIX_HASH);
    return hashes;
}

static void put_row(struct coordinator_batch *batch, const struct coordinator_session *s)
{
    uint8_t *hashes = hashes_of(s->kept);
    coordinator_batch_prefix(
        batch, s->id,
        &(struct coordinator_prefix_row){.incarnation = s->incarnation,
                                         .used_ns = coordinator_clock_ns(s->sessions->core),
                                         .ttl_ns = s->kept->ttl_ns,
                                         .pinned = s->kept->pinned,
                                         .hashes = hashes,
                                         .bytes = (size_t)s->kept->n * PROTO_PREFIX_HASH});
    free(hashes);
}

// Another one is kept, or this one is already: what the call says of its life holds, too. A pin is never
// taken back so, for somebody else may have asked for it.
static void renew(struct coordinator_session *s, const Banyan__Pb__PrefixKeepRequest *m)
{
    uint64_t ttl = ttl_asked(m);
    s->kept->pinned = s->kept->pinned || m->pin;
    s->kept->ttl_ns = !ttl || !s->kept->ttl_ns ? 0 : ttl > s->kept->ttl_ns ? ttl : s->kept->ttl_ns;
    coordinator_prefix_touch(&s->sessions->prefixes->index, s->kept, common_clock_ns());
    struct coordinator_batch *batch = coordinator_batch_new();
    put_row(batch, s);
    coordinator_store_submit(s->sessions->store, batch, NULL, NULL);
}

static bool is_whole(void *arg, const struct coordinator_kept *kept, uint32_t chunks)
{
    const struct coordinator_session *s = arg;
    struct proto_status status;
    return kept->session->tenant == s->tenant && kept->session->spec->replicas >= s->spec->replicas &&
           coordinator_session_missing(kept->session, 0, (uint64_t)chunks * s->layout.chunk_tokens, 0,
                                       &status) == COMMON_OK;
}

// Kept sessions whose whole text this one begins with have nothing more to give.
static bool is_shorter(void *arg, const struct coordinator_kept *kept, uint32_t chunks)
{
    const struct coordinator_kept *longer = arg;
    return kept != longer && kept->session->tenant == longer->session->tenant && !kept->pinned &&
           kept->n == chunks && kept->session->spec->replicas <= longer->session->spec->replicas;
}

static void drop_shorter(struct coordinator_session *s, const Banyan__Pb__PrefixKeepRequest *m)
{
    struct coordinator_kept *kept;
    uint32_t n = s->kept->n, chunks;
    while (n && (kept = coordinator_prefix_match(&s->sessions->prefixes->index, s->kept->scope,
                                                 m->prefix.data, n, is_shorter, s->kept, &chunks))) {
        if (!coordinator_prefix_evict(kept, "a longer text that begins with it is kept as cache", NULL, NULL))
            n = chunks - 1;
    }
}

static void keep_stored(void *arg, enum common_code code, const char *text)
{
    struct keeping *k = arg;
    struct coordinator_session *s = coordinator_session_find(k->sessions, k->session);
    struct proto_status status;
    if (code != COMMON_OK) {
        if (s) {
            coordinator_kept_free(s->kept);
            s->kept = NULL;
        }
        proto_status_set(&status, code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code,
                         coordinator_store_reason(code), "%s", text);
        keep_fail(k, &status);
        return;
    }
    if (!s) {
        proto_status_set(&status, COMMON_NOT_FOUND, PROTO_REASON_NO_SESSION,
                         "the session was deleted meanwhile");
        keep_fail(k, &status);
        return;
    }
    s->kept->used_ns = common_clock_ns();
    coordinator_prefix_enter(&k->sessions->prefixes->index, s->kept);
    coordinator_session_note(s, SESSION_KEPT, INFO,
                             "a session has ended and is kept as cache session=%016" PRIx64
                             " tokens=%" PRIu64,
                             s->id, k->length);
    drop_shorter(s, asked(k));
    coordinator_prefixes_trim(k->sessions);
    keep_answer(k, s->id);
}

static enum common_code may_be_kept(const struct keeping *k, struct coordinator_session *s,
                                    struct proto_status *status)
{
    uint64_t length = coordinator_session_length(s);
    if (s->name[0])
        return proto_status_set(status, COMMON_FAILED_PRECONDITION, PROTO_REASON_NONE,
                                "the session has a name, so it stays as it is: fork it without one, and keep "
                                "the fork");
    if (s->spec->forget)
        return proto_status_set(status, COMMON_FAILED_PRECONDITION, PROTO_REASON_NONE,
                                "the session forgets rows that its windows have left behind, so none of its "
                                "prefixes is whole: it cannot be kept");
    if (k->length > length)
        return proto_status_set(status, COMMON_OUT_OF_RANGE, PROTO_REASON_PAST_END,
                                "the hashes are of %" PRIu64 " tokens: the shortest layer has %" PRIu64,
                                k->length, length);
    return coordinator_session_missing(s, 0, k->length, 0, status);
}

// Rows that steps have appended are in the store from now on: the session is found without its holders' word.
static void keep_store(struct keeping *k, struct coordinator_session *s, uint64_t bytes)
{
    const Banyan__Pb__PrefixKeepRequest *m = asked(k);
    s->kept = coordinator_kept_new(m->prefix.data, (uint32_t)(m->prefix.len / PROTO_PREFIX_HASH),
                                   coordinator_prefix_scope(s->tenant, s->spec));
    s->kept->session = s;
    s->kept->bytes = bytes;
    s->kept->ttl_ns = ttl_asked(m);
    s->kept->pinned = m->pin;
    struct coordinator_batch *batch = coordinator_batch_new();
    put_row(batch, s);
    for (uint32_t l = 0; l < s->spec->layers; l++)
        if (proto_spec_stores(s->spec, l))
            coordinator_batch_range(batch, s->id, l, 0, k->length);
    coordinator_store_submit(k->sessions->store, batch, keep_stored, k);
}

static void keep_open(void *arg, struct coordinator_session *s)
{
    struct keeping *k = arg;
    struct proto_status status;
    if (!s) {
        const char *text;
        enum common_code code = coordinator_gone(k->sessions->core, &text);
        proto_status_set(&status, code,
                         code == COMMON_NOT_FOUND ? PROTO_REASON_NO_SESSION : PROTO_REASON_NONE, "%s", text);
        keep_fail(k, &status);
        return;
    }
    const Banyan__Pb__PrefixKeepRequest *m = asked(k);
    uint64_t limit = coordinator_prefixes_limit(k->sessions), bytes = 0;
    uint32_t n = (uint32_t)(m->prefix.len / PROTO_PREFIX_HASH), chunks = 0;
    k->length = (uint64_t)n * s->layout.chunk_tokens;
    if (s->kept && s->kept->entered && s->kept->n == n) { // the call has come twice
        renew(s, m);
        keep_answer(k, s->id);
        return;
    }
    enum common_code code = coordinator_session_writable(s, &status);
    if (code == COMMON_OK)
        code = may_be_kept(k, s, &status);
    if (code != COMMON_OK) {
        keep_fail(k, &status);
        return;
    }
    for (uint32_t i = 0; i < s->layout.n; i++)
        bytes += coordinator_session_index_quota(s, s->layout.chunks[i].index);
    struct coordinator_kept *same =
        coordinator_prefix_match(&k->sessions->prefixes->index, coordinator_prefix_scope(s->tenant, s->spec),
                                 m->prefix.data, n, is_whole, s, &chunks);
    if (same && chunks == n) {
        renew(same->session, m);
        k->instead = same->session->id;
        snprintf(k->why, sizeof(k->why), "the same text is kept already");
    } else if (!limit) {
        snprintf(k->why, sizeof(k->why), "the coordinator keeps none (--prefix-cache off, or no worker yet)");
    } else if (bytes > limit) {
        snprintf(k->why, sizeof(k->why),
                 "it has %" PRIu64 " bytes and all kept sessions together may have %" PRIu64
                 " (--prefix-cache)",
                 bytes, limit);
    } else {
        keep_store(k, s, bytes);
        return;
    }
    keep_discard(k, s);
}

void coordinator_handle_prefix_keep(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__PrefixKeepRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = coordinator_session_asked(sessions, request, m->session);
    struct proto_status status;
    enum common_code code = s ? COMMON_OK : coordinator_session_unknown(m->session, &status);
    if (code == COMMON_OK)
        code = coordinator_prefix_check(&m->prefix, &status);
    if (code != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    if (coordinator_park(s, request, coordinator_handle_prefix_keep, arg))
        return;
    struct keeping *k = coordinator_alloc(sizeof(*k));
    *k = (struct keeping){.sessions = sessions, .request = request, .session = s->id};
    if (coordinator_session_when_open(s, keep_open, k) == COMMON_OK)
        return;
    proto_status_set(&status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                     "too many calls are waiting for this session");
    keep_fail(k, &status);
}

// ---- list ---------------------------------------------------------------------------------------

static void fill(Banyan__Pb__PrefixInfo *m, const struct coordinator_session *s, bool shown, uint64_t now)
{
    const struct coordinator_kept *kept = s->kept;
    *m = (Banyan__Pb__PrefixInfo)BANYAN__PB__PREFIX_INFO__INIT;
    m->session = s->id;
    if (shown)
        m->tenant = (char *)coordinator_tenant_name(s->sessions->quotas->tenants, s->tenant);
    m->length = (uint64_t)kept->n * s->layout.chunk_tokens;
    m->bytes = kept->bytes;
    m->hits = kept->hits;
    m->idle_ns = now > kept->used_ns ? now - kept->used_ns : 0;
    m->ttl_ns = kept->ttl_ns;
    m->pinned = kept->pinned;
    memcpy(&m->hash, kept->entries[kept->n - 1].hash, sizeof(m->hash));
}

// Pages in the order of slots, as those of sessions.
void coordinator_handle_prefix_list(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__PrefixListRequest *m = (const void *)proto_request_message(request)->body;
    const struct proto_identity *who = proto_request_identity(request);
    uint64_t now = common_clock_ns();
    uint32_t limit = m->limit && m->limit < LIST_MAX ? m->limit : LIST_MAX;
    bool shown = coordinator_shows_workers(who);
    Banyan__Pb__PrefixInfo *infos = coordinator_alloc(limit * sizeof(*infos));
    Banyan__Pb__PrefixInfo **pointers = coordinator_alloc(limit * sizeof(*pointers));
    Banyan__Pb__PrefixListReply reply = BANYAN__PB__PREFIX_LIST_REPLY__INIT;
    reply.prefixes = pointers;
    reply.limit_bytes = shown ? coordinator_prefixes_limit(sessions) : 0; // of the workers' memory
    uint32_t from = coordinator_sessions_slot_after(sessions, m->after);
    for (uint32_t slot = 0; slot < sessions->n_slots; slot++) {
        const struct coordinator_session *s = sessions->slots[slot];
        if (!s || !s->kept || !s->kept->entered || !coordinator_session_is_for(s, who))
            continue;
        reply.kept++;
        reply.bytes += s->kept->bytes;
        if (slot < from || reply.next)
            continue;
        if (reply.n_prefixes == limit) {
            reply.next = infos[limit - 1].session;
            continue;
        }
        fill(&infos[reply.n_prefixes], s, shown, now);
        pointers[reply.n_prefixes] = &infos[reply.n_prefixes];
        reply.n_prefixes++;
    }
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    free(infos);
    free(pointers);
}

// ---- drop ---------------------------------------------------------------------------------------

struct dropping {
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    uint32_t tenant, under_way;
    uint64_t after, done, bytes; // after: the session that was begun last
    bool refused;                // the store, or too many operations wait for one
};

static struct coordinator_session *next_drop(const struct dropping *d)
{
    const struct coordinator_sessions *sessions = d->sessions;
    for (uint32_t slot = coordinator_sessions_slot_after(sessions, d->after); slot < sessions->n_slots;
         slot++) {
        struct coordinator_session *s = sessions->slots[slot];
        if (s && s->kept && s->kept->entered && !s->kept->leaving && s->tenant == d->tenant)
            return s;
    }
    return NULL;
}

static void drop_answer(struct dropping *d)
{
    Banyan__Pb__PrefixDropReply reply = BANYAN__PB__PREFIX_DROP_REPLY__INIT;
    reply.sessions = d->done;
    reply.bytes = d->bytes;
    if (d->refused)
        proto_request_fail(d->request, COMMON_UNAVAILABLE, "some of them could not be dropped now: try again",
                           NULL, 0);
    else
        proto_request_reply(d->request, &reply.base, NULL, 0, NULL, NULL);
    free(d);
}

static void drop_more(struct dropping *d);

static void dropped(void *arg, bool made)
{
    struct dropping *d = arg;
    d->under_way--;
    d->refused = d->refused || !made;
    drop_more(d);
}

static void drop_more(struct dropping *d)
{
    struct coordinator_session *s;
    while (d->under_way < DROPS_ONCE && !d->refused && !d->sessions->core->stopping && (s = next_drop(d))) {
        uint64_t bytes = s->kept->bytes;
        d->after = s->id;
        d->refused = !coordinator_prefix_evict(s->kept, "it was kept as cache, and is dropped by a client",
                                               dropped, d);
        d->under_way += !d->refused;
        d->done += !d->refused;
        d->bytes += d->refused ? 0 : bytes;
    }
    if (!d->under_way)
        drop_answer(d);
}

void coordinator_handle_prefix_drop(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__PrefixDropRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = NULL;
    struct proto_status status;
    if (m->session) {
        s = coordinator_session_asked(sessions, request, m->session);
        if (!s || !s->kept || !s->kept->entered) {
            proto_status_set(&status, COMMON_NOT_FOUND, PROTO_REASON_NO_SESSION,
                             "no session of this id is kept as cache");
            proto_request_fail_status(request, &status);
            return;
        }
    }
    struct dropping *d = coordinator_alloc(sizeof(*d));
    *d = (struct dropping){.sessions = sessions,
                           .request = request,
                           .tenant = proto_request_identity(request)->tenant};
    if (!m->session) {
        drop_more(d);
        return;
    }
    d->tenant = UINT32_MAX; // of this one alone
    d->under_way = d->done = 1;
    d->bytes = s->kept->bytes;
    if (!coordinator_prefix_evict(s->kept, "it was kept as cache, and is dropped by a client", dropped, d)) {
        d->under_way = 0;
        d->refused = true;
        drop_answer(d);
    }
}
