// SPDX-License-Identifier: Apache-2.0
// Prefixes found by content: sessions that have ended stay as cache, are found by their hashes, and go first
// where room is needed.
#include "common/hash/hash.h"
#include "coordinator/prefix/prefix.h"
#include "coordinator/tenants/quota.h"
#include "tests/coordinator/hermetic/hermetic.h"

enum { CT = 16, MOST = 64 };

// ---- hashes -------------------------------------------------------------------------------------

struct hashes {
    uint8_t bytes[MOST * PROTO_PREFIX_HASH];
    uint32_t n;
};

// Of a text that is `common` chunks of text `base`, and from there on of text `own`; salted.
static struct hashes hashes_of(uint32_t base, uint32_t common, uint32_t own, uint32_t n, uint64_t salt)
{
    struct hashes h = {.n = n};
    uint64_t chain = salt;
    for (uint32_t i = 0; i < n; i++) {
        chain = common_mix64(chain ^ ((uint64_t)(i < common ? base : own) << 32 | i));
        uint64_t both[2] = {chain, common_mix64(chain + 1)};
        memcpy(h.bytes + (size_t)i * PROTO_PREFIX_HASH, both, sizeof both);
    }
    return h;
}

static struct hashes text(uint32_t which, uint32_t n)
{
    return hashes_of(which, n, which, n, 0);
}

// ---- calls --------------------------------------------------------------------------------------

static void took_kept(struct sim_call *call, const struct proto_message *message)
{
    const Banyan__Pb__PrefixKeepReply *m = (const void *)message->body;
    call->session = m->session;
    call->length = m->length;
    snprintf(call->text, sizeof call->text, "%s", m->why);
}

struct life {
    uint64_t ttl_ns;
    bool pin;
};

static struct sim_call *keep(struct sim_client *client, uint64_t session, struct hashes h, struct life life)
{
    Banyan__Pb__PrefixKeepRequest m = BANYAN__PB__PREFIX_KEEP_REQUEST__INIT;
    m.session = session;
    m.prefix = (ProtobufCBinaryData){.data = h.bytes, .len = (size_t)h.n * PROTO_PREFIX_HASH};
    m.ttl_ns = life.ttl_ns;
    m.pin = life.pin;
    return sim_call_start(client, METHOD(PREFIX_KEEP), &m.base, NULL, 0, took_kept);
}

static void took_listed(struct sim_call *call, const struct proto_message *message)
{
    const Banyan__Pb__PrefixListReply *m = (const void *)message->body;
    call->n_declared = (uint32_t)m->kept;
    call->seen = m->bytes;
    call->n_active = (uint32_t)m->n_prefixes;
}

static uint32_t n_kept(struct sim_client *client)
{
    Banyan__Pb__PrefixListRequest m = BANYAN__PB__PREFIX_LIST_REQUEST__INIT;
    struct sim_call *call = sim_call_start(client, METHOD(PREFIX_LIST), &m.base, NULL, 0, took_listed);
    OK(call);
    assert_int_equal(call->n_declared, call->n_active);
    return call->n_declared;
}

static void took_dropped(struct sim_call *call, const struct proto_message *message)
{
    call->seen = ((const Banyan__Pb__PrefixDropReply *)message->body)->sessions;
}

static struct sim_call *drop(struct sim_client *client, uint64_t session)
{
    Banyan__Pb__PrefixDropRequest m = BANYAN__PB__PREFIX_DROP_REQUEST__INIT;
    m.session = session;
    return sim_call_start(client, METHOD(PREFIX_DROP), &m.base, NULL, 0, took_dropped);
}

static void took_created(struct sim_call *call, const struct proto_message *message)
{
    const Banyan__Pb__SessionCreateReply *m = (const void *)message->body;
    call->session = m->session;
    call->length = m->length;
}

static struct sim_call *create_as(struct sim_client *client, struct hashes h, const char *name, uint64_t key,
                                  float scale)
{
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__SessionCreateRequest m = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    spec.layers = 1;
    spec.q_heads = 2;
    spec.kv_heads = 1;
    spec.k_dim = spec.v_dim = 4;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.chunk_tokens = CT;
    spec.replicas = 1;
    spec.scale = scale;
    m.spec = &spec;
    m.name = (char *)name;
    m.key = key;
    m.prefix = (ProtobufCBinaryData){.data = h.bytes, .len = (size_t)h.n * PROTO_PREFIX_HASH};
    return sim_call_start(client, METHOD(SESSION_CREATE), &m.base, NULL, 0, took_created);
}

