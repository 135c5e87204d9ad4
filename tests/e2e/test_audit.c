// SPDX-License-Identifier: Apache-2.0
// Audits and kept steps on real processes: of prefills and decodes of many specs none is called wrong; a bit
// that flips in the memory of one of two holders, and a device that computes wrongly, are found, by the audit
// and by 'session verify' of the kept step.
#include "tests/e2e/banyanctl.h"
#include "tests/e2e/flip.h"
#include "tests/e2e/support.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct harness_cluster *cluster;
static banyan_client *client;
static const char *module;

static const char *const one_in_three[] = {"--audit", "3", NULL};
static const char *const all_of_them[] = {"--audit", "1", NULL};

static void start(const struct harness_options *options)
{
    cluster = support_start(options);
    client = support_connect(cluster, "tcp");
}

static void stop(void)
{
    banyan_disconnect(client);
    support_stop(cluster);
}

static banyan_cluster_info info_now(void)
{
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    banyan_cluster_info_free(&info);
    return info;
}

static uint64_t ended(void)
{
    banyan_cluster_info info = info_now();
    return info.audited + info.audit_skipped;
}

static void verify(const banyan_session *session, int code, const char *says, const char *options)
{
    char line[128];
    snprintf(line, sizeof line, "session verify 0x%016" PRIx64 " %s", banyan_session_id(session), options);
    banyanctl_expect(cluster, code, says, line, NULL);
}

// ---- what is right ------------------------------------------------------------------------------------------------

static uint64_t stepped; // items so far

// Prefill in blocks of many rows, then decode, of all layers; each answer is compared, too.
static void prefill_and_decode(banyan_session *session, const struct context *c, uint64_t prefill,
                               uint64_t length)
{
    for (uint64_t at = 0, rows; at < length; at += rows) {
        rows = at < prefill ? 61 : 1;
        rows = at < prefill && rows > prefill - at ? prefill - at : rows;
        for (uint32_t layer = 0; layer < c->spec.layers; layer++, stepped++) {
            struct step step = {
                .session = session, .layer = layer, .first = at, .rows = (uint32_t)rows, .seed = at};
            step_append(&step, c);
            OK(step_run(client, &step));
            if (!c->spec.not_causal)
                context_check(c, layer, at, (uint32_t)rows, 0, step.made_q, step.o, step.lse, NULL, "step");
            step_free(&step);
        }
        if (stepped % 24 < c->spec.layers) // what waits is bounded: this is about all of them
            EVENTUALLY(20, ended() + 4 >= stepped / 3);
    }
}

static void many_specs(void **state)
{
    (void)state;
    enum { PREFILL = 200, LENGTH = 260 };
    start(&(struct harness_options){.workers = 3, .memory = "64M", .coordinator_args = one_in_three});
    for (uint32_t i = 0; i < CONTEXT_SPECS; i++) {
        banyan_spec spec = context_spec(i, 3); // N is a multiple of it
        spec.kv_heads = i % 3 == 2 ? 1 : 2;
        struct context c;
        banyan_session *session;
        context_init(&c, &spec, LENGTH);
        context_random(&c, 0, LENGTH, i + 1);
        OK(banyan_session_create(client, &spec, NULL, &session, ERR));
        prefill_and_decode(session, &c, PREFILL, LENGTH);
        EVENTUALLY(20, ended() >= stepped / 3);
        verify(session, 0, "the kept step is right", "");
        verify(session, 0, "the kept step is right", ""); // verify's own steps are not kept
        support_drop(session, &c);
        assert_int_equal(info_now().audit_differences, 0);
    }
    banyan_cluster_info info = info_now();
    assert_int_equal(info.audit_every, 3);
    assert_int_equal(info.audited + info.audit_skipped, stepped / 3);
    assert_true(info.audited >=
                stepped / 3 - stepped / 20); // of windows that forget some rows are gone at once
    stop();
}

