// SPDX-License-Identifier: Apache-2.0
// Partial answers on real processes: a worker that alone has some chunks is killed. A client that allows it
// is answered over what is left, as float64 says of exactly that, and gets a list of what is missing; others
// get an error that names it.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/snapshot/safetensors_write.h"
#include "common/base/clock.h"
#include "tests/e2e/banyanctl.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed

enum { ATTACHED = 400, STEPS = 60, KILLED_AT = 20, ROOM = ATTACHED + 2 * STEPS };

static const float sinks[] = {0.5f, -1, 0, 2};
static const banyan_spec specs[] = {{.layers = 1,
                                     .q_heads = 4,
                                     .kv_heads = 2,
                                     .k_dim = 32,
                                     .v_dim = 32,
                                     .kv_type = BANYAN_F32,
                                     .chunk_tokens = 32,
                                     .members = 3,
                                     .replicas = 1},
                                    {.layers = 1,
                                     .q_heads = 4,
                                     .kv_heads = 2,
                                     .k_dim = 32,
                                     .v_dim = 32,
                                     .kv_type = BANYAN_BF16,
                                     .sinks = sinks,
                                     .window = 75,
                                     .chunk_tokens = 32,
                                     .members = 3,
                                     .replicas = 1}};

struct fixture {
    struct harness_cluster *cluster;
    banyan_client *client;
    banyan_session *session;
    struct context context;
    uint64_t length;
};

static void begin(struct fixture *f, const banyan_spec *spec, uint64_t seed)
{
    f->cluster = support_start(&(struct harness_options){.workers = 3});
    f->client = support_connect(f->cluster, "nng+tcp");
    f->length = ATTACHED;
    context_init(&f->context, spec, ROOM);
    context_random(&f->context, 0, ROOM, seed);
    OK(banyan_session_create(f->client, spec, "partial", &f->session, ERR));
    support_fill(f->session, &f->context, 0, ATTACHED);
}

static void end(struct fixture *f)
{
    support_drop(f->session, &f->context);
    banyan_disconnect(f->client);
    support_stop(f->cluster);
}

// Of rows at [first, first + rows): what was declared is not looked at, all else is the reference's.
static void check(struct fixture *f, const struct step *step, const char *what)
{
    f->context.partial = step->partial;
    context_check(&f->context, 0, step->first, step->rows, 0, step->made_q, step->o, step->lse, NULL, what);
    f->context.partial = NULL;
}

static banyan_code step_partial(struct fixture *f, struct step *step, banyan_partial *partial)
{
    banyan_partial_free(partial);
    step->session = f->session;
    step->partial = partial;
    step->timeout_ns = LONG_NS;
    return step_run(f->client, step);
}

// What an error names and a partial answer declares are found by different code.
static void same_ranges(const banyan_partial *partial, const banyan_error *error)
{
    assert_int_equal(partial->n, error->n_ranges);
    for (uint32_t i = 0; i < partial->n; i++)
        assert_true(partial->missing[i].first == error->ranges[i].first &&
                    partial->missing[i].count == error->ranges[i].count);
}

static void reads(struct fixture *f, bool lost)
{
    banyan_partial partial = {0};
    uint64_t window = f->context.spec.window;
    for (uint64_t first = 0; first + 3 <= f->length; first += 41) {
        struct step step = {.first = first, .rows = 3, .seed = first};
        uint64_t from = window && first + 1 > window ? first + 1 - window : 0, seen = first + 3 - from;
        OK(step_partial(f, &step, &partial));
        check(f, &step, "partial");
        for (uint32_t i = 0; i < partial.n; i++) {
            assert_true(partial.missing[i].first >= from);
            assert_true(partial.missing[i].first + partial.missing[i].count <= first + 3);
            seen -= partial.missing[i].count;
        }
        assert_int_equal(partial.seen, seen);
        assert_true(lost || !partial.n);
        step_free(&step);
    }
    banyan_partial_free(&partial);
}

// At the end of the session, where a full layer lacks all that is lost.
static void is_refused(struct fixture *f, banyan_code code)
{
    banyan_partial partial = {0};
    struct step with = {.first = f->length - 1, .rows = 1}, without = with;
    without.session = f->session;
    OK(step_partial(f, &with, &partial));
    FAILS(code, "MISSING_RANGE", step_run(f->client, &without));
    const banyan_error error =
        *ERR; // gcc 12's check for NULL takes the address of another unit's thread-local for it
    if (!f->context.spec.window)
        same_ranges(&partial, &error);
    step_free(&with);
    step_free(&without);
    banyan_partial_free(&partial);
}

