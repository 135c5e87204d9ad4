// SPDX-License-Identifier: Apache-2.0
// Snapshots on real processes: what 'banyanctl session snapshot' writes of a session that goes on, 'session
// restore' makes again, in another cluster with another number of workers: the same rows, the reference's
// answers, the same bits where the plan is the same. Whatever is wrong with a snapshot is named, and leaves
// no session.
#include "tests/e2e/banyanctl.h"
#include "tests/e2e/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed

static char scratch[64]; // a folder, for all

static const char *path_of(const char *name)
{
    static _Thread_local char path[256];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
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
        banyanctl_snapshot(here, session, cases[i].options, path_of("types"));
        assert_int_equal(sessions_of(at_here), 1); // the fork is gone
        again = banyanctl_restore(there, at_there, "types", "", path_of("types"));
        assert_int_equal(length_of(again), LENGTH - LESS); // the shortest layer's
        for (uint32_t l = 0; l < 2; l++)
            rows_are(again, &c, l, LENGTH - LESS);
        answers_are(at_there, again, &c, LENGTH - LESS, "restored");
        OK(banyan_session_delete(again, ERR));
        banyan_session_close(again);
        support_drop(session, &c);
        support_remove_folder(path_of("types"));
    }
}

// ---- layers that differ -----------------------------------------------------------------------------------

// Rows of one layer of two sessions, bit by bit.
static void same_rows(banyan_session *a, banyan_session *b, uint32_t layer, uint64_t count, size_t k_row,
                      size_t v_row)
{
    uint8_t *k[2], *v[2];
    for (int i = 0; i < 2; i++) {
        k[i] = malloc(count * k_row);
        v[i] = malloc(count * v_row + 1);
        OK(banyan_read_rows(i ? b : a, layer, 0, count, k[i], NULL, v_row ? v[i] : NULL, NULL, ERR));
    }
    assert_memory_equal(k[0], k[1], count * k_row);
    assert_memory_equal(v[0], v[1], v_row ? count * v_row : 0);
    for (int i = 0; i < 2; i++) {
        free(k[i]);
        free(v[i]);
    }
}