// Kinds of layers, one that shares, blocks of rows that see each other.
static void layers_that_differ_and_blocks(void **state)
{
    (void)state;
    enum { LENGTH = 120 };
    const banyan_kind kinds[] = {
        {.q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 16, .window = 50, .soft_cap = 20},
        {.q_heads = 6, .kv_heads = 1, .k_dim = 32, .v_dim = 24, .v_in_k = true},
    };
    const uint32_t layer_kind[] = {0, BANYAN_LAYER_LOCAL, 0, 1};
    const uint32_t shares[] = {BANYAN_SHARES_NONE, BANYAN_SHARES_NONE, 0, BANYAN_SHARES_NONE};
    const banyan_spec spec = {.layers = 4,
                              .kv_type = BANYAN_F16,
                              .chunk_tokens = 32,
                              .n_kinds = 2,
                              .kinds = kinds,
                              .layer_kind = layer_kind,
                              .shares = shares};
    static uint16_t rows[LENGTH * 96];
    static float q[LENGTH * 6 * 32], o[LENGTH * 6 * 24], lse[LENGTH * 6];
    banyan_session *session;
    start(&(struct harness_options){.workers = 2, .memory = "64M", .coordinator_args = all_of_them});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (uint16_t)(0x3000 + i * 7919 % 0x0a00 + (i % 3 ? 0x8000 : 0));
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = (float)((i * 104729) % 1000) / 250.0f - 2.0f;
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint32_t l = 0; l < 4; l += 3) {
        OK(banyan_attach(session, l, 0, LENGTH, rows, l ? NULL : rows + 64, ERR));
        OK(banyan_commit(session, l, 0, LENGTH, ERR));
    }
    uint64_t n = 0;
    for (uint32_t l = 0; l < 4; l++)
        for (uint64_t first = 5; first < LENGTH - 30 && l != 1; first += 17, n++) {
            banyan_item item = {.session = session,
                                .layer = l,
                                .first = first,
                                .rows = 9,
                                .q = q,
                                .visible = LENGTH,
                                .block_first = first % 2 ? first + 3 : 0, // some of the rows
                                .block_count = first % 2 ? 4 : 0,
                                .o = o,
                                .lse = first % 3 ? lse : NULL,
                                .error = ERR};
            OK(banyan_attend(client, &item, 1, 0, NULL, ERR));
            OK(item.code);
            EVENTUALLY(20, ended() > n);
            banyan_kept_step kept;
            OK(banyan_session_get_kept_step(session, &kept, ERR));
            assert_int_equal(kept.rows, 9);
            assert_int_equal(kept.n, BANYAN_KEPT_ROWS);
            assert_int_equal(kept.visible, LENGTH);
            assert_int_equal(kept.audited, BANYAN_AUDIT_RIGHT);
            assert_true(kept.q_heads == (kept.layer == 3 ? 6 : 4) && kept.k_dim == 32);
            for (uint32_t r = 0; r < kept.n; r++)
                assert_memory_equal(kept.q + (size_t)r * kept.q_heads * 32,
                                    q + (kept.positions[r] - kept.first) * kept.q_heads * 32,
                                    kept.q_heads * 32 * sizeof(float));
            if (kept.layer == l && kept.first == first)
                assert_memory_equal(kept.o, o, (size_t)kept.q_heads * kept.v_dim * sizeof(float));
            banyan_kept_step_free(&kept);
            if (first % 34 == 5)
                verify(session, 0, "the kept step is right", "");
        }
    banyan_cluster_info info = info_now();
    assert_int_equal(info.audited, n);
    assert_int_equal(info.audit_differences, 0);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    stop();
}

// ---- what is wrong --------------------------------------------------------------------------------------------------

static void expect_found(const banyan_session *session, uint64_t differences, const char *member)
{
    char line[128], says[64];
    snprintf(says, sizeof says, "\"audit_differences\": %" PRIu64, differences);
    banyanctl_expect(cluster, 0, says, "status -o json", NULL);
    verify(session, 10, "the kept step is WRONG", "");
    verify(session, 10, "an audit also found it wrong", "");
    snprintf(line, sizeof line, "session verify 0x%016" PRIx64 " -o json", banyan_session_id(session));
    struct harness_output out = banyanctl_run(cluster, line, NULL);
    json_t *json = json_loads(out.out, 0, NULL), *kept = json_object_get(json, "kept");
    assert_int_equal(out.exit_code, 10);
    assert_string_equal(json_string_value(json_object_get(kept, "verdict")), "WRONG");
    assert_string_equal(json_string_value(json_object_get(kept, "audited")), "wrong");
    json_decref(json);
    harness_output_free(&out);
    char *log = harness_cluster_log(cluster, HARNESS_COORDINATOR);
    snprintf(says, sizeof says, "session=%016" PRIx64, banyan_session_id(session));
    const char *said = strstr(log, "an answer is wrong");
    assert_non_null(said);
    assert_non_null(strstr(said, says));
    assert_non_null(strstr(said, "plan_digest="));
    assert_non_null(strstr(said, member));
    free(log);
}

