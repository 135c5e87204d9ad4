// SPDX-License-Identifier: Apache-2.0
// States of sessions on real processes: put and got back, by another client, after restarts of everything,
// after the loss of a worker; shared by forks, gone after truncates, also by a client of an older
// build, and with the session; in snapshots; refused where they would be of another text.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>
#include <unistd.h>

#include <sqlite3.h>

#include "proto/banyan.pb-c.h"
#include "tests/e2e/wire.h"

enum { LENGTH = 300, CHUNK = 32, LARGE = 1300000, WORKERS = 3 };

static struct harness_cluster *cluster; // of 3 workers, copies at two
static banyan_client *client;
static struct context context;

static banyan_session *filled(const char *name)
{
    banyan_session *session;
    OK(banyan_session_create(client, &context.spec, name, &session, ERR));
    support_fill(session, &context, 0, LENGTH);
    return session;
}

static uint8_t *bytes_of(uint64_t seed, size_t n)
{
    uint8_t *out = malloc(n);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)((seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407) >> 56);
    return out;
}

static banyan_code put_of(banyan_session *session, uint32_t layer, uint64_t position, uint64_t seed, size_t n)
{
    uint8_t digest[BANYAN_STATE_DIGEST], *data = bytes_of(seed, n);
    memset(digest, (int)seed, sizeof digest);
    banyan_code code = banyan_state_put(session, layer, position, data, n, digest, ERR);
    free(data);
    return code;
}

// The newest one of a layer at or before `at` is this one.
static void is_there(banyan_session *session, uint32_t layer, uint64_t at, uint64_t position, uint64_t seed,
                     size_t n)
{
    banyan_state state;
    uint8_t *want = bytes_of(seed, n);
    OK(banyan_state_get(session, layer, at, &state, ERR));
    assert_int_equal(state.layer, layer);
    assert_int_equal(state.position, position);
    assert_int_equal(state.bytes, n);
    assert_int_equal(state.digest[5], (uint8_t)seed);
    assert_memory_equal(state.data, want, n);
    banyan_state_free(&state);
    free(want);
}

static size_t states_of(banyan_session *session)
{
    banyan_state_list list;
    OK(banyan_state_get_list(session, &list, ERR));
    size_t n = list.n;
    for (size_t i = 1; i < n; i++)
        assert_true(list.states[i].position >= list.states[i - 1].position);
    banyan_state_list_free(&list);
    return n;
}

static uint32_t sessions(void)
{
    banyan_session_list list;
    OK(banyan_session_get_list(client, &list, ERR));
    uint32_t n = list.n;
    banyan_session_list_free(&list);
    return n;
}

static void drop(banyan_session *session)
{
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
}

static void put_and_get(void **state)
{
    (void)state;
    banyan_session *session = filled(NULL);
    banyan_state found;
    assert_int_equal(states_of(session), 0);
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_state_get(session, 0, LENGTH, &found, ERR));
    OK(put_of(session, 0, 10, 1, 1));
    OK(put_of(session, 0, 100, 2, 4096));
    OK(put_of(session, 1, 100, 3, 4097));
    OK(put_of(session, 0, 200, 4, LARGE));
    is_there(session, 0, 99, 10, 1, 1);
    is_there(session, 0, 199, 100, 2, 4096);
    is_there(session, 1, LENGTH, 100, 3, 4097);
    is_there(session, 0, UINT64_MAX, 200, 4, LARGE);
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_state_get(session, 1, 99, &found, ERR));
    // What is there is there once, and nothing else takes its place.
    OK(put_of(session, 0, 200, 4, LARGE));
    OK(put_of(session, 0, 100, 2, 4096));
    assert_int_equal(states_of(session), 4);
    FAILS(BANYAN_FAILED_PRECONDITION, "OTHER_BYTES", put_of(session, 0, 100, 9, 4096));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL, put_of(session, 0, 150, 9, 10));
    FAILS(BANYAN_OUT_OF_RANGE, "PAST_END", put_of(session, 0, LENGTH + 1, 9, 10));
    FAILS(BANYAN_INVALID_ARGUMENT, NULL, put_of(session, 2, 250, 9, 10));
    FAILS(BANYAN_INVALID_ARGUMENT, NULL, put_of(session, 0, 0, 9, 10));
    FAILS(BANYAN_INVALID_ARGUMENT, NULL, put_of(session, 0, 250, 9, 0));
    OK(banyan_state_cut(session, 100, ERR));
    OK(put_of(session, 0, 150, 9, 10));
    assert_int_equal(states_of(session), 4);
    OK(banyan_state_cut(session, 0, ERR));
    assert_int_equal(states_of(session), 0);
    OK(put_of(session, 0, 5, 5, 5));
    drop(session);
    assert_int_equal(sessions(), 0); // its states go with it
}

