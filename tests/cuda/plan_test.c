// SPDX-License-Identifier: Apache-2.0
// The cut of steps into passes, rounds and tasks: pure, so no device is needed, and with the module's own
// limit of the workspace.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/internal.h"

#define BOUND (UINT64_C(160) << 20) // bytes of workspace that no context raises

// Kernels have no meaning here.
const struct cuda_kernel cuda_tiles_f32[3][4], cuda_tiles_f16[3][4], cuda_tiles_bf16[3][4],
    cuda_tiles_int8[3][4], cuda_tiles_fp8[3][4], cuda_plain[5], cuda_mla[2][2], cuda_wgmma[2][2];

static struct kernels_device_item item_of(const struct kernels_spec *spec, uint32_t rows,
                                          const struct kernels_device_run *runs, uint32_t n)
{
    return (struct kernels_device_item){.spec = spec,
                                        .rows = rows,
                                        .visible = UINT64_C(1) << 40,
                                        .run_count = n,
                                        .runs = runs,
                                        .out = {.rows = rows, .heads = spec->q_heads, .dv = spec->v_dim}};
}

static struct kernels_device_run *chunks_of(uint64_t tokens, uint32_t *n)
{
    *n = (uint32_t)(tokens / 256);
    struct kernels_device_run *runs = calloc(*n, sizeof *runs);
    assert_non_null(runs);
    for (uint32_t i = 0; i < *n; i++)
        runs[i] = (struct kernels_device_run){.first = (uint64_t)i * 256, .rows = 256};
    return runs;
}

// Every unit of every item is in one round of one pass, and within the workspace.
static void check_cover(const struct cuda_plan *plan, const struct kernels_device_item *items, uint32_t n)
{
    uint32_t in_passes = 0;
    for (uint32_t p = 0; p < plan->pass_count; p++)
        in_passes += plan->passes[p].header.items;
    assert_int_equal(in_passes, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct cuda_plan_item *it = &plan->items[i];
        const struct cuda_plan_pass *pass = &plan->passes[it->pass];
        uint64_t tasks = (uint64_t)it->round_units * items[i].spec->kv_heads * it->tiles,
                 floats = (uint64_t)it->width * (2 + items[i].spec->v_dim);
        assert_true((uint64_t)it->round_units * pass->rounds >= it->unit_count);
        assert_true((uint64_t)it->round_units * (pass->rounds - 1) < it->unit_count);
        assert_true(it->partial + tasks * floats <= plan->partial_floats);
        if (pass->rounds > 1) {
            assert_int_equal(pass->header.items, 1);
            assert_true(it->carry >= it->partial + tasks * floats);
            assert_true(it->carry + (uint64_t)items[i].rows * items[i].spec->q_heads *
                                        CUDA_CARRY(items[i].spec->v_dim) <=
                        plan->partial_floats);
        }
    }
}

static void no_context_raises_the_workspace(void **state)
{
    (void)state;
    static const uint64_t tokens[] = {4096, 131072, 1048576, 8388608};
    static const uint32_t rows[] = {1, 5, 240, 1024}, dims[] = {64, 80, 128, 256};
    struct cuda_plan plan = {0};
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        uint32_t n;
        struct kernels_device_run *runs = chunks_of(tokens[t], &n);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
                const struct kernels_spec spec = {.kv_type = KERNELS_KV_BF16,
                                                  .k_dim = dims[d],
                                                  .v_dim = dims[d],
                                                  .q_heads = 32,
                                                  .kv_heads = 8,
                                                  .scale = 1};
                struct kernels_device_item item = item_of(&spec, rows[r], runs, n);
                struct common_error err;
                assert_int_equal(cuda_plan_make(&plan, &item, 1, NULL, &err), COMMON_OK);
                uint64_t answer = (uint64_t)rows[r] * 32 * (2 + dims[d]) * sizeof(float);
                if (plan.partial_floats * sizeof(float) > BOUND + 2 * answer)
                    fail_msg("%llu tokens, %u rows, %u dims: %llu bytes", (unsigned long long)tokens[t],
                             rows[r], dims[d], (unsigned long long)(plan.partial_floats * sizeof(float)));
                assert_true(plan.items[0].unit_blocks <= 128);
                check_cover(&plan, &item, 1);
            }
        free(runs);
    }
    cuda_plan_fini(&plan);
}

