// SPDX-License-Identifier: Apache-2.0
// Snapshots on real processes: what 'banyanctl session snapshot' writes of a session that goes on, 'session restore' makes
// again, in another cluster with another number of workers: the same rows, the reference's answers, the same bits where the
// plan is the same. Whatever is wrong with a snapshot is named, and leaves no session.
#include "tests/e2e/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/float16.h"
#include "tests/harness/process.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed

static char scratch[64]; // a folder, for all

static const char *path_of(const char *name)
{
    static _Thread_local char path[256];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

// Runs banyanctl with the words of the line; %s stands for `word`. The output is the caller's to free.
static struct harness_output run(const struct harness_cluster *cluster, const char *line, const char *word)
{
    char program[4096], copy[1024], endpoint[512];
    char *argv[32] = {program}, *env[] = {endpoint, NULL};
    size_t n = 1;
    struct harness_output out = {0};
    assert_true(harness_program_path("banyanctl", program, sizeof program));
    snprintf(copy, sizeof copy, "%s", line);
    snprintf(endpoint, sizeof endpoint, "BANYAN_ENDPOINT=%s", harness_cluster_endpoint(cluster, "unix"));
    for (char *save, *part = strtok_r(copy, " ", &save); part; part = strtok_r(NULL, " ", &save))
        argv[n++] = strcmp(part, "%s") == 0 ? (char *)word : part;
    assert_true(harness_run(argv, env, 300 * COMMON_NS_PER_S, &out));
    return out;
}

// It ends with this code, and says so on stdout or stderr.
static void expect(const struct harness_cluster *cluster, int code, const char *says, const char *line,
                   const char *word)
{
    struct harness_output out = run(cluster, line, word);
    if (out.exit_code != code || (!strstr(out.out, says) && !strstr(out.err, says)))
        fail_msg("banyanctl %s: exit code %d, expected %d and '%s'; it said: %s%s", line, out.exit_code, code,
                 says, out.out, out.err);
    harness_output_free(&out);
}

static void snapshot(const struct harness_cluster *cluster, banyan_session *session, const char *options,
                     const char *path)
{
    char line[256];
    snprintf(line, sizeof line, "session snapshot %s 0x%016" PRIx64 " %%s", options,
             banyan_session_id(session));
    expect(cluster, 0, " tokens", line, path);
}

static banyan_session *restore(const struct harness_cluster *cluster, banyan_client *client, const char *name,
                               const char *options, const char *path)
{
    char line[256];
    banyan_session *session;
    snprintf(line, sizeof line, "session restore --name %s %s %%s", name, options);
    expect(cluster, 0, "restored", line, path);
    OK(banyan_session_open(client, 0, name, &session, ERR));
    return session;
}

static uint64_t length_of(banyan_session *session)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, ERR));
    uint64_t length = info.length;
    banyan_session_info_free(&info);
    return length;
}

static uint32_t sessions_of(banyan_client *client)
{
    banyan_session_list list;
    OK(banyan_session_get_list(client, &list, ERR));
    uint32_t n = list.n;
    banyan_session_list_free(&list);
    return n;
}

static void remove_folder(const char *path)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

// Rows as they are read back are those of the context.
static void rows_are(banyan_session *session, const struct context *c, uint32_t layer, uint64_t count)
{
    const banyan_spec *spec = &c->spec;
    uint8_t *k = malloc(count * c->k_row), *v = malloc(count * c->v_row + 1);
    float *ks = NULL, *vs = NULL;
    if (banyan_kv_scaled(spec->kv_type)) {
        ks = calloc(count * spec->kv_heads, sizeof *ks);
        vs = spec->v_in_k ? NULL : calloc(count * spec->kv_heads, sizeof *vs);
    }
    OK(banyan_read_rows(session, layer, 0, count, k, ks, spec->v_in_k ? NULL : v, vs, ERR));
    assert_memory_equal(k, context_k(c, layer, 0), count * c->k_row);
    if (!spec->v_in_k)
        assert_memory_equal(v, context_v(c, layer, 0), count * c->v_row);
    if (ks)
        assert_memory_equal(ks, context_k_scale(c, layer, 0), count * spec->kv_heads * sizeof *ks);
    if (vs)
        assert_memory_equal(vs, context_v_scale(c, layer, 0), count * spec->kv_heads * sizeof *vs);
    // A part that begins and ends inside chunks
    if (!ks && !spec->v_in_k) {
        OK(banyan_read_rows(session, layer, 7, count - 12, k, NULL, v, NULL, ERR));
        assert_memory_equal(k, context_k(c, layer, 7), (count - 12) * c->k_row);
    }
    free(k);
    free(v);
    free(ks);
    free(vs);
}

