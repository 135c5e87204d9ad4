// SPDX-License-Identifier: Apache-2.0
// Jobs that are run together: the same bits as alone, with scratch of the size asked for, for every kernel.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/sanitized.h"
#include "tests/kernels/data.h"

#define JOBS  (KERNELS_JOBS + 3) // more than are worth it
#define GUARD 64u

static const enum kernels_kv_type types[] = {KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16, KERNELS_KV_INT8,
                                             KERNELS_KV_FP8};
#define TYPES (sizeof(types) / sizeof(types[0]))

struct shape {
    const char *name;
    uint32_t k_dim, v_dim, group, rows, keys, cuts[3];
    uint64_t q_first, window;
    float soft_cap;
    bool alibi;
};

static const struct shape shapes[] = {
    {"one key", 64, 64, 1, 1, 1, {1, 1, 1}, 1000, 0, 0, false},
    {"whole panels", 128, 128, 4, 1, 1024, {256, 256, 256}, 1500, 0, 0, false},
    {"short runs and a rest", 64, 64, 1, 1, 777, {48, 16, 256}, 1500, 0, 0, false},
    {"odd blocks, two rows", 64, 32, 2, 2, 431, {16, 33, 100}, 420, 0, 0, false},
    {"a window", 64, 64, 4, 2, 900, {256, 20, 64}, 880, 300, 0, false},
    {"bent", 64, 64, 3, 5, 600, {256, 256, 64}, 600, 0, 30, true},
    {"dims that are not read in place", 40, 72, 2, 1, 500, {256, 16, 16}, 600, 0, 0, false},
    {"many rows", 64, 64, 4, 20, 500, {256, 16, 16}, 480, 0, 0, false},
};

struct setup {
    struct data heads[JOBS];
    struct kernels_job jobs[JOBS];
    float slopes[JOBS * 8];
};

static void setup_make(struct setup *s, const struct shape *shape, enum kernels_kv_type type)
{
    for (uint32_t i = 0; i < JOBS * 8; i++)
        s->slopes[i] = powf(2, -(float)(i % 11));
    for (uint32_t h = 0; h < JOBS; h++) {
        struct data *d = &s->heads[h];
        *d = (struct data){.name = shape->name,
                           .spec = {.kv_type = type,
                                    .k_dim = shape->k_dim,
                                    .v_dim = shape->v_dim,
                                    .q_heads = shape->group,
                                    .kv_heads = 1,
                                    .scale = 0.1f,
                                    .soft_cap = shape->soft_cap,
                                    .window = shape->window},
                           .rows = shape->rows,
                           .keys = shape->keys,
                           .q_first = shape->q_first,
                           .visible = shape->keys};
        data_make(d, h + 1);
        data_cut(d, shape->cuts, 3);
    }
}

static void setup_free(struct setup *s)
{
    for (uint32_t h = 0; h < JOBS; h++)
        data_free(&s->heads[h]);
}

// Jobs of one spec, as a step has them.
static void setup_jobs(struct setup *s, struct kernels_spec *spec, const struct shape *shape)
{
    *spec = s->heads[0].spec;
    spec->kv_heads = JOBS;
    spec->q_heads = JOBS * shape->group;
    spec->alibi = shape->alibi ? s->slopes : NULL;
    for (uint32_t h = 0; h < JOBS; h++) {
        s->jobs[h] = data_job(&s->heads[h]);
        s->jobs[h].spec = spec;
        s->jobs[h].kv_head = h;
        s->jobs[h].q_row_stride = (uint64_t)shape->group * shape->k_dim;
    }
}

static void run_with_guard(const struct kernels_attention *kernel, const struct kernels_job *jobs, uint32_t n)
{
    uint64_t bytes = kernels_attention_scratch(kernel, jobs->spec, jobs->rows, n);
    uint8_t *scratch = NULL;
    assert_int_equal(posix_memalign((void **)&scratch, KERNELS_ALIGN, bytes + GUARD), 0);
    memset(scratch, 0xff, bytes);
    memset(scratch + bytes, 0x5a, GUARD);
    kernel->run(jobs, n, scratch);
    for (uint32_t i = 0; i < GUARD; i++)
        assert_int_equal(scratch[bytes + i], 0x5a);
    free(scratch);
}