static void more_than_an_index(void **state)
{
    (void)state;
    enum { MANY = 140 };
    banyan_session *session = filled(NULL), *fork;
    for (uint64_t i = 1; i <= MANY; i++)
        OK(put_of(session, i % 2, i, i, 100 + i));
    assert_int_equal(states_of(session), MANY);
    for (uint64_t i = 2; i <= MANY; i += 23)
        is_there(session, i % 2, i, i, i, 100 + i);
    for (uint64_t at = 127; at > 0; at = at > 63 ? at - 64 : 0) { // at the ends of indexes, and within them
        OK(banyan_session_fork(session, at, NULL, &fork, ERR));
        assert_int_equal(states_of(fork), at);
        OK(put_of(fork, at % 2 ? 0 : 1, at, 77, 10));
        is_there(fork, at % 2, at, at, at, 100 + at);
        drop(fork);
    }
    OK(banyan_state_cut(session, 64, ERR));
    assert_int_equal(states_of(session), 64);
    OK(put_of(session, 0, 65, 8, 8));
    is_there(session, 0, 65, 65, 8, 8);
    is_there(session, 1, 65, 63, 63, 163);
    drop(session);
}

static void truncates_and_forks(void **state)
{
    (void)state;
    banyan_session *session = filled("parent"), *fork, *other;
    for (uint64_t at = 64; at <= 256; at += 64)
        OK(put_of(session, 0, at, at, 70000));
    OK(banyan_session_fork(session, 200, "child", &fork, ERR));
    assert_int_equal(states_of(fork), 3);
    is_there(fork, 0, 200, 192, 192, 70000);
    // Each goes on by itself.
    OK(banyan_session_truncate(session, 128, ERR));
    assert_int_equal(states_of(session), 2);
    is_there(session, 0, LENGTH, 128, 128, 70000);
    FAILS(BANYAN_OUT_OF_RANGE, "PAST_END", put_of(session, 0, 192, 1, 10));
    OK(put_of(fork, 0, 200, 5, 10));
    assert_int_equal(states_of(fork), 4);
    // Another handle has truncated: this one has states of another text.
    OK(banyan_session_open(client, 0, "child", &other, ERR));
    OK(banyan_session_truncate(other, 199, ERR));
    FAILS(BANYAN_ABORTED, "OLD_INCARNATION", put_of(fork, 0, 199, 5, 10));
    assert_int_equal(states_of(fork), 3);
    banyan_session_close(other);
    OK(banyan_session_truncate(session, 0, ERR));
    assert_int_equal(states_of(session), 0);
    drop(session);
    is_there(fork, 0, 200, 192, 192, 70000); // they were shared, and stay
    drop(fork);
    EVENTUALLY(10, sessions() == 0);
}

// A client that speaks the wire by itself, as older ones do.
static void without_the_library(void **state)
{
    (void)state;
    banyan_session *session = filled(NULL);
    OK(put_of(session, 0, 64, 1, 5000));
    OK(put_of(session, 0, 256, 2, 5000));
    Banyan__Pb__SessionTruncateRequest request = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    request.session = banyan_session_id(session);
    request.length = 128;
    int fd = wire_dial(harness_cluster_endpoint(cluster, "tcp"));
    assert_true(wire_hello(fd));
    struct wire_frame frame =
        wire_request(BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE, 1, &request.base, NULL, 0);
    assert_true(wire_send(fd, frame.bytes, frame.len));
    struct wire_answer answer = wire_read(fd, 60000);
    assert_int_equal(answer.code, 0);
    assert_non_null(answer.header);
    wire_answer_free(&answer);
    free(frame.bytes);
    close(fd);
    assert_int_equal(states_of(session), 0); // all of them: it could not say which
    drop(session);
}

