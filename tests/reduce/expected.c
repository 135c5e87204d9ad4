// SPDX-License-Identifier: Apache-2.0
// Contributions, and what they must come to: a plain loop over ranks in place of servers, edges and
// callbacks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "tests/reduce/expected.h"

static float draw(uint64_t *state, float low, float high)
{
    *state = common_mix64(*state);
    return low + (high - low) * (float)(*state >> 40) / (float)(1 << 24);
}

static bool fails(const struct script *script, uint32_t rank, uint32_t item)
{
    for (uint32_t i = 0; i < script->n_fails; i++) {
        if (script->fails[i].rank == rank && script->fails[i].item == item)
            return true;
    }
    return false;
}

static void fill_partial(uint8_t *block, const struct proto_step_item *item, uint64_t state, bool identity)
{
    struct kernels_partial p;
    kernels_partial_view(block, item->rows, item->q_heads, item->v_dim, &p);
    kernels_partial_reset(&p);
    kernels_partial_pad(block, item->rows, item->q_heads, item->v_dim);
    for (size_t i = 0; i < (size_t)item->rows * item->q_heads && !identity; i++) {
        if (draw(&state, 0, 1) < 0.1f)
            continue; // a row that sees nothing here
        p.m[i] = draw(&state, -10, 10);
        p.s[i] = draw(&state, 1, 100);
        for (uint32_t d = 0; d < item->v_dim; d++)
            p.o[i * item->v_dim + d] = draw(&state, -50, 50);
    }
}

void contribution_make(const struct proto_step *step, const struct script *script, uint32_t rank,
                       struct reduce_local *out)
{
    size_t bytes, offset = 0;
    assert_true(reduce_partials_bytes(step, SIZE_MAX, &bytes));
    out->partials = common_blob_new(bytes);
    out->result = proto_step_result_new(step->n_items, 1);
    assert_non_null(out->partials);
    assert_non_null(out->result);
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        struct proto_step_result_item *to = &out->result->items[i];
        bool identity = (script->identity >> rank & 1) != 0;
        uint64_t state = common_mix64(script->seed + rank) ^ common_mix64(step->step + i);
        size_t len = (size_t)kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
        if (fails(script, rank, i)) {
            to->code = COMMON_OUT_OF_RANGE;
            snprintf(to->message, sizeof to->message, "rank %u cannot", rank);
            snprintf(to->reason, sizeof to->reason, "HOLE");
            snprintf(to->worker, sizeof to->worker, "%s", ranks_name(rank));
            memset(out->partials->data + offset, 0xff, len); // must not be read
        } else {
            fill_partial(out->partials->data + offset, item, state, identity);
            to->cover_tokens = identity ? 0 : 1 + state % 1000;
            to->cover_sum = identity ? 0 : common_mix64(state);
            to->digest = common_mix64(state + 1);
        }
        for (uint32_t a = 0; a < item->n_append; a++) {
            const struct proto_append_run *run = &step->appends[item->append_first + a];
            for (uint32_t h = 0; h < run->n_holders; h++)
                to->appends += run->holders[h] == rank ? run->rows : 0;
        }
        offset += len;
    }
}

// The same rules as reduce/engine.h states, written once more.
static void fold(const struct proto_step *step, struct reduce_local *into, const struct reduce_local *child)
{
    size_t offset = 0;
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        struct proto_step_result_item *a = &into->result->items[i], *b = &child->result->items[i];
        if (a->code == COMMON_OK && b->code == COMMON_OK) {
            struct kernels_partial x, y;
            kernels_partial_view(into->partials->data + offset, item->rows, item->q_heads, item->v_dim, &x);
            kernels_partial_view(child->partials->data + offset, item->rows, item->q_heads, item->v_dim, &y);
            kernels_partial_merge(&x, &y);
        } else if (a->code == COMMON_OK) {
            a->code = b->code;
            strcpy(a->message, b->message);
            strcpy(a->reason, b->reason);
            strcpy(a->worker, b->worker);
        }
        a->cover_tokens += b->cover_tokens;
        a->cover_sum += b->cover_sum;
        a->appends += b->appends;
        a->digest = common_mix64(common_mix64(a->digest) + b->digest);
        offset += (size_t)kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
}

void expect(const struct proto_step *step, const struct script *script, const int32_t *parents, uint32_t n,
            struct expected *out)
{
    struct reduce_local locals[RANKS_MAX];
    for (uint32_t r = 0; r < n; r++)
        contribution_make(step, script, r, &locals[r]);
    // From the last rank up, a rank's children are whole when it is reached; it takes them in ascending
    // order.
    for (uint32_t r = n; r-- > 0;) {
        for (uint32_t c = r + 1; c < n; c++) {
            if (parents[c] != (int32_t)r)
                continue;
            fold(step, &locals[r], &locals[c]);
            proto_step_result_free(locals[c].result);
            common_blob_unref(locals[c].partials);
        }
    }
    out->partials = locals[0].partials;
    out->result = locals[0].result;
}

