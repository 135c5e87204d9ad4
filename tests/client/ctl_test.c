// SPDX-License-Identifier: Apache-2.0
// banyanctl as a user meets it: what it prints, what it says when something is wrong, and its exit codes
// (docs/reference/exit-codes.md).
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/client/ctl_suite.h"
#include "tests/common/group.h"

// ---- tests -----------------------------------------------------------------------------------------------

static void test_looking(void **state)
{
    (void)state;
    ctl_expect(0, "status", NULL);
    ctl_said("workers active");
    ctl_said("LIMIT");
    ctl_said("--max-client-bytes");
    ctl_expect(0, "-o json status", NULL);
    json_t *json = ctl_parse();
    assert_int_equal(ctl_number(json, "workers_active"), 2);
    assert_int_equal(ctl_number(json, "sessions"), 0);
    bool clients = false, memory = false;
    size_t i;
    json_t *limit;
    json_array_foreach(json_object_get(json, "limits"), i, limit)
    {
        assert_true(ctl_number(limit, "used") <= ctl_number(limit, "max"));
        const char *worker = json_string_value(json_object_get(limit, "worker"));
        if (strcmp(json_string_value(json_object_get(limit, "name")), "kv_bytes") == 0) {
            memory = true;
            assert_true(worker[0] == 'w' && ctl_number(limit, "max") > 0);
            assert_string_equal(json_string_value(json_object_get(limit, "flag")), "the worker's --memory");
        }
        if (worker[0] || strcmp(json_string_value(json_object_get(limit, "name")), "nng_clients") != 0)
            continue;
        clients = true;
        assert_int_equal(ctl_number(limit, "max"), 1024);
        assert_int_equal(ctl_number(limit, "refused"), 0);
        assert_string_equal(json_string_value(json_object_get(limit, "flag")), "--max-clients");
    }
    assert_true(clients && memory);
    json_decref(json);
    ctl_expect(0, "workers", NULL);
    ctl_said("w0");
    ctl_said("w1");
    ctl_said("active");
    ctl_expect(0, "workers --output=json", NULL);
    json = ctl_parse();
    assert_int_equal(json_array_size(json), 2);
    json_decref(json);
    ctl_expect(0, "ping -c 3", NULL);
    ctl_said("answer 3");
    ctl_expect(0, "ping --count 2 -o json", NULL);
    json = ctl_parse();
    assert_int_equal(ctl_number(json, "count"), 2);
    json_decref(json);
    ctl_expect(0, "sessions", NULL);
    ctl_expect(0, "sessions -o json", NULL);
    json = ctl_parse();
    assert_int_equal(json_array_size(json), 0);
    json_decref(json);
}

static void test_usage(void **state)
{
    (void)state;
    ctl_expect(0, "help", NULL);
    ctl_said("session create");
    ctl_expect(0, "--help", NULL);
    ctl_said("Commands:");
    ctl_expect(0, "help attach", NULL);
    ctl_said("layers.N.k");
    ctl_said("--commit");
    ctl_expect(0, "session show --help", NULL);
    ctl_said("SESSION");
    ctl_expect(0, "--version", NULL);
    ctl_said(BANYAN_VERSION);
    ctl_expect(2, "", NULL);
    ctl_complained("status");
    ctl_expect(2, "statsu", NULL);
    ctl_complained("did you mean 'status'");
    ctl_expect(2, "session shwo x", NULL);
    ctl_complained("did you mean 'session show'");
    ctl_expect(2, "zzzzzzzzzz", NULL);
    ctl_complained("'banyanctl help'");
    ctl_expect(2, "session", NULL);
    ctl_complained("session create");
    ctl_expect(2, "plan", NULL);
    ctl_complained("SESSION");
    ctl_expect(2, "plan a b", NULL);
    ctl_complained("usage:");
    ctl_expect(2, "plan a b c d e f g h", NULL); // as many as it keeps; from the ninth on it does not look
    ctl_complained("usage:");
    ctl_expect(2, "plan a b c d e f g h i", NULL);
    ctl_complained("--help");
    ctl_expect(2, "status --bogus", NULL);
    ctl_complained("--bogus");
    ctl_expect(2, "status -o xml", NULL);
    ctl_complained("one of table, wide, json");
    ctl_expect(2, "ping -c 0", NULL);
    ctl_expect(2, "session create", NULL);
    ctl_complained("--q-heads");
    ctl_expect(2, "session create --q-heads 4 --dim 8 --kv-type f8", NULL);
    ctl_complained("'f8' is not one of f32, f16, bf16, int8, fp8");
    ctl_expect(2, "session truncate x many", NULL);
    ctl_expect(2, "help fork", NULL); // the second word of a command alone
    ctl_complained("did you mean 'session fork'?");
    ctl_expect(2, "truncate x 5", NULL);
    ctl_complained("did you mean 'session truncate'?");
    ctl_expect(2, "session create --q-heads 4 --dim 8 %s", "");
    ctl_complained("NAME is empty");
    ctl_expect(2, "session create --q-heads 4 --dim 8 %s", "  ");
    ctl_complained("NAME is empty");
    ctl_expect(2, "session fork x 5 %s", "");
    ctl_complained("NAME is empty");
    ctl_expect(4, "session show %s", "");
    ctl_expect(4, "session create --q-heads 4 --dim 8 %s", " x");
    ctl_complained("must not begin or end with a space");
    ctl_expect(2, "quarantine", NULL);
    ctl_expect(2, "quarantine drop w0", NULL);
    ctl_expect(2, "quarantine drop w0 many --yes", NULL);
    ctl_expect(2, "worker drain", NULL);
    ctl_expect(2, "worker drain w0 --wait-timeout 1s", NULL);
    ctl_complained("--wait");
}