static void names(void **state)
{
    (void)state;
    banyan_session *session = filled(NULL), *wrong;
    char name[64];
    FAILS(BANYAN_NOT_FOUND, "NO_SESSION",
          banyan_session_create(client, &context.spec, "states-of-0x0123456789abcdef", &wrong, ERR));
    FAILS(BANYAN_NOT_FOUND, "NO_SESSION",
          banyan_session_fork(session, 5, "states-of-0x0123456789abcdef", &wrong, ERR));
    OK(banyan_session_create(client, &context.spec, "states-of-0x012", &wrong, ERR)); // a name like any other
    drop(wrong);
    // Something else under the name is said to be that, and goes with the session all the same.
    snprintf(name, sizeof name, "states-of-0x%016" PRIx64, banyan_session_id(session));
    OK(banyan_session_create(client, &context.spec, name, &wrong, ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL, put_of(session, 0, 5, 1, 10));
    OK(banyan_session_truncate(session, LENGTH / 2, ERR));
    banyan_session_close(wrong);
    drop(session);
    EVENTUALLY(10, sessions() == 0);
}

static void snapshots(void **state)
{
    (void)state;
    banyan_session *session = filled(NULL), *again;
    char folder[] = "/tmp/banyan-states-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/taken", folder);
    for (uint64_t at = 64; at <= 256; at += 64)
        OK(put_of(session, 1, at, at, 70000));
    OK(banyan_session_truncate(session, 250, ERR));
    OK(banyan_session_snapshot(session, path, NULL, NULL, ERR));
    drop(session);
    EVENTUALLY(10, sessions() == 0);
    OK(banyan_session_restore(client, path, NULL, &again, NULL, ERR));
    assert_int_equal(states_of(again), 3);
    is_there(again, 1, LENGTH, 192, 192, 70000);
    OK(put_of(again, 1, 250, 1, 10)); // and it goes on
    is_there(again, 1, LENGTH, 250, 1, 10);
    drop(again);
    support_remove_folder(folder);
}

static void a_worker_is_lost(void **state)
{
    (void)state;
    banyan_session *session = filled(NULL);
    OK(put_of(session, 0, 64, 1, LARGE));
    harness_cluster_signal(cluster, 0, SIGKILL);
    is_there(session, 0, LENGTH, 64, 1, LARGE); // from the other copy
    OK(put_of(session, 0, 128, 2, LARGE));
    is_there(session, 0, LENGTH, 128, 2, LARGE);
    assert_true(harness_cluster_restart(cluster, 0));
    drop(session);
    EVENTUALLY(60, sessions() == 0);
}

// The only copy of a session's states goes with its worker: what is lost is said, and can be done without.
static void all_copies_are_lost(void **state)
{
    (void)state;
    banyan_spec spec = context.spec;
    banyan_session *session;
    banyan_state found;
    banyan_state_list list;
    struct harness_cluster *alone = support_start(&(struct harness_options){.workers = 1});
    banyan_client *other = support_connect(alone, "tcp");
    spec.replicas = 1;
    OK(banyan_session_create(other, &spec, NULL, &session, ERR));
    support_fill(session, &context, 0, LENGTH);
    OK(put_of(session, 0, 64, 1, LARGE));
    harness_cluster_signal(alone, 0, SIGKILL);
    assert_true(harness_cluster_restart(alone, 0));
    FAILS(BANYAN_DATA_LOSS, NULL, banyan_state_get(session, 0, 64, &found, ERR));
    FAILS(BANYAN_DATA_LOSS, NULL, banyan_state_get_list(session, &list, ERR));
    FAILS(BANYAN_DATA_LOSS, NULL, put_of(session, 0, 64, 1, LARGE));
    OK(banyan_session_truncate(session, 0, ERR)); // also where it is unknown which states that leaves
    assert_int_equal(states_of(session), 0);
    support_fill(session, &context, 0, LENGTH);
    OK(put_of(session, 0, 64, 1, LARGE));
    is_there(session, 0, LENGTH, 64, 1, LARGE);
    drop(session);
    banyan_disconnect(other);
    support_stop(alone);
}