void expected_clear(struct expected *expected)
{
    proto_step_result_free(expected->result);
    common_blob_unref(expected->partials);
}

void assert_expected(const struct proto_step *step, const struct reduce_outcome *outcome,
                     const struct expected *expected)
{
    size_t offset = 0;
    if (outcome->code != COMMON_OK)
        fail_msg("the step failed: %s: %s", common_code_name(outcome->code), outcome->text);
    assert_int_equal(outcome->result->n_items, step->n_items);
    assert_int_equal(outcome->partials->len, expected->partials->len);
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        const struct proto_step_result_item *got = &outcome->result->items[i],
                                            *want = &expected->result->items[i];
        size_t len = (size_t)kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
        if (got->code != want->code)
            fail_msg("item %u: %s, not %s: %s", i, common_code_name(got->code), common_code_name(want->code),
                     got->message);
        assert_string_equal(got->message, want->message);
        assert_string_equal(got->reason, want->reason);
        assert_string_equal(got->worker, want->worker);
        if (got->code == COMMON_OK) {
            assert_memory_equal(outcome->partials->data + offset, expected->partials->data + offset, len);
            assert_true(got->cover_tokens == want->cover_tokens);
            assert_true(got->cover_sum == want->cover_sum);
            assert_int_equal(got->appends, want->appends);
            assert_true(got->digest == want->digest);
        } else {
            assert_identity(step, i, outcome);
        }
        offset += len;
    }
}

void assert_identity(const struct proto_step *step, uint32_t item_index, const struct reduce_outcome *outcome)
{
    size_t offset = 0;
    for (uint32_t i = 0; i <= item_index; i++) {
        const struct proto_step_item *item = &step->items[i];
        size_t len = (size_t)kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
        if (i == item_index) {
            struct common_blob *identity = common_blob_new(len);
            assert_non_null(identity);
            fill_partial(identity->data, item, 0, true);
            assert_memory_equal(outcome->partials->data + offset, identity->data, len);
            common_blob_unref(identity);
        }
        offset += len;
    }
}

const char *ranks_name(uint32_t rank)
{
    static const char names[RANKS_MAX][4] = {"w0", "w1", "w2",  "w3",  "w4",  "w5",  "w6",  "w7",
                                             "w8", "w9", "w10", "w11", "w12", "w13", "w14", "w15"};
    return names[rank];
}

// ---- steps --------------------------------------------------------------------------------------

uint64_t expected_term = 1;

struct proto_step *step_new(uint64_t number, const struct script *script, const struct shape *shapes,
                            uint32_t n_items)
{
    _Static_assert(sizeof(struct script) <= ITEM_Q, "the script fits in an item's q");
    struct proto_step *step = calloc(1, sizeof *step);
    uint8_t *bytes = calloc(n_items, ITEM_Q + 2 * ITEM_K);
    assert_non_null(step);
    assert_non_null(bytes);
    memcpy(bytes, script, sizeof *script);
    *step = (struct proto_step){
        .term = expected_term,
        .plan = 7,
        .plan_epoch = 1,
        .step = number,
        .attempt = 1,
        .want_trace = true,
        .deadline_ns = common_clock_after(60 * COMMON_NS_PER_S),
        .n_items = n_items,
        .q = bytes,
        .q_bytes = (size_t)n_items * ITEM_Q,
        .k = bytes + (size_t)n_items * ITEM_Q,
        .v = bytes + (size_t)n_items * (ITEM_Q + ITEM_K),
    };
    step->items = calloc(n_items, sizeof *step->items);
    step->appends = calloc(n_items, sizeof *step->appends);
    assert_non_null(step->items);
    assert_non_null(step->appends);
    for (uint32_t i = 0; i < n_items; i++) {
        step->items[i] = (struct proto_step_item){
            .session = i + 1,
            .incarnation = 1,
            .epoch = 1,
            .first = 100,
            .rows = shapes[i].rows,
            .visible = 100 + shapes[i].rows,
            .kv_heads = 1,
            .q_heads = shapes[i].heads,
            .v_dim = shapes[i].dv,
            .q_offset = (size_t)i * ITEM_Q,
            .q_bytes = ITEM_Q,
        };
    }
    return step;
}

void step_append(struct proto_step *step, uint32_t item, const uint32_t *holders, uint32_t n_holders)
{
    struct proto_step_item *to = &step->items[item];
    struct proto_append_run *run = &step->appends[step->n_appends];
    step->has_kv = true;
    to->append_first = step->n_appends++;
    to->n_append = 1;
    to->write = 1;
    to->k_offset = step->k_bytes;
    to->v_offset = step->v_bytes;
    to->k_bytes = to->v_bytes = ITEM_K;
    step->k_bytes += ITEM_K;
    step->v_bytes += ITEM_K;
    *run = (struct proto_append_run){
        .chunk = 1000 + item, .first = to->first, .rows = to->rows, .n_holders = n_holders};
    memcpy(run->holders, holders, n_holders * sizeof *holders);
}

void step_free(struct proto_step *step)
{
    free((void *)step->q); // k and v lie behind it
    proto_step_free(step);
}
