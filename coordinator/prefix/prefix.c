// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prefix/prefix.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/rows/reshape.h"
#include "coordinator/session/spec.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/unavailable.h"

#define EVICTIONS_A_TICK 64

// ---- what a session is --------------------------------------------------------------------------

// Packed, without what two sessions with the same rows may differ in.
static uint8_t *packed_spec(const Banyan__Pb__Spec *spec, size_t *bytes)
{
    Banyan__Pb__Spec same = *spec; // its lists are shared
    same.replicas = 0;
    same.idle_ttl_ns = 0;
    *bytes = banyan__pb__spec__get_packed_size(&same);
    uint8_t *packed = coordinator_alloc(*bytes + 1);
    banyan__pb__spec__pack(&same, packed);
    return packed;
}

uint64_t coordinator_prefix_scope(uint32_t tenant, const Banyan__Pb__Spec *spec)
{
    size_t bytes;
    uint8_t *packed = packed_spec(spec, &bytes);
    uint64_t scope = common_xxh3(packed, bytes, common_mix64(tenant + UINT64_C(1)));
    free(packed);
    return scope;
}

static bool same_spec(const Banyan__Pb__Spec *a, const Banyan__Pb__Spec *b)
{
    size_t a_bytes, b_bytes;
    uint8_t *a_packed = packed_spec(a, &a_bytes), *b_packed = packed_spec(b, &b_bytes);
    bool same = a_bytes == b_bytes && memcmp(a_packed, b_packed, a_bytes) == 0;
    free(a_packed);
    free(b_packed);
    return same;
}

enum common_code coordinator_prefix_check(const ProtobufCBinaryData *prefix, struct proto_status *status)
{
    if (prefix->len && prefix->len % PROTO_PREFIX_HASH == 0)
        return COMMON_OK;
    return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                            "a prefix is one or more hashes of %u bytes, one for each chunk, not %zu bytes",
                            PROTO_PREFIX_HASH, prefix->len);
}

// ---- finding ------------------------------------------------------------------------------------

struct wanted {
    uint32_t tenant;
    const Banyan__Pb__Spec *spec;
};

// The scope is a hash of 64 bits: here it is made sure of. One that lacks chunks is no use to anybody now;
// one whose workers are still to come back after a restart is waited for.
static bool may_serve(void *arg, const struct coordinator_kept *kept, uint32_t chunks)
{
    const struct wanted *w = arg;
    struct coordinator_session *s = kept->session;
    struct proto_status status;
    return s->tenant == w->tenant && s->spec->replicas >= w->spec->replicas && same_spec(s->spec, w->spec) &&
           (coordinator_recovering(s) ||
            coordinator_session_missing(s, 0, (uint64_t)chunks * s->layout.chunk_tokens, 0, &status) ==
                COMMON_OK);
}

struct coordinator_session *coordinator_prefix_find(struct coordinator_sessions *sessions, uint32_t tenant,
                                                    const Banyan__Pb__Spec *spec,
                                                    const ProtobufCBinaryData *prefix, uint64_t *length)
{
    struct wanted wanted = {.tenant = tenant, .spec = spec};
    uint32_t chunks = 0;
    struct coordinator_kept *kept =
        coordinator_prefix_match(&sessions->prefixes->index, coordinator_prefix_scope(tenant, spec),
                                 prefix->data, (uint32_t)(prefix->len / PROTO_PREFIX_HASH), may_serve,
                                 &wanted, &chunks);
    *length = kept ? (uint64_t)chunks * kept->session->layout.chunk_tokens : 0;
    return kept ? kept->session : NULL;
}

static void touch(struct coordinator_session *s)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_prefix_touch(&s->sessions->prefixes->index, s->kept, common_clock_ns());
    coordinator_batch_prefix_used(batch, s->id, coordinator_clock_ns(s->sessions->core));
    coordinator_store_submit(s->sessions->store, batch, NULL, NULL);
}

static void found(struct coordinator_session *from, uint64_t length)
{
    from->sessions->prefixes->hits++;
    from->sessions->prefixes->saved_tokens += length;
    if (from->kept && from->kept->entered) {
        from->kept->hits++;
        touch(from);
    }
}

