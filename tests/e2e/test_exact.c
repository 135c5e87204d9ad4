// SPDX-License-Identifier: Apache-2.0
// Exactness of the whole service (client, coordinator, tree) against the float64 reference: every shape,
// every bend of the logits, adversarial data, over plans of 1 to 5 workers. Prints the largest error as a
// fraction of what is promised.
#include "tests/e2e/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/data.h"

#define WORKERS 5

static struct harness_cluster *cluster;
static banyan_client *clients[2]; // over nng, over a stream
static struct worst worst;

struct shape {
    const char *name;
    uint32_t q_heads, kv_heads, k_dim, v_dim, chunk_tokens, members;
    banyan_kv_type kv_type;
    float soft_cap;
    uint64_t window;
    bool alibi, sinks;
};

static const float slopes[16] = {0.5f,   0.25f,  0.125f,  0.0625f, 0.03f, 0.02f, 0.01f, 0.005f,
                                 0.004f, 0.003f, 0.0025f, 0.002f,  1.0f,  0.0f,  0.7f,  0.1f};
static const float sinks[16] = {0, 1, -1, 2, -2, 3, 30, -30, 0.5f, 8, 4, -8, 0, 1, 2, 3};

static banyan_spec spec_of(const struct shape *s)
{
    return (banyan_spec){.layers = 1,
                         .q_heads = s->q_heads,
                         .kv_heads = s->kv_heads,
                         .k_dim = s->k_dim,
                         .v_dim = s->v_dim,
                         .kv_type = s->kv_type,
                         .soft_cap = s->soft_cap,
                         .window = s->window,
                         .alibi = s->alibi ? slopes : NULL,
                         .sinks = s->sinks ? sinks : NULL,
                         .chunk_tokens = s->chunk_tokens,
                         .members = s->members};
}

// Keys, values and queries by a recipe of tests/kernels/data.h, each KV head its own.
static float *make(struct context *context, enum data_mode mode, uint32_t rows, uint32_t tokens,
                   uint64_t seed)
{
    const banyan_spec *s = &context->spec;
    uint32_t group = s->q_heads / s->kv_heads;
    float *q = malloc((size_t)rows * s->q_heads * s->k_dim * sizeof(*q));
    assert_non_null(q);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        struct data d = {.spec = {.kv_type = KERNELS_KV_F32, // only the masters are used
                                  .k_dim = s->k_dim,
                                  .v_dim = s->v_dim,
                                  .q_heads = group,
                                  .kv_heads = 1,
                                  .scale = 1.0f / sqrtf((float)s->k_dim)},
                         .mode = mode,
                         .rows = rows,
                         .keys = tokens};
        data_make(&d, seed * 64 + h);
        for (uint32_t p = 0; p < tokens; p++)
            context_set(context, 0, p, h, d.k + (size_t)p * s->k_dim, d.v + (size_t)p * s->v_dim);
        for (uint32_t r = 0; r < rows; r++)
            memcpy(q + ((size_t)r * s->q_heads + (size_t)h * group) * s->k_dim,
                   d.q + (size_t)r * group * s->k_dim, (size_t)group * s->k_dim * sizeof(*q));
        data_free(&d);
    }
    return q;
}

// Attaches [0, tokens) in pieces of uneven length, in a shuffled order; commits in another.
static void attach_shuffled(banyan_session *session, const struct context *context, uint32_t tokens,
                            uint64_t seed)
{
    struct data_random r = {seed};
    struct {
        uint32_t first, count;
    } piece[512], swap;
    uint32_t n = 0, most = tokens / 8 + 40;
    for (uint32_t at = 0; at < tokens; at += piece[n++].count) {
        uint32_t count = 1 + data_random_below(&r, most);
        piece[n].first = at;
        piece[n].count = count < tokens - at ? count : tokens - at;
        assert_true(n < 511);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = n; i > 1; i--) {
            uint32_t j = data_random_below(&r, i);
            swap = piece[i - 1];
            piece[i - 1] = piece[j];
            piece[j] = swap;
        }
        for (uint32_t i = 0; i < n; i++) {
            if (pass == 0)
                OK(context_attach(session, context, 0, piece[i].first, piece[i].count, ERR));
            else
                OK(banyan_commit(session, 0, piece[i].first, piece[i].count, ERR));
        }
    }
}