static struct sim_call *create(struct sim_client *client, struct hashes h)
{
    return create_as(client, h, "", 0, 0);
}

// A session with so many tokens, all V `value`.
static uint64_t write_from(struct sim_client *client, uint64_t session, uint32_t from, uint32_t tokens,
                           float value)
{
    for (uint32_t at = from; at < tokens; at += CT - at % CT)
        OK(sim_append(client, session, 0, at, tokens - at < CT - at % CT ? tokens - at : CT - at % CT,
                      value));
    return session;
}

static uint64_t written(struct sim_client *client, uint32_t tokens, float value)
{
    struct sim_call *call = create(client, (struct hashes){0});
    OK(call);
    assert_int_equal(call->length, 0);
    return write_from(client, call->session, 0, tokens, value);
}

static uint64_t kept(struct sim_client *client, uint32_t which, uint32_t chunks, float value)
{
    uint64_t session = written(client, chunks * CT, value);
    struct sim_call *call = keep(client, session, text(which, chunks), (struct life){0});
    OK(call);
    assert_int_equal(call->session, session);
    assert_int_equal(call->length, chunks * CT);
    return session;
}

static uint64_t found(struct sim_client *client, struct hashes h)
{
    struct sim_call *call = create(client, h);
    OK(call);
    return call->length;
}

static struct coordinator_prefixes *prefixes_of(struct sim_cluster *cluster)
{
    return cluster->coordinator->sessions.prefixes;
}

// ---- finding ------------------------------------------------------------------------------------

static void a_session_that_ended_is_found_by_its_text(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_client *client = cluster->client;
    uint64_t session = kept(client, 1, 4, 3);
    assert_int_equal(n_kept(client), 1);
    struct sim_call *made = create(client, hashes_of(1, 3, 9, 6, 0)); // three chunks of it, and others
    OK(made);
    assert_true(made->session != session);
    assert_int_equal(made->length, 3 * CT);
    READS(cluster, made->session, 3 * CT, 3 * 3 * CT);
    write_from(client, made->session, 3 * CT, 3 * CT + 5, 7);
    READS(cluster, made->session, 3 * CT + 5, 3 * 3 * CT + 5 * 7);
    assert_int_equal(length_of(cluster, session), 4 * CT); // untouched
    made = create(client, text(1, 6));
    OK(made);
    assert_int_equal(made->length, 4 * CT);
    READS(cluster, made->session, 4 * CT, 4 * CT * 3);
    assert_int_equal(found(client, text(2, 6)), 0);
    assert_int_equal(found(client, hashes_of(1, 4, 1, 4, 77)), 0); // another salt
    assert_int_equal(prefixes_of(cluster)->hits, 2);
    assert_int_equal(prefixes_of(cluster)->misses, 2);
    assert_int_equal(prefixes_of(cluster)->saved_tokens, 7 * CT);
    assert_true(sim_quotas_counted(cluster));
    sim_cluster_free(cluster);
}

