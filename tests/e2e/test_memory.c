// SPDX-License-Identifier: Apache-2.0
// What a worker occupies is what it accounts for, and no more than the buffers of messages beside that: an
// operator sizes --memory by it, and the system kills a process that takes more.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <stdlib.h>

// Messages in flight, heaps of threads, code; many times less than what a buffer lost with each put would
// come to.
#define BESIDE (UINT64_C(160) << 20)

enum { LAYERS = 8, TOKENS = 12 << 10, BLOCK = 2048, ROW = 8 * 128 };

static const banyan_spec spec = {
    .layers = LAYERS, .q_heads = 8, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .kv_type = BANYAN_BF16};

// 384 MiB of K and V, in the puts of 1 MiB that chunks make of it.
static banyan_session *fill(banyan_client *client, const uint16_t *rows)
{
    banyan_session *session;
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint64_t first = 0; first < TOKENS; first += BLOCK)
            OK(banyan_attach(session, l, first, BLOCK, rows, rows, ERR));
        OK(banyan_commit(session, l, 0, TOKENS, ERR));
    }
    return session;
}

static void a_worker_occupies_what_it_accounts_for(void **state)
{
    const bool *nng = *state;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .memory = "1G", .public_nng = *nng});
    banyan_client *client = support_connect(cluster, "tcp");
    int pid = harness_cluster_pid(cluster, 0);
    uint16_t *rows = calloc((size_t)BLOCK * ROW, sizeof *rows);
    assert_non_null(rows);
    banyan_session *session = fill(client, rows);
    EVENTUALLY(30, support_used_bytes(client) >= (uint64_t)LAYERS * TOKENS * 2 * ROW * sizeof *rows);
    uint64_t used = support_used_bytes(client), resident = support_resident_bytes(pid);
    if (resident > used + BESIDE)
        fail_msg("the worker accounts for %" PRIu64 " MiB and occupies %" PRIu64 " MiB", used >> 20,
                 resident >> 20);
    OK(banyan_session_delete(session, ERR));
    EVENTUALLY(30, support_resident_bytes(pid) < resident / 2 + BESIDE); // some is kept for what comes next
    free(rows);
    banyan_disconnect(client);
    support_stop(cluster);
}

// With --prefault: all of it from the beginning, as much when it is full, and what is given back stays.
static void memory_that_is_there_before(void **state)
{
    (void)state;
    static const char *const prefault[] = {"--prefault", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .memory = "1G", .worker_args = prefault});
    banyan_client *client = support_connect(cluster, "tcp");
    int pid = harness_cluster_pid(cluster, 0);
    uint16_t *rows = calloc((size_t)BLOCK * ROW, sizeof *rows);
    assert_non_null(rows);
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    uint64_t all = info.workers[0].capacity_bytes;
    banyan_cluster_info_free(&info);
    assert_true(all > (uint64_t)LAYERS * TOKENS * 2 * ROW * sizeof *rows);
    for (int round = 0; round < 2; round++) {
        uint64_t resident = support_resident_bytes(pid);
        assert_in_range(resident, all, all + BESIDE);
        banyan_session *session = fill(client, rows);
        EVENTUALLY(30, support_used_bytes(client) >= (uint64_t)LAYERS * TOKENS * 2 * ROW * sizeof *rows);
        resident = support_resident_bytes(pid);
        assert_in_range(resident, all, all + BESIDE);
        OK(banyan_session_delete(session, ERR));
        EVENTUALLY(30, support_used_bytes(client) == 0);
    }
    free(rows);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(void)
{
    static bool tcp = false, nng = true; // what the worker takes puts over
    const struct CMUnitTest tests[] = {
        {"a_worker_occupies_what_it_accounts_for", a_worker_occupies_what_it_accounts_for, NULL, NULL, &tcp},
        {"a_worker_occupies_what_it_accounts_for_over_nng", a_worker_occupies_what_it_accounts_for, NULL,
         NULL, &nng},
        {"memory_that_is_there_before", memory_that_is_there_before, NULL, NULL, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
