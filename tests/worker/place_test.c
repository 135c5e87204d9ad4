// SPDX-License-Identifier: Apache-2.0
// Where threads and memory go, on machines that hwloc makes up; several workers on one host; and this
// machine.
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/memory/place.h"

#define TWO_NODES "node:2 core:4 pu:2" // processors 0-7 on node 0, 8-15 on node 1

struct host { // what the workers of a made-up host have taken
    char taken[256][64];
    uint32_t n;
};

static bool claim(void *arg, const char *name)
{
    struct host *host = arg;
    for (uint32_t i = 0; i < host->n; i++)
        if (strcmp(host->taken[i], name) == 0)
            return false;
    assert_in_range(host->n, 0, 255);
    strcpy(host->taken[host->n++], name);
    return true;
}

static struct worker_place *place_on(struct host *host, const char *machine, const char *cpuset,
                                     enum worker_bind bind, int32_t numa, uint32_t threads)
{
    struct worker_place_options options = {.bind = bind,
                                           .numa = numa,
                                           .threads = threads,
                                           .synthetic = machine,
                                           .cpuset = cpuset,
                                           .claim = claim,
                                           .claim_arg = host};
    struct worker_place *place = NULL;
    assert_int_equal(worker_place_new(&options, &place, NULL), COMMON_OK);
    return place;
}

static void assert_place(struct worker_place *place, const char *text, const char *memory)
{
    char out[WORKER_PLACE_TEXT];
    assert_string_equal(worker_place_text(place, out), text);
    assert_string_equal(worker_place_memory_text(place, out), memory);
}

static void assert_thread(struct worker_place *place, uint32_t thread, const char *cpus)
{
    char out[WORKER_PLACE_TEXT];
    assert_string_equal(worker_place_thread_text(place, thread, out), cpus);
}

static void one_node_needs_no_choice(void **state)
{
    (void)state;
    struct host host = {.n = 0};
    struct worker_place *place =
        place_on(&host, "node:1 core:4 pu:2", NULL, WORKER_BIND_AUTO, WORKER_NUMA_AUTO, 0);
    assert_int_equal(worker_place_threads(place), 4); // cores, not hyperthreads
    assert_int_equal(worker_place_processors(place), 8);
    assert_place(place, "cores=4 node=any bind=cores:0-7", ""); // a core each
    assert_thread(place, 3, "0x000000c0");
    worker_place_free(place);
    host.n = 0;
    place = place_on(&host, "node:1 core:4 pu:2", NULL, WORKER_BIND_AUTO, WORKER_NUMA_AUTO, 8);
    assert_int_equal(worker_place_threads(place), 8); // --threads says more
    assert_place(place, "cores=4 node=any bind=none", "");
    assert_thread(place, 0, "0x000000ff");
    assert_int_equal(host.n, 0);
    worker_place_free(place);
}

static void an_affinity_counts(void **state)
{
    (void)state;
    struct host host = {.n = 0};
    // Both processors of core 1, one of core 2.
    struct worker_place *place =
        place_on(&host, "node:1 core:4 pu:2", "0x1c", WORKER_BIND_CORES, WORKER_NUMA_AUTO, 0);
    assert_int_equal(worker_place_threads(place), 2);
    assert_int_equal(worker_place_processors(place), 3);
    assert_place(place, "cores=2 node=any bind=cores:2-4", "");
    assert_thread(place, 0, "0x0000000c");
    assert_thread(place, 1, "0x00000010");
    worker_place_free(place);
    // All of it on one node of two: memory is local by itself.
    place = place_on(&host, TWO_NODES, "0xf00", WORKER_BIND_AUTO, WORKER_NUMA_AUTO, 0);
    assert_int_equal(worker_place_threads(place), 2);
    assert_place(place, "cores=2 node=any bind=cores:8-11", "");
    worker_place_free(place);
    struct worker_place_options options = {
        .numa = 0, .synthetic = TWO_NODES, .cpuset = "0xf00", .claim = claim, .claim_arg = &host};
    struct common_error err;
    assert_int_equal(worker_place_new(&options, &place, &err), COMMON_INVALID_ARGUMENT);
    options.numa = WORKER_NUMA_AUTO;
    options.cpuset = "0xf0000"; // nothing of this machine
    assert_int_equal(worker_place_new(&options, &place, &err), COMMON_FAILED_PRECONDITION);
}

static void a_quota_limits_the_default(void **state)
{
    (void)state;
    struct host host = {.n = 0};
    struct worker_place_options options = {.numa = WORKER_NUMA_AUTO,
                                           .synthetic = "node:1 core:64 pu:2",
                                           .quota = 3,
                                           .claim = claim,
                                           .claim_arg = &host};
    struct worker_place *place = NULL;
    assert_int_equal(worker_place_new(&options, &place, NULL), COMMON_OK);
    assert_int_equal(worker_place_threads(place), 3);
    assert_place(place, "cores=64 node=any bind=none", ""); // the system moves them about
    worker_place_free(place);
    options.threads = 8;
    assert_int_equal(worker_place_new(&options, &place, NULL), COMMON_OK);
    assert_int_equal(worker_place_threads(place), 8); // as its option says
    worker_place_free(place);
}