static void test_connection(void **state)
{
    (void)state;
    ctl_expect(5, "--endpoint unix:///nonexistent/banyan --timeout 100ms status", NULL);
    ctl_complained("unix:///nonexistent/banyan");
    ctl_complained("is banyan-coordinator running");
    ctl_complained("BANYAN_ENDPOINT");
    // Why, in each case, over both transports
    const char *tcp = harness_cluster_endpoint(ctl_cluster, "tcp"),
               *nng = harness_cluster_endpoint(ctl_cluster, "nng+tcp");
    char as_nng[300];
    snprintf(as_nng, sizeof as_nng, "nng+%s", tcp);
    ctl_expect(5, "--endpoint tcp://127.0.0.1:1 --timeout 1s status", NULL);
    ctl_complained("(cannot connect: Connection refused)");
    ctl_expect(5, "--endpoint nng+tcp://127.0.0.1:1 --timeout 1s status", NULL);
    ctl_complained("(cannot connect: Connection refused)");
    ctl_expect(5, "--endpoint tcp://no-such-host.invalid:1 --timeout 3s status", NULL);
    ctl_complained("(cannot find the address of 'no-such-host.invalid'");
    ctl_expect(5, "--endpoint nng+tcp://no-such-host.invalid:1 --timeout 1s status", NULL);
    ctl_complained("(cannot find the address of 'no-such-host.invalid'");
    ctl_expect(5, "--endpoint %s --timeout 1s status", as_nng);
    ctl_complained("does not use nng");
    ctl_expect(5, "--endpoint %s --timeout 1s status", nng + strlen("nng+"));
    ctl_complained("an endpoint of another kind (nng+tcp://, tls://)");
    ctl_expect(2, "--endpoint what status", NULL);
    ctl_complained("nng+tcp://");
    // local mistakes are found although no coordinator is there
    ctl_expect(2, "--endpoint unix:///nonexistent/banyan session truncate x many", NULL);
    ctl_expect(2, "--endpoint unix:///nonexistent/banyan session create --q-heads 4", NULL);
    ctl_expect(11, "--endpoint unix:///nonexistent/banyan attach x /nonexistent/file", NULL);
    ctl_expect(0, "--endpoint %s status", harness_cluster_endpoint(ctl_cluster, "nng+tcp"));
    ctl_expect(0, "--endpoint %s status", harness_cluster_endpoint(ctl_cluster, "tcp"));
    // A wrong token.
    const char *path = ctl_path("other-token");
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("another-token\n", file);
    fclose(file);
    assert_int_equal(chmod(path, 0600), 0);
    ctl_expect(7, "--token-file %s sessions", path);
    ctl_complained("--token-file");
    ctl_expect(11, "--token-file /nonexistent/token sessions", NULL);
    ctl_complained("/nonexistent/token");
}

