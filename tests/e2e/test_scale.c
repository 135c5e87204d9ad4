// SPDX-License-Identifier: Apache-2.0
// A seeded random walk over 200 sessions: creates, appends, attaches, forks of forks, truncates, deletes and
// steps, each answer judged by a model in this program. At the end every byte has come back.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/data.h"

#define SESSIONS 200
#define ROOM     220 // tokens of a session at most
#define LAYERS   2
#define SLOTS    (SESSIONS + 40)

struct entry {
    banyan_session *session; // NULL: free
    struct context context;
    uint64_t length[LAYERS];
};

static struct harness_cluster *cluster;
static banyan_client *client;
static struct entry entries[SLOTS];
static unsigned n_live;
static struct data_random dice = {20261121};
static struct worst worst;
static unsigned counts[8];
static uint64_t content; // seeds of rows: no two are alike

static const float slopes[4] = {0.3f, 0.1f, 0.05f, 0};

static struct entry *pick(bool live)
{
    if (live ? n_live == 0 : n_live == SLOTS)
        return NULL;
    for (;;) {
        struct entry *e = &entries[data_random_below(&dice, SLOTS)];
        if ((e->session != NULL) == live)
            return e;
    }
}

static uint64_t shortest(const struct entry *e)
{
    return e->length[0] < e->length[1] ? e->length[0] : e->length[1];
}

static void create(void)
{
    struct entry *e = pick(false);
    if (!e)
        return;
    banyan_spec spec = {.layers = LAYERS, .q_heads = 4, .kv_heads = 2, .k_dim = 16, .v_dim = 16};
    spec.kv_type = (banyan_kv_type)(1 + data_random_below(&dice, 5));
    spec.chunk_tokens = 16u << data_random_below(&dice, 3);
    spec.members = data_random_below(&dice, 5);
    spec.alibi = data_random_below(&dice, 4) ? NULL : slopes;
    spec.window = data_random_below(&dice, 4) ? 0 : 50;
    context_init(&e->context, &spec, ROOM);
    e->length[0] = e->length[1] = 0;
    OK(banyan_session_create(client, &spec, NULL, &e->session, ERR));
    n_live++;
    counts[0]++;
}

// Rows that were never there before, from `first` on: what stood there is forgotten.
static void fresh_rows(struct entry *e, uint64_t first, uint64_t count)
{
    for (uint64_t p = first; p < first + count; p++)
        if (p >= e->length[0] && p >= e->length[1])
            context_random(&e->context, p, 1, ++content);
}

static void append(struct entry *e)
{
    uint32_t layer = data_random_below(&dice, LAYERS), rows = 1 + data_random_below(&dice, 6);
    uint64_t first = e->length[layer];
    if (first + rows > ROOM)
        return;
    fresh_rows(e, first, rows);
    struct step step = {.session = e->session, .layer = layer, .first = first, .rows = rows, .seed = content};
    step_append(&step, &e->context);
    OK(step_run(client, &step));
    e->length[layer] += rows;
    assert_int_equal(step.length, e->length[layer]);
    context_check(&e->context, layer, first, rows, 0, step.made_q, step.o, step.lse, &worst, "append");
    step_free(&step);
    counts[1]++;
}

static void attach(struct entry *e)
{
    uint32_t layer = data_random_below(&dice, LAYERS);
    uint64_t first = e->length[layer], count = 1 + data_random_below(&dice, 70);
    if (first + count > ROOM)
        return;
    fresh_rows(e, first, count);
    OK(context_attach(e->session, &e->context, layer, first, count, ERR));
    OK(banyan_commit(e->session, layer, first, count, ERR));
    e->length[layer] += count;
    counts[2]++;
}

static void step(struct entry *e)
{
    uint32_t layer = data_random_below(&dice, LAYERS);
    uint64_t length = e->length[layer];
    if (length == 0)
        return;
    uint32_t rows = 1 + data_random_below(&dice, length < 9 ? (uint32_t)length : 9);
    uint64_t first = data_random_below(&dice, (uint32_t)(length - rows + 1));
    support_check_step(client, e->session, &e->context, layer, first, rows, 0, &worst, "step");
    counts[3]++;
}

