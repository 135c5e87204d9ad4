// SPDX-License-Identifier: Apache-2.0
// Attention masses and traces of the whole service: each bin's and each worker's mass is the float64
// reference's, they add up, o keeps its bits, whatever the shape; and who watches a session sees what its
// steps looked at.
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/model/mass.h"
#include "tests/e2e/support.h"

#define WORKERS 3

static struct harness_cluster *cluster;
static banyan_client *client;
static double worst; // of the allowed error

static const float sinks[8] = {0.5f, -1, 3, 0, 2, -4, 1, 8};
static const float alibi[8] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.5f, 0.25f, 0.125f, 0.0625f};

// ---- against the reference ----------------------------------------------------------------------

static void check_mass(const struct context *c, const struct step *step, const banyan_mass *mass,
                       const char *what)
{
    assert_int_equal(mass->rows, step->rows);
    assert_in_range(mass->n_bins, 1, mass->bins);
    context_check_mass(c, step->layer, step->first, step->visible, step->q ? step->q : step->made_q, mass,
                       &worst, what);
}

static banyan_code run_mass(struct step *step, banyan_mass *mass)
{
    banyan_item item = step_item(step);
    item.mass = mass;
    banyan_code code = banyan_attend(client, &item, 1, step->timeout_ns, NULL, ERR);
    step->digest = item.digest;
    return code != BANYAN_OK ? code : item.code;
}

// The step with and without masses: the same bits of o and lse, the right masses, which repeat.
static void judge(banyan_session *session, const struct context *c, struct step step, uint32_t bins,
                  bool per_head, const char *what)
{
    struct step plain = step, again = step;
    banyan_mass mass = {.bins = bins, .per_head = per_head}, twice = {.bins = bins, .per_head = per_head};
    step.session = plain.session = again.session = session;
    OK(step_run(client, &plain));
    OK(run_mass(&step, &mass));
    OK(run_mass(&again, &twice));
    assert_true(step_same_bits(&plain, &step));
    assert_int_equal(plain.digest, step.digest);
    check_mass(c, &step, &mass, what);
    size_t pairs = (size_t)mass.rows * mass.heads;
    assert_int_equal(mass.n_workers, twice.n_workers);
    assert_memory_equal(mass.bin, twice.bin, pairs * mass.n_bins * sizeof(float));
    assert_memory_equal(mass.worker, twice.worker, pairs * mass.n_workers * sizeof(float));
    assert_memory_equal(mass.sink, twice.sink, pairs * sizeof(float));
    banyan_mass_free(&mass);
    banyan_mass_free(&twice);
    step_free(&plain);
    step_free(&step);
    step_free(&again);
}

struct shape {
    const char *name;
    banyan_spec spec;
};

static const struct shape shapes[] = {
    {"GQA", {.q_heads = 8, .kv_heads = 2, .k_dim = 32, .v_dim = 24, .kv_type = BANYAN_F32}},
    {"window", {.q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .kv_type = BANYAN_BF16, .window = 75}},
    {"sinks", {.q_heads = 8, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_F16, .sinks = sinks}},
    {"int8", {.q_heads = 4, .kv_heads = 1, .k_dim = 64, .v_dim = 32, .kv_type = BANYAN_INT8}},
    {"all bends",
     {.q_heads = 8,
      .kv_heads = 4,
      .k_dim = 24,
      .v_dim = 40,
      .kv_type = BANYAN_FP8,
      .soft_cap = 20,
      .window = 150,
      .alibi = alibi,
      .sinks = sinks}},
};

static banyan_session *fill(const banyan_spec *spec, struct context *c, uint32_t tokens, uint32_t room,
                            const char *name)
{
    banyan_session *session;
    context_init(c, spec, room);
    context_random(c, 0, room, 7);
    OK(banyan_session_create(client, spec, name, &session, ERR));
    support_fill(session, c, 0, tokens);
    return session;
}

static void drop(banyan_session *session, struct context *c)
{
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    context_free(c);
}

static void masses_are_the_references(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t members = 1; members <= WORKERS; members += 2) {
            banyan_spec spec = shapes[i].spec;
            struct context c;
            spec.layers = 1;
            spec.chunk_tokens = 16;
            spec.members = members;
            banyan_session *session = fill(&spec, &c, 330, 330, NULL);
            struct step last = {.first = 329, .rows = 1, .seed = i},
                        some = {.first = 301, .rows = 5, .seed = i},
                        early = {.first = 300, .rows = 2, .visible = 100, .seed = i};
            judge(session, &c, last, 64, true, shapes[i].name); // chunk by chunk
            judge(session, &c, last, 5, false, shapes[i].name);
            judge(session, &c, some, 1, true, shapes[i].name);
            judge(session, &c, some, 21, false, shapes[i].name);
            judge(session, &c, early, 4096, true, shapes[i].name);
            struct step beyond = {.first = 50, .rows = 3, .visible = 200, .seed = i}; // than the rows may see
            judge(session, &c, beyond, 9, true, shapes[i].name);
            drop(session, &c);
        }
}