static void answers_are(banyan_client *client, banyan_session *session, const struct context *c,
                        uint64_t length, const char *what)
{
    for (uint32_t l = 0; l < c->spec.layers; l++)
        for (uint64_t at = 0; at < length; at += length / 5)
            support_check_step(client, session, c, l, at, 1, 0, NULL, what);
    support_check_step(client, session, c, 0, length - 3, 3, 0, NULL, what);
}

// ---- every type of K and V --------------------------------------------------------------------------------

static struct harness_cluster *here, *there; // of 3 workers, of 2
static banyan_client *at_here, *at_there;

static void every_type(void **state)
{
    (void)state;
    static const float sinks[4] = {0.5f, -1.0f, 0, 2.0f}, alibi[4] = {0.01f, 0.02f, 0.04f, 0.08f};
    static const struct {
        banyan_kv_type type;
        bool v_in_k, extras;
        const char *options;
    } cases[] = {{BANYAN_F32, false, true, "--file-size 8K"},
                 {BANYAN_F16, false, false, "--zstd"},
                 {BANYAN_BF16, true, false, "--zstd --file-size 4K --threads 5"},
                 {BANYAN_INT8, false, false, "--file-size 20K"},
                 {BANYAN_FP8, false, true, "--zstd --file-size 20K"},
                 {BANYAN_INT8, true, false, ""}};
    enum { LENGTH = 300, LESS = 23 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        banyan_spec spec = {.layers = 2,
                            .q_heads = 4,
                            .kv_heads = 2,
                            .k_dim = 40,
                            .v_dim = cases[i].v_in_k ? 24 : 32,
                            .kv_type = cases[i].type,
                            .chunk_tokens = 32,
                            .members = 3,
                            .v_in_k = cases[i].v_in_k};
        spec.sinks = cases[i].extras ? sinks : NULL;
        spec.alibi = cases[i].extras ? alibi : NULL;
        spec.window = cases[i].extras ? 100 : 0;
        struct context c;
        banyan_session *session, *again;
        context_init(&c, &spec, LENGTH);
        context_random(&c, 0, LENGTH, i + 1);
        OK(banyan_session_create(at_here, &spec, NULL, &session, ERR));
        for (uint32_t l = 0; l < 2; l++) {
            OK(context_attach(session, &c, l, 0, LENGTH - l * LESS, ERR));
            OK(banyan_commit(session, l, 0, LENGTH - l * LESS, ERR));
        }
        rows_are(session, &c, 0, LENGTH - LESS);
        FAILS(BANYAN_OUT_OF_RANGE, "",
              banyan_read_rows(session, 0, LENGTH - LESS, 1, &c,
                               spec.kv_type >= BANYAN_INT8 ? (float *)&c : NULL, spec.v_in_k ? NULL : &c,
                               spec.kv_type >= BANYAN_INT8 && !spec.v_in_k ? (float *)&c : NULL, ERR));
        snapshot(here, session, cases[i].options, path_of("types"));
        assert_int_equal(sessions_of(at_here), 1); // the fork is gone
        again = restore(there, at_there, "types", "", path_of("types"));
        assert_int_equal(length_of(again), LENGTH - LESS); // the shortest layer's
        for (uint32_t l = 0; l < 2; l++)
            rows_are(again, &c, l, LENGTH - LESS);
        answers_are(at_there, again, &c, LENGTH - LESS, "restored");
        OK(banyan_session_delete(again, ERR));
        banyan_session_close(again);
        support_drop(session, &c);
        remove_folder(path_of("types"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_type)};
    snprintf(scratch, sizeof scratch, "/tmp/banyan-snapshot.XXXXXX");
    assert_non_null(mkdtemp(scratch));
    here = support_start(&(struct harness_options){.workers = 3});
    there = support_start(&(struct harness_options){.workers = 2});
    at_here = support_connect(here, "tcp");
    at_there = support_connect(there, "nng+tcp");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    banyan_disconnect(at_here);
    banyan_disconnect(at_there);
    support_stop(here);
    support_stop(there);
    remove_folder(scratch);
    return failed;
}