struct demand {
    uint32_t tokens, rows;
    bool append;      // the rows come with the step
    uint64_t visible; // 0: all
};

static void judge(const struct shape *shape, enum data_mode mode, struct demand demand, uint64_t seed)
{
    char what[160];
    banyan_spec spec = spec_of(shape);
    banyan_session *session;
    banyan_client *client = clients[seed % 2];
    struct context context;
    context_init(&context, &spec, demand.tokens);
    float *q = make(&context, mode, demand.rows, demand.tokens, seed);
    uint32_t first = demand.tokens - demand.rows;
    snprintf(what, sizeof(what), "%s, %s, KV type %d, %u tokens, %u rows%s, chunks of %u, %u workers",
             shape->name, data_mode_name(mode), shape->kv_type, demand.tokens, demand.rows,
             demand.append ? " appended" : "", shape->chunk_tokens, shape->members);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    attach_shuffled(session, &context, demand.append ? first : demand.tokens, seed);
    struct step step = {
        .session = session, .first = first, .rows = demand.rows, .visible = demand.visible, .q = q};
    if (demand.append)
        step_append(&step, &context);
    OK(step_run(client, &step));
    assert_int_equal(step.length, demand.tokens);
    context_check(&context, 0, first, demand.rows, demand.visible, q, step.o, step.lse, &worst, what);
    step_free(&step);
    free(q);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    context_free(&context);
}

#define TYPES 5
static const banyan_kv_type types[TYPES] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_INT8, BANYAN_FP8};
static const uint32_t chunks[] = {16, 32, 64, 256};

// Head counts, dims, bends, KV types, widths of the plan and sizes of chunks, mixed so that each meets each.
static void every_shape(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {.name = "MHA", .q_heads = 4, .kv_heads = 4, .k_dim = 32, .v_dim = 32},
        {.name = "GQA", .q_heads = 8, .kv_heads = 2, .k_dim = 64, .v_dim = 64},
        {.name = "MQA", .q_heads = 8, .kv_heads = 1, .k_dim = 48, .v_dim = 48},
        {.name = "one head", .q_heads = 1, .kv_heads = 1, .k_dim = 128, .v_dim = 128},
        {.name = "wide K", .q_heads = 4, .kv_heads = 2, .k_dim = 96, .v_dim = 40},
        {.name = "wide V", .q_heads = 4, .kv_heads = 2, .k_dim = 24, .v_dim = 80},
        {.name = "odd dims", .q_heads = 6, .kv_heads = 3, .k_dim = 17, .v_dim = 5},
        {.name = "dims of 1", .q_heads = 2, .kv_heads = 1, .k_dim = 1, .v_dim = 1},
        {.name = "soft cap", .q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .soft_cap = 20},
        {.name = "ALiBi", .q_heads = 8, .kv_heads = 4, .k_dim = 32, .v_dim = 32, .alibi = true},
        {.name = "window", .q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .window = 37},
        {.name = "window of 1", .q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .window = 1},
        {.name = "sinks", .q_heads = 8, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .sinks = true},
        {.name = "all bends",
         .q_heads = 8,
         .kv_heads = 2,
         .k_dim = 32,
         .v_dim = 48,
         .soft_cap = 30,
         .window = 150,
         .alibi = true,
         .sinks = true},
    };
    static const struct demand demands[] = {{300, 1, false, 0},  {523, 33, false, 0}, {401, 1, true, 0},
                                            {260, 20, true, 0},  {97, 97, false, 0},  {64, 64, true, 0},
                                            {210, 5, false, 100}};
    uint64_t seed = 1;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++)
        for (size_t t = 0; t < TYPES; t++, seed++) {
            struct shape shape = shapes[s];
            shape.kv_type = types[t];
            shape.members = 1 + (uint32_t)(seed % WORKERS);
            shape.chunk_tokens = chunks[seed % 4];
            judge(&shape, DATA_RANDOM, demands[seed % 7], seed);
            judge(&shape, DATA_RANDOM, demands[(seed + 1 + s) % 7], seed + 1000);
        }
}

