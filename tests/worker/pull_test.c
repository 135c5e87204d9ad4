// SPDX-License-Identifier: Apache-2.0
// A worker has rows of a chunk fetched from another one: what arrives is what was there, nothing else
// changes, and after a failure in the middle the pull can be repeated.
#include <stdio.h>

#include "tests/worker/service.h"
#include "worker/core/state.h"
#include "worker/daemon/worker.h"

enum { PEERS = 3 };

// Worker 0 holds both chunks of SESSION, 40 rows of both layers committed and 4 more put; worker 1 holds
// chunk 101, and nothing of it yet.
static void pair_begin(struct cluster *c)
{
    cluster_start(c, &(struct cluster_options){.workers = PEERS, .memory_bytes = 1 << 20});
    cluster_layout_ok(c, 0, SESSION, chunks, 2);
    cluster_layout_ok(c, 1, SESSION, chunks + 1, 1);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        cluster_attach(c, 0, SESSION, layer, 0, 40);
        assert_int_equal(cluster_put(c, 0, SESSION, layer, 40, 4, 0), COMMON_OK);
    }
}

struct wish {
    uint32_t from, layers;
    uint64_t chunk, start, first, count, rate;
};
static const struct wish tail = {
    .layers = LAYERS, .chunk = 101, .start = TOKENS, .first = TOKENS, .count = 8};

static void fill(const struct cluster *c, const struct wish *wish, Banyan__Pb__ChunkPullRequest *m,
                 Banyan__Pb__RowsRange *ranges, Banyan__Pb__RowsRange **pointers)
{
    banyan__pb__chunk_pull_request__init(m);
    m->term = TERM;
    m->session = SESSION;
    m->incarnation = INCARNATION;
    m->chunk = wish->chunk;
    m->first = wish->start;
    m->from = (char *)worker_edge_endpoint(c->workers[wish->from]);
    m->bytes_per_s = wish->rate;
    m->n_ranges = wish->layers;
    m->ranges = pointers;
    for (uint32_t i = 0; i < wish->layers; i++) {
        banyan__pb__rows_range__init(&ranges[i]);
        ranges[i].layer = i;
        ranges[i].first = wish->first;
        ranges[i].count = wish->count;
        pointers[i] = &ranges[i];
    }
}

static enum common_code pull(struct cluster *c, const struct wish *wish, uint64_t *bytes)
{
    Banyan__Pb__ChunkPullRequest m;
    Banyan__Pb__RowsRange ranges[LAYERS + 1], *pointers[LAYERS + 1];
    struct answer answer;
    fill(c, wish, &m, ranges, pointers);
    enum common_code code =
        cluster_call(c, c->edges[1], BANYAN__PB__METHOD__METHOD_CHUNK_PULL, &m.base, NULL, 0, &answer);
    if (code == COMMON_OK && bytes)
        *bytes = ((const Banyan__Pb__ChunkPullReply *)answer.body)->bytes;
    answer_free(&answer);
    return code;
}

static uint64_t hash_of(struct cluster *c, uint32_t worker, uint32_t layer, uint64_t first, uint64_t count)
{
    struct answer answer;
    assert_int_equal(cluster_prepare(c, worker, SESSION, layer, first, count, &answer), COMMON_OK);
    const Banyan__Pb__RowsPrepareReply *m = (const Banyan__Pb__RowsPrepareReply *)answer.body;
    assert_int_equal(m->n_chunks, 1);
    uint64_t hash = m->chunks[0]->hash;
    answer_free(&answer);
    assert_int_not_equal(hash, 0);
    return hash;
}

static void rows_arrive_as_they_were(void **state)
{
    (void)state;
    struct cluster c;
    uint64_t bytes = 0;
    pair_begin(&c);
    assert_int_equal(pull(&c, &tail, &bytes), COMMON_OK);
    assert_int_equal(bytes, LAYERS * 8 * (K_ROW + V_ROW) * sizeof(float));
    const struct worker_chunk *chunk = worker_store_find(c.workers[1]->store, 101);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(hash_of(&c, 1, layer, TOKENS, 8), hash_of(&c, 0, layer, TOKENS, 8));
        assert_int_equal(worker_chunk_ready(chunk, layer), 8);
        assert_int_equal(worker_chunk_row(chunk, layer, 7), WORKER_ROW_COMMITTED);
        assert_int_equal(worker_chunk_row(chunk, layer, 8), WORKER_ROW_ABSENT); // only what was asked for
    }
    assert_int_equal(pull(&c, &tail, &bytes), COMMON_OK); // it is all here
    assert_int_equal(bytes, 0);
    cluster_stop(&c);
}