// Many long sessions at once: passes, each within the bound, and each item cut as when it is alone.
static void many_items_share_it_in_passes(void **state)
{
    (void)state;
    enum { N = 200 };
    uint32_t n;
    struct kernels_device_run *runs = chunks_of(131072, &n);
    const struct kernels_spec spec = {
        .kv_type = KERNELS_KV_BF16, .k_dim = 128, .v_dim = 128, .q_heads = 32, .kv_heads = 8, .scale = 1};
    struct kernels_device_item items[N];
    struct common_error err;
    for (uint32_t i = 0; i < N; i++)
        items[i] = item_of(&spec, i % 50 == 49 ? 500 : 1 + i % 3, runs, n);
    struct cuda_plan plan = {0}, alone = {0};
    assert_int_equal(cuda_plan_make(&plan, items, N, NULL, &err), COMMON_OK);
    assert_true(plan.partial_floats * sizeof(float) <= BOUND);
    assert_true(plan.pass_count > 1 && plan.pass_count < N);
    check_cover(&plan, items, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(cuda_plan_make(&alone, &items[i], 1, NULL, &err), COMMON_OK);
        assert_int_equal(alone.items[0].unit_blocks, plan.items[i].unit_blocks);
        assert_int_equal(alone.items[0].round_units, plan.items[i].round_units);
        assert_int_equal(alone.items[0].class_index, plan.items[i].class_index);
    }
    cuda_plan_fini(&alone);
    cuda_plan_fini(&plan);
    free(runs);
}

// Short tasks, more than the device holds at once, and only these are shared out to as many blocks of
// threads.
static void blocks_go_on_where_tasks_are_short(void **state)
{
    (void)state;
    enum { N = 64, RESIDENT = 264 };
    uint32_t n;
    struct kernels_device_run *runs = chunks_of(131072, &n);
    const struct kernels_spec spec = {
        .kv_type = KERNELS_KV_BF16, .k_dim = 128, .v_dim = 128, .q_heads = 32, .kv_heads = 8, .scale = 1};
    struct kernels_device_item items[N];
    struct common_error err;
    for (uint32_t i = 0; i < N; i++)
        items[i] = item_of(&spec, 1, runs, 8192 / 256);
    struct cuda_plan plan = {0};
    assert_int_equal(cuda_plan_make(&plan, items, N, NULL, &err), COMMON_OK);
    uint32_t c = plan.items[0].class_index;
    assert_int_equal(plan.passes[0].longest[c], 8);
    assert_true(plan.passes[0].header.classes[c].tasks > 30000);
    assert_int_equal(cuda_plan_grid(&plan.passes[0], c, RESIDENT), RESIDENT);
    assert_true(cuda_plan_grid(&plan.passes[0], c, 0) >= plan.passes[0].header.classes[c].tasks);
    uint32_t blocks = cuda_plan_grid(&plan.passes[0], c, 1); // a bit a task: no more than these
    assert_true(blocks > 1 && (uint64_t)blocks * CUDA_TASKS_MOST >= plan.passes[0].header.classes[c].tasks);

    items[1] = item_of(&spec, 1, runs, n); // one long session beside them
    assert_int_equal(cuda_plan_make(&plan, items, N, NULL, &err), COMMON_OK);
    assert_true(cuda_plan_grid(&plan.passes[0], c, RESIDENT) >= plan.passes[0].header.classes[c].tasks);
    static const struct {
        uint32_t tokens;
        bool goes_on;
    } alone[] = {{2048, false}, {16384, true}, {32768, true}, {65536, false}, {131072, false}};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        items[0] = item_of(&spec, 1, runs, alone[i].tokens / 256);
        assert_int_equal(cuda_plan_make(&plan, items, 1, NULL, &err), COMMON_OK);
        uint32_t tasks = plan.passes[0].header.classes[c].tasks,
                 grid = cuda_plan_grid(&plan.passes[0], c, RESIDENT);
        assert_true(alone[i].goes_on ? grid == RESIDENT && tasks > grid : grid >= tasks);
    }
    cuda_plan_fini(&plan);
    free(runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_context_raises_the_workspace),
        cmocka_unit_test(many_items_share_it_in_passes),
        cmocka_unit_test(blocks_go_on_where_tasks_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