static void adversarial_data(void **state)
{
    (void)state;
    static const struct demand demands[] = {{500, 1, false, 0}, {333, 1, true, 0}, {190, 17, false, 0}};
    uint64_t seed = 5000;
    for (int mode = DATA_LARGE; mode < DATA_MODES; mode++)
        for (size_t t = 0; t < TYPES; t++)
            for (uint32_t members = 1; members <= WORKERS; members += 2, seed++) {
                struct shape shape = {"GQA",   6,        2, 64, 32,    chunks[seed % 4],
                                      members, types[t], 0, 0,  false, false};
                judge(&shape, (enum data_mode)mode, demands[seed % 3], seed);
            }
}

// One token; one chunk for five workers; a last chunk of one token; nothing of a chunk in sight.
static void edges_of_the_layout(void **state)
{
    (void)state;
    static const struct demand demands[] = {{1, 1, true, 0},     {1, 1, false, 0},  {2, 1, true, 0},
                                            {16, 1, false, 0},   {17, 1, true, 0},  {16, 16, true, 0},
                                            {33, 1, false, 0},   {80, 1, false, 1}, {80, 3, false, 16},
                                            {80, 80, false, 15}, {257, 1, true, 0}, {256, 256, true, 0},
                                            {513, 2, false, 0}};
    uint64_t seed = 9000;
    for (size_t d = 0; d < sizeof(demands) / sizeof(*demands); d++)
        for (size_t c = 0; c < 4; c += 3)
            for (uint32_t members = 1; members <= WORKERS; members += 4, seed++) {
                struct shape shape = {"edge", 4, 2,     32,   32, chunks[c], members, types[seed % TYPES],
                                      0,      0, false, false};
                judge(&shape, DATA_RANDOM, demands[d], seed);
                shape.window = 3; // hides every chunk but the last or two: the other shards are empty
                judge(&shape, DATA_RANDOM, demands[d], seed);
            }
}

// Rows that see no key at all take zeros and an lse of −inf; with sinks, the sink's.
static void rows_that_see_nothing(void **state)
{
    (void)state;
    for (int with_sinks = 0; with_sinks < 2; with_sinks++) {
        struct shape shape = {"nothing seen", 4, 2, 32, 32, 16, 3, BANYAN_F32, 0, 4, false, with_sinks};
        judge(&shape, DATA_RANDOM, (struct demand){100, 8, false, 20}, 77);
    }
}

// A longer context, every row of a late block, over all workers: slabs, many units, deep merges.
static void a_long_session(void **state)
{
    (void)state;
    struct shape shape = {"long", 8, 2, 64, 64, 256, WORKERS, BANYAN_BF16, 0, 0, false, false};
    judge(&shape, DATA_RANDOM, (struct demand){12000, 1, false, 0}, 31);
    judge(&shape, DATA_LARGE, (struct demand){3000, 40, true, 0}, 32);
    struct shape slabs = {"many rows", 16, 4, 64, 64, 64, 3, BANYAN_F32, 0, 0, true, true};
    judge(&slabs, DATA_RANDOM, (struct demand){300, 300, false, 0}, 33);
    judge(&slabs, DATA_RANDOM, (struct demand){280, 200, true, 0}, 34);
}

// Token by token, all of it from appends, judged at each: the session grows over chunks and workers.
static void token_by_token(void **state)
{
    (void)state;
    struct shape shape = {"decode", 4, 2, 32, 32, 16, 4, BANYAN_F16, 0, 0, false, false};
    banyan_spec spec = spec_of(&shape);
    spec.layers = 2;
    banyan_session *session;
    struct context context;
    const uint32_t tokens = 150;
    context_init(&context, &spec, tokens);
    context_random(&context, 0, tokens, 3);
    OK(banyan_session_create(clients[0], &spec, NULL, &session, ERR));
    for (uint32_t p = 0; p < tokens; p++)
        for (uint32_t l = 0; l < 2; l++) {
            struct step step = {.session = session, .layer = l, .first = p, .rows = 1, .seed = p};
            step_append(&step, &context);
            OK(step_run(clients[0], &step));
            assert_int_equal(step.length, p + 1);
            context_check(&context, l, p, 1, 0, step.made_q, step.o, step.lse, &worst, "decode");
            step_free(&step);
        }
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    context_free(&context);
}