bool coordinator_prefix_create(struct coordinator_sessions *sessions, struct proto_request *request,
                               const Banyan__Pb__Spec *spec, void (*again)(void *, struct proto_request *),
                               coordinator_prefix_instead_fn instead, void *arg)
{
    const Banyan__Pb__SessionCreateRequest *m = (const void *)proto_request_message(request)->body;
    uint64_t length;
    struct coordinator_session *s =
        spec->forget ? NULL // no session that forgets is kept
                     : coordinator_prefix_find(sessions, proto_request_identity(request)->tenant, spec,
                                               &m->prefix, &length);
    if (!s)
        return false;
    if (coordinator_park(s, request, again, arg))
        return true;
    coordinator_session_fork_for(s, request,
                                 &(struct coordinator_fork_wish){.length = length,
                                                                 .key = m->key,
                                                                 .idle_ttl_ns = spec->idle_ttl_ns,
                                                                 .name = m->name,
                                                                 .made = found,
                                                                 .instead = instead,
                                                                 .arg = arg});
    return true;
}

// ---- going --------------------------------------------------------------------------------------

uint64_t coordinator_prefixes_limit(const struct coordinator_sessions *sessions)
{
    const struct coordinator_cluster *cluster = sessions->cluster;
    uint64_t limit = sessions->core->options.prefix_bytes, memory = 0;
    if (limit != COORDINATOR_PREFIX_SHARE)
        return limit;
    for (uint32_t i = 0; i < cluster->n_workers; i++) // those that are away for now, too
        memory += cluster->workers[i] ? cluster->workers[i]->capacity_bytes : 0;
    return memory / 4;
}

void coordinator_prefix_session_gone(struct coordinator_session *s)
{
    struct coordinator_kept *kept = s->kept;
    if (!kept)
        return;
    if (kept->leaving)
        s->sessions->prefixes->leaving_bytes -= kept->bytes;
    if (kept->entered)
        coordinator_prefix_leave(&s->sessions->prefixes->index, kept);
    coordinator_kept_free(kept);
    s->kept = NULL;
}

struct eviction {
    struct coordinator_sessions *sessions;
    uint64_t session;
    coordinator_room_fn fn;
    void *arg;
};

static void evicted(void *arg, enum common_code code)
{
    struct eviction e = *(struct eviction *)arg;
    free(arg);
    struct coordinator_session *s = coordinator_session_find(e.sessions, e.session);
    if (s && s->kept && s->kept->leaving) { // the store has refused it
        s->kept->leaving = false;
        e.sessions->prefixes->leaving_bytes -= s->kept->bytes;
    }
    if (e.fn)
        e.fn(e.arg, code == COMMON_OK || code == COMMON_NOT_FOUND);
}

bool coordinator_prefix_evict(struct coordinator_kept *kept, const char *why, coordinator_room_fn fn,
                              void *arg)
{
    struct coordinator_session *s = kept->session;
    struct eviction *e = coordinator_alloc(sizeof(*e));
    *e = (struct eviction){.sessions = s->sessions, .session = s->id, .fn = fn, .arg = arg};
    if (!coordinator_session_discard(s, why, evicted, e)) {
        free(e);
        return false;
    }
    kept->leaving = true;
    s->sessions->prefixes->leaving_bytes += kept->bytes;
    return true;
}

struct owner {
    bool any;
    uint32_t tenant;
    const struct coordinator_session *except;
};

static bool may_go(void *arg, const struct coordinator_kept *kept, uint32_t chunks)
{
    const struct owner *owner = arg;
    (void)chunks;
    return (owner->any || kept->session->tenant == owner->tenant) && kept->session != owner->except;
}