static void test_sessions(void **state)
{
    (void)state;
    ctl_expect(0, "session create --layers 2 --q-heads 4 --kv-heads 2 --dim 8 --v-dim 12 --kv-type f16 first",
               NULL);
    ctl_said("first");
    ctl_said("f16");
    ctl_expect(9, "session create --q-heads 4 --dim 8 first", NULL);
    ctl_complained("first");
    ctl_expect(4, "session create --q-heads 4 --kv-heads 3 --dim 8", NULL);
    ctl_expect(0, "session show first -o json", NULL);
    json_t *json = ctl_parse();
    assert_int_equal(ctl_number(json, "v_dim"), 12);
    assert_string_equal(json_string_value(json_object_get(json, "state")), "active");
    char id[32];
    snprintf(id, sizeof id, "%s", json_string_value(json_object_get(json, "id")));
    json_decref(json);
    ctl_expect(0, "session show %s", id); // by id
    ctl_said("first");
    ctl_expect(0, "sessions", NULL);
    ctl_said(id);
    ctl_expect(3, "session show nobody", NULL);
    ctl_complained("banyanctl sessions");
    ctl_expect(3, "session show 0xdeadbeef00000001", NULL);
    ctl_expect(4, "session show 0", NULL);
    ctl_expect(3, "session delete nobody", NULL);
    ctl_expect(0, "session delete %s -o json", id);
    json = ctl_parse();
    assert_string_equal(json_string_value(json_object_get(json, "deleted")), id);
    json_decref(json);
    ctl_expect(3, "session show %s", id);
}

static json_t *worker_of(const json_t *workers, const char *name)
{
    size_t i;
    json_t *w;
    json_array_foreach(workers, i, w)
    {
        if (strcmp(json_string_value(json_object_get(w, "name")), name) == 0)
            return w;
    }
    fail_msg("no worker %s", name);
    return NULL;
}

// Workers go out of use and come back; what cannot move is named.
static void test_draining(void **state)
{
    (void)state;
    ctl_expect(3, "worker drain nobody", NULL);
    ctl_complained("banyanctl workers");
    ctl_expect(3, "worker resume nobody", NULL);
    ctl_expect(0, "session create --q-heads 4 --dim 8 both", NULL);
    ctl_expect(0, "worker drain w1 --reason noisy-fan --wait", NULL); // nothing is on it
    ctl_said("can be stopped");
    ctl_expect(0, "workers", NULL);
    ctl_said("active, draining");
    ctl_said("noisy-fan");
    ctl_expect(0, "status -o json", NULL);
    json_t *json = ctl_parse();
    assert_int_equal(ctl_number(json, "workers_draining"), 1);
    assert_int_equal(ctl_number(json, "moves"), 0);
    assert_int_equal(ctl_number(json, "thin_chunks"), 0);
    json_decref(json);
    ctl_expect(0, "worker drain w1 -o json", NULL); // the reason stays
    json = ctl_parse();
    assert_true(json_is_true(json_object_get(json, "draining")));
    assert_int_equal(ctl_number(json, "chunks"), 0);
    json_decref(json);
    ctl_expect(0, "workers -o json", NULL);
    json = ctl_parse();
    assert_string_equal(json_string_value(json_object_get(worker_of(json, "w1"), "drain_reason")),
                        "noisy-fan");
    assert_string_equal(json_string_value(json_object_get(worker_of(json, "w1"), "state")), "active");
    assert_true(json_is_false(json_object_get(worker_of(json, "w0"), "draining")));
    json_decref(json);
    ctl_expect(0, "worker resume w1", NULL);
    ctl_said("back in use");
    ctl_expect(0, "workers -o json", NULL);
    json = ctl_parse();
    assert_true(json_is_false(json_object_get(worker_of(json, "w1"), "draining")));
    json_decref(json);
    ctl_expect(0, "rebalance --dry-run -o json", NULL);
    json = ctl_parse();
    assert_int_equal(ctl_number(json, "chunks"), 0);
    json_decref(json);
    ctl_expect(0, "rebalance --wait", NULL);
    ctl_said("nothing to move");
    ctl_expect(0, "scrub", NULL);
    ctl_said("scrub started for ");
    ctl_expect(3, "scrub nothing-of-the-kind", NULL);
    ctl_expect(2, "scrub --wait-timeout 1s", NULL);
    ctl_expect(0, "scrub both --wait -o json", NULL);
    json = ctl_parse();
    assert_int_equal(ctl_number(json, "left"), 0);
    assert_int_equal(ctl_number(json, "corrupt"), 0);
    json_decref(json);
    ctl_expect(0, "session delete both", NULL);
}

