// SPDX-License-Identifier: Apache-2.0
#include "tests/coordinator/hermetic/sealed.h"

#include "tests/coordinator/hermetic/hermetic.h"

struct coordinator_chunk *sealed_chunk(struct sim_cluster *cluster, uint64_t session, uint32_t index)
{
    struct coordinator_chunk *chunk = coordinator_layout_find(&kept_of(cluster, session)->layout, index);
    assert_non_null(chunk);
    return chunk;
}

uint64_t sealed_seal(struct sim_cluster *cluster, uint64_t session, uint32_t index)
{
    return sealed_chunk(cluster, session, index)->seal;
}

void sealed_wait(struct sim_cluster *cluster, uint64_t session, uint32_t chunks)
{
    for (int i = 0;; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < chunks; k++)
            n += sealed_seal(cluster, session, k) != 0;
        if (n == chunks)
            return;
        if (i == 200)
            fail_msg("%u chunks of %u are sealed", n, chunks);
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

uint64_t sealed_new(struct sim_cluster *cluster, uint32_t replicas, uint32_t tokens)
{
    uint64_t session = filled_of(cluster, replicas, tokens);
    sealed_wait(cluster, session, tokens / 16);
    return session;
}

void sealed_flip(struct sim_cluster *cluster, uint64_t session, uint32_t index, uint32_t copy)
{
    assert_true(sim_worker_flip_chunk(copy_of(cluster, session, index, copy),
                                      sealed_chunk(cluster, session, index)->id, 0, 5, 22)); // 1 is 1.5 then
}

struct sim_call *sealed_scrub(struct sim_cluster *cluster, uint64_t session)
{
    struct sim_call *call = sim_scrub(cluster->client, session, false);
    OK(call);
    for (int i = 0; call->unchecked; i++) {
        if (i == 600)
            fail_msg("%u chunks are not compared", (unsigned)call->unchecked);
        sim_advance(100 * COMMON_NS_PER_MS);
        OK(call = sim_scrub(cluster->client, session, true));
    }
    return call;
}

// A session whose second chunk becomes full in these states of its copies' memories, and is checked after
// that.
uint64_t sealed_wrongly(struct sim_cluster *cluster, uint32_t replicas, uint32_t wrong)
{
    uint64_t session = filled_of(cluster, replicas, 20);
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD});
    OK(sim_append(cluster->client, session, 0, 20, 12, 1));
    for (int i = 0; held_all(cluster) < replicas && i < 100; i++)
        sim_advance(50 * COMMON_NS_PER_MS);
    for (uint32_t copy = 0; copy < replicas; copy++)
        if (wrong & 1u << copy) // each in its own way
            assert_true(sim_worker_flip_chunk(copy_of(cluster, session, 1, copy),
                                              sealed_chunk(cluster, session, 1)->id, 0, 5 + copy, 22));
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
    let_go_all(cluster);
    return session;
}
