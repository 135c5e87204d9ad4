// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/reference.h"
#include "kernels/split.h"
#include "tests/kernels/data.h"

#define CHUNK 64u

// An item of several KV heads: one `data` a head, cut into pages of 16 keys inside chunks.
struct setup {
    struct kernels_spec spec;
    struct kernels_item item;
    struct data *heads;
    float *q;
    struct kernels_run *runs;
};

static struct kernels_spec spec_of(uint32_t k_dim, uint32_t v_dim, uint32_t q_heads, uint32_t kv_heads)
{
    return (struct kernels_spec){.kv_type = KERNELS_KV_F32,
                                 .k_dim = k_dim,
                                 .v_dim = v_dim,
                                 .q_heads = q_heads,
                                 .kv_heads = kv_heads,
                                 .scale = 1};
}

static void setup_make(struct setup *s, uint32_t kv_heads, uint32_t group, uint32_t rows, uint32_t keys,
                       uint32_t page)
{
    const uint32_t dim = 32;
    s->spec = (struct kernels_spec){.kv_type = KERNELS_KV_BF16,
                                    .k_dim = dim,
                                    .v_dim = dim,
                                    .q_heads = kv_heads * group,
                                    .kv_heads = kv_heads,
                                    .scale = 0.2f};
    s->heads = calloc(kv_heads, sizeof(*s->heads));
    s->q = calloc((size_t)rows * kv_heads * group * dim, sizeof(float));
    assert_non_null(s->heads);
    assert_non_null(s->q);
    for (uint32_t h = 0; h < kv_heads; h++) {
        struct data *d = &s->heads[h];
        d->spec = s->spec;
        d->spec.q_heads = group;
        d->spec.kv_heads = 1;
        d->rows = rows;
        d->keys = keys;
        d->q_first = keys - rows;
        d->visible = keys;
        data_make(d, h + 1);
        data_cut(d, &page, 1);
        for (uint32_t r = 0; r < rows; r++)
            memcpy(s->q + ((size_t)r * kv_heads + h) * group * dim, d->q + (size_t)r * group * dim,
                   group * dim * sizeof(float));
    }
    uint32_t count = s->heads[0].run_count;
    s->runs = calloc((size_t)kv_heads * count, sizeof(*s->runs));
    assert_non_null(s->runs);
    for (uint32_t h = 0; h < kv_heads; h++)
        memcpy(s->runs + (size_t)h * count, s->heads[h].runs, count * sizeof(*s->runs));
    s->item = (struct kernels_item){.spec = &s->spec,
                                    .kernel = kernels_attention_default(&s->spec),
                                    .rows = rows,
                                    .q_first = keys - rows,
                                    .visible = keys,
                                    .q = s->q,
                                    .q_row_stride = (uint64_t)kv_heads * group * dim,
                                    .q_head_stride = dim,
                                    .chunk_tokens = CHUNK,
                                    .run_count = count,
                                    .runs = s->runs};
}

static void setup_free(struct setup *s)
{
    for (uint32_t h = 0; h < s->spec.kv_heads; h++)
        data_free(&s->heads[h]);
    free(s->heads);
    free(s->q);
    free(s->runs);
}

struct team {
    struct kernels_split split;
    atomic_uint next;
    bool backwards;
};

static void *member(void *arg)
{
    struct team *team = arg;
    void *scratch = NULL;
    assert_int_equal(posix_memalign(&scratch, KERNELS_ALIGN, kernels_split_scratch(team->split.item) + 64),
                     0);
    for (uint32_t i; (i = atomic_fetch_add(&team->next, 1)) < team->split.tasks;)
        kernels_split_run(&team->split, team->backwards ? team->split.tasks - 1 - i : i, scratch);
    free(scratch);
    return NULL;
}

static struct kernels_partial compute(const struct kernels_item *item, int threads, bool backwards)
{
    uint64_t bytes = kernels_split_bytes(item);
    assert_true(bytes > 0);
    void *workspace = NULL;
    assert_int_equal(posix_memalign(&workspace, KERNELS_ALIGN, bytes), 0);
    memset(workspace, 0xff, bytes);
    struct team team = {.backwards = backwards};
    kernels_split_init(&team.split, item, workspace);
    atomic_init(&team.next, 0);
    pthread_t ids[4];
    for (int i = 1; i < threads; i++)
        assert_int_equal(pthread_create(&ids[i], NULL, member, &team), 0);
    member(&team);
    for (int i = 1; i < threads; i++)
        pthread_join(ids[i], NULL);
    struct kernels_partial out = data_partial(item->rows, item->spec->q_heads, item->spec->v_dim);
    kernels_split_merge(&team.split, &out);
    free(workspace);
    return out;
}