static struct {
    struct harness_cluster *cluster;
    uint32_t who;
} killing;

static void *kill_it(void *arg)
{
    (void)arg;
    harness_cluster_signal(killing.cluster, killing.who, SIGKILL);
    return NULL;
}

// Steps go on while it dies. An append goes through, or says that its chunk is lost: then nothing more is
// appended.
static bool step_while_killed(struct fixture *f, uint32_t victim)
{
    pthread_t killer;
    bool open = true;
    banyan_partial partial = {0};
    killing.cluster = f->cluster;
    killing.who = victim;
    for (uint32_t i = 0; i < STEPS; i++) {
        bool append = open && i % 2;
        struct step step = {.first = append ? f->length : f->length * 2 / 3, .rows = 1, .seed = i};
        if (i == KILLED_AT && pthread_create(&killer, NULL, kill_it, NULL) != 0)
            fail_msg("no thread");
        if (append)
            step_append(&step, &f->context);
        banyan_code code = step_partial(f, &step, &partial);
        if (append && code == BANYAN_UNAVAILABLE) {
            // Under way when its only holder died: that one cannot say what it has of it.
            if (strcmp(ERR->reason, "UNCONFIRMED") != 0)
                assert_string_equal(ERR->reason, "MISSING_RANGE");
            open = false;
        } else {
            OK(code);
            check(f, &step, "under a kill");
            f->length += append;
        }
        step_free(&step);
    }
    pthread_join(killer, NULL);
    banyan_partial_free(&partial);
    return open;
}

static void attends_with_banyanctl(struct fixture *f)
{
    char path[512], line[600];
    struct common_error err;
    float *q = context_queries(&f->context.spec, 1, 1);
    struct common_safetensor tensor = {.name = "q",
                                       .dtype = COMMON_DTYPE_F32,
                                       .n_dims = 3,
                                       .dims = {1, f->context.spec.q_heads, f->context.spec.k_dim},
                                       .data = q,
                                       .bytes = (size_t)f->context.spec.q_heads * f->context.spec.k_dim *
                                                sizeof *q};
    snprintf(path, sizeof path, "%s/q.safetensors", harness_cluster_dir(f->cluster));
    assert_int_equal(client_safetensors_write(path, &tensor, 1, &err), COMMON_OK);
    snprintf(line, sizeof line, "attend partial %%s --first %" PRIu64, f->length - 1);
    banyanctl_expect(f->cluster, 10, "no worker holds tokens [", line, path);
    strncat(line, " --allow-partial", sizeof line - strlen(line) - 1);
    banyanctl_expect(f->cluster, 0, "missing: tokens [", line, path);
    strncat(line, " -o json", sizeof line - strlen(line) - 1);
    banyanctl_expect(f->cluster, 0, "\"missing\"", line, path);
    unlink(path);
    free(q);
}

// The worker has said that it came without them.
static bool says_lost(struct fixture *f)
{
    struct step step = {.session = f->session, .first = f->length - 1, .rows = 1};
    banyan_code code = step_run(f->client, &step);
    step_free(&step);
    return code == BANYAN_DATA_LOSS;
}

static void a_killed_worker(void **state)
{
    (void)state;
    uint32_t went_on = 0;
    for (uint32_t victim = 0; victim < 3; victim++) {
        struct fixture f;
        begin(&f, &specs[victim % 2], victim + 1);
        reads(&f, false);
        went_on += step_while_killed(&f, victim);
        reads(&f, true);
        is_refused(&f, BANYAN_UNAVAILABLE);
        harness_cluster_signal(f.cluster, HARNESS_COORDINATOR, SIGKILL);
        assert_true(harness_cluster_restart(f.cluster, HARNESS_COORDINATOR));
        f.length = ATTACHED; // what was appended may be in doubt: some of its rows are at the dead one
        reads(&f, true);
        assert_true(harness_cluster_restart(f.cluster, victim)); // with nothing of what it had
        EVENTUALLY(60, says_lost(&f));
        reads(&f, true);
        if (!f.context.spec.window)
            attends_with_banyanctl(&f);
        OK(banyan_session_truncate(f.session, 0, ERR)); // what is lost is attached again
        support_fill(f.session, &f.context, 0, ATTACHED);
        reads(&f, false);
        end(&f);
    }
    assert_true(went_on > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_killed_worker)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
