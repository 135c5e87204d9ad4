// SPDX-License-Identifier: Apache-2.0
// Many random operations on a chunk of a store against a naive model.
#include "common/hash/hash.h"
#include "tests/worker/store_fixture.h"

struct model_row {
    enum worker_row state;
    uint32_t version;
};

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
    random_state = common_mix64(random_state);
    return (uint32_t)(random_state % below);
}

static void model_write(struct worker_store *store, struct worker_chunk *chunk,
                        struct model_row (*model)[TOKENS])
{
    uint32_t layer = pick(LAYERS), row = pick(TOKENS), count = 1 + pick(TOKENS - row), version = pick(3),
             from = pick(TOKENS);
    enum worker_row to = pick(2) ? WORKER_ROW_PUT : WORKER_ROW_APPENDED;
    uint64_t replace_from = to == WORKER_ROW_PUT ? UINT64_MAX : from;
    bool allowed = true;
    for (uint32_t i = row; i < row + count; i++) {
        const struct model_row *m = &model[layer][i];
        bool replaceable = m->state == WORKER_ROW_APPENDED && i >= replace_from;
        if (m->state > WORKER_ROW_PUT && m->version != version && !replaceable)
            allowed = false;
    }
    assert_int_equal(write_rows(store, chunk, layer, row, count, version, to, replace_from),
                     allowed ? COMMON_OK : COMMON_FAILED_PRECONDITION);
    for (uint32_t i = row; allowed && i < row + count; i++) {
        struct model_row *m = &model[layer][i];
        bool frozen = to == WORKER_ROW_APPENDED && m->state == WORKER_ROW_PREPARED;
        if (m->state <= WORKER_ROW_PUT || m->version != version || frozen)
            *m = (struct model_row){to, version};
    }
}

static void model_mark(struct worker_chunk *chunk, struct model_row (*model)[TOKENS])
{
    uint32_t layer = pick(LAYERS), row = pick(TOKENS), count = 1 + pick(TOKENS - row), what = pick(3);
    (what == 0   ? worker_chunk_prepare
     : what == 1 ? worker_chunk_abort
                 : worker_chunk_commit)(chunk, layer, row, count);
    for (uint32_t i = row; i < row + count; i++) {
        enum worker_row *at = &model[layer][i].state;
        if (what == 0 && *at == WORKER_ROW_PUT)
            *at = WORKER_ROW_PREPARED;
        else if (what == 1 && *at == WORKER_ROW_PREPARED)
            *at = WORKER_ROW_PUT;
        else if (what == 2 && (*at == WORKER_ROW_PREPARED || *at == WORKER_ROW_APPENDED))
            *at = WORKER_ROW_COMMITTED;
    }
}

static void model_compare(const struct worker_chunk *chunk, struct model_row (*model)[TOKENS])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t ready = 0;
        for (uint32_t row = 0; row < TOKENS; row++) {
            assert_int_equal(worker_chunk_row(chunk, layer, row), model[layer][row].state);
            if (model[layer][row].state != WORKER_ROW_ABSENT)
                assert_row(chunk, layer, row, model[layer][row].version);
            if (ready == row && model[layer][row].state >= WORKER_ROW_APPENDED)
                ready++;
        }
        assert_int_equal(worker_chunk_ready(chunk, layer), ready);
    }
}

static void many_operations_match_a_model(void **state)
{
    (void)state;
    random_state = 20261121;
    for (int life = 0; life < 60; life++) {
        struct worker_store *store = store_of(1 << 20);
        struct worker_chunk *chunk = hold(store, 77);
        struct model_row model[LAYERS][TOKENS] = {{{WORKER_ROW_ABSENT, 0}}};
        uint32_t pins = 0;
        for (int i = 0; i < 120; i++) {
            uint32_t what = pick(10);
            if (what < 6) {
                model_write(store, chunk, model);
            } else if (what < 8) {
                model_mark(chunk, model);
            } else if (what == 8) {
                worker_store_pin(chunk);
                pins++;
            } else if (pins > 0) {
                worker_store_unpin(store, chunk);
                pins--;
            }
            model_compare(chunk, model);
        }
        while (pins-- > 0)
            worker_store_unpin(store, chunk);
        worker_store_release(store, chunk);
        end(store);
    }
}

int store_model(uint32_t type)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_operations_match_a_model),
    };
    return store_group("model", type, tests, sizeof tests / sizeof *tests);
}