static void a_flipped_bit(void **state)
{
    (void)state;
    enum { LENGTH = 200, AT = 77 };
    const banyan_spec spec = {.layers = 2,
                              .q_heads = 4,
                              .kv_heads = 2,
                              .k_dim = 32,
                              .v_dim = 32,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = 32,
                              .members = 2,
                              .replicas = 2};
    struct context c;
    banyan_session *session;
    start(&(struct harness_options){.workers = 2, .memory = "64M", .coordinator_args = all_of_them});
    context_init(&c, &spec, LENGTH);
    context_random(&c, 0, LENGTH, 6);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    struct step step = {.session = session, .layer = 1, .first = LENGTH - 1, .rows = 1, .seed = 1};
    OK(step_run(client, &step));
    step_free(&step);
    EVENTUALLY(20, ended() == 1);
    assert_int_equal(info_now().audit_differences, 0);
    support_wait_sealed(client, session, LENGTH / 32); // else the two would dispute what it is
    const uint8_t *v = context_v(&c, 1, AT);           // from the first element's last byte on: its exponent
    int flipped = flip_in_memory(harness_cluster_pid(cluster, 0), v + 3, 31 * sizeof(float));
    if (flipped < 0) {
        support_drop(session, &c);
        stop();
        skip();
    }
    assert_true(flipped > 0);
    harness_cluster_allow_error(cluster, "an answer is wrong");
    // Whichever of the two serves the row's chunk, the other one is asked.
    step = (struct step){.session = session, .layer = 1, .first = AT, .rows = 1, .seed = 2};
    OK(step_run(client, &step));
    step_free(&step);
    EVENTUALLY(20, ended() == 2);
    expect_found(session, 1, "w0");
    support_drop(session, &c);
    stop();
}

static void a_device_that_computes_wrongly(void **state)
{
    (void)state;
    enum { LENGTH = 120 };
    char skewed[] = "/tmp/banyan-skewed-XXXXXX";
    const char *const device[] = {"--device", "cuda:0", "--device-module", module, "--bandwidth", "1G", NULL};
    const char *const cpu[] = {"--device", "cpu", "--bandwidth", "1G", NULL};
    const char *const *const each[] = {device, cpu};
    const banyan_spec spec = {.layers = 2,
                              .q_heads = 4,
                              .kv_heads = 2,
                              .k_dim = 40,
                              .v_dim = 24,
                              .kv_type = BANYAN_INT8,
                              .chunk_tokens = 32,
                              .members = 2,
                              .replicas = 1};
    struct context c;
    banyan_session *session;
    close(mkstemp(skewed));
    unlink(skewed);
    setenv("BANYAN_SKEWED_FILE", skewed, 1);
    start(&(struct harness_options){
        .workers = 2, .memory = "256M", .coordinator_args = all_of_them, .each_args = each});
    context_init(&c, &spec, LENGTH);
    context_random(&c, 0, LENGTH, 6);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint64_t at = 0; at < LENGTH; at += 10)
        for (uint32_t layer = 0; layer < 2; layer++) {
            struct step step = {.session = session, .layer = layer, .first = at, .rows = 10, .seed = at};
            step_append(&step, &c);
            OK(step_run(client, &step));
            context_check(&c, layer, at, 10, 0, step.made_q, step.o, step.lse, NULL, "step");
            step_free(&step);
            EVENTUALLY(20, ended() == at / 5 + layer + 1);
        }
    assert_int_equal(info_now().audited, 24); // rows that a device has are read from it
    assert_int_equal(info_now().audit_differences, 0);
    verify(session, 0, "the kept step is right", "");
    close(open(skewed, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    harness_cluster_allow_error(cluster, "an answer is wrong");
    struct step step = {.session = session, .layer = 0, .first = LENGTH - 1, .rows = 1, .seed = 9};
    OK(step_run(client, &step));
    step_free(&step);
    EVENTUALLY(20, ended() == 25);
    unlink(skewed); // it is right again: what is kept shows that it was not
    expect_found(session, 1, "w0");
    verify(session, 10, "all 2 layers are right now, but the kept step is wrong", "");
    support_drop(session, &c);
    stop();
    unsetenv("BANYAN_SKEWED_FILE");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_specs),
        cmocka_unit_test(layers_that_differ_and_blocks),
        cmocka_unit_test(a_flipped_bit),
        cmocka_unit_test(a_device_that_computes_wrongly),
    };
    module = argc > 1 ? argv[1] : NULL;
    return module ? cmocka_run_group_tests_name("audits", tests, NULL, NULL) : 2;
}