// The coordinator dies between the end of a session and that of its states: here by a store in which a
// session bears the name of states, and its owner is not listed.
static void states_without_a_session(void **state)
{
    (void)state;
    char path[256], *why = NULL;
    sqlite3 *db;
    banyan_session_close(filled("orphan"));
    assert_int_equal(sessions(), 1);
    snprintf(path, sizeof path, "%s/store.db", harness_cluster_dir(cluster));
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    int rc =
        sqlite3_exec(db, "UPDATE sessions SET name = 'states-of-0x0123456789abcdef' WHERE name = 'orphan'",
                     NULL, NULL, &why);
    if (rc != SQLITE_OK || sqlite3_changes(db) != 1)
        fail_msg("the store was not changed: %s", why ? why : "no such session");
    sqlite3_close(db);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    EVENTUALLY(60, sessions() == 0);
}

static void everything_is_restarted(void **state)
{
    (void)state;
    banyan_session *session = filled("kept");
    for (uint64_t at = 64; at <= 256; at += 64)
        OK(put_of(session, 0, at, at, LARGE));
    banyan_session_close(session);
    banyan_disconnect(client);
    for (uint32_t i = 0; i < WORKERS; i++)
        harness_cluster_signal(cluster, i, SIGKILL);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    for (uint32_t i = 0; i < WORKERS; i++)
        assert_true(harness_cluster_restart(cluster, i));
    client = support_connect(cluster, "tcp");
    OK(banyan_session_open(client, 0, "kept", &session, ERR));
    assert_int_equal(states_of(session), 4);
    is_there(session, 0, 200, 192, 192, LARGE);
    OK(put_of(session, 0, 300, 5, LARGE));
    is_there(session, 0, 300, 300, 5, LARGE);
    drop(session);
    EVENTUALLY(60, sessions() == 0);
}

// Of everything that a test leaves on the disk, this folder is the parent.
static char stores[] = "/tmp/banyan-states-XXXXXX";

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_and_get),
        cmocka_unit_test(more_than_an_index),
        cmocka_unit_test(truncates_and_forks),
        cmocka_unit_test(without_the_library),
        cmocka_unit_test(names),
        cmocka_unit_test(snapshots),
        cmocka_unit_test(a_worker_is_lost),
        cmocka_unit_test(everything_is_restarted),
        cmocka_unit_test(states_without_a_session),
        cmocka_unit_test(all_copies_are_lost),
    };
    char folder[WORKERS][64];
    const char *args[WORKERS][3];
    const char *const *each[WORKERS];
    if (!mkdtemp(stores))
        return 1;
    for (int i = 0; i < WORKERS; i++) {
        snprintf(folder[i], sizeof folder[i], "%s/w%d", stores, i);
        args[i][0] = "--store";
        args[i][1] = folder[i];
        args[i][2] = NULL;
        each[i] = args[i];
    }
    banyan_spec spec = {.layers = 2,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .k_dim = 32,
                        .v_dim = 32,
                        .kv_type = BANYAN_F16,
                        .chunk_tokens = CHUNK,
                        .replicas = 2};
    context_init(&context, &spec, LENGTH);
    context_random(&context, 0, LENGTH, 1);
    cluster = support_start(&(struct harness_options){.workers = WORKERS, .each_args = each});
    client = support_connect(cluster, "tcp");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    banyan_disconnect(client);
    support_stop(cluster);
    context_free(&context);
    support_remove_folder(stores);
    return failed;
}