// The program in client/README.md, linked with the shared library.
static void test_hello(void **state)
{
    (void)state;
    char program[4096], endpoint[512], token[512];
    char *argv[] = {program, token, NULL};
    char *env[] = {endpoint, NULL};
    assert_true(harness_program_path("client_hello", program, sizeof program));
    snprintf(endpoint, sizeof endpoint, "BANYAN_ENDPOINT=%s",
             harness_cluster_endpoint(ctl_cluster, "nng+tcp"));
    snprintf(token, sizeof token, "%s", harness_cluster_token_file(ctl_cluster));
    assert_true(harness_run(argv, env, 120 * COMMON_NS_PER_S, &ctl_out));
    if (ctl_out.exit_code != 0)
        fail_msg("exit code %d: %s", ctl_out.exit_code, ctl_out.err);
    ctl_said("1025 tokens");
}

// ---- session mass, session trace ----------------------------------------------------------------

enum { WATCHED = 300 };

struct decoder { // a client without a watch: attends again and again
    banyan_client *client;
    banyan_session *session;
    const struct mirror *mirror;
    banyan_mass *mass;   // NULL: it asks for nothing
    banyan_trace *trace; // likewise
    atomic_bool stop;
};

static void attend_once(struct decoder *d, uint32_t layer)
{
    float o[4 * 12];
    banyan_error error;
    banyan_item item = {.session = d->session,
                        .layer = layer,
                        .first = WATCHED - 1,
                        .rows = 1,
                        .q = mirror_q(d->mirror, WATCHED - 1),
                        .o = o,
                        .mass = d->mass};
    if (banyan_attend(d->client, &item, 1, 0, d->trace, &error) != BANYAN_OK || item.code != BANYAN_OK)
        fail_msg("attend: %s", error.message);
    banyan_mass_free(d->mass);
    banyan_trace_free(d->trace);
}

static void *decode(void *arg)
{
    struct decoder *d = arg;
    for (uint32_t i = 0; !atomic_load(&d->stop); i++)
        attend_once(d, i % 2);
    return NULL;
}

// Its bins, its workers and its sink add up, and there is one of each layer.
static void check_masses(const json_t *json, size_t heads)
{
    const json_t *steps = json_object_get(json, "steps"), *step, *value, *head;
    size_t i, k, h, layers[2] = {0};
    json_array_foreach(steps, i, step)
    {
        layers[ctl_number(step, "layer") & 1]++;
        assert_int_equal(ctl_number(step, "visible"), WATCHED);
        assert_int_equal(json_array_size(json_object_get(step, "heads")), heads);
        json_array_foreach(json_object_get(step, "heads"), h, head)
        {
            double bins = json_real_value(json_object_get(head, "sink")), workers = bins;
            json_array_foreach(json_object_get(head, "bins"), k, value) bins += json_real_value(value);
            json_array_foreach(json_object_get(head, "workers"), k, value) workers += json_real_value(value);
            assert_true(bins > 1 - 1e-5 && bins < 1 + 1e-5);
            assert_true(workers > 1 - 1e-5 && workers < 1 + 1e-5);
        }
    }
    if (heads == 1)
        assert_true(layers[0] > 0 && layers[1] > 0);
}