// Several sessions in one call.
static void step_many(void)
{
    enum { MANY = 24 };
    struct entry *e[MANY];
    struct step s[MANY];
    banyan_item item[MANY];
    banyan_error error[MANY];
    size_t n = 0;
    for (int i = 0; i < MANY; i++) {
        struct entry *one = pick(true);
        uint32_t layer = data_random_below(&dice, LAYERS);
        if (!one || one->length[layer] == 0)
            continue;
        e[n] = one;
        s[n] = (struct step){.session = one->session,
                             .layer = layer,
                             .first = one->length[layer] - 1,
                             .rows = 1,
                             .seed = (uint64_t)i};
        item[n] = step_item(&s[n]);
        item[n].error = &error[n];
        n++;
    }
    if (n == 0)
        return;
    OK(banyan_attend(client, item, n, 0, NULL, ERR));
    for (size_t i = 0; i < n; i++) {
        if (item[i].code != BANYAN_OK)
            fail_msg("one of many: %s: %s", banyan_code_name(item[i].code), error[i].message);
        context_check(&e[i]->context, s[i].layer, s[i].first, 1, 0, s[i].made_q, s[i].o, s[i].lse, &worst,
                      "many");
        step_free(&s[i]);
    }
    counts[4]++;
}

static void fork_one(struct entry *from)
{
    struct entry *to = pick(false);
    uint64_t most = shortest(from);
    if (!to)
        return;
    uint64_t length = data_random_below(&dice, (uint32_t)most + 1);
    context_copy(&to->context, &from->context);
    to->length[0] = to->length[1] = length;
    OK(banyan_session_fork(from->session, length, NULL, &to->session, ERR));
    assert_int_not_equal(banyan_session_id(to->session), banyan_session_id(from->session));
    n_live++;
    counts[5]++;
    for (uint32_t l = 0; length > 0 && l < LAYERS; l++)
        support_check_step(client, to->session, &to->context, l, length - 1, 1, 0, &worst, "fork");
}

static void truncate_one(struct entry *e)
{
    uint64_t longest = e->length[0] > e->length[1] ? e->length[0] : e->length[1];
    uint64_t to = data_random_below(&dice, (uint32_t)longest + 1);
    OK(banyan_session_truncate(e->session, to, ERR));
    for (uint32_t l = 0; l < LAYERS; l++)
        e->length[l] = e->length[l] < to ? e->length[l] : to;
    counts[6]++;
}

static void delete_one(struct entry *e)
{
    OK(banyan_session_delete(e->session, ERR));
    banyan_session_close(e->session);
    context_free(&e->context);
    e->session = NULL;
    n_live--;
    counts[7]++;
}

static void expect_lengths(const struct entry *e)
{
    banyan_session_info info;
    OK(banyan_session_get_info(e->session, &info, ERR));
    for (uint32_t l = 0; l < LAYERS; l++)
        if (info.layer_lengths[l] != e->length[l])
            fail_msg("session %" PRIx64 " layer %u: %" PRIu64 " tokens, should be %" PRIu64, info.id, l,
                     info.layer_lengths[l], e->length[l]);
    banyan_session_info_free(&info);
}

static void a_random_walk(void **state)
{
    (void)state;
    while (n_live < SESSIONS)
        create();
    for (unsigned i = 0; i < 4000; i++) {
        struct entry *e = pick(true);
        uint32_t d = data_random_below(&dice, 100);
        if (d < 4 || !e)
            create();
        else if (d < 34)
            append(e);
        else if (d < 52)
            attach(e);
        else if (d < 68)
            step(e);
        else if (d < 73)
            step_many();
        else if (d < 85)
            fork_one(e);
        else if (d < 93)
            truncate_one(e);
        else if (n_live > SESSIONS - 40)
            delete_one(e);
        if (i % 50 == 0)
            expect_lengths(pick(true));
    }
    for (unsigned i = 0; i < SLOTS; i++)
        if (entries[i].session) {
            expect_lengths(&entries[i]);
            for (uint32_t l = 0; l < LAYERS; l++)
                if (entries[i].length[l])
                    support_check_step(client, entries[i].session, &entries[i].context, l,
                                       entries[i].length[l] - 1, 1, 0, &worst, "at the end");
        }
    banyan_session_list list;
    OK(banyan_session_get_list(client, &list, ERR));
    assert_int_equal(list.n, n_live);
    banyan_session_list_free(&list);
    printf("%u creates, %u appends, %u attaches, %u steps, %u calls of many, %u forks, %u truncates, %u "
           "deletes; "
           "largest error %.3f of the bound\n",
           counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6], counts[7], worst.o);
    for (unsigned i = 0; i < SLOTS; i++)
        if (entries[i].session)
            delete_one(&entries[i]);
    EVENTUALLY(30, support_used_bytes(client) == 0);
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    assert_int_equal(info.sessions, 0);
    assert_int_equal(info.chunks, 0);
    banyan_cluster_info_free(&info);
}