static void nothing_is_copied(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = kept(cluster->client, 1, 4, 3);
    struct sim_call *made = create(cluster->client, text(1, 4));
    OK(made);
    const struct coordinator_session *fork = kept_of(cluster, made->session),
                                     *from = kept_of(cluster, session);
    assert_int_equal(fork->layout.n, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(fork->layout.chunks[i].id == from->layout.chunks[i].id);
    sim_cluster_free(cluster);
}

// Another model: other dimensions, or only another scale, never match.
static void other_specifications_do_not_match(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    kept(cluster->client, 1, 4, 3);
    struct sim_call *made = create_as(cluster->client, text(1, 4), "", 0, 0.25f);
    OK(made);
    assert_int_equal(made->length, 0);
    assert_int_equal(found(cluster->client, text(1, 4)), 4 * CT);
    sim_cluster_free(cluster);
}

static void a_create_that_comes_twice_makes_one_session(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    kept(cluster->client, 1, 4, 3);
    struct sim_call *a = create_as(cluster->client, text(1, 4), "", 5, 0),
                    *b = create_as(cluster->client, text(1, 4), "", 5, 0);
    OK(a);
    OK(b);
    struct sim_call *c = create_as(cluster->client, text(1, 4), "", 5, 0);
    OK(c);
    assert_true(a->session == b->session && b->session == c->session);
    assert_true(a->length == 4 * CT && b->length == 4 * CT && c->length == 4 * CT);
    assert_int_equal(prefixes_of(cluster)->hits, 1);
    sim_cluster_free(cluster);
}

static void a_kept_session_takes_no_writes(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = kept(cluster->client, 1, 4, 3);
    ENDS(COMMON_FAILED_PRECONDITION, sim_append(cluster->client, session, 0, 4 * CT, 1, 1));
    ENDS(COMMON_FAILED_PRECONDITION, sim_truncate(cluster->client, session, CT));
    ENDS(COMMON_FAILED_PRECONDITION, sim_open(cluster->client, session, 4 * CT, CT));
    READS(cluster, session, 4 * CT, 4 * CT * 3);
    struct sim_call *fork = sim_fork(cluster->client, session, 2 * CT + 3, "mine");
    OK(fork); // by its id
    OK(sim_append(cluster->client, fork->session, 0, 2 * CT + 3, 1, 1));
    OK(sim_delete(cluster->client, session));
    assert_int_equal(n_kept(cluster->client), 0);
    assert_int_equal(found(cluster->client, text(1, 4)), 0);
    sim_cluster_free(cluster);
}

static void what_cannot_be_kept_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_client *client = cluster->client;
    struct sim_call *named = sim_create(client, (struct sim_shape){.replicas = 1}, "a name");
    OK(named);
    write_from(client, named->session, 0, 2 * CT, 1);
    ENDS(COMMON_FAILED_PRECONDITION, keep(client, named->session, text(1, 2), (struct life){0}));
    uint64_t session = written(client, 2 * CT - 1, 1);
    ENDS(COMMON_OUT_OF_RANGE, keep(client, session, text(1, 2), (struct life){0}));
    ENDS(COMMON_INVALID_ARGUMENT, keep(client, session, (struct hashes){0}, (struct life){0}));
    ENDS(COMMON_NOT_FOUND, keep(client, 4711, text(1, 1), (struct life){0}));
    OK(keep(client, session, text(1, 1), (struct life){0}));
    OK(keep(client, session, text(1, 1), (struct life){0})); // the call was sent twice
    const struct sim_mask mask = {.window = 16};
    struct sim_call *forgets =
        sim_create(client, (struct sim_shape){.layers = 1, .replicas = 1, .forget = 64, .masks = &mask}, "");
    OK(forgets);
    write_from(client, forgets->session, 0, 2 * CT, 1);
    ENDS(COMMON_FAILED_PRECONDITION, keep(client, forgets->session, text(1, 2), (struct life){0}));
    assert_int_equal(n_kept(client), 1);
    ENDS(COMMON_NOT_FOUND, drop(client, forgets->session));
    sim_cluster_free(cluster);
}

static void the_same_text_is_kept_once_and_a_longer_one_takes_its_place(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_client *client = cluster->client;
    uint64_t first = kept(client, 1, 3, 3), again = written(client, 3 * CT, 3);
    struct sim_call *call = keep(client, again, text(1, 3), (struct life){.pin = false});
    OK(call);
    assert_int_equal(call->session, first);
    ENDS(COMMON_NOT_FOUND, sim_info(client, again));
    uint64_t shorter = written(client, 2 * CT, 3);
    call = keep(client, shorter, text(1, 2), (struct life){0});
    OK(call);
    assert_int_equal(call->session, first); // it begins with that
    uint64_t longer = kept(client, 1, 5, 3);
    sim_run_until_idle();
    ENDS(COMMON_NOT_FOUND, sim_info(client, first));
    assert_int_equal(n_kept(client), 1);
    assert_int_equal(found(client, text(1, 9)), 5 * CT);
    kept(client, 2, 2, 1);
    call = drop(client, 0);
    OK(call);
    assert_int_equal(call->seen, 2);
    ENDS(COMMON_NOT_FOUND, sim_info(client, longer));
    assert_int_equal(prefixes_of(cluster)->index.n_entries, 0);
    assert_true(sim_quotas_counted(cluster));
    sim_cluster_free(cluster);
}