// A session that was forked shares the chunk; its rows are the same in both.
static void a_shared_chunk_is_filled(void **state)
{
    (void)state;
    struct cluster c;
    pair_begin(&c);
    cluster_layout_ok(&c, 1, OTHER, chunks + 1, 1);
    assert_int_equal(pull(&c, &tail, NULL), COMMON_OK);
    assert_int_equal(hash_of(&c, 1, 1, TOKENS, 8), hash_of(&c, 0, 1, TOKENS, 8));
    cluster_stop(&c);
}

static void what_is_not_settled_is_not_given(void **state)
{
    (void)state;
    struct cluster c;
    struct wish wish = tail;
    pair_begin(&c);
    char *before = cluster_state(&c, 0);
    wish.count = 12; // the last 4 are put, and may change
    assert_int_equal(pull(&c, &wish, NULL), COMMON_FAILED_PRECONDITION);
    wish = tail;
    wish.from = 2; // does not know the session
    assert_int_equal(pull(&c, &wish, NULL), COMMON_NOT_FOUND);
    cluster_layout_ok(&c, 2, SESSION, chunks, 1); // has it, and not the chunk
    assert_int_equal(pull(&c, &wish, NULL), COMMON_NOT_FOUND);
    wish.from = 0;
    wish.layers = LAYERS + 1;
    assert_int_equal(pull(&c, &wish, NULL), COMMON_INVALID_ARGUMENT);
    wish = tail;
    wish.first = TOKENS - 1; // of the chunk before
    assert_int_equal(pull(&c, &wish, NULL), COMMON_INVALID_ARGUMENT);
    wish.first = TOKENS + 4;
    wish.count = TOKENS; // past the chunk
    assert_int_equal(pull(&c, &wish, NULL), COMMON_INVALID_ARGUMENT);
    wish = tail;
    wish.chunk = 100; // is not held there
    wish.start = wish.first = 0;
    assert_int_equal(pull(&c, &wish, NULL), COMMON_NOT_FOUND);
    char *after = cluster_state(&c, 0);
    assert_string_equal(before, after);
    assert_int_equal(pull(&c, &tail, NULL), COMMON_OK); // and what may be had still may
    free(before);
    free(after);
    cluster_stop(&c);
}

// A source that cannot be reached, and a limit that leaves no time: the pull fails, and goes on when it is
// repeated.
static void a_pull_that_failed_goes_on(void **state)
{
    (void)state;
    struct cluster c;
    struct wish wish = tail;
    uint64_t bytes = 0, all = LAYERS * 8 * (K_ROW + V_ROW) * sizeof(float);
    pair_begin(&c);
    wish.layers = 1;
    assert_int_equal(pull(&c, &wish, &bytes), COMMON_OK);
    assert_int_equal(bytes, all / LAYERS);
    Banyan__Pb__ChunkPullRequest m;
    Banyan__Pb__RowsRange ranges[LAYERS + 1], *pointers[LAYERS + 1];
    fill(&c, &tail, &m, ranges, pointers);
    char nobody[160];
    snprintf(nobody, sizeof(nobody), "unix://%s/nobody", c.dir);
    m.from = nobody;
    enum common_code code =
        cluster_call(&c, c.edges[1], BANYAN__PB__METHOD__METHOD_CHUNK_PULL, &m.base, NULL, 0, NULL);
    assert_true(code == COMMON_UNAVAILABLE || code == COMMON_DEADLINE_EXCEEDED);
    assert_int_equal(pull(&c, &tail, &bytes), COMMON_OK);
    assert_int_equal(bytes, all / LAYERS); // of the other layer
    m.from = nobody;
    assert_int_equal(cluster_call(&c, c.edges[1], BANYAN__PB__METHOD__METHOD_CHUNK_PULL, &m.base, NULL, 0,
                                  NULL),
                     COMMON_OK); // all is here: nothing is asked of anybody
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_arrive_as_they_were),
        cmocka_unit_test(a_shared_chunk_is_filled),
        cmocka_unit_test(what_is_not_settled_is_not_given),
        cmocka_unit_test(a_pull_that_failed_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