// Forks share what is full: a hundred of them cost little, and outlive their origin.
static void forks_share(void **state)
{
    (void)state;
    enum { FORKS = 100, TOKENS = 1000 };
    const banyan_spec spec = {.layers = LAYERS,
                              .q_heads = 4,
                              .kv_heads = 2,
                              .k_dim = 64,
                              .v_dim = 64,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = 64,
                              .members = 3};
    banyan_session *origin, *fork[FORKS];
    struct context context, own;
    context_init(&context, &spec, TOKENS + 1);
    context_random(&context, 0, TOKENS + 1, 5);
    OK(banyan_session_create(client, &spec, "origin", &origin, ERR));
    support_fill(origin, &context, 0, TOKENS);
    uint64_t one = 0;
    banyan_session_info info;
    OK(banyan_session_get_info(origin, &info, ERR));
    one = info.bytes;
    banyan_session_info_free(&info);
    assert_true(one >= (uint64_t)TOKENS * LAYERS * 2 * 128 * 4);
    for (int i = 0; i < FORKS; i++)
        OK(banyan_session_fork(i ? fork[i - 1] : origin, TOKENS, NULL, &fork[i],
                               ERR)); // of a fork of a fork …
    OK(banyan_session_delete(origin, ERR));
    banyan_session_close(origin);
    // Each goes its own way
    context_copy(&own, &context);
    for (int i = 0; i < FORKS; i += 9) {
        context_random(&own, TOKENS, 1, 100 + (uint64_t)i);
        struct step s = {.session = fork[i],
                         .layer = 1,
                         .first = TOKENS,
                         .rows = 1,
                         .seed = (uint64_t)i,
                         .k = context_k(&own, 1, TOKENS),
                         .v = context_v(&own, 1, TOKENS)};
        OK(step_run(client, &s));
        context_check(&own, 1, TOKENS, 1, 0, s.made_q, s.o, s.lse, &worst, "forks");
        step_free(&s);
    }
    EVENTUALLY(30, support_used_bytes(client) > one); // the workers have reported
    uint64_t used = support_used_bytes(client);
    if (used > one * 16) // 101 copies would be 101 times
        fail_msg("%d forks of %" PRIu64 " bytes use %" PRIu64, FORKS, one, used);
    for (int i = 0; i < FORKS; i++) {
        OK(banyan_session_delete(fork[i], ERR));
        banyan_session_close(fork[i]);
    }
    EVENTUALLY(30, support_used_bytes(client) == 0);
    context_free(&context);
    context_free(&own);
}

static uint64_t live_sessions(void)
{
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    uint64_t n = info.sessions;
    banyan_cluster_info_free(&info);
    return n;
}

static void idle_sessions_are_reclaimed(void **state)
{
    (void)state;
    banyan_spec spec = {.layers = 1,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .k_dim = 16,
                        .v_dim = 16,
                        .kv_type = BANYAN_F32,
                        .idle_ttl_ns = UINT64_C(1500000000)};
    banyan_session *idle[20], *kept, *gone;
    struct context context;
    context_init(&context, &spec, 50);
    context_random(&context, 0, 50, 1);
    for (int i = 0; i < 20; i++) {
        OK(banyan_session_create(client, &spec, NULL, &idle[i], ERR));
        support_fill(idle[i], &context, 0, 50);
    }
    spec.idle_ttl_ns = 0;
    OK(banyan_session_create(client, &spec, NULL, &kept, ERR));
    support_fill(kept, &context, 0, 50);
    uint64_t ids[20];
    for (int i = 0; i < 20; i++) {
        ids[i] = banyan_session_id(idle[i]);
        banyan_session_close(idle[i]);
    }
    EVENTUALLY(60, live_sessions() == 1); // asking for one of them would keep it
    for (int i = 0; i < 20; i++)
        FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_open(client, ids[i], NULL, &gone, ERR));
    support_check_step(client, kept, &context, 0, 49, 1, 0, NULL, "kept");
    OK(banyan_session_delete(kept, ERR));
    banyan_session_close(kept);
    EVENTUALLY(30, support_used_bytes(client) == 0);
    context_free(&context);
}

static int start(void **state)
{
    (void)state;
    // Sessions that were attached to stay for as long as their tickets: these end soon.
    static const char *const args[] = {"--heartbeat", SUPPORT_BEAT, "--ticket-life", "5s", NULL};
    cluster = support_start(&(struct harness_options){.workers = 4, .coordinator_args = args});
    client = support_connect(cluster, "unix");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    banyan_disconnect(client);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_random_walk),
        cmocka_unit_test(forks_share),
        cmocka_unit_test(idle_sessions_are_reclaimed),
    };
    return cmocka_run_group_tests_name("scale", tests, start, stop);
}