static void check(const struct kernels_attention *kernel, struct setup *s, uint32_t n)
{
    const struct kernels_spec *spec = s->jobs[0].spec;
    uint32_t rows = s->jobs[0].rows, group = kernels_spec_group(spec);
    struct kernels_partial alone[JOBS], together[JOBS];
    for (uint32_t h = 0; h < n; h++) {
        alone[h] = data_partial(rows, group, spec->v_dim);
        together[h] = data_partial(rows, group, spec->v_dim);
        s->jobs[h].out = alone[h];
        run_with_guard(kernel, &s->jobs[h], 1);
        s->jobs[h].out = together[h];
    }
    run_with_guard(kernel, s->jobs, n);
    size_t pairs = (size_t)rows * group;
    for (uint32_t h = 0; h < n; h++) {
        assert_memory_equal(alone[h].m, together[h].m, pairs * sizeof(float));
        assert_memory_equal(alone[h].s, together[h].s, pairs * sizeof(float));
        assert_memory_equal(alone[h].o, together[h].o, pairs * spec->v_dim * sizeof(float));
        // and each is of its own head
        assert_true(h == 0 || memcmp(together[h].o, together[h - 1].o, spec->v_dim * sizeof(float)) != 0);
    }
    for (uint32_t h = 0; h < n; h++) {
        data_partial_free(&alone[h]);
        data_partial_free(&together[h]);
    }
}

static void together_as_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (size_t t = i % SANITIZED(1, 2, 2); t < TYPES; t += SANITIZED(1, 2, 2)) {
            struct setup s;
            struct kernels_spec spec;
            setup_make(&s, &shapes[i], types[t]);
            setup_jobs(&s, &spec, &shapes[i]);
            for (uint32_t k = 0; k < kernels_attention_count(); k++) {
                const struct kernels_attention *kernel = kernels_attention_at(k);
                if (!kernels_attention_usable(kernel) || !kernels_attention_supports(kernel, &spec))
                    continue;
                check(kernel, &s, 2);
                check(kernel, &s, JOBS);
            }
            setup_free(&s);
        }
    }
}

// A NaN among one head's fp8 codes sends that panel another way: the other heads keep theirs.
static void a_nan_stays_in_its_head(void **state)
{
    (void)state;
    struct setup s;
    struct kernels_spec spec;
    setup_make(&s, &shapes[1], KERNELS_KV_FP8);
    ((uint8_t *)(uintptr_t)s.heads[1].runs[1].k)[77 * 128 + 5] = 0x7f;
    setup_jobs(&s, &spec, &shapes[1]);
    for (uint32_t k = 0; k < kernels_attention_count(); k++) {
        const struct kernels_attention *kernel = kernels_attention_at(k);
        if (kernels_attention_usable(kernel))
            check(kernel, &s, 4);
    }
    setup_free(&s);
}

// Scratch for many rows is enough for fewer: the last tile of an item has what is left.
static void scratch_for_more_rows(void **state)
{
    (void)state;
    const struct kernels_spec spec = {
        .kv_type = KERNELS_KV_BF16, .k_dim = 128, .v_dim = 128, .q_heads = 16, .kv_heads = 16, .scale = 1};
    for (uint32_t k = 0; k < kernels_attention_count(); k++) {
        const struct kernels_attention *kernel = kernels_attention_at(k);
        for (uint32_t jobs = 1; jobs <= 2 * KERNELS_JOBS; jobs++)
            for (uint32_t rows = 1; rows < 64; rows++)
                assert_true(kernels_attention_scratch(kernel, &spec, rows, jobs) <=
                            kernels_attention_scratch(kernel, &spec, 64, jobs));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together_as_alone),
        cmocka_unit_test(a_nan_stays_in_its_head),
        cmocka_unit_test(scratch_for_more_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
