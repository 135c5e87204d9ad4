// SPDX-License-Identifier: Apache-2.0
// The store refuses, is exchanged, or is older than the workers: what was acknowledged is there, or will be
// when the right store is. The store's file cannot grow while the coordinator may not write longer files
// (RLIMIT_FSIZE): a full disk, without one.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/e2e/wire.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S)

static const banyan_spec spread = {.layers = 1,
                                   .q_heads = 4,
                                   .kv_heads = 2,
                                   .k_dim = 32,
                                   .v_dim = 32,
                                   .kv_type = BANYAN_F32,
                                   .chunk_tokens = 32,
                                   .members = 2};

struct held { // a session and what it should hold
    banyan_session *session;
    struct context context;
};

static void make(banyan_client *client, struct held *h, const banyan_spec *spec, uint64_t room,
                 const char *name)
{
    context_init(&h->context, spec, room);
    context_random(&h->context, 0, room, room);
    OK(banyan_session_create(client, spec, name, &h->session, ERR));
}

static void drop(struct held *h)
{
    banyan_session_close(h->session);
    context_free(&h->context);
}

static banyan_code step_on(banyan_client *client, const struct held *h, uint64_t first)
{
    struct step step = {
        .session = h->session, .first = first, .rows = 1, .seed = first, .timeout_ns = LONG_NS};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

static banyan_code append_to(banyan_client *client, const struct held *h, uint64_t first)
{
    struct step step = {.session = h->session,
                        .first = first,
                        .rows = 1,
                        .k = context_k(&h->context, 0, first),
                        .v = context_v(&h->context, 0, first),
                        .timeout_ns = LONG_NS};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "append");
    step_free(&step);
    return code;
}

static void kill_and_restart_coordinator(struct harness_cluster *cluster)
{
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
}

// ---- a store that cannot be written -----------------------------------------------------------------------