// Keys along q, so that logits are what the function of the position says, give or take the rounding to KV's
// type.
static void judge_logits(banyan_client *client, const banyan_spec *spec, uint32_t tokens,
                         double (*logit)(uint32_t), const char *what)
{
    struct context context;
    banyan_session *session;
    float q[64], k[64], v[64];
    const double scale = 1 / sqrt(64);
    double norm = 0;
    struct data_random r = {17};
    for (int i = 0; i < 64; i++) {
        q[i] = data_random_normal(&r);
        norm += (double)q[i] * q[i];
    }
    context_init(&context, spec, tokens);
    for (uint32_t p = 0; p < tokens; p++) {
        for (int i = 0; i < 64; i++) {
            k[i] = (float)(logit(p) / scale * q[i] / norm);
            v[i] = data_random_normal(&r);
        }
        context_set(&context, 0, p, 0, k, v);
    }
    OK(banyan_session_create(client, spec, NULL, &session, ERR));
    attach_shuffled(session, &context, tokens, 3);
    struct step step = {.session = session, .first = tokens - 1, .rows = 1, .q = q};
    OK(step_run(client, &step));
    assert_true(isfinite(step.lse[0]));
    context_check(&context, 0, tokens - 1, 1, 0, q, step.o, step.lse, &worst, what);
    step_free(&step);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    context_free(&context);
}

static const banyan_spec one_head = {.layers = 1,
                                     .q_heads = 1,
                                     .kv_heads = 1,
                                     .k_dim = 64,
                                     .v_dim = 64,
                                     .kv_type = BANYAN_F32,
                                     .chunk_tokens = 16,
                                     .members = WORKERS};

static double far_below(uint32_t position)
{
    return -90000.0 - position % 7;
}

// Logits below any number that could be taken for "none".
static void trap_logits_below_any_sentinel(void **state)
{
    (void)state;
    banyan_spec spec = one_head;
    for (int t = 0; t < TYPES; t++) {
        spec.kv_type = types[t];
        judge_logits(clients[0], &spec, 150, far_below, "far below");
    }
}

static double far_apart(uint32_t position)
{
    return position / 16 % 2 ? 9000 + position % 3 : -9000 - (double)(position % 5);
}

// Chunk by chunk, and so worker by worker, logits that exp cannot bridge.
static void trap_workers_far_apart(void **state)
{
    (void)state;
    judge_logits(clients[1], &one_head, 200, far_apart, "far apart");
}

static double near(uint32_t position)
{
    return 0.001 * (position % 100);
}

// The bound is the same for 1 worker and for 16: errors do not add up along the tree.
static void trap_many_workers(void **state)
{
    (void)state;
    struct harness_cluster *wide = support_start(&(struct harness_options){.workers = 16, .memory = "32M"});
    banyan_client *client = support_connect(wide, "unix");
    banyan_spec spec = one_head;
    static const uint32_t members[] = {1, 4, 16};
    for (int m = 0; m < 3; m++)
        for (int t = 0; t < TYPES; t++) {
            spec.members = members[m];
            spec.kv_type = types[t];
            judge_logits(client, &spec, 1000, near, "many workers");
        }
    banyan_disconnect(client);
    support_stop(wide);
}

static int start(void **state)
{
    (void)state;
    cluster = support_start(&(struct harness_options){.workers = WORKERS});
    clients[0] = support_connect(cluster, "nng+tcp");
    clients[1] = support_connect(cluster, "unix");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    printf("largest error as a fraction of the bound: o %.3f (%s), lse %.3f\n", worst.o, worst.what,
           worst.lse);
    banyan_disconnect(clients[0]);
    banyan_disconnect(clients[1]);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape),
        cmocka_unit_test(adversarial_data),
        cmocka_unit_test(edges_of_the_layout),
        cmocka_unit_test(rows_that_see_nothing),
        cmocka_unit_test(a_long_session),
        cmocka_unit_test(token_by_token),
        cmocka_unit_test(trap_logits_below_any_sentinel),
        cmocka_unit_test(trap_workers_far_apart),
        cmocka_unit_test(trap_many_workers),
    };
    return cmocka_run_group_tests_name("exactness of the service", tests, start, stop);
}
