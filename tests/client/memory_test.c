// SPDX-License-Identifier: Apache-2.0
// A library never ends its host's process: with libbanyan's objects linked to an allocator that fails, every
// call ends, nothing aborts, nothing leaks. The daemons are processes of their own.
//
// The linker's --wrap catches the allocations of the objects in this program, not those of shared libraries;
// libevent's are led here by its own hook.
#include <errno.h>
#include <event2/event.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/banyan.h"
#include "proto/nng_door.h"
#include "tests/common/group.h"
#include "tests/harness/cluster.h"

// ---- the allocator ----------------------------------------------------------------------------------------

enum failing { ONE, ALL_FROM }; // the nth allocation alone, or it and all after it

static atomic_bool armed;
static atomic_long asked, live; // allocations since arming; blocks that are not freed
static long fail_at;
static enum failing failing;

static bool denied(void)
{
    if (!atomic_load(&armed))
        return false;
    long nth = atomic_fetch_add(&asked, 1) + 1;
    if (failing == ONE ? nth != fail_at : nth < fail_at)
        return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *block)
{
    if (block)
        atomic_fetch_add(&live, 1);
    return block;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_reallocarray(void *block, size_t n, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *block);

void *__wrap_malloc(size_t size)
{
    return denied() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return denied() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *block, size_t size)
{
    if (denied())
        return NULL;
    return block ? __real_realloc(block, size) : counted(__real_realloc(block, size));
}

void *__wrap_reallocarray(void *block, size_t n, size_t size)
{
    return __wrap_realloc(block, n * size); // of sizes that do not wrap
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return denied() ? NULL : counted(__real_aligned_alloc(align, size));
}

char *__wrap_strdup(const char *text)
{
    return denied() ? NULL : counted(__real_strdup(text));
}

void __wrap_free(void *block)
{
    if (block)
        atomic_fetch_sub(&live, 1);
    __real_free(block);
}

static void arm(enum failing how, long nth)
{
    failing = how;
    fail_at = nth;
    atomic_store(&asked, 0);
    atomic_store(&armed, true);
}

// ---- the calls --------------------------------------------------------------------------------------------

enum { TOKENS = 64, DIM = 16, ROW = DIM * sizeof(float) };

static float zeros[TOKENS * DIM];

struct scene {
    const char *endpoint;
    banyan_client *client;
    banyan_session *session;
    bool failed;
};

static bool good(struct scene *scene, const char *what, banyan_code code, const banyan_error *error)
{
    if (code == BANYAN_OK)
        return true;
    scene->failed = true;
    // A link that was lost for want of memory says so; a waiting caller sees a link that was lost.
    if (code != BANYAN_RESOURCE_EXHAUSTED &&
        !(code == BANYAN_UNAVAILABLE && strstr(error->message, "out of memory")))
        fail_msg("allocation %ld, %s: %s: %s", fail_at, what, banyan_code_name(code), error->message);
    return false;
}

struct answer {
    atomic_bool there;
    banyan_code code;
    banyan_error error;
};

static void on_answer(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                      size_t n_items)
{
    struct answer *answer = arg;
    (void)items;
    (void)n_items;
    answer->code = code;
    answer->error = *error;
    atomic_store(&answer->there, true);
}

static bool attend(struct scene *scene, float *o)
{
    banyan_error error, item_error;
    banyan_mass mass = {.bins = 4};
    banyan_item item = {.session = scene->session,
                        .first = TOKENS - 1,
                        .rows = 1,
                        .q = zeros,
                        .o = o,
                        .mass = &mass,
                        .traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                        .error = &item_error};
    banyan_trace trace;
    banyan_code code = banyan_attend(scene->client, &item, 1, 0, &trace, &error);
    bool ok = good(scene, "attend", code, &error) && good(scene, "its item", item.code, &item_error);
    if (code == BANYAN_OK)
        banyan_trace_free(&trace);
    banyan_mass_free(&mass);
    return ok;
}

static bool attend_later(struct scene *scene, float *o)
{
    banyan_error error, item_error;
    banyan_item item = {
        .session = scene->session, .first = TOKENS - 1, .rows = 1, .q = zeros, .o = o, .error = &item_error};
    struct answer answer = {0};
    banyan_code code = banyan_attend_async(scene->client, &item, 1, 0, on_answer, &answer, &error);
    if (!good(scene, "attend_async", code, &error))
        return false;
    while (!atomic_load(&answer.there))
        usleep(100);
    if (!good(scene, "attend_async's answer", answer.code, &answer.error) ||
        !good(scene, "its item", item.code, &item_error))
        return false;
    code = banyan_attend_queue(scene->client, &item, 1, 0, &item, &error);
    if (!good(scene, "attend_queue", code, &error))
        return false;
    banyan_completion done;
    struct pollfd queue = {.fd = banyan_poll_fd(scene->client), .events = POLLIN};
    while (banyan_poll(scene->client, &done, 1) == 0)
        poll(&queue, 1, -1);
    return good(scene, "attend_queue's answer", done.code, &done.error) &&
           good(scene, "its item", item.code, &item_error);
}

static bool use_session(struct scene *scene)
{
    static float k[TOKENS * DIM], v[TOKENS * DIM];
    float o[DIM];
    banyan_error error;
    banyan_session_info info;
    banyan_session *fork;
    if (!good(scene, "attach", banyan_attach(scene->session, 0, 0, TOKENS, zeros, zeros, &error), &error) ||
        !good(scene, "commit", banyan_commit(scene->session, 0, 0, TOKENS, &error), &error) ||
        !good(scene, "read", banyan_read_rows(scene->session, 0, 0, TOKENS, k, NULL, v, NULL, &error),
              &error) ||
        !attend(scene, o) || !attend_later(scene, o) ||
        !good(scene, "info", banyan_session_get_info(scene->session, &info, &error), &error))
        return false;
    banyan_session_info_free(&info);
    if (!good(scene, "fork", banyan_session_fork(scene->session, TOKENS / 2, NULL, &fork, &error), &error))
        return false;
    banyan_session_close(fork);
    return good(scene, "delete", banyan_session_delete(scene->session, &error), &error);
}

static bool open_session(struct scene *scene)
{
    // Layers that differ: whatever a spec may point to is there.
    static const float one[1] = {0.5f};
    static const banyan_kind kinds[] = {
        {.q_heads = 1, .kv_heads = 1, .k_dim = DIM, .v_dim = DIM, .alibi = one},
        {.q_heads = 1, .kv_heads = 1, .k_dim = DIM, .v_dim = DIM, .scale = 2}};
    static const uint32_t layer_kind[] = {0, BANYAN_LAYER_LOCAL, 1},
                          shares[] = {BANYAN_SHARES_NONE, BANYAN_SHARES_NONE, 0};
    static const float *const layer_sinks[] = {NULL, NULL, one};
    const banyan_spec spec = {.layers = 3,
                              .kv_type = BANYAN_F32,
                              .idle_ttl_ns = UINT64_C(5000000000),
                              .n_kinds = 2,
                              .kinds = kinds,
                              .layer_kind = layer_kind,
                              .shares = shares,
                              .layer_sinks = layer_sinks};
    banyan_error error;
    return good(scene, "create", banyan_session_create(scene->client, &spec, NULL, &scene->session, &error),
                &error);
}

// Everything from connecting to disconnecting, as far as it comes; memory is short from its beginning on.
static bool play(const char *endpoint)
{
    static const banyan_options options = {.timeout_ns = UINT64_C(60000000000),
                                           .connect_timeout_ns = UINT64_C(60000000000)};
    struct scene scene = {.endpoint = endpoint};
    banyan_error error;
    if (good(&scene, "connect", banyan_connect(endpoint, &options, &scene.client, &error), &error) &&
        open_session(&scene))
        use_session(&scene);
    bool went_through = !scene.failed;
    if (scene.failed && failing == ALL_FROM && scene.client) { // and what comes after the first failure
        banyan_ping(scene.client, NULL, &error);
        if (scene.session)
            use_session(&scene);
    }
    banyan_session_close(scene.session);
    scene.session = NULL;
    atomic_store(&armed, false);
    if (scene.client) { // memory is there again: so is the service
        scene.failed = false;
        if (!open_session(&scene) || !use_session(&scene))
            fail_msg("allocation %ld: the client has not recovered", fail_at);
        banyan_session_close(scene.session);
    }
    banyan_disconnect(scene.client);
    return went_through;
}

static void play_until_enough(const char *endpoint, enum failing how)
{
    long n = 0;
    bool enough = false;
    arm(how, LONG_MAX);
    assert_true(play(endpoint)); // what is made once in a process
    while (!enough) {
        while (proto_nng_closing() > 0)
            usleep(1000);
        long before = atomic_load(&live);
        arm(how, ++n);
        enough = play(endpoint) && atomic_load(&asked) < n;
        while (proto_nng_closing() > 0)
            usleep(1000);
        if (atomic_load(&live) != before)
            fail_msg("allocation %ld: %ld blocks are left", n, atomic_load(&live) - before);
    }
    print_message("%ld allocations over %s\n", n - 1, endpoint);
    assert_true(n > 30); // the allocator is the one that is used
}

static struct harness_cluster *cluster;

static int start_cluster(void **state)
{
    (void)state;
    cluster = harness_cluster_start(&(struct harness_options){.workers = 1, .public_nng = true});
    return cluster ? 0 : -1;
}

static int stop_cluster(void **state)
{
    (void)state;
    atomic_store(&armed, false);
    return harness_cluster_stop(cluster);
}

static void test_one_fails(void **state)
{
    (void)state;
    play_until_enough(harness_cluster_endpoint(cluster, "nng+tcp"), ONE);
}

static void test_one_fails_stream(void **state)
{
    (void)state;
    play_until_enough(harness_cluster_endpoint(cluster, "unix"), ONE);
}

static void test_memory_is_gone(void **state)
{
    (void)state;
    play_until_enough(harness_cluster_endpoint(cluster, "nng+tcp"), ALL_FROM);
}

int main(void)
{
    event_set_mem_functions(__wrap_malloc, __wrap_realloc, __wrap_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_one_fails_stream),
        cmocka_unit_test(test_memory_is_gone),
    };
    return group_run(tests, start_cluster, stop_cluster);
}