// A window, a layer that sees all, one that holds nothing, one that reads another's rows, and a latent; with
// one worker here and one there the plans are the same, and so are the bits.
static void layers_that_differ(void **state)
{
    (void)state;
    enum { LENGTH = 130, HEADS = 4, DIM = 32 };
    static const float slopes[HEADS] = {0.1f, 0.2f, 0.3f, 0.4f}, sinks[HEADS] = {1, -INFINITY, 0.25f, 3};
    const banyan_kind kinds[] = {
        {.q_heads = HEADS, .kv_heads = 2, .k_dim = DIM, .v_dim = 16, .window = 50, .alibi = slopes},
        {.q_heads = HEADS, .kv_heads = 4, .k_dim = 16, .v_dim = DIM, .soft_cap = 20, .scale = 0.3f},
        {.q_heads = HEADS, .kv_heads = 1, .k_dim = DIM, .v_dim = 24, .v_in_k = true},
    };
    const uint32_t layer_kind[] = {0, 1, BANYAN_LAYER_LOCAL, 0, 2};
    const uint32_t shares[] = {BANYAN_SHARES_NONE, BANYAN_SHARES_NONE, BANYAN_SHARES_NONE, 0,
                               BANYAN_SHARES_NONE};
    const float *layer_sinks[] = {NULL, sinks, NULL, sinks, NULL};
    const banyan_spec spec = {.layers = 5,
                              .kv_type = BANYAN_F32,
                              .n_kinds = 3,
                              .kinds = kinds,
                              .layer_kind = layer_kind,
                              .shares = shares,
                              .layer_sinks = layer_sinks,
                              .chunk_tokens = 32,
                              .members = 1};
    static float rows[LENGTH * HEADS * DIM + 16], q[HEADS * DIM]; // layers begin a few floats apart
    banyan_session *session, *again;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)((i * 7919) % 1000) / 500.0f - 1.0f;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = (float)((i * 104729) % 1000) / 500.0f - 1.0f;
    OK(banyan_session_create(at_here, &spec, "differ", &session, ERR));
    static const uint32_t own[] = {0, 1, 4};
    for (size_t i = 0; i < 3; i++) {
        OK(banyan_attach(session, own[i], 0, LENGTH, rows + i, own[i] == 4 ? NULL : rows + 3 * i, ERR));
        OK(banyan_commit(session, own[i], 0, LENGTH, ERR));
    }
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_read_rows(session, 2, 0, 1, rows, NULL, rows, NULL, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_read_rows(session, 3, 0, 1, rows, NULL, rows, NULL, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_read_rows(session, 4, 0, 1, rows, NULL, rows, NULL, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_read_rows(session, 0, 0, 1, rows, rows, rows, NULL, ERR));
    banyanctl_snapshot(here, session, "--zstd --file-size 8K", path_of("differ"));
    again = banyanctl_restore(there, at_there, "differ", "", path_of("differ"));
    same_rows(session, again, 0, LENGTH, 2 * DIM * 4, 2 * 16 * 4);
    same_rows(session, again, 1, LENGTH, 4 * 16 * 4, 4 * DIM * 4);
    same_rows(session, again, 4, LENGTH, DIM * 4, 0);
    for (uint32_t l = 0; l < 5; l++) {
        struct step a = {.session = session, .layer = l, .first = LENGTH - 1, .rows = 1, .q = q}, b = a;
        if (l == 2)
            continue;
        b.session = again;
        OK(step_run(at_here, &a));
        OK(step_run(at_there, &b));
        assert_true(step_same_bits(&a, &b));
        step_free(&a);
        step_free(&b);
    }
    OK(banyan_session_delete(again, ERR));
    banyan_session_close(again);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    support_remove_folder(path_of("differ"));
}

// ---- while it is stepped ----------------------------------------------------------------------------------

enum { ATTACHED = 600, ROOM = 4000 };
static const banyan_spec stepped_spec = {.layers = 2,
                                         .q_heads = 4,
                                         .kv_heads = 2,
                                         .k_dim = 32,
                                         .v_dim = 32,
                                         .kv_type = BANYAN_F16,
                                         .chunk_tokens = 32,
                                         .members = 3};

struct stepper { // a client of its own, that appends until it is stopped
    banyan_client *client;
    banyan_session *session;
    struct context context;
    atomic_uint_least64_t length; // of both layers
    atomic_bool stop;
    pthread_t thread;
};

static void *step_on(void *arg)
{
    struct stepper *s = arg;
    while (!atomic_load(&s->stop) && atomic_load(&s->length) < ROOM) {
        uint64_t first = atomic_load(&s->length);
        for (uint32_t l = 0; l < 2; l++) {
            struct step step = {.session = s->session,
                                .layer = l,
                                .first = first,
                                .rows = 1,
                                .seed = first,
                                .timeout_ns = LONG_NS};
            step_append(&step, &s->context);
            OK(step_run(s->client, &step));
            context_check(&s->context, l, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
            step_free(&step);
        }
        atomic_store(&s->length, first + 1);
        support_sleep_ms(1);
    }
    return NULL;
}

static void stepper_begin(struct stepper *s, const struct harness_cluster *cluster, uint32_t replicas)
{
    banyan_spec spec = stepped_spec;
    spec.replicas = replicas;
    atomic_init(&s->length, ATTACHED);
    atomic_init(&s->stop, false);
    s->client = support_connect(cluster, "tcp");
    context_init(&s->context, &spec, ROOM);
    context_random(&s->context, 0, ROOM, 77);
    OK(banyan_session_create(s->client, &spec, NULL, &s->session, ERR));
    support_fill(s->session, &s->context, 0, ATTACHED);
    assert_int_equal(pthread_create(&s->thread, NULL, step_on, s), 0);
}

static void stepper_stop(struct stepper *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
}

static void stepper_end(struct stepper *s)
{
    support_drop(s->session, &s->context);
    banyan_disconnect(s->client);
}

static void while_it_is_stepped(void **state)
{
    (void)state;
    struct stepper s;
    stepper_begin(&s, here, 1);
    uint64_t begun[3], ended[3];
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "step%d", i);
        uint64_t before = atomic_load(&s.length);
        EVENTUALLY(120, atomic_load(&s.length) > before + 5); // it does go on
        begun[i] = atomic_load(&s.length);
        banyanctl_snapshot(here, s.session, i == 1 ? "--zstd --file-size 16K --threads 1" : "--file-size 16K",
                           path_of(name));
        ended[i] = atomic_load(&s.length);
    }
    stepper_stop(&s);
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "step%d", i);
        banyan_session *again =
            banyanctl_restore(there, at_there, name, i == 2 ? "--replicas 2" : "", path_of(name));
        uint64_t length = length_of(again);
        assert_in_range(length, begun[i], ended[i] + 1);
        for (uint32_t l = 0; l < 2; l++)
            rows_are(again, &s.context, l, length);
        answers_are(at_there, again, &s.context, length, "restored while it was stepped");
        // It goes on as the other one did
        struct step step = {.session = again, .layer = 0, .first = length, .rows = 1, .seed = 5};
        step_append(&step, &s.context);
        OK(step_run(at_there, &step));
        context_check(&s.context, 0, length, 1, 0, step.made_q, step.o, step.lse, NULL, "goes on");
        step_free(&step);
        OK(banyan_session_delete(again, ERR));
        banyan_session_close(again);
        support_remove_folder(path_of(name));
    }
    stepper_end(&s);
    assert_int_equal(sessions_of(at_here), 0);
}