static void each_worker_takes_a_node(void **state)
{
    (void)state;
    static const char *const text[] = {"cores=8 node=0 bind=node", "cores=8 node=1 bind=cores:8-15",
                                       "cores=8 node=0 bind=node"};
    static const char *const memory[] = {"0x00000001", "0x00000002", "0x00000001"};
    struct host host = {.n = 0};
    for (int i = 0; i < 3; i++) {
        struct worker_place *place =
            place_on(&host, TWO_NODES, NULL, WORKER_BIND_AUTO, WORKER_NUMA_AUTO, i == 1 ? 0 : 3);
        assert_int_equal(worker_place_threads(place), i == 1 ? 4 : 3);
        assert_int_equal(worker_place_processors(place), 16);
        assert_place(place, text[i], memory[i]);
        assert_thread(place, 2, i == 1 ? "0x00003000" : "0x000000ff");
        worker_place_free(place);
    }
    struct worker_place *place = place_on(&host, TWO_NODES, NULL, WORKER_BIND_NONE, 1, 2);
    assert_int_equal(worker_place_threads(place), 2);
    assert_place(place, "cores=8 node=1 bind=none", "0x00000002");
    assert_thread(place, 0, "0x0000ffff");
    worker_place_free(place);
}

static void a_wide_worker_uses_all_nodes(void **state)
{
    (void)state;
    struct host host = {.n = 0};
    struct worker_place *place = place_on(&host, TWO_NODES, NULL, WORKER_BIND_AUTO, WORKER_NUMA_AUTO, 5);
    assert_place(place, "cores=8 node=all bind=none", "interleave:0x00000003");
    assert_thread(place, 4, "0x0000ffff");
    worker_place_free(place);
    place = place_on(&host, TWO_NODES, NULL, WORKER_BIND_CORES, WORKER_NUMA_NONE, 0);
    assert_int_equal(worker_place_threads(place), 8);
    assert_place(place, "cores=8 node=all bind=cores:0-15", "interleave:0x00000003");
    assert_thread(place, 7, "0x0000c000");
    worker_place_free(place);
    assert_int_equal(host.n, 8); // no node was taken
}

// A node that is too small for the threads is left out; uneven nodes stay uneven.
static void uneven_nodes(void **state)
{
    (void)state;
    struct host host = {.n = 0};
    for (int i = 0; i < 2; i++) {
        struct worker_place *place =
            place_on(&host, TWO_NODES, "0xff0f", WORKER_BIND_AUTO, WORKER_NUMA_AUTO, 3);
        assert_place(place, "cores=6 node=1 bind=node", "0x00000002");
        worker_place_free(place);
    }
}

static void workers_share_the_cores_out(void **state)
{
    (void)state;
    static const char *const one_thread[] = {"0x00000001", "0x00000002", "0x00000001", "0x00000002"};
    struct host host = {.n = 0};
    for (int i = 0; i < 4; i++) { // four workers of one thread on two cores: as in the quickstart
        struct worker_place *place =
            place_on(&host, "node:1 core:2 pu:1", NULL, WORKER_BIND_CORES, WORKER_NUMA_AUTO, 1);
        assert_thread(place, 0, one_thread[i]);
        worker_place_free(place);
    }
    host.n = 1; // the others have left: only core 0 is taken
    struct worker_place *place =
        place_on(&host, "node:1 core:2 pu:1", NULL, WORKER_BIND_CORES, WORKER_NUMA_AUTO, 5);
    assert_thread(place, 0, "0x00000002");
    assert_thread(place, 1, "0x00000001"); // each core once before any twice
    uint32_t on_first = 0;
    for (uint32_t i = 0; i < 5; i++) {
        char out[WORKER_PLACE_TEXT];
        on_first += strcmp(worker_place_thread_text(place, i, out), "0x00000001") == 0;
    }
    assert_in_range(on_first, 2, 3);
    worker_place_free(place);
}

// Many more threads than cores, on a host where everything has been taken over and over.
static void nothing_free_is_no_failure(void **state)
{
    (void)state;
    static struct host host;
    host.n = 0;
    for (uint32_t slot = 0; slot < 64; slot++)
        for (uint32_t i = 0; i < 2; i++)
            snprintf(host.taken[host.n++], 64, "%u/core/%u", slot, i);
    struct worker_place *place =
        place_on(&host, "node:1 core:2 pu:1", NULL, WORKER_BIND_CORES, WORKER_NUMA_AUTO, 256);
    assert_int_equal(worker_place_threads(place), 256);
    assert_thread(place, 254, "0x00000001");
    assert_thread(place, 255, "0x00000002");
    worker_place_free(place);
}

// The real claims, and that a thread ends up where it was put.
static void this_machine(void **state)
{
    (void)state;
    struct worker_place_options options = {.bind = WORKER_BIND_CORES, .numa = WORKER_NUMA_AUTO, .threads = 1};
    struct worker_place *first = NULL, *second = NULL;
    cpu_set_t before, after;
    char a[WORKER_PLACE_TEXT];
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(worker_place_new(&options, &first, NULL), COMMON_OK);
    assert_int_equal(worker_place_new(&options, &second, NULL), COMMON_OK);
    assert_int_equal(worker_place_processors(first), CPU_COUNT(&before));
    worker_place_bind_compute(first, 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_in_range(CPU_COUNT(&after), 1, CPU_COUNT(&before));
    assert_true(strstr(worker_place_text(first, a), "bind=cores:") != NULL);
    sched_setaffinity(0, sizeof before, &before);
    worker_place_free(second);
    worker_place_free(first);
    worker_place_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quota_limits_the_default),
        cmocka_unit_test(one_node_needs_no_choice),
        cmocka_unit_test(an_affinity_counts),
        cmocka_unit_test(each_worker_takes_a_node),
        cmocka_unit_test(a_wide_worker_uses_all_nodes),
        cmocka_unit_test(uneven_nodes),
        cmocka_unit_test(workers_share_the_cores_out),
        cmocka_unit_test(nothing_free_is_no_failure),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