// Appended by the step itself, forked, truncated: the masses are those of what the rows see now.
static void after_append_fork_and_truncate(void **state)
{
    (void)state;
    banyan_spec spec = shapes[0].spec;
    struct context c;
    banyan_session *fork;
    spec.layers = 2;
    spec.chunk_tokens = 16;
    spec.members = WORKERS;
    banyan_session *session = fill(&spec, &c, 100, 200, NULL);
    for (uint32_t at = 100; at < 120; at += 10) {
        struct step step = {.session = session, .layer = 1, .first = at, .rows = 10, .seed = at};
        banyan_mass mass = {.bins = 16, .per_head = true};
        step_append(&step, &c);
        OK(run_mass(&step, &mass));
        check_mass(&c, &step, &mass, "append");
        banyan_mass_free(&mass);
        step_free(&step);
    }
    OK(banyan_session_fork(session, 90, "fork", &fork, ERR));
    judge(fork, &c, (struct step){.first = 89, .rows = 1, .seed = 4}, 8, true, "fork");
    OK(banyan_session_truncate(session, 50, ERR));
    judge(session, &c, (struct step){.layer = 1, .first = 49, .rows = 1, .seed = 5}, 8, true, "truncated");
    OK(banyan_session_delete(fork, ERR));
    banyan_session_close(fork);
    drop(session, &c);
}

// Many rows in slabs, many items in a call, only some of them with masses.
static void blocks_and_batches(void **state)
{
    (void)state;
    banyan_spec spec = {.layers = 1,
                        .q_heads = 16,
                        .kv_heads = 4,
                        .k_dim = 16,
                        .v_dim = 64,
                        .kv_type = BANYAN_F32,
                        .chunk_tokens = 64,
                        .members = 2};
    struct context c;
    banyan_session *session = fill(&spec, &c, 400, 400, NULL);
    judge(session, &c, (struct step){.first = 200, .rows = 200, .seed = 6}, 4, false, "a block");
    struct step steps[6];
    banyan_item items[6];
    banyan_mass masses[6];
    for (uint32_t i = 0; i < 6; i++) {
        steps[i] = (struct step){.session = session, .first = 50 * i, .rows = 1 + i, .seed = i};
        masses[i] = (banyan_mass){.bins = 3 + i, .per_head = i % 2};
        items[i] = step_item(&steps[i]);
        items[i].mass = i != 2 ? &masses[i] : NULL;
    }
    steps[4].first = items[4].first = 10000; // fails alone
    OK(banyan_attend(client, items, 6, 0, NULL, ERR));
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(items[i].code, i == 4 ? BANYAN_OUT_OF_RANGE : BANYAN_OK);
        if (i != 2 && i != 4)
            check_mass(&c, &steps[i], &masses[i], "together");
        banyan_mass_free(&masses[i]);
        step_free(&steps[i]);
    }
    drop(session, &c);
}

// Logits of −90000: lse in float32 is coarse there, the masses are not.
static void far_below(void **state)
{
    (void)state;
    banyan_spec spec = {.layers = 1,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .k_dim = 1,
                        .v_dim = 1,
                        .scale = 1,
                        .kv_type = BANYAN_F32,
                        .chunk_tokens = 16,
                        .members = WORKERS};
    struct context c;
    banyan_session *session;
    const float one = 1;
    context_init(&c, &spec, 96);
    for (uint32_t p = 0; p < 96; p++) {
        float k = -90000 - (float)(p / 16);
        context_set(&c, 0, p, 0, &k, &one);
    }
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &c, 0, 96);
    struct step step = {.session = session, .first = 95, .rows = 1, .q = &one};
    banyan_mass mass = {.bins = 6};
    OK(run_mass(&step, &mass));
    double total = 0;
    for (uint32_t b = 0; b < 6; b++)
        total += exp(-(double)b);
    for (uint32_t b = 0; b < 6; b++)
        assert_true(fabs(mass.bin[b] - exp(-(double)b) / total) < 1e-6);
    banyan_mass_free(&mass);
    step_free(&step);
    drop(session, &c);
}

