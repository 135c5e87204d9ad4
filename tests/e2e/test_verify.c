// SPDX-License-Identifier: Apache-2.0
// 'banyanctl session verify' on real processes: sessions that are right are called right, while they are
// stepped too; a bit that flips in the memory of one of two holders is found.
#include "tests/e2e/banyanctl.h"
#include "tests/e2e/flip.h"
#include "tests/e2e/support.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct harness_cluster *cluster;
static banyan_client *client;
static bool with_files;

static void verify(const banyan_session *session, int code, const char *says, const char *options)
{
    char line[128];
    snprintf(line, sizeof line, "session verify 0x%016" PRIx64 " %s", banyan_session_id(session), options);
    banyanctl_expect(cluster, code, says, line, NULL);
}

static void every_type_and_bend(void **state)
{
    (void)state;
    enum { LENGTH = 333 };
    for (uint32_t i = 0; i < CONTEXT_SPECS; i++) {
        banyan_spec spec = context_spec(i, 2);
        struct context c;
        banyan_session *session;
        context_init(&c, &spec, LENGTH);
        context_random(&c, 0, LENGTH, i + 1);
        OK(banyan_session_create(client, &spec, NULL, &session, ERR));
        verify(session, 9, "nothing to verify", "");
        for (uint64_t at = 0; at < LENGTH; at += 111)
            support_fill(session, &c, at, 111);
        verify(session, 0, "all 2 layers are right", i % 2 ? "--rows 5" : "--rows 1 --threads 1");
        support_drop(session, &c);
    }
}

static void layers_that_differ(void **state)
{
    (void)state;
    enum { LENGTH = 100 };
    const banyan_kind kinds[] = {
        {.q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 16, .window = 50},
        {.q_heads = 4, .kv_heads = 1, .k_dim = 32, .v_dim = 24, .v_in_k = true},
    };
    const uint32_t layer_kind[] = {0, BANYAN_LAYER_LOCAL, 0, 1};
    const uint32_t shares[] = {BANYAN_SHARES_NONE, BANYAN_SHARES_NONE, 0, BANYAN_SHARES_NONE};
    const banyan_spec spec = {.layers = 4,
                              .kv_type = BANYAN_F32,
                              .n_kinds = 2,
                              .kinds = kinds,
                              .layer_kind = layer_kind,
                              .shares = shares};
    static float rows[LENGTH * 64];
    banyan_session *session;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)((i * 7919) % 1000) / 500.0f - 1.0f;
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint32_t l = 0; l < 4; l += 3) {
        OK(banyan_attach(session, l, 0, LENGTH, rows, l ? NULL : rows + 64, ERR));
        OK(banyan_commit(session, l, 0, LENGTH, ERR));
    }
    verify(session, 0, "all 3 layers are right", "");
    verify(session, 0, "all 1 layers are right", "--layer 2 --seed 7");
    verify(session, 4, "layer 1 holds nothing", "--layer 1");
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
}

// The step that is kept may be of a token that the other layers do not have yet.
static void a_kept_step_that_is_ahead(void **state)
{
    (void)state;
    enum { LENGTH = 10 };
    const banyan_spec spec = {
        .layers = 2, .q_heads = 2, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_F32};
    struct context c;
    banyan_session *session;
    context_init(&c, &spec, LENGTH);
    context_random(&c, 0, LENGTH, 5);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH - 1);
    verify(session, 0, "no step of this session is kept", "");
    for (uint32_t layer = 0; layer < 2; layer++) {
        struct step step = {.session = session, .layer = layer, .first = LENGTH - 1, .rows = 1, .seed = 3};
        step_append(&step, &c);
        OK(step_run(client, &step));
        step_free(&step);
        verify(session, 0, layer ? "the kept step is right: layer 0" : "not all layers have", "--threads 1");
    }
    OK(banyan_session_truncate(session, LENGTH - 1, ERR)); // its row is gone
    verify(session, 0, "no step of this session is kept", "");
    support_drop(session, &c);
}