// ---- tenants ------------------------------------------------------------------------------------

static void tenants_never_share(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = kept(cluster->client, 1, 4, 3);
    struct coordinator_session *s = kept_of(cluster, session);
    // The same session, of another tenant: its scope, and the last look, each keep it from being found.
    s->tenant = 1;
    assert_int_equal(found(cluster->client, text(1, 4)), 0);
    s->tenant = 0;
    assert_int_equal(found(cluster->client, text(1, 4)), 4 * CT);
    assert_true(coordinator_prefix_scope(0, s->spec) != coordinator_prefix_scope(1, s->spec));
    sim_cluster_free(cluster);
}

// ---- restarts -----------------------------------------------------------------------------------

static void it_is_found_after_restarts(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_client *client = cluster->client;
    uint64_t old = kept(client, 1, 4, 3), newer = kept(client, 2, 3, 5);
    OK(keep(client, written(client, CT, 1), text(3, 1),
            (struct life){.pin = true, .ttl_ns = 5 * COMMON_NS_PER_S}));
    assert_int_equal(found(client, text(1, 4)), 4 * CT); // used last
    sim_run_until_idle();
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    assert_int_equal(n_kept(client), 3);
    const struct coordinator_prefix_index *index = &prefixes_of(cluster)->index;
    const struct coordinator_kept *oldest = coordinator_prefix_oldest(index, NULL, NULL);
    assert_int_equal(oldest->session->id, newer);
    struct sim_call *made = create(client, text(1, 4));
    OK(made);
    assert_int_equal(made->length, 4 * CT);
    READS(cluster, made->session, 4 * CT, 4 * CT * 3);
    ENDS(COMMON_FAILED_PRECONDITION, sim_truncate(client, old, CT));
    assert_int_equal(found(client, text(3, 4)), CT);
    sim_advance(6 * COMMON_NS_PER_S); // its time passes, pinned or not
    assert_int_equal(found(client, text(3, 4)), 0);
    assert_int_equal(prefixes_of(cluster)->expired, 1);
    assert_true(sim_quotas_counted(cluster));
    sim_cluster_free(cluster);
}

// An older coordinator truncated it: its hashes count no longer.
static void one_that_was_changed_since_is_not_found(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = kept(cluster->client, 1, 4, 3);
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_numbers(batch, session, 2, 9);
    coordinator_store_submit(cluster->coordinator->store, batch, NULL, NULL);
    sim_run_until_idle();
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    assert_int_equal(n_kept(cluster->client), 0);
    assert_int_equal(found(cluster->client, text(1, 4)), 0);
    sim_cluster_free(cluster);
}

// A worker is gone for good: the text is computed again, and no create fails for it.
static void a_lost_one_is_no_failure(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = kept(cluster->client, 1, 4, 3);
    sim_worker_kill(holder_of(cluster, session, 0));
    sim_advance(5 * COMMON_NS_PER_S);
    assert_int_equal(found(cluster->client, text(1, 4)), 0);
    sim_cluster_free(cluster);
}

// ---- room ---------------------------------------------------------------------------------------

static void quota(struct sim_cluster *cluster, enum coordinator_quota_kind kind, uint64_t max)
{
    coordinator_quota_set(coordinator_use_of(&cluster->coordinator->quotas, PROTO_TENANT_DEFAULT), kind, max,
                          sim_clock());
}

static uint64_t used(struct sim_cluster *cluster, enum coordinator_quota_kind kind)
{
    return coordinator_quota_used(coordinator_use_of(&cluster->coordinator->quotas, PROTO_TENANT_DEFAULT),
                                  kind, sim_clock());
}