// ---- refusals -----------------------------------------------------------------------------------

static void bad_sizes(void **state)
{
    (void)state;
    banyan_spec spec = {.layers = 1,
                        .q_heads = 64,
                        .kv_heads = 1,
                        .k_dim = 4,
                        .v_dim = 4,
                        .kv_type = BANYAN_F32,
                        .chunk_tokens = 16};
    struct context c;
    banyan_session *session = fill(&spec, &c, 64, 64, NULL);
    static const struct {
        uint32_t bins, rows;
    } cases[] = {{0, 1}, {4097, 1}, {UINT32_MAX, 1}, {4096, 5}, {512, 33}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct step step = {.session = session, .first = 0, .rows = cases[i].rows, .seed = 1};
        banyan_mass mass = {.bins = cases[i].bins};
        FAILS(BANYAN_INVALID_ARGUMENT, NULL, run_mass(&step, &mass));
        assert_null(mass.bin);
        step_free(&step);
    }
    struct step step = {.session = session, .first = 0, .rows = 4, .seed = 1};
    banyan_mass mass = {.bins = 4096}; // 2^20 values: just allowed
    OK(run_mass(&step, &mass));
    assert_int_equal(mass.n_bins, 1);
    banyan_mass_free(&mass);
    step_free(&step);

    banyan_watch watch = {0};
    static const banyan_watch_options wrong[] = {
        {.steps = 65, .trace = true},
        {.steps = 1}, // neither
        {.steps = 1, .mass_bins = 1025},
        {.steps = 1, .mass_bins = 1024 + 1, .mass_per_head = true},
        {.steps = 1, .trace = true, .layer = 1},
        {.steps = 1, .trace = true, .wait_ns = UINT64_C(51000000000)},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        FAILS(BANYAN_INVALID_ARGUMENT, NULL, banyan_session_watch(session, &wrong[i], &watch, ERR));
    OK(banyan_session_watch(session, &(banyan_watch_options){.trace = true, .wait_ns = 1}, &watch, ERR));
    assert_int_equal(watch.n, 0); // there was no watch before
    banyan_watch_free(&watch);
    drop(session, &c);
}

// ---- watching -----------------------------------------------------------------------------------

struct decode { // a client without a watch
    banyan_session *session;
    const struct context *c;
    uint64_t at;
    atomic_bool stop;
    pthread_t thread;
    uint32_t layers;
};

static void *decode(void *arg)
{
    struct decode *d = arg;
    for (; !atomic_load(&d->stop); d->at = d->at + 1 < d->c->room ? d->at + 1 : 300)
        for (uint32_t l = 0; l < d->layers; l++) {
            struct step step = {.session = d->session, .layer = l, .first = d->at, .rows = 1, .seed = 11};
            OK(step_run(client, &step));
            step_free(&step);
        }
    return NULL;
}

static void a_running_session_is_watched(void **state)
{
    (void)state;
    banyan_spec spec = shapes[2].spec;
    struct context c;
    spec.layers = 3;
    spec.chunk_tokens = 16;
    spec.members = WORKERS;
    banyan_session *session = fill(&spec, &c, 400, 400, "watched"), *hold;
    struct decode d = {.session = session, .c = &c, .at = 300, .layers = 3};
    OK(banyan_session_open(client, 0, "watched", &hold, ERR));
    assert_int_equal(pthread_create(&d.thread, NULL, decode, &d), 0);
    banyan_client *admin = support_connect(cluster, "tcp");
    banyan_session *seen;
    OK(banyan_session_open(admin, 0, "watched", &seen, ERR));
    for (int heads = 0; heads < 2; heads++) {
        banyan_watch watch;
        banyan_watch_options options = {.steps = 3,
                                        .wait_ns = UINT64_C(30000000000),
                                        .layer = 1,
                                        .trace = true,
                                        .mass_bins = 10,
                                        .mass_per_head = heads};
        OK(banyan_session_watch(seen, &options, &watch, ERR));
        assert_int_equal(watch.n, 3);
        for (uint32_t i = 0; i < watch.n; i++) {
            banyan_watched_step *w = &watch.steps[i];
            assert_int_equal(w->layer, 1);
            assert_int_equal(w->visible, w->first + 1);
            assert_int_equal(w->trace.n_workers, WORKERS);
            assert_true(w->trace.tree_ns > 0 && w->trace.total_ns >= w->trace.tree_ns);
            uint32_t roots = 0;
            uint64_t tokens = 0;
            for (uint32_t k = 0; k < WORKERS; k++) {
                roots += w->trace.workers[k].parent == -1;
                tokens += w->trace.workers[k].tokens;
                assert_true(w->trace.workers[k].compute_ns > 0);
            }
            assert_int_equal(roots, 1);
            assert_int_equal(tokens, w->visible);
            struct step step = {.session = session, .layer = 1, .first = w->first, .rows = 1, .seed = 11};
            step.q = step.made_q = context_queries(&spec, 1, 11);
            w->mass.per_head = heads;
            w->mass.bins = 10;
            check_mass(&c, &step, &w->mass, "watched");
            step_free(&step);
            assert_true(i == 0 || w->step > watch.steps[i - 1].step);
        }
        banyan_watch_free(&watch);
    }
    atomic_store(&d.stop, true);
    pthread_join(d.thread, NULL);
    // What was seen is kept, at once.
    banyan_watch kept;
    OK(banyan_session_watch(seen, &(banyan_watch_options){.steps = 64, .layer = 1, .mass_bins = 1}, &kept,
                            ERR));
    assert_in_range(kept.n, 3, 64);
    banyan_watch_free(&kept);
    // A truncate begins another history.
    OK(banyan_session_truncate(session, 350, ERR));
    OK(banyan_session_watch(seen, &(banyan_watch_options){.steps = 64, .all_layers = true, .mass_bins = 1},
                            &kept, ERR));
    assert_int_equal(kept.n, 0);
    banyan_watch_free(&kept);
    banyan_session_close(seen);
    banyan_disconnect(admin);
    banyan_session_close(hold);
    drop(session, &c);
}

// There is no watch, but the client asks for itself: that is kept, too.
static void what_clients_ask_for_is_kept(void **state)
{
    (void)state;
    banyan_spec spec = shapes[0].spec;
    struct context c;
    spec.layers = 1;
    spec.chunk_tokens = 16;
    banyan_session *session = fill(&spec, &c, 100, 100, NULL);
    struct step step = {.session = session, .first = 90, .rows = 10, .seed = 3};
    banyan_mass mass = {.bins = 7};
    banyan_trace trace;
    banyan_item item = step_item(&step);
    item.mass = &mass;
    OK(banyan_attend(client, &item, 1, 0, &trace, ERR));
    banyan_watch watch;
    banyan_watch_options options = {.steps = 5, .all_layers = true, .trace = true, .mass_bins = 100};
    OK(banyan_session_watch(session, &options, &watch, ERR));
    assert_int_equal(watch.n, 1);
    assert_int_equal(watch.steps[0].mass.n_bins, mass.n_bins);
    assert_int_equal(watch.steps[0].mass.rows, 1);
    assert_memory_equal(watch.steps[0].mass.bin, mass.bin + 9 * mass.n_bins, mass.n_bins * sizeof(float));
    assert_int_equal(watch.steps[0].trace.n_workers, trace.n_workers);
    banyan_watch_free(&watch);
    banyan_trace_free(&trace);
    banyan_mass_free(&mass);
    step_free(&step);
    drop(session, &c);
}

struct waiting {
    banyan_session *session;
    banyan_code code;
};

static void *wait_long(void *arg)
{
    struct waiting *w = arg;
    banyan_watch watch;
    w->code = banyan_session_watch(
        w->session,
        &(banyan_watch_options){.wait_ns = UINT64_C(50000000000), .all_layers = true, .trace = true}, &watch,
        NULL);
    return NULL;
}

// A waiting watch ends when the session goes, and holds up no other call.
static void a_deleted_session_ends_its_watches(void **state)
{
    (void)state;
    banyan_spec spec = shapes[0].spec;
    struct context c;
    pthread_t thread;
    spec.layers = 1;
    spec.chunk_tokens = 16;
    banyan_session *session = fill(&spec, &c, 20, 20, NULL);
    struct waiting w = {.session = session};
    assert_int_equal(pthread_create(&thread, NULL, wait_long, &w), 0);
    OK(banyan_session_delete(session, ERR));
    pthread_join(thread, NULL);
    assert_int_equal(w.code, BANYAN_NOT_FOUND); // whether it came before the delete or after
    banyan_session_close(session);
    context_free(&c);
}

struct asking { // asks for masses until it is stopped; whatever comes must be right, or say why not
    banyan_client *client;
    banyan_session *session;
    const struct context *c;
    atomic_bool stop;
    atomic_uint right, failed;
    pthread_t thread;
};

static void *ask(void *arg)
{
    struct asking *a = arg;
    for (uint32_t i = 0; !atomic_load(&a->stop); i++) {
        struct step step = {.session = a->session, .first = 299, .rows = 1, .seed = i % 4};
        banyan_mass mass = {.bins = 8};
        banyan_item item = step_item(&step);
        item.mass = &mass;
        item.error = NULL;
        banyan_code code = banyan_attend(a->client, &item, 1, 0, NULL, NULL);
        code = code == BANYAN_OK ? item.code : code;
        if (code == BANYAN_OK && mass.code == BANYAN_OK) {
            context_check_mass(a->c, 0, 299, 0, step.made_q, &mass, NULL, "under failure");
            atomic_fetch_add(&a->right, 1);
        } else {
            assert_true(code == BANYAN_OK || code == BANYAN_UNAVAILABLE || code == BANYAN_DATA_LOSS);
            assert_null(mass.bin);
            atomic_fetch_add(&a->failed, 1);
        }
        banyan_mass_free(&mass);
        step_free(&step);
    }
    return NULL;
}

// A worker dies under steps, masses and watches: no number is wrong, no call hangs, another session goes on.
static void a_worker_dies_under_masses(void **state)
{
    (void)state;
    struct harness_cluster *own = support_start(&(struct harness_options){.workers = 2});
    struct asking a[2] = {{.client = support_connect(own, "unix")}, {.client = support_connect(own, "tcp")}};
    banyan_spec spec = shapes[0].spec;
    struct context c;
    spec.layers = 1;
    spec.chunk_tokens = 16;
    spec.members = 2;
    context_init(&c, &spec, 300);
    context_random(&c, 0, 300, 8);
    OK(banyan_session_create(a[0].client, &spec, "dies", &a[0].session, ERR));
    support_fill(a[0].session, &c, 0, 300);
    OK(banyan_session_open(a[1].client, 0, "dies", &a[1].session, ERR));
    for (int i = 0; i < 2; i++) {
        a[i].c = &c;
        assert_int_equal(pthread_create(&a[i].thread, NULL, ask, &a[i]), 0);
    }
    EVENTUALLY(60, atomic_load(&a[0].right) > 20 && atomic_load(&a[1].right) > 20);
    harness_cluster_signal(own, 1, SIGKILL);
    EVENTUALLY(60, atomic_load(&a[0].failed) > 5 && atomic_load(&a[1].failed) > 5);
    for (int i = 0; i < 2; i++) {
        atomic_store(&a[i].stop, true);
        pthread_join(a[i].thread, NULL);
    }
    banyan_watch watch;
    OK(banyan_session_watch(
        a[0].session, &(banyan_watch_options){.steps = 3, .all_layers = true, .mass_bins = 8}, &watch, ERR));
    assert_int_equal(watch.n, 3); // the earlier ones
    banyan_watch_free(&watch);
    banyan_session *next;
    spec.members = 1;
    OK(banyan_session_create(a[0].client, &spec, NULL, &next, ERR));
    support_fill(next, &c, 0, 300);
    struct step step = {.session = next, .first = 299, .rows = 1, .seed = 1};
    banyan_mass mass = {.bins = 5};
    banyan_item item = step_item(&step);
    item.mass = &mass;
    OK(banyan_attend(a[0].client, &item, 1, 0, NULL, ERR));
    check_mass(&c, &step, &mass, "afterwards");
    banyan_mass_free(&mass);
    step_free(&step);
    banyan_session_close(next);
    for (int i = 0; i < 2; i++) {
        banyan_session_close(a[i].session);
        banyan_disconnect(a[i].client);
    }
    context_free(&c);
    support_stop(own);
}

static int start(void **state)
{
    (void)state;
    cluster = support_start(&(struct harness_options){.workers = WORKERS});
    client = support_connect(cluster, "unix");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    printf("largest error of a mass as a fraction of what is allowed: %.3f\n", worst);
    banyan_disconnect(client);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masses_are_the_references),
        cmocka_unit_test(after_append_fork_and_truncate),
        cmocka_unit_test(blocks_and_batches),
        cmocka_unit_test(far_below),
        cmocka_unit_test(bad_sizes),
        cmocka_unit_test(a_running_session_is_watched),
        cmocka_unit_test(what_clients_ask_for_is_kept),
        cmocka_unit_test(a_deleted_session_ends_its_watches),
        cmocka_unit_test(a_worker_dies_under_masses),
    };
    return cmocka_run_group_tests_name("masses and traces of the service", tests, start, stop);
}