static void assert_same_bits(const struct kernels_partial *a, const struct kernels_partial *b)
{
    size_t n = (size_t)a->rows * a->heads;
    assert_memory_equal(a->m, b->m, n * sizeof(float));
    assert_memory_equal(a->s, b->s, n * sizeof(float));
    assert_memory_equal(a->o, b->o, n * a->dv * sizeof(float));
}

// Threads, order of tasks, size of pages: the same bits.
static void trap_bits_of_a_split(void **state)
{
    (void)state;
    const uint32_t rows[] = {1, 3, 70};
    for (int i = 0; i < 3; i++) {
        struct setup s, pages;
        setup_make(&s, 3, 4, rows[i], 3000, CHUNK);
        setup_make(&pages, 3, 4, rows[i], 3000, 16);
        struct kernels_partial one = compute(&s.item, 1, false), back = compute(&s.item, 1, true),
                               two = compute(&s.item, 2, false), four = compute(&s.item, 4, true),
                               paged = compute(&pages.item, 2, false);
        assert_same_bits(&one, &back);
        assert_same_bits(&one, &two);
        assert_same_bits(&one, &four);
        assert_same_bits(&one, &paged);
        data_partial_free(&one);
        data_partial_free(&back);
        data_partial_free(&two);
        data_partial_free(&four);
        data_partial_free(&paged);
        setup_free(&s);
        setup_free(&pages);
    }
}

static void the_split_is_exact(void **state)
{
    (void)state;
    const struct {
        uint32_t kv_heads, group, rows, keys;
    } shapes[] = {{1, 1, 1, 1}, {2, 4, 1, 5000}, {4, 1, 100, 1100}, {2, 3, 30, 700}, {1, 80, 2, 600}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct setup s;
        setup_make(&s, shapes[i].kv_heads, shapes[i].group, shapes[i].rows, shapes[i].keys, 48);
        setup_free(&s);
        setup_make(&s, shapes[i].kv_heads, shapes[i].group, shapes[i].rows, shapes[i].keys, 32);
        uint32_t group = shapes[i].group, rows = shapes[i].rows, heads = s.spec.q_heads;
        struct kernels_partial p = compute(&s.item, 1, false);
        float *o = malloc((size_t)rows * heads * 32 * sizeof(float)),
              *lse = malloc((size_t)rows * heads * sizeof(float));
        double *want = malloc((size_t)rows * group * 32 * sizeof(double));
        struct kernels_reference_row *info = malloc((size_t)rows * group * sizeof(*info));
        assert_true(o && lse && want && info);
        kernels_partial_finish(&p, NULL, o, lse);
        for (uint32_t h = 0; h < s.spec.kv_heads; h++) {
            struct kernels_job job = data_job(&s.heads[h]);
            kernels_reference(&job, NULL, want, info);
            for (uint32_t r = 0; r < rows; r++) {
                for (uint32_t g = 0; g < group; g++) {
                    size_t a = (size_t)r * heads + h * group + g, b = (size_t)r * group + g;
                    assert_true(fabs(lse[a] - info[b].lse) <= kernels_reference_bound_lse(&info[b]));
                    for (int c = 0; c < 32; c++)
                        assert_true(fabs(o[a * 32 + (size_t)c] - want[b * 32 + (size_t)c]) <=
                                    kernels_reference_bound_o(&info[b]));
                }
            }
        }
        free(o);
        free(lse);
        free(want);
        free(info);
        data_partial_free(&p);
        setup_free(&s);
    }
}

static void units_follow_the_list_of_chunks(void **state)
{
    (void)state;
    // 20 chunks with holes between them, two runs each: units of 8, 8 and 4 chunks, whatever the positions
    struct kernels_spec spec = spec_of(8, 8, 4, 2);
    struct kernels_run runs[2 * 40];
    memset(runs, 0, sizeof(runs));
    for (uint32_t h = 0; h < 2; h++) {
        for (uint32_t c = 0; c < 40; c++)
            runs[h * 40 + c] = (struct kernels_run){.first = c / 2 * 5 * CHUNK + c % 2 * 32, .rows = 32};
    }
    struct kernels_item item = {.spec = &spec,
                                .kernel = kernels_attention_find("portable"),
                                .rows = 1,
                                .chunk_tokens = CHUNK,
                                .run_count = 40,
                                .runs = runs};
    _Alignas(64) char workspace[1 << 14];
    assert_true(kernels_split_bytes(&item) <= sizeof(workspace));
    struct kernels_split split;
    kernels_split_init(&split, &item, workspace);
    assert_int_equal(split.units, 3);
    assert_int_equal(split.tasks, 6);
    const uint32_t start[] = {0, 16, 32, 40};
    assert_memory_equal(split.unit_start, start, sizeof(start));
    item.rows = 65; // 130 pairs: units of 16 chunks, tiles of 32 rows
    static _Alignas(64) char large[1 << 17];
    assert_true(kernels_split_bytes(&item) <= sizeof(large));
    kernels_split_init(&split, &item, large);
    assert_int_equal(split.units, 2);
    assert_int_equal(split.tile_rows, 32);
    assert_int_equal(split.tasks, 2 * 2 * 3);
}