// ---- faults -----------------------------------------------------------------------------------------------

// Files in the temporary folder of a snapshot that is being taken.
static unsigned files_under_way(const char *path)
{
    unsigned n = 0;
    DIR *dir = opendir(scratch);
    const char *name = strrchr(path, '/') + 1;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char inner[512];
        if (strncmp(entry->d_name, name, strlen(name)) != 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", scratch, entry->d_name);
        DIR *files = opendir(inner);
        while (files && readdir(files))
            n++;
        if (files)
            closedir(files);
    }
    closedir(dir);
    return n;
}

struct killing {
    struct harness_cluster *cluster;
    uint32_t who;
    const char *path;
};

static void *kill_in_the_middle(void *arg)
{
    const struct killing *k = arg;
    while (files_under_way(k->path) < 12)
        support_sleep_ms(1);
    harness_cluster_signal(k->cluster, k->who, SIGKILL);
    return NULL;
}

// With two holders of each chunk the snapshot goes on, and so do the steps.
static void a_worker_is_killed(void **state)
{
    (void)state;
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 3, .worker_args = same_speed});
    struct stepper s;
    char path[256];
    snprintf(path, sizeof path, "%s", path_of("killed"));
    stepper_begin(&s, cluster, 2);
    struct killing killing = {cluster, 1, path};
    pthread_t killer;
    assert_int_equal(pthread_create(&killer, NULL, kill_in_the_middle, &killing), 0);
    uint64_t begun = atomic_load(&s.length);
    banyanctl_snapshot(cluster, s.session, "--file-size 4K --threads 1 --timeout 120s", path);
    pthread_join(killer, NULL);
    stepper_stop(&s);
    banyan_session *again =
        banyanctl_restore(there, at_there, "killed", "--replicas 1 --chunk-tokens 64", path);
    uint64_t length = length_of(again);
    assert_in_range(length, begun, ROOM);
    for (uint32_t l = 0; l < 2; l++)
        rows_are(again, &s.context, l, length);
    answers_are(at_there, again, &s.context, length, "restored after a worker was killed");
    OK(banyan_session_delete(again, ERR));
    banyan_session_close(again);
    stepper_end(&s);
    support_stop(cluster);
    support_remove_folder(path);
}