// The tenant's quota holds named sessions and cache: new rows take the place of what was used longest ago.
static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_client *client = cluster->client;
    struct sim_call *named = sim_create(client, (struct sim_shape){.replicas = 1}, "named");
    OK(named);
    write_from(client, named->session, 0, 2 * CT, 9);
    kept(client, 1, 3, 1);
    kept(client, 2, 3, 2);
    kept(client, 3, 3, 3);
    struct sim_call *made = create(client, text(1, 3)); // 1 is used: 2 is the oldest now
    OK(made);
    OK(sim_delete(client, made->session));
    quota(cluster, COORDINATOR_QUOTA_BYTES, used(cluster, COORDINATOR_QUOTA_BYTES));
    write_from(client, named->session, 2 * CT, 4 * CT, 9); // the third chunk was there already
    assert_int_equal(n_kept(client), 2);
    assert_int_equal(prefixes_of(cluster)->evictions, 1);
    write_from(client, named->session, 4 * CT, 7 * CT, 9); // the room of 2, with the chunk ahead of it
    assert_int_equal(n_kept(client), 2);
    assert_int_equal(found(client, text(2, 3)), 0);
    write_from(client, named->session, 7 * CT, 8 * CT, 9); // now 3 goes
    assert_int_equal(n_kept(client), 1);
    assert_int_equal(prefixes_of(cluster)->evictions, 2);
    READS(cluster, named->session, 8 * CT, 9 * 8 * CT);
    quota(cluster, COORDINATOR_QUOTA_BYTES, 0);
    assert_int_equal(found(client, text(1, 3)), 3 * CT);
    assert_true(sim_quotas_counted(cluster));
    sim_cluster_free(cluster);
}

static void pinned_ones_stay(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    struct sim_client *client = cluster->client;
    uint64_t session = written(client, 3 * CT, 1);
    OK(keep(client, session, text(1, 3), (struct life){.pin = true}));
    kept(client, 2, 1, 2);
    quota(cluster, COORDINATOR_QUOTA_SESSIONS, 2);
    struct sim_call *a = create(client, (struct hashes){0}), *b;
    OK(a); // in the place of 2
    assert_int_equal(n_kept(client), 1);
    ENDS(COMMON_RESOURCE_EXHAUSTED, b = create(client, (struct hashes){0}));
    assert_string_equal(b->reason, "QUOTA");
    assert_int_equal(n_kept(client), 1);
    OK(drop(client, session)); // pinned or not
    OK(create(client, (struct hashes){0}));
    sim_cluster_free(cluster);
}

static void little_memory(struct coordinator_options *options)
{
    options->prefix_bytes = UINT64_C(1) << 40;
}

// The workers' memory is full of cache: named sessions get all of it.
static void workers_memory_is_for_others_first(void **state)
{
    (void)state;
    struct sim_cluster *cluster = sim_cluster_new(&(
        struct sim_cluster_options){.workers = 2, .memory_bytes = UINT64_C(3) << 20, .tune = little_memory});
    sim_cluster_start(cluster);
    struct sim_client *client = cluster->client;
    sim_client_dim(client, 128);
    uint64_t tokens = 0;
    struct sim_call *named = sim_create(client, (struct sim_shape){.replicas = 1}, "named");
    OK(named);
    for (uint32_t i = 0; i < 60 && !prefixes_of(cluster)->evictions; i++) {
        struct sim_call *made = sim_create(client, (struct sim_shape){.replicas = 1}, "");
        OK(made);
        write_from(client, made->session, 0, 8 * CT, 1);
        OK(keep(client, made->session, text(100 + i, 8), (struct life){0}));
    }
    assert_true(prefixes_of(cluster)->evictions > 0);
    assert_true(n_kept(client) > 3);
    for (struct sim_call *call; tokens < 4096; tokens += CT) {
        call = sim_append(client, named->session, 0, tokens, CT, 1);
        if (sim_wait(call) != COMMON_OK)
            break;
    }
    assert_int_equal(n_kept(client), 0); // all of it went before anything was refused
    assert_int_equal(length_of(cluster, named->session), tokens);
    assert_true(tokens > 20 * CT);
    READS(cluster, named->session, tokens, tokens);
    sim_cluster_free(cluster);
}

static void no_cache(struct coordinator_options *options)
{
    options->prefix_bytes = 0;
}