bool coordinator_prefix_make_room(struct coordinator_sessions *sessions, const struct proto_status *failure,
                                  uint32_t tenant, const struct coordinator_session *except,
                                  coordinator_room_fn fn, void *arg)
{
    // A quota is the tenant's alone; memory and the number of sessions are everybody's.
    struct owner owner = {.any = failure->reason != PROTO_REASON_QUOTA, .tenant = tenant, .except = except};
    if (failure->reason != PROTO_REASON_QUOTA && failure->reason != PROTO_REASON_FULL &&
        failure->reason != PROTO_REASON_LIMIT)
        return false;
    struct coordinator_kept *kept =
        sessions->core->stopping ? NULL
                                 : coordinator_prefix_oldest(&sessions->prefixes->index, may_go, &owner);
    if (!kept || !coordinator_prefix_evict(kept, "it was kept as cache, and its room is needed", fn, arg))
        return false;
    sessions->prefixes->evictions++;
    return true;
}

void coordinator_prefixes_trim(struct coordinator_sessions *sessions)
{
    struct coordinator_prefixes *prefixes = sessions->prefixes;
    uint64_t limit = coordinator_prefixes_limit(sessions);
    while (prefixes->index.bytes - prefixes->leaving_bytes > limit) {
        struct coordinator_kept *kept = coordinator_prefix_oldest(&prefixes->index, NULL, NULL);
        if (!kept ||
            !coordinator_prefix_evict(kept, "it was kept as cache, and the cache is full", NULL, NULL))
            return;
        prefixes->evictions++;
    }
}

void coordinator_prefixes_tick(struct coordinator_sessions *sessions, uint64_t now_ns)
{
    struct coordinator_prefixes *prefixes = sessions->prefixes;
    uint32_t left = EVICTIONS_A_TICK;
    if (sessions->core->stopping)
        return;
    if (!coordinator_prefixes_limit(sessions) && sessions->core->options.prefix_bytes == 0) {
        struct coordinator_kept *kept;
        while (left-- > 0 && (kept = coordinator_prefix_oldest(&prefixes->index, NULL, NULL)) &&
               coordinator_prefix_evict(kept, "it was kept as cache, and the cache is off", NULL, NULL))
            prefixes->evictions++;
    }
    for (struct common_list *at = prefixes->index.used.next; at != &prefixes->index.used && left;
         at = at->next) {
        struct coordinator_kept *kept = common_list_entry(at, struct coordinator_kept, used);
        if (kept->ttl_ns && !kept->leaving && now_ns > kept->used_ns &&
            now_ns - kept->used_ns > kept->ttl_ns &&
            coordinator_prefix_evict(kept, "it was kept as cache, and its time is over", NULL, NULL)) {
            prefixes->expired++;
            left--;
        }
    }
}

// ---- the start and the end ----------------------------------------------------------------------

bool coordinator_prefix_load(struct coordinator_session *s, uint64_t incarnation, uint64_t ttl_ns,
                             bool pinned, const void *hashes, size_t bytes)
{
    uint32_t n = (uint32_t)(bytes / PROTO_PREFIX_HASH);
    // A coordinator of an earlier version takes it for any session, and lets a client truncate it.
    if (!n || bytes % PROTO_PREFIX_HASH || s->incarnation != incarnation || s->name[0] || s->kept ||
        coordinator_session_length(s) < (uint64_t)n * s->layout.chunk_tokens)
        return false;
    struct coordinator_kept *kept =
        coordinator_kept_new(hashes, n, coordinator_prefix_scope(s->tenant, s->spec));
    kept->session = s;
    kept->ttl_ns = ttl_ns;
    kept->pinned = pinned;
    kept->used_ns = common_clock_ns();
    for (uint32_t i = 0; i < s->layout.n; i++)
        kept->bytes += coordinator_session_index_quota(s, s->layout.chunks[i].index);
    s->kept = kept;
    coordinator_prefix_enter(&s->sessions->prefixes->index, kept);
    return true;
}

void coordinator_prefixes_init(struct coordinator_sessions *sessions)
{
    sessions->prefixes = coordinator_alloc(sizeof(*sessions->prefixes));
    if (!coordinator_prefix_index_init(&sessions->prefixes->index))
        abort();
}

void coordinator_prefixes_fini(struct coordinator_sessions *sessions)
{
    coordinator_prefix_index_fini(&sessions->prefixes->index);
    free(sessions->prefixes);
}