// The coordinator's files may not become longer than the store's log is now.
static void store_is_full(struct harness_cluster *cluster, bool full)
{
    char path[512];
    struct stat info;
    struct rlimit limit;
    int pid = harness_cluster_pid(cluster, HARNESS_COORDINATOR);
    snprintf(path, sizeof(path), "%s/store.db-wal", harness_cluster_dir(cluster));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
    limit.rlim_cur = full ? (rlim_t)info.st_size : limit.rlim_max;
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

// The first chunk of a session is refused by the store. Space is there again: what is acknowledged from now
// on outlives the coordinator.
static void a_refused_first_placement(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held h, other;
    make(client, &h, &spread, 200, "refused");
    make(client, &other, &spread, 100, "before");
    support_fill(other.session, &other.context, 0, 100);
    store_is_full(cluster, true);
    banyan_code code =
        banyan_attach(h.session, 0, 0, 100, context_k(&h.context, 0, 0), context_v(&h.context, 0, 0), ERR);
    assert_int_not_equal(code, BANYAN_OK);
    if (!strstr(ERR->message, "store"))
        fail_msg("the store refused, and this is said: %s", ERR->message);
    OK(step_on(client, &other, 99)); // what needs no writing goes on
    store_is_full(cluster, false);
    support_fill(h.session, &h.context, 0, 100);
    OK(append_to(client, &h, 100));
    OK(step_on(client, &h, 100));
    kill_and_restart_coordinator(cluster);
    OK(step_on(client, &h, 100));
    OK(append_to(client, &h, 101));
    OK(step_on(client, &other, 99));
    drop(&h);
    drop(&other);
    banyan_disconnect(client);
    support_stop(cluster);
}

// More commits than rows may be frozen by, all refused: none of them has happened, and once there is room the
// session takes other rows in their place.
static void refused_commits_freeze_nothing(void **state)
{
    enum { REFUSED = 4200 };
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held h;
    make(client, &h, &spread, 120, "refused");
    support_fill(h.session, &h.context, 0, 100);
    OK(banyan_attach(h.session, 0, 100, 20, context_k(&h.context, 0, 100), context_v(&h.context, 0, 100),
                     ERR));
    store_is_full(cluster, true);
    for (uint64_t i = 0; i < REFUSED; i++) {
        assert_int_not_equal(banyan_commit(h.session, 0, 100 + i % 3, 12, ERR), BANYAN_OK);
        if (!strstr(ERR->message, "the store"))
            fail_msg("commit %d: %s", (int)i, ERR->message);
    }
    store_is_full(cluster, false);
    context_random(&h.context, 100, 20, 77);
    support_fill(h.session, &h.context, 100, 20);
    OK(step_on(client, &h, 119));
    kill_and_restart_coordinator(cluster);
    OK(step_on(client, &h, 119));
    drop(&h);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Frees the store once the coordinator has said that it was refused.
static void *free_the_store(void *arg)
{
    struct harness_cluster *cluster = arg;
    char *log = NULL;
    for (int i = 0; i < 12000 && !(log && strstr(log, "what a worker lost")); i++) {
        free(log);
        support_sleep_ms(5);
        log = harness_cluster_log(cluster, HARNESS_COORDINATOR);
    }
    free(log);
    store_is_full(cluster, false);
    return NULL;
}

// A worker comes back without its rows, and the store refuses to say so: neither that worker nor the next
// life of the coordinator may take the session for one that never had these rows.
static void a_refused_loss(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    harness_cluster_allow_error(cluster, "what a worker lost");
    banyan_client *client = support_connect(cluster, "tcp");
    banyan_spec one = spread;
    one.members = 1;
    struct held h;
    pthread_t thread;
    make(client, &h, &one, 100, "appended");
    for (uint64_t p = 0; p < 5; p++)
        OK(append_to(client, &h, p)); // these rows are in no store
    harness_cluster_signal(cluster, 0, SIGKILL);
    store_is_full(cluster, true);
    assert_int_equal(pthread_create(&thread, NULL, free_the_store, cluster), 0);
    assert_true(harness_cluster_restart(cluster, 0));
    pthread_join(thread, NULL);
    EVENTUALLY(60, step_on(client, &h, 4) == BANYAN_DATA_LOSS);
    kill_and_restart_coordinator(cluster);
    EVENTUALLY(60, step_on(client, &h, 4) == BANYAN_DATA_LOSS);
    drop(&h);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- another store ----------------------------------------------------------------------------------------

static void stop_coordinator(struct harness_cluster *cluster)
{
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGTERM);
}

static void start_coordinator(struct harness_cluster *cluster)
{
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
}

// Of the stopped coordinator's folder.
static void shell(const struct harness_cluster *cluster, const char *command)
{
    char line[512];
    snprintf(line, sizeof(line), "cd %s && test ! -s store.db-wal && %s", harness_cluster_dir(cluster),
             command);
    assert_int_equal(system(line), 0);
}

struct kept { // by all workers together
    uint64_t sessions, bytes, active;
};

static struct kept kept_by(banyan_client *client)
{
    struct kept kept = {0};
    banyan_cluster_info info;
    if (banyan_cluster_get_info(client, &info, NULL) != BANYAN_OK)
        return kept;
    for (uint32_t i = 0; i < info.n_workers; i++) {
        kept.active += strcmp(info.workers[i].state, "active") == 0;
        kept.sessions += info.workers[i].quarantined_sessions;
        kept.bytes += info.workers[i].quarantined_bytes;
    }
    banyan_cluster_info_free(&info);
    return kept;
}

#define ALL_BACK(client) EVENTUALLY(60, kept_by(client).active == 2)

static void fill(banyan_client *client, struct held *h, uint64_t tokens)
{
    support_fill(h->session, &h->context, 0, tokens);
    OK(append_to(client, h, tokens)); // this row is in no store
}

// A holder of the secret says that it has seen a term that cannot have been: refused, and ours stays. So is a
// worker of an older build, which would misread its messages.
static void a_forged_term(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct common_secret secret;
    struct common_error err;
    assert_int_equal(common_secret_load_or_create(harness_cluster_secret_file(cluster), &secret, &err),
                     COMMON_OK);
    const uint64_t seen[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 40,
                             0}; // the last one is of an older build
    for (size_t i = 0; i < sizeof(seen) / sizeof(*seen); i++) {
        Banyan__Pb__RegisterRequest m = BANYAN__PB__REGISTER_REQUEST__INIT;
        m.name = (char *)"forger", m.host = (char *)"h", m.kernel = (char *)"k";
        m.endpoint = m.edge_endpoint = (char *)"tcp://127.0.0.1:1";
        m.instance = m.capacity_bytes = m.bandwidth = 1;
        m.control = seen[i] ? PROTO_CONTROL_VERSION : PROTO_CONTROL_VERSION - 1;
        m.seen_term = seen[i];
        int fd = wire_dial(harness_cluster_endpoint(cluster, "tcp"));
        assert_true(wire_hello_as(fd, BANYAN__PB__ROLE__ROLE_WORKER, &secret));
        struct wire_frame frame = wire_request(BANYAN__PB__METHOD__METHOD_REGISTER, 9, &m.base, NULL, 0);
        assert_true(wire_send(fd, frame.bytes, frame.len));
        struct wire_answer answer = wire_read(fd, 30000);
        assert_int_equal(answer.code, COMMON_FAILED_PRECONDITION);
        assert_non_null(strstr(answer.message, seen[i] ? "term" : "release"));
        wire_answer_free(&answer);
        free(frame.bytes);
        close(fd);
    }
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    assert_int_equal(info.term, 1);
    banyan_cluster_info_free(&info);
    banyan_disconnect(client);
    support_stop(cluster);
}

static void an_empty_store(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held h, theirs;
    make(client, &h, &spread, 200, "kept");
    fill(client, &h, 100);
    stop_coordinator(cluster);
    shell(cluster, "mv store.db right.db");
    start_coordinator(cluster);
    ALL_BACK(client);
    struct kept kept = kept_by(client);
    assert_true(kept.sessions == 2 && kept.bytes >= 101 * 2 * 2 * 32 * 4); // at each of both workers
    FAILS(BANYAN_NOT_FOUND, NULL, step_on(client, &h, 100));
    make(client, &theirs, &spread, 200, "theirs"); // others can work beside it
    fill(client, &theirs, 64);
    assert_int_equal(kept_by(client).sessions, 2);
    kill_and_restart_coordinator(cluster); // and it is the same after a restart, and at every doubt
    ALL_BACK(client);
    OK(step_on(client, &theirs, 64));
    assert_int_equal(kept_by(client).sessions, 2);

    stop_coordinator(cluster);
    shell(cluster, "mv store.db wrong.db && mv right.db store.db");
    start_coordinator(cluster);
    ALL_BACK(client);
    for (uint64_t p = 0; p <= 100; p++)
        OK(step_on(client, &h, p));
    OK(append_to(client, &h, 101));
    FAILS(BANYAN_NOT_FOUND, NULL, step_on(client, &theirs, 64));
    // What the wrong store has left is named, and goes on an operator's word
    uint64_t id = banyan_session_id(theirs.session), sessions = 0, bytes = 0;
    banyan_quarantine_list list;
    OK(banyan_quarantine_get_list(client, NULL, &list, ERR));
    assert_int_equal(list.n, 2);
    for (uint32_t i = 0; i < list.n; i++)
        assert_true(list.sessions[i].session == id && list.sessions[i].bytes > 0 && !list.sessions[i].newer);
    banyan_quarantine_list_free(&list);
    FAILS(BANYAN_NOT_FOUND, NULL,
          banyan_quarantine_drop(client, "w0", banyan_session_id(h.session), NULL, NULL, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_quarantine_drop(client, "nobody", 0, NULL, NULL, ERR));
    OK(banyan_quarantine_drop(client, "w0", id, &sessions, &bytes, ERR));
    assert_true(sessions == 1 && bytes > 0);
    OK(banyan_quarantine_drop(client, "w1", 0, &sessions, &bytes, ERR));
    assert_true(sessions == 1 && bytes > 0);
    assert_int_equal(kept_by(client).sessions, 0);
    OK(step_on(client, &h, 101));
    OK(banyan_session_delete(h.session, ERR));
    EVENTUALLY(60, support_used_bytes(client) == 0); // nothing of the other one is left either
    drop(&h);
    drop(&theirs);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A copy of the store from earlier: what has not changed since goes on, what has is unavailable, what is new
// is kept, and with the right store everything is there.
static void an_older_copy(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held same, grown, cut, later, other;
    make(client, &same, &spread, 200, "same");
    make(client, &grown, &spread, 300, "grown");
    make(client, &cut, &spread, 200, "cut");
    fill(client, &same, 100);
    fill(client, &grown, 100);
    fill(client, &cut, 100);
    stop_coordinator(cluster);
    shell(cluster, "cp store.db copy.db");
    start_coordinator(cluster);
    support_fill(grown.session, &grown.context, 101, 150);
    OK(banyan_session_truncate(cut.session, 50, ERR));
    make(client, &later, &spread, 200, "later");
    fill(client, &later, 100);
    stop_coordinator(cluster);
    shell(cluster, "mv store.db right.db && mv copy.db store.db");
    start_coordinator(cluster);
    ALL_BACK(client);
    OK(step_on(client, &same, 100));
    for (int round = 0; round < 2; round++) { // and again in its next life
        FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", step_on(client, &grown, 99));
        struct held before = cut; // the handle is of the incarnation that this store does not know
        FAILS(BANYAN_ABORTED, NULL, step_on(client, &cut, 49));
        OK(banyan_session_open(client, 0, "cut", &before.session, ERR));
        FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", step_on(client, &before, 49));
        banyan_session_close(before.session);
        FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", append_to(client, &grown, 101));
        banyan_client *second = support_connect(cluster, "tcp"); // without an earlier ticket
        banyan_session *again;
        OK(banyan_session_open(second, 0, "grown", &again, ERR));
        FAILS(BANYAN_UNAVAILABLE, "QUARANTINE",
              banyan_attach(again, 0, 260, 30, context_k(&grown.context, 0, 260),
                            context_v(&grown.context, 0, 260), ERR));
        banyan_session_close(again);
        banyan_disconnect(second);
        FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", banyan_commit(grown.session, 0, 0, 120, ERR));
        FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", banyan_session_truncate(grown.session, 10, ERR));
        FAILS(BANYAN_NOT_FOUND, NULL, step_on(client, &later, 100));
        if (round == 0) {
            make(client, &other, &spread, 200, "other"); // its ids are not in use
            fill(client, &other, 100);
            kill_and_restart_coordinator(cluster);
            ALL_BACK(client);
        }
    }
    OK(step_on(client, &other, 100));
    stop_coordinator(cluster);
    shell(cluster, "mv right.db store.db");
    start_coordinator(cluster);
    ALL_BACK(client);
    OK(step_on(client, &same, 100));
    for (uint64_t p = 0; p < 251; p += 10)
        OK(step_on(client, &grown, p));
    OK(step_on(client, &grown, 250));
    OK(step_on(client, &cut, 49));
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_on(client, &cut, 50));
    OK(step_on(client, &later, 100));
    OK(append_to(client, &later, 101));
    assert_int_equal(kept_by(client).sessions, 2); // `other`, at each
    drop(&same), drop(&grown), drop(&cut), drop(&later), drop(&other);
    banyan_disconnect(client);
    support_stop(cluster);
}

// The older state is the right one here: the newer one is given up, and what the store has is cut to what is
// left.
static void an_older_copy_is_kept(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held grown;
    make(client, &grown, &spread, 300, "grown");
    fill(client, &grown, 100);
    stop_coordinator(cluster);
    shell(cluster, "cp store.db copy.db");
    start_coordinator(cluster);
    ALL_BACK(client);
    support_fill(grown.session, &grown.context, 101, 150);
    stop_coordinator(cluster);
    shell(cluster, "mv copy.db store.db");
    start_coordinator(cluster);
    ALL_BACK(client);
    FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", step_on(client, &grown, 99));
    OK(banyan_quarantine_drop(client, "w0", 0, NULL, NULL, ERR));
    OK(banyan_quarantine_drop(client, "w1", 0, NULL, NULL, ERR));
    EVENTUALLY(60, step_on(client, &grown, 99) == BANYAN_DATA_LOSS);
    OK(banyan_session_truncate(grown.session, 0, ERR));
    ALL_BACK(client);
    support_fill(grown.session, &grown.context, 0, 100);
    OK(step_on(client, &grown, 99));
    drop(&grown);
    banyan_disconnect(client);
    support_stop(cluster);
}

// What the store itself has deleted while a worker was away goes without anybody's word, also after a
// restart.
static void deleted_while_away(void **state)
{
    (void)state;
    static const char *const quick[] = {"--heartbeat", "500ms", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2, .coordinator_args = quick});
    banyan_client *client = support_connect(cluster, "tcp");
    for (int restart = 0; restart < 2; restart++) {
        struct held h;
        make(client, &h, &spread, 200, "deleted");
        fill(client, &h, 100);
        harness_cluster_signal(cluster, 1, SIGSTOP);
        EVENTUALLY(60, kept_by(client).active == 1);
        OK(banyan_session_delete(h.session, ERR));
        if (restart)
            kill_and_restart_coordinator(cluster);
        harness_cluster_signal(cluster, 1, SIGCONT);
        ALL_BACK(client);
        assert_int_equal(kept_by(client).sessions, 0);
        EVENTUALLY(60, support_used_bytes(client) == 0);
        drop(&h);
    }
    banyan_disconnect(client);
    support_stop(cluster);
}

// Memory that quarantine takes up: a refused call says so.
static void quarantine_fills_the_memory(void **state)
{
    (void)state;
    const banyan_spec fat = {.layers = 1,
                             .q_heads = 4,
                             .kv_heads = 4,
                             .k_dim = 128,
                             .v_dim = 128,
                             .kv_type = BANYAN_F32,
                             .chunk_tokens = 64,
                             .members = 2};
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2, .memory = "8M"});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held h, fresh;
    make(client, &h, &fat, 1600, "kept");
    support_fill(h.session, &h.context, 0, 1500); // 6 MiB of both workers' 8
    stop_coordinator(cluster);
    shell(cluster, "mv store.db right.db");
    start_coordinator(cluster);
    ALL_BACK(client);
    make(client, &fresh, &fat, 1600, "fresh");
    EVENTUALLY(60, support_used_bytes(client) > 0); // the workers have said how full they are
    banyan_code code = banyan_attach(fresh.session, 0, 0, 1500, context_k(&fresh.context, 0, 0),
                                     context_v(&fresh.context, 0, 0), ERR);
    assert_int_equal(code, BANYAN_RESOURCE_EXHAUSTED);
    if (!strstr(ERR->message, "quarantine"))
        fail_msg("the refusal does not name the quarantine: %s", ERR->message);
    OK(banyan_quarantine_drop(client, "w0", 0, NULL, NULL, ERR));
    OK(banyan_quarantine_drop(client, "w1", 0, NULL, NULL, ERR));
    EVENTUALLY(60, banyan_attach(fresh.session, 0, 0, 1500, context_k(&fresh.context, 0, 0),
                                 context_v(&fresh.context, 0, 0), ERR) == BANYAN_OK);
    OK(banyan_commit(fresh.session, 0, 0, 1500, ERR));
    OK(step_on(client, &fresh, 1499));
    drop(&h);
    drop(&fresh);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN); // the daemons inherit it: a write past the limit fails with EFBIG
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_first_placement),
        cmocka_unit_test(refused_commits_freeze_nothing),
        cmocka_unit_test(a_refused_loss),
        cmocka_unit_test(a_forged_term),
        cmocka_unit_test(an_empty_store),
        cmocka_unit_test(an_older_copy),
        cmocka_unit_test(an_older_copy_is_kept),
        cmocka_unit_test(deleted_while_away),
        cmocka_unit_test(quarantine_fills_the_memory),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
