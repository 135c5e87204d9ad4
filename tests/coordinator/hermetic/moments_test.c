// SPDX-License-Identifier: Apache-2.0
// Every operation, struck by every fault at every moment: after each event that runs between the request and
// its answer. So each message and each store write of an operation is one that a fault comes before, and one
// that it comes after. Afterwards:
//
//   what was acknowledged is there and reads right;  what was not is there as a whole, or not at all;
//   where it is not, other bytes are accepted;       the operation, asked again, works;
//   the code was one that the contract allows;       nothing is left that no session needs, and every count is 0;
//   another restart alters none of this.
//
// Once with events in their order, once with those of an instant and the delays of links as a seed draws
// them.
//
// Sessions have one holder of each chunk, at two workers; then two of three; then three. Where there is one,
// a worker that dies may have taken rows with it: then the error says so, and a truncate makes the session
// usable again. Where there are more, its death fails no step, no token is missing, and each chunk has all
// its copies again.
//
// The first is a part of the hermetic tests, the others are a test of their own (coordinator_moments).
// BANYAN_MOMENTS_ALL: shuffled ones after every event, too, not every 16th (coordinator_moments_all). With a
// sanitizer, every fifth and every 80th.
#include <stdlib.h>

#include "coordinator/session/layout.h"
#include "tests/common/sanitized.h"
#include "tests/coordinator/hermetic/moments.h"
#include "worker/core/state.h"

enum { MOMENTS_MAX = 2000 };

static char where[200]; // "" but in a test that fails

static const struct holders {
    uint32_t replicas, workers;
} holders[] = {{1, 2}, {2, 3}, {3, 3}};

enum { HOLDERS = sizeof holders / sizeof *holders };

// ---- what must hold -------------------------------------------------------------------------------------

// No chunk is at a worker that the layouts do not know, and none is missing that is not lost.
static void workers_hold_what_they_should(struct scene *scene)
{
    const struct coordinator *c = scene->cluster->coordinator;
    for (uint32_t i = 0; i < c->sessions.n_slots; i++) {
        const struct coordinator_session *s = c->sessions.slots[i];
        uint32_t chunks = 0, held = 0;
        for (uint32_t k = 0; s && k < s->layout.n; k++)
            chunks += s->layout.chunks[k].lost ? 0 : coordinator_chunk_copies(&s->layout.chunks[k]);
        for (uint32_t w = 0; s && w < scene->cluster->options.workers; w++) {
            const struct worker_session *at =
                worker_map_get(&scene->cluster->workers[w]->worker->sessions, s->id);
            held += at ? at->n_chunks : 0;
        }
        assert_int_equal(held, chunks);
    }
}

static void nothing_is_left(struct scene *scene)
{
    const struct coordinator *c = scene->cluster->coordinator;
    for (uint32_t i = 0; i < c->sessions.n_slots; i++)
        if (c->sessions.slots[i]) {
            scene->session = c->sessions.slots[i]->id;
            OK(sim_delete(scene->client, scene->session));
        }
    sim_advance(20 * COMMON_NS_PER_MS); // deadlines are looked at every 10 ms
    assert_int_equal(c->sessions.n, 0);
    assert_int_equal(c->steps.items, 0);
    assert_int_equal(c->steps.bytes, 0);
    assert_null(c->sessions.commits.head);
    assert_true(common_list_empty(&c->steps.calls) && common_list_empty(&c->steps.retries));
    for (uint32_t i = 0; i < scene->cluster->options.workers; i++) {
        const struct coordinator_worker *w = c->cluster.workers[i];
        assert_true(!w->chunks && !w->members && !w->load_bytes && !w->visitors && !w->quarantine.n);
        assert_int_equal(scene->cluster->workers[i]->worker->sessions.count, 0);
    }
}

// ---- moments --------------------------------------------------------------------------------------------

static uint64_t made_of(const struct scene *scene, uint64_t tokens)
{
    struct sim_call *call = sim_create(scene->client, moment_shape(scene), "");
    OK(call);
    for (uint64_t at = 0; at < tokens; at += 16)
        OK(sim_append(scene->client, call->session, 0, at, tokens - at < 16 ? (uint32_t)(tokens - at) : 16,
                      1));
    return call->session;
}