// Where a list begins inside a chunk (a window, another worker's rows), the chunks end where they always end.
static void units_keep_to_the_grid(void **state)
{
    (void)state;
    struct kernels_spec spec = spec_of(8, 8, 1, 1);
    struct kernels_run runs[39];
    memset(runs, 0, sizeof(runs));
    for (uint32_t i = 0; i < 39; i++) // pages of 16 keys: the last of chunk 0, then all of chunks 1 to 9, ...
        runs[i] = (struct kernels_run){.first = 48 + 16 * i, .rows = 16};
    struct kernels_item item = {.spec = &spec,
                                .kernel = kernels_attention_find("portable"),
                                .rows = 1,
                                .chunk_tokens = CHUNK,
                                .run_count = 39,
                                .runs = runs};
    _Alignas(64) char workspace[1 << 14];
    assert_true(kernels_split_bytes(&item) <= sizeof(workspace));
    struct kernels_split split;
    kernels_split_init(&split, &item, workspace);
    const uint32_t start[] = {0, 1 + 7 * CHUNK / 16, 39};
    assert_int_equal(split.units, 2);
    assert_memory_equal(split.unit_start, start, sizeof(start));
}

static void nothing_is_the_identity(void **state)
{
    (void)state;
    struct kernels_spec spec = spec_of(8, 8, 4, 2);
    struct kernels_item item = {
        .spec = &spec, .kernel = kernels_attention_find("portable"), .rows = 2, .chunk_tokens = CHUNK};
    struct kernels_partial p = compute(&item, 1, false);
    for (int i = 0; i < 8; i++)
        assert_true(p.m[i] == -INFINITY && p.s[i] == 0 && p.o[8 * i] == 0);
    data_partial_free(&p);
}

static void too_large_is_refused(void **state)
{
    (void)state;
    struct kernels_spec spec = spec_of(8, 65535, 65535, 65535);
    struct kernels_run run = {.first = 0, .rows = 1};
    struct kernels_item item = {.spec = &spec,
                                .kernel = kernels_attention_find("portable"),
                                .rows = UINT32_MAX,
                                .chunk_tokens = CHUNK,
                                .run_count = 1,
                                .runs = &run};
    assert_int_equal(kernels_split_bytes(&item), 0);
    item.rows = 0;
    assert_int_equal(kernels_split_bytes(&item), 0);
}

#ifdef __SANITIZE_THREAD__
// Kernels are not instrumented (kernels/watched.h): a key that is written while a thread computes over it is
// a race all the same, and one that no row sees is none.
static int write_while_it_computes(bool seen)
{
    struct setup s;
    setup_make(&s, 1, 1, 1, 64, 16);
    s.spec.window = 16;
    uint8_t *key = (uint8_t *)(uintptr_t)s.runs[seen ? s.item.run_count - 1 : 0].k;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        assert_true(freopen("/dev/null", "w", stderr) != NULL);
        void *workspace = malloc(kernels_split_bytes(&s.item));
        struct team team = {.backwards = false};
        pthread_t id;
        kernels_split_init(&team.split, &s.item, workspace);
        atomic_init(&team.next, 0);
        if (pthread_create(&id, NULL, member, &team))
            _exit(1);
        *key ^= 1;
        pthread_join(id, NULL);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    setup_free(&s);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void trap_a_race_with_a_kernel(void **state)
{
    (void)state;
    assert_int_equal(write_while_it_computes(true), 66); // the sanitizer's
    assert_int_equal(write_while_it_computes(false), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef __SANITIZE_THREAD__
        cmocka_unit_test(trap_a_race_with_a_kernel),
#endif
        cmocka_unit_test(trap_bits_of_a_split),
        cmocka_unit_test(the_split_is_exact),
        cmocka_unit_test(units_follow_the_list_of_chunks),
        cmocka_unit_test(units_keep_to_the_grid),
        cmocka_unit_test(nothing_is_the_identity),
        cmocka_unit_test(too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