static void test_watching(void **state)
{
    (void)state;
    banyan_error error;
    banyan_options options = {.token_file = harness_cluster_token_file(ctl_cluster)};
    struct decoder d = {0};
    banyan_spec wide = ctl_spec;
    pthread_t thread;
    wide.members = 2;
    wide.chunk_tokens = 16;
    struct mirror *mirror = mirror_new(&wide, WATCHED, 5);
    d.mirror = mirror;
    assert_int_equal(banyan_connect(harness_cluster_endpoint(ctl_cluster, "unix"), &options, &d.client,
                                    &error),
                     BANYAN_OK);
    assert_int_equal(banyan_session_create(d.client, &wide, "watched", &d.session, &error), BANYAN_OK);
    for (uint32_t l = 0; l < 2; l++) {
        assert_int_equal(banyan_attach(d.session, l, 0, WATCHED, mirror_k(mirror, l, 0),
                                       mirror_v(mirror, l, 0), &error),
                         BANYAN_OK);
        assert_int_equal(banyan_commit(d.session, l, 0, WATCHED, &error), BANYAN_OK);
    }
    attend_once(&d, 0); // asked for nothing: nothing is kept
    ctl_expect(6, "session mass watched --wait 0s", NULL);
    ctl_complained("only while watched");
    ctl_expect(6, "session trace watched --wait 10ms --json", NULL);
    // What its client asks for is.
    banyan_mass mass = {.bins = 8};
    banyan_trace trace;
    d.mass = &mass;
    d.trace = &trace;
    attend_once(&d, 1);
    d.mass = NULL;
    d.trace = NULL;
    ctl_expect(0, "session mass watched --wait 0s", NULL);
    ctl_said("layer 1");
    ctl_said("MASS SHARE");
    ctl_said("w0");
    ctl_said("w1");
    ctl_expect(0, "session trace watched --wait 0s --each", NULL);
    ctl_said("masses");
    ctl_said("COMPUTE");
    ctl_expect(6, "session mass watched --wait 0s --heads", NULL); // only their mean
    // A running session.
    assert_int_equal(pthread_create(&thread, NULL, decode, &d), 0);
    ctl_expect(0, "session mass watched --wait 30s --bins 10 --steps 16 --json", NULL);
    json_t *json = ctl_parse();
    assert_int_equal(json_array_size(json_object_get(json, "steps")), 16);
    check_masses(json, 1);
    json_decref(json);
    ctl_expect(0, "session mass watched --wait 30s --heads --layer 1 -o json", NULL);
    json = ctl_parse();
    assert_int_equal(json_array_size(json_object_get(json, "steps")), 1);
    check_masses(json, 4);
    json_decref(json);
    ctl_expect(0, "session trace watched --wait 30s --steps 8 --json", NULL);
    json = ctl_parse();
    json_t *step = json_array_get(json_object_get(json, "steps"), 7);
    assert_int_equal(json_array_size(json_object_get(step, "workers")), 2);
    assert_int_equal(ctl_number(json_array_get(json_object_get(step, "workers"), 1), "parent"), 0);
    assert_true(ctl_number(step, "total_ns") >= ctl_number(step, "tree_ns") &&
                ctl_number(step, "tree_ns") > 0);
    json_decref(json);
    ctl_expect(0, "session trace watched", NULL);
    ctl_said("mean of 2 steps");
    atomic_store(&d.stop, true);
    pthread_join(thread, NULL);
    // What is wrong is said.
    ctl_expect(3, "session mass nobody", NULL);
    ctl_expect(2, "session mass watched --steps 65", NULL);
    ctl_expect(2, "session mass watched --bins 0", NULL);
    ctl_expect(2, "session trace watched --wait 51s", NULL);
    ctl_expect(4, "session trace watched --layer 2", NULL);
    ctl_complained("layers 0 to 1");
    banyan_session_delete(d.session, NULL);
    banyan_session_close(d.session);
    banyan_disconnect(d.client);
    mirror_free(mirror);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_looking, ctl_clean_up),
        cmocka_unit_test_teardown(test_usage, ctl_clean_up),
        cmocka_unit_test_teardown(test_connection, ctl_clean_up),
        cmocka_unit_test_teardown(test_sessions, ctl_clean_up),
        cmocka_unit_test_teardown(ctl_tensors, ctl_clean_up),
        cmocka_unit_test_teardown(ctl_quantised_tensors, ctl_clean_up),
        cmocka_unit_test_teardown(ctl_kinds, ctl_clean_up),
        cmocka_unit_test_teardown(ctl_wrong_tensors, ctl_clean_up),
        cmocka_unit_test_teardown(test_draining, ctl_clean_up),
        cmocka_unit_test_teardown(test_hello, ctl_clean_up),
        cmocka_unit_test_teardown(test_watching, ctl_clean_up),
    };
    return group_run(tests, ctl_start, ctl_stop);
}
