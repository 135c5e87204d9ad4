// SPDX-License-Identifier: Apache-2.0
// Which kernel an item gets: those for latents, where shape and type are theirs, else the plain one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "kernels/cuda/internal.h"

// Compared by their addresses alone.
const struct cuda_kernel cuda_tiles_f32[3][4], cuda_tiles_f16[3][4], cuda_tiles_bf16[3][4],
    cuda_tiles_int8[3][4], cuda_tiles_fp8[3][4], cuda_plain[5], cuda_mla[2][2], cuda_wgmma[2][2];

static struct cuda_plan_item planned(enum kernels_kv_type type, uint32_t k_dim, bool v_in_k, uint32_t heads,
                                     uint32_t rows, uint32_t keys)
{
    const struct kernels_spec spec = {.kv_type = type,
                                      .k_dim = k_dim,
                                      .v_dim = 512,
                                      .q_heads = heads,
                                      .kv_heads = 1,
                                      .scale = 1,
                                      .v_in_k = v_in_k};
    const struct kernels_device_run run = {.rows = keys};
    const struct kernels_device_item item = {.spec = &spec,
                                             .rows = rows,
                                             .run_count = 1,
                                             .runs = &run,
                                             .out = {.rows = rows, .heads = heads, .dv = 512}};
    struct cuda_plan plan = {0};
    struct common_error err;
    assert_int_equal(cuda_plan_make(&plan, &item, 1, NULL, &err), COMMON_OK);
    struct cuda_plan_item made = plan.items[0];
    cuda_plan_fini(&plan);
    return made;
}

static void latents_have_kernels_of_their_own(void **state)
{
    (void)state;
    static const enum kernels_kv_type types[] = {KERNELS_KV_F16, KERNELS_KV_BF16};
    for (int t = 0; t < 2; t++) {
        struct cuda_plan_item p = planned(types[t], 576, true, 16, 1, 1000);
        assert_ptr_equal(cuda_plan_kernel(p.class_index, false), &cuda_mla[t][0]);
        assert_int_equal(p.width, 16);
        p = planned(types[t], 576, true, 16, 2, 1000);
        assert_ptr_equal(cuda_plan_kernel(p.class_index, false), &cuda_mla[t][1]);
        assert_int_equal(p.width, 32);
        assert_int_equal(p.tiles, 1);
        p = planned(types[t], 576, true, 128, 1, 32768); // 256 tasks
        assert_int_equal(p.tiles, 4);
        assert_int_equal(p.unit_blocks, 32);
        assert_int_equal(p.unit_count, 64);
    }
}

static void others_are_plain(void **state)
{
    (void)state;
    const struct {
        enum kernels_kv_type type;
        uint32_t k_dim;
        bool v_in_k;
    } others[] = {{KERNELS_KV_BF16, 576, false},
                  {KERNELS_KV_BF16, 640, true},
                  {KERNELS_KV_F32, 576, true},
                  {KERNELS_KV_INT8, 576, true},
                  {KERNELS_KV_FP8, 576, true}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct cuda_plan_item p = planned(others[i].type, others[i].k_dim, others[i].v_in_k, 128, 1, 1000);
        assert_ptr_equal(cuda_plan_kernel(p.class_index, false), &cuda_plain[others[i].type - 1]);
        assert_int_equal(p.width, CUDA_PLAIN_WIDTH);
    }
}

// Products of a warpgroup: on compute capability 9.0 where asked for, and for tiles of 64 pairs of 16-bit
// types with 64 and 128 dims.
static void warpgroups_where_asked_for(void **state)
{
    (void)state;
    unsetenv("BANYAN_CUDA_WGMMA");
    assert_false(cuda_plan_wgmma(9, 0));
    setenv("BANYAN_CUDA_WGMMA", "0", 1);
    assert_false(cuda_plan_wgmma(9, 0));
    setenv("BANYAN_CUDA_WGMMA", "1", 1);
    assert_true(cuda_plan_wgmma(9, 0));
    assert_false(cuda_plan_wgmma(8, 0));
    assert_false(cuda_plan_wgmma(9, 1));
    assert_false(cuda_plan_wgmma(10, 0));
    uint32_t found = 0;
    for (uint32_t class_index = 0; class_index < CUDA_CLASSES; class_index++) {
        const struct cuda_kernel *kernel = cuda_plan_kernel(class_index, true);
        for (uint32_t i = 0; i < 4; i++) {
            if (kernel != &cuda_wgmma[i / 2][i % 2])
                continue;
            const struct cuda_kernel(*tiles)[4] = i / 2 ? cuda_tiles_bf16 : cuda_tiles_f16;
            assert_ptr_equal(cuda_plan_kernel(class_index, false), &tiles[i % 2][3]);
            found |= 1u << i;
            kernel = NULL;
        }
        if (kernel)
            assert_ptr_equal(kernel, cuda_plan_kernel(class_index, false));
    }
    assert_int_equal(found, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_have_kernels_of_their_own),
        cmocka_unit_test(others_are_plain),
        cmocka_unit_test(warpgroups_where_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