// ---- while it is stepped ----------------------------------------------------------------------------------

enum { ATTACHED = 300, ROOM = 3000 };
static const banyan_spec doubled = {.layers = 2,
                                    .q_heads = 4,
                                    .kv_heads = 2,
                                    .k_dim = 32,
                                    .v_dim = 32,
                                    .kv_type = BANYAN_F32,
                                    .chunk_tokens = 32,
                                    .members = 3,
                                    .replicas = 2};

struct stepper {
    banyan_session *session;
    struct context context;
    atomic_bool stop;
    uint64_t length;
};

static void *step_on(void *arg)
{
    struct stepper *s = arg;
    for (s->length = ATTACHED; !atomic_load(&s->stop) && s->length < ROOM; s->length++)
        for (uint32_t l = 0; l < 2; l++) {
            struct step step = {
                .session = s->session, .layer = l, .first = s->length, .rows = 1, .seed = s->length};
            step_append(&step, &s->context);
            OK(step_run(client, &step));
            context_check(&s->context, l, s->length, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
            step_free(&step);
        }
    return NULL;
}

static void while_it_is_stepped(void **state)
{
    (void)state;
    struct stepper s = {.length = 0};
    pthread_t thread;
    context_init(&s.context, &doubled, ROOM);
    context_random(&s.context, 0, ROOM, 5);
    OK(banyan_session_create(client, &doubled, NULL, &s.session, ERR));
    support_fill(s.session, &s.context, 0, ATTACHED);
    assert_int_equal(pthread_create(&thread, NULL, step_on, &s), 0);
    for (int i = 0; i < 3; i++)
        verify(s.session, 0, "all 2 layers are right", "--rows 3");
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    assert_true(s.length > ATTACHED);
    support_drop(s.session, &s.context);
}

// ---- a bit flips ------------------------------------------------------------------------------------------

// In the memory of one holder of the row. The test ends here where the system forbids writing into another
// process.
static void flip_one(banyan_session *session, struct context *c, uint32_t layer, uint64_t at)
{
    int flipped = 0;
    for (uint32_t w = 0; w < 3 && flipped == 0; w++)
        flipped =
            flip_in_memory(harness_cluster_pid(cluster, w), context_v(c, layer, at), 32 * sizeof(float));
    if (flipped < 0) {
        support_drop(session, c);
        skip();
    }
    assert_true(flipped > 0);
}

static void a_flipped_bit_is_found(void **state)
{
    (void)state;
    enum { LENGTH = 200, AT = 77 };
    struct context c;
    banyan_session *session;
    context_init(&c, &doubled, LENGTH);
    context_random(&c, 0, LENGTH, 6);
    OK(banyan_session_create(client, &doubled, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    verify(session, 0, "all 2 layers are right", "");
    support_wait_sealed(client, session, LENGTH / 32);
    flip_one(session, &c, 1, AT);
    char says[64];
    snprintf(says, sizeof says, "layer 1: the holders of token %d have different bytes", AT);
    verify(session, 10, says, "");
    verify(session, 10, "1 of 2 layers are wrong", "");
    verify(session, 0, "all 1 layers are right", "--layer 0");
    char line[128];
    snprintf(line, sizeof line, "session verify 0x%016" PRIx64 " -o json", banyan_session_id(session));
    struct harness_output out = banyanctl_run(cluster, line, NULL);
    json_t *json = json_loads(out.out, 0, NULL);
    assert_int_equal(out.exit_code, 10);
    assert_int_equal(json_integer_value(json_object_get(json, "wrong")), 1);
    json_t *layer = json_array_get(json_object_get(json, "layers"), 1);
    assert_true(json_is_true(json_object_get(layer, "copies_differ")));
    assert_int_equal(json_integer_value(json_object_get(layer, "copies")), 2);
    json_decref(json);
    harness_output_free(&out);
    support_drop(session, &c);
}

// A scrub finds the copy that is wrong: no answer has it any more, and another copy takes its place. Where
// the worker has files, they are right: its memory is again, too, also where it has the only copy.
static void a_scrub_ends_it(void **state)
{
    (void)state;
    enum { LENGTH = 200, AT = 77 };
    banyan_spec spec = doubled;
    struct context c;
    banyan_session *session;
    char line[128];
    spec.replicas = with_files ? 1 : 2;
    context_init(&c, &spec, LENGTH + 1);
    context_random(&c, 0, LENGTH + 1, 7);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    support_wait_sealed(client, session, LENGTH / 32);
    flip_one(session, &c, 1, AT);
    harness_cluster_allow_error(cluster, with_files ? "is reloaded from its file" : "its copy was removed");
    snprintf(line, sizeof line, "scrub 0x%016" PRIx64 " --wait", banyan_session_id(session));
    banyanctl_expect(cluster, with_files ? 0 : 10,
                     with_files ? "1 copies were wrong and have been repaired" : "1 did not match their seal",
                     line, NULL);
    for (uint64_t at = AT; at < LENGTH; at += 40) {
        struct step step = {.session = session, .layer = 1, .first = at, .rows = 1, .seed = at};
        OK(step_run(client, &step));
        context_check(&c, 1, at, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
        step_free(&step);
    }
    banyan_cluster_info info = {.thin_chunks = 1};
    for (int i = 0; i < 600 && info.thin_chunks; i++) {
        usleep(100000);
        OK(banyan_cluster_get_info(client, &info, ERR));
        banyan_cluster_info_free(&info);
    }
    assert_int_equal(info.thin_chunks, 0);
    verify(session, 0, "all 2 layers are right", ""); // all copies of each row
    banyanctl_expect(cluster, 0, " 0 did not match their seal", line, NULL);
    support_drop(session, &c);
}

// When the time is up the command says what is left: chunks that are compared, and no bytes that move.
static void a_scrub_that_lasts(void **state)
{
    (void)state;
    enum { LENGTH = 100 };
    struct context c;
    banyan_session *session;
    char line[128];
    context_init(&c, &doubled, LENGTH);
    context_random(&c, 0, LENGTH, 9);
    OK(banyan_session_create(client, &doubled, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    support_wait_sealed(client, session, LENGTH / 32);
    for (uint32_t w = 0; w < 3; w++)
        harness_cluster_signal(cluster, w, SIGSTOP);
    snprintf(line, sizeof line, "scrub 0x%016" PRIx64 " --wait --wait-timeout 300ms",
             banyan_session_id(session));
    banyanctl_expect(cluster, 6, "is not finished after 300.0 ms: 3 chunks are left, still being compared",
                     line, NULL);
    for (uint32_t w = 0; w < 3; w++)
        harness_cluster_signal(cluster, w, SIGCONT);
    support_drop(session, &c);
}

// Two workers have different rows of a chunk when it becomes full: where files do not say whose are right,
// each scrub says so, and the code is that of data that is lost.
static void two_that_differ(void **state)
{
    (void)state;
    enum { FULL = 96, AT = 77 };
    struct context c;
    banyan_session *session;
    banyan_scrub now = {0};
    char line[128];
    context_init(&c, &doubled, FULL);
    context_random(&c, 0, FULL, 8);
    OK(banyan_session_create(client, &doubled, NULL, &session, ERR));
    support_fill(session, &c, 0, FULL - 1);
    flip_one(session, &c, 1, AT);
    harness_cluster_allow_error(cluster, with_files ? "is reloaded from its file"
                                                    : "workers have different rows of a full chunk");
    support_fill(session, &c, FULL - 1, 1);
    snprintf(line, sizeof line, "scrub 0x%016" PRIx64 " --wait", banyan_session_id(session));
    for (int i = 0; now.differ == 0 && now.chunks < FULL / 32; i++) {
        if (i == 600)
            fail_msg("nobody compares what two workers have");
        usleep(100000);
        OK(banyan_get_scrub(client, banyan_session_id(session), &now, ERR));
    }
    assert_int_equal(now.differ, !with_files);
    banyanctl_expect(cluster, with_files ? 0 : 10,
                     with_files ? " 0 did not match their seal" : "1 chunks are disputed", line, NULL);
    verify(session, with_files ? 0 : 10,
           with_files ? "all 2 layers are right" : "the holders of token 77 have different bytes", "");
    support_drop(session, &c);
}

static int snapshots;

static void take_snapshot(const banyan_session *session, int code, const char *says)
{
    char path[96], line[256];
    snprintf(path, sizeof path, "/tmp/banyan-e2e-verify-%ld-snapshot-%d", (long)getpid(), snapshots++);
    snprintf(line, sizeof line, "session snapshot --file-size 4K 0x%016" PRIx64 " %s",
             banyan_session_id(session), path);
    banyanctl_expect(cluster, code, says, line, NULL);
    assert_int_equal(access(path, F_OK) == 0, code == 0);
    support_remove_folder(path);
}

// Rows of a wrong memory are not written out under sums that are right: there is no snapshot, and the memory
// is looked for. Then there is one.
static void a_snapshot_of_a_wrong_memory(void **state)
{
    (void)state;
    enum { LENGTH = 200, AT = 77 };
    banyan_spec spec = doubled;
    struct context c;
    banyan_session *session;
    spec.replicas = 1;
    context_init(&c, &spec, LENGTH);
    context_random(&c, 0, LENGTH, 10);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    support_wait_sealed(client, session, LENGTH / 32);
    take_snapshot(session, 0, "200 tokens");
    flip_one(session, &c, 1, AT);
    harness_cluster_allow_error(cluster, "is reloaded from its file");
    take_snapshot(session, 10, "tokens 64 to 95 do not match their seal");
    banyan_scrub now = {.left = 1};
    for (int i = 0; now.left; i++) {
        if (i == 600)
            fail_msg("nobody looks for the wrong memory");
        usleep(100000);
        OK(banyan_get_scrub(client, banyan_session_id(session), &now, ERR));
    }
    take_snapshot(session, 0, "200 tokens");
    support_drop(session, &c);
}

static void with_files_it_heals(void **state)
{
    with_files = true;
    a_scrub_ends_it(state);
    two_that_differ(state);
    a_snapshot_of_a_wrong_memory(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_bend),       cmocka_unit_test(layers_that_differ),
        cmocka_unit_test(a_kept_step_that_is_ahead), cmocka_unit_test(while_it_is_stepped),
        cmocka_unit_test(a_flipped_bit_is_found),    cmocka_unit_test(a_scrub_ends_it),
        cmocka_unit_test(two_that_differ),           cmocka_unit_test(a_scrub_that_lasts),
    };
    const struct CMUnitTest healing[] = {cmocka_unit_test(with_files_it_heals)};
    cluster = support_start(&(struct harness_options){.workers = 3, .memory = "64M"});
    client = support_connect(cluster, "tcp");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    banyan_disconnect(client);
    support_stop(cluster);
    char dirs[3][64];
    const char *args[3][3] = {{NULL}}, *const * each[3];
    for (int i = 0; i < 3; i++) {
        snprintf(dirs[i], sizeof dirs[i], "/tmp/banyan-e2e-verify-%ld-%d", (long)getpid(), i);
        args[i][0] = "--store";
        args[i][1] = dirs[i];
        each[i] = args[i];
    }
    cluster = support_start(&(struct harness_options){.workers = 3, .memory = "64M", .each_args = each});
    client = support_connect(cluster, "tcp");
    failed += cmocka_run_group_tests(healing, NULL, NULL);
    banyan_disconnect(client);
    support_stop(cluster);
    for (int i = 0; i < 3; i++)
        support_remove_folder(dirs[i]);
    return failed;
}