// False: the operation was over before this moment.
static bool strike_at(const struct holders *of, const struct operation *operation, const struct fault *fault,
                      uint32_t moment, bool shuffled)
{
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = of->workers, .seed = moment + 1});
    if (shuffled) {
        sim_shuffle(true);
        sim_net_delay(10 * COMMON_NS_PER_US, 300 * COMMON_NS_PER_US);
    }
    sim_cluster_start(cluster);
    struct scene scene = {.cluster = cluster,
                          .client = cluster->client,
                          .replicas = of->replicas,
                          .before = operation->before,
                          .loses = fault->effect == LOSES && of->replicas == 1,
                          .restarts = fault->effect == RESTARTS};
    scene.session = made_of(&scene, operation->before);
    if (operation->prepare)
        operation->prepare(&scene);
    sim_run_until_idle();
    scene.call = operation->start(&scene);
    for (uint32_t i = 0; i < moment && !scene.call->done; i++)
        sim_step();
    bool over = scene.call->done;
    fault->strike(&scene);
    enum common_code code = sim_wait(scene.call);
    if (!moment_allows(&scene, operation, fault, code))
        fail_msg("%s: %s", common_code_name(code), scene.call->text);
    if (operation->writes && !moment && moment_fills_disk(fault))
        assert_int_equal(code, COMMON_RESOURCE_EXHAUSTED);
    if (scene.beside)
        assert_true(sim_wait(scene.beside) != COMMON_IN_PROGRESS);
    sim_advance(500 * COMMON_NS_PER_MS);
    assert_true(sim_wait_active(cluster, of->workers));
    if (of->replicas == 1) // else copies may be on their way
        workers_hold_what_they_should(&scene);
    operation->check(&scene, code == COMMON_OK);
    moment_wait_whole(&scene);
    workers_hold_what_they_should(&scene);
    nothing_is_left(&scene);
    sim_cluster_free(cluster);
    return !over;
}

static void strike_always(const struct holders *of, const struct operation *operation)
{
    // Of shuffled ones some, which differ from fault to fault; with a sanitizer, of all
    bool all = getenv("BANYAN_MOMENTS_ALL");
    uint32_t strides[2] = {all ? 1 : SANITIZED(1, 5, 5), all ? 1 : SANITIZED(16, 80, 80)};
    for (uint32_t f = 0; f < MOMENT_FAULTS; f++)
        for (int shuffled = 0; shuffled < 2; shuffled++)
            for (uint32_t moment = f % strides[shuffled]; moment < MOMENTS_MAX; moment += strides[shuffled]) {
                snprintf(where, sizeof where, "%s, %u holders: %s after %u events%s", operation->name,
                         of->replicas, moment_faults[f].name, moment, shuffled ? ", shuffled" : "");
                if (!strike_at(of, operation, &moment_faults[f], moment, shuffled))
                    break;
            }
    where[0] = 0;
}

static int say_where(void **state)
{
    (void)state;
    if (where[0])
        print_error("%s\n", where);
    where[0] = 0;
    return 0;
}

static const struct holders *struck; // whose turn it is

static void run_operation(void **state)
{
    strike_always(struck, *state);
}

int hermetic_moments(uint32_t least, uint32_t most)
{
    enum { N = MOMENT_OPERATIONS };
    struct CMUnitTest tests[N];
    char name[32];
    int failed = 0;
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){.name = moment_operations[i].name,
                                       .test_func = run_operation,
                                       .teardown_func = say_where,
                                       .initial_state = (void *)&moment_operations[i]};
    for (int k = 0; k < HOLDERS; k++) {
        struck = &holders[k];
        if (struck->replicas < least || struck->replicas > most)
            continue;
        snprintf(name, sizeof name, "moments, %u holders", struck->replicas);
        failed += cmocka_run_group_tests_name(name, tests, NULL, NULL);
    }
    return failed;
}