static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

// A flipped bit, a lost file, a truncated one: the file is named, and no session is left.
static void damage_is_named(void **state)
{
    (void)state;
    enum { LENGTH = 300 };
    struct context c;
    banyan_session *session;
    context_init(&c, &stepped_spec, LENGTH);
    context_random(&c, 0, LENGTH, 3);
    OK(banyan_session_create(at_here, &stepped_spec, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    for (int zstd = 0; zstd < 2; zstd++) {
        const char *last = zstd ? "damage/layer-0001-000000000256.safetensors.zst"
                                : "damage/layer-0001-000000000256.safetensors";
        banyanctl_snapshot(here, session, zstd ? "--zstd --file-size 32K" : "--file-size 32K",
                           path_of("damage"));
        struct stat st;
        assert_int_equal(stat(path_of(last), &st), 0);
        flip(path_of(last), st.st_size - 9);
        banyanctl_expect(there, 4, "layer-0001-000000000256", "session restore %s", path_of("damage"));
        flip(path_of(last), st.st_size - 9);
        assert_int_equal(sessions_of(at_there), 0);
        flip(path_of("damage/manifest.json"), 700);
        banyanctl_expect(there, 4, "manifest.json", "session restore %s", path_of("damage"));
        flip(path_of("damage/manifest.json"), 700);
        char kept[256];
        snprintf(kept, sizeof kept, "%s", path_of("kept"));
        assert_int_equal(rename(path_of(last), kept), 0);
        banyanctl_expect(there, 11, "layer-0001-000000000256", "session restore %s", path_of("damage"));
        assert_int_equal(rename(kept, path_of(last)), 0);
        assert_int_equal(truncate(path_of(last), st.st_size - 1), 0);
        banyanctl_expect(there, 4, "was truncated or altered", "session restore %s", path_of("damage"));
        assert_int_equal(sessions_of(at_there), 0);
        support_remove_folder(path_of("damage"));
    }
    banyanctl_expect(there, 11, "nowhere", "session restore %s", path_of("nowhere"));
    assert_int_equal(mkdir(path_of("taken"), 0700), 0);
    char line[128];
    snprintf(line, sizeof line, "session snapshot 0x%016" PRIx64 " %%s", banyan_session_id(session));
    banyanctl_expect(here, 9, "already exists", line, path_of("taken"));
    support_remove_folder(path_of("taken"));
    banyanctl_expect(here, 11, "cannot be created", line, "/proc/nowhere/snapshot");
    assert_int_equal(sessions_of(at_here), 1); // the forks are gone
    support_drop(session, &c);
}

// Stopped by a signal: nothing is left. Killed: what is left has a name that says what it is, and a time to
// live.
static void interrupted(void **state)
{
    (void)state;
    enum { LENGTH = 2000 };
    char program[4096], endpoint[512], id[32], path[256];
    struct context c;
    banyan_session *session;
    context_init(&c, &stepped_spec, LENGTH);
    context_random(&c, 0, LENGTH, 9);
    OK(banyan_session_create(at_here, &stepped_spec, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    assert_true(harness_program_path("banyanctl", program, sizeof program));
    snprintf(endpoint, sizeof endpoint, "%s", harness_cluster_endpoint(here, "unix"));
    snprintf(id, sizeof id, "0x%016" PRIx64, banyan_session_id(session));
    snprintf(path, sizeof path, "%s", path_of("interrupted"));
    char *argv[] = {program, "--endpoint", endpoint, "session", "snapshot", "--file-size",
                    "4K",    "--threads",  "1",      id,        path,       NULL};
    for (int i = 0; i < 2; i++) {
        int status;
        pid_t pid = harness_process_start(argv, path_of("log"));
        assert_true(pid > 0);
        EVENTUALLY(60, files_under_way(path) > 5);
        kill(pid, i ? SIGKILL : SIGTERM);
        assert_true(harness_process_wait(pid, 60 * COMMON_NS_PER_S, &status));
        assert_int_not_equal(access(path, F_OK), 0);
        if (i == 0) {
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 6);
            assert_int_equal(files_under_way(path), 0);
            assert_int_equal(sessions_of(at_here), 1);
            continue;
        }
        banyan_session_list list;
        banyan_session *left;
        OK(banyan_session_get_list(at_here, &list, ERR));
        assert_int_equal(list.n, 2);
        const char *name = list.sessions[list.sessions[0].id == banyan_session_id(session)].name;
        assert_memory_equal(name, "snapshot-of-0x", 14);
        OK(banyan_session_open(at_here, 0, name, &left, ERR));
        assert_in_range(banyan_session_spec(left)->idle_ttl_ns, 1, 3600 * COMMON_NS_PER_S);
        OK(banyan_session_delete(left, ERR));
        banyan_session_close(left);
        banyan_session_list_free(&list);
    }
    support_drop(session, &c);
}

// A pin goes by itself. A restarted coordinator does not have what a worker that is away was given last: no
// snapshot without that.
static void more_is_away(void **state)
{
    (void)state;
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2, .worker_args = same_speed});
    banyan_client *client = support_connect(cluster, "tcp");
    banyan_spec spec = stepped_spec;
    banyan_session *session;
    struct context c;
    uint32_t said = 0;
    spec.members = 2;
    spec.replicas = 1;
    context_init(&c, &spec, 128);
    context_random(&c, 0, 128, 9);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint64_t at = 0; at < 128; at += 32)
        for (uint32_t l = 0; l < 2; l++) {
            struct step step = {
                .session = session, .layer = l, .first = at, .rows = 32, .timeout_ns = LONG_NS};
            step_append(&step, &c);
            OK(step_run(client, &step));
            step_free(&step);
        }
    for (uint32_t victim = 0; victim < 2; victim++) { // one holds the first tokens, the other one later ones
        harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
        harness_cluster_signal(cluster, victim, SIGSTOP);
        assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
        char line[320];
        snprintf(line, sizeof line, "session snapshot 0x%016" PRIx64 " %%s", banyan_session_id(session));
        struct harness_output output = banyanctl_run(cluster, line, path_of("away"));
        assert_int_not_equal(output.exit_code, 0);
        said += strstr(output.err, "may have more than 32 tokens") != NULL;
        assert_int_not_equal(access(path_of("away"), F_OK), 0);
        harness_output_free(&output);
        harness_cluster_signal(cluster, victim, SIGCONT);
        EVENTUALLY(60, length_of(session) == 128);
    }
    assert_int_equal(said, 1);
    banyanctl_snapshot(cluster, session, "", path_of("away"));
    support_remove_folder(path_of("away"));
    support_drop(session, &c);
    banyan_disconnect(client);
    support_stop(cluster);
}

static void a_pin_does_not_stay(void **state)
{
    (void)state;
    struct context c;
    banyan_session *session, *pinned;
    context_init(&c, &stepped_spec, 64);
    context_random(&c, 0, 64, 9);
    OK(banyan_session_create(at_here, &stepped_spec, NULL, &session, ERR));
    support_fill(session, &c, 0, 64);
    OK(banyan_session_pin(session, 64, 50 * COMMON_NS_PER_MS, NULL, &pinned, ERR));
    assert_int_equal(banyan_session_spec(pinned)->idle_ttl_ns, 50 * COMMON_NS_PER_MS);
    EVENTUALLY(60, sessions_of(at_here) == 1);
    banyan_session_close(pinned);
    rows_are(session, &c, 0, 64); // its origin stays
    support_drop(session, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),          cmocka_unit_test(layers_that_differ),
        cmocka_unit_test(while_it_is_stepped), cmocka_unit_test(a_worker_is_killed),
        cmocka_unit_test(damage_is_named),     cmocka_unit_test(interrupted),
        cmocka_unit_test(a_pin_does_not_stay), cmocka_unit_test(more_is_away),
    };
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
    support_remove_folder(scratch);
    return failed;
}