static uint64_t room_for; // bytes

static void small_cache(struct coordinator_options *options)
{
    options->prefix_bytes = room_for;
}

static void the_cache_has_a_size(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    kept(cluster->client, 1, 2, 1);
    room_for = prefixes_of(cluster)->index.bytes * 2;
    sim_cluster_free(cluster);
    cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .tune = small_cache});
    sim_cluster_start(cluster);
    struct sim_client *client = cluster->client;
    kept(client, 1, 2, 1);
    kept(client, 2, 2, 1);
    kept(client, 3, 2, 1);
    sim_run_until_idle();
    assert_int_equal(n_kept(client), 2);
    assert_int_equal(found(client, text(1, 2)), 0);
    assert_int_equal(found(client, text(3, 2)), 2 * CT);
    uint64_t session = written(client, 9 * CT, 1);
    struct sim_call *call = keep(client, session, text(4, 9), (struct life){0});
    OK(call);
    assert_int_equal(call->session, 0);
    assert_non_null(strstr(call->text, "--prefix-cache"));
    ENDS(COMMON_NOT_FOUND, sim_info(client, session)); // it has ended all the same
    assert_int_equal(n_kept(client), 2);
    cluster->options.tune = no_cache;
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    sim_advance(2 * COMMON_NS_PER_S);
    assert_int_equal(n_kept(client), 0);
    session = written(client, 2 * CT, 1);
    call = keep(client, session, text(4, 2), (struct life){0});
    OK(call);
    assert_int_equal(call->session, 0);
    assert_true(sim_quotas_counted(cluster));
    sim_cluster_free(cluster);
}

// The store refuses: the session is as it was, and can be kept later.
static void a_store_that_refuses_changes_nothing(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = written(cluster->client, 2 * CT, 1);
    sim_run_until_idle();
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_UNAVAILABLE);
    struct sim_call *call = keep(cluster->client, session, text(1, 2), (struct life){0});
    assert_true(sim_wait(call) != COMMON_OK);
    assert_int_equal(n_kept(cluster->client), 0);
    OK(sim_append(cluster->client, session, 0, 2 * CT, 1, 1));
    OK(keep(cluster->client, session, text(1, 2), (struct life){0}));
    assert_int_equal(found(cluster->client, text(1, 2)), 2 * CT);
    sim_cluster_free(cluster);
}

// Deleted while it is being kept, and kept while it is being deleted.
static void ends_that_meet(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    for (int order = 0; order < 2; order++) {
        uint64_t session = written(cluster->client, 2 * CT, 1);
        struct sim_call *gone = order ? sim_delete(cluster->client, session) : NULL,
                        *call = keep(cluster->client, session, text(1, 2), (struct life){0});
        gone = gone ? gone : sim_delete(cluster->client, session);
        OK(gone);
        sim_wait(call);
        sim_run_until_idle();
        assert_int_equal(found(cluster->client, text(1, 2)), 0);
        assert_int_equal(n_kept(cluster->client), 0);
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 1));
        assert_int_equal(n_kept(cluster->client), 0);
    }
    assert_true(sim_quotas_counted(cluster));
    sim_cluster_free(cluster);
}

int hermetic_prefixes(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_that_ended_is_found_by_its_text),
        cmocka_unit_test(nothing_is_copied),
        cmocka_unit_test(other_specifications_do_not_match),
        cmocka_unit_test(a_create_that_comes_twice_makes_one_session),
        cmocka_unit_test(a_kept_session_takes_no_writes),
        cmocka_unit_test(what_cannot_be_kept_is_refused),
        cmocka_unit_test(the_same_text_is_kept_once_and_a_longer_one_takes_its_place),
        cmocka_unit_test(tenants_never_share),
        cmocka_unit_test(it_is_found_after_restarts),
        cmocka_unit_test(one_that_was_changed_since_is_not_found),
        cmocka_unit_test(a_lost_one_is_no_failure),
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(pinned_ones_stay),
        cmocka_unit_test(workers_memory_is_for_others_first),
        cmocka_unit_test(the_cache_has_a_size),
        cmocka_unit_test(a_store_that_refuses_changes_nothing),
        cmocka_unit_test(ends_that_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
