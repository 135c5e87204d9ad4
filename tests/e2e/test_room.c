// SPDX-License-Identifier: Apache-2.0
// Two small workers hold what two small workers have room for: a session that grows token by token fails when
// both are full, and not when one of them is. What was appended up to then is exact, and what was not is not
// there.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <string.h>

#include "proto/model/footprint.h"

enum { LAYERS = 4, CHUNK = 96, ROWS = 4, SESSIONS_MAX = 3 };

static const banyan_spec spec = {.layers = LAYERS,
                                 .q_heads = 4,
                                 .kv_heads = 4,
                                 .k_dim = 64,
                                 .v_dim = 64,
                                 .kv_type = BANYAN_BF16,
                                 .chunk_tokens = CHUNK,
                                 .members = 1,
                                 .replicas = 1};

// Whole chunks that both have room for.
static uint64_t chunks_that_fit(banyan_client *client)
{
    Banyan__Pb__Spec pb = BANYAN__PB__SPEC__INIT;
    pb.layers = LAYERS;
    pb.q_heads = pb.kv_heads = spec.kv_heads;
    pb.k_dim = pb.v_dim = spec.k_dim;
    pb.kv_type = BANYAN__PB__DTYPE__DTYPE_BF16;
    pb.chunk_tokens = CHUNK;
    banyan_cluster_info info;
    uint64_t n = 0;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++) {
        uint64_t capacity = info.workers[i].capacity_bytes;
        n += (capacity - proto_footprint_slack(capacity)) / proto_footprint_chunk(&pb);
    }
    banyan_cluster_info_free(&info);
    return n;
}

// The next rows of all layers, one after the other, as a model has them. Where one has no room: where it
// stands then.
static banyan_code grow(banyan_client *client, banyan_session *session, const struct context *context,
                        uint64_t first, uint32_t *layer)
{
    banyan_code code = BANYAN_OK;
    for (*layer = 0; *layer < LAYERS; *layer += 1) {
        struct step step = {.session = session, .layer = *layer, .first = first, .rows = ROWS, .seed = first};
        step_append(&step, context);
        code = step_run(client, &step);
        if (code == BANYAN_OK && first % CHUNK == 0)
            context_check(context, *layer, first, ROWS, 0, step.made_q, step.o, step.lse, NULL, "an append");
        step_free(&step);
        if (code != BANYAN_OK)
            break;
    }
    return code;
}

static uint64_t length_of(banyan_session *session, uint32_t layer)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, ERR));
    uint64_t length = info.layer_lengths[layer];
    banyan_session_info_free(&info);
    return length;
}

static void sessions_grow_until_all_workers_are_full(void **state)
{
    const uint32_t n = *(const uint32_t *)*state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2, .memory = "12M"});
    banyan_client *client = support_connect(cluster, "tcp");
    const uint64_t fit = chunks_that_fit(client), least = fit / n * CHUNK, room = (fit + 8) * CHUNK;
    banyan_session *sessions[SESSIONS_MAX];
    struct context context;
    banyan_code code = BANYAN_OK;
    uint64_t at = 0;
    uint32_t layer = 0, nth = 0;
    assert_true(fit >= 16);
    context_init(&context, &spec, room);
    context_random(&context, 0, room, 7);
    for (uint32_t i = 0; i < n; i++)
        OK(banyan_session_create(client, &spec, NULL, &sessions[i], ERR));
    for (; code == BANYAN_OK && at + ROWS <= room; at += code == BANYAN_OK ? ROWS : 0)
        for (nth = 0; nth < n && code == BANYAN_OK; nth += code == BANYAN_OK)
            code = grow(client, sessions[nth], &context, at, &layer);
    if (code != BANYAN_RESOURCE_EXHAUSTED || at < least)
        fail_msg("%" PRIu64 " tokens of %u sessions were appended, there is room for %" PRIu64 ": %s", at, n,
                 least, ERR->message);
    assert_non_null(strstr(ERR->message, "--memory"));
    for (uint32_t i = 0; i < n; i++) // all that was acknowledged is there, and no more
        for (uint32_t l = 0; l < LAYERS; l++) {
            bool has = i < nth || (i == nth && l < layer);
            uint64_t length = at + (has ? ROWS : 0);
            assert_int_equal(length_of(sessions[i], l), length);
            support_check_step(client, sessions[i], &context, l, length - 1, 1, length, NULL, "when full");
        }
    for (uint32_t i = 1; i < n; i++) {
        OK(banyan_session_delete(sessions[i], ERR));
        banyan_session_close(sessions[i]);
    }
    if (n > 1) // there is room again
        EVENTUALLY(30, grow(client, sessions[0], &context, at + (nth > 0 ? ROWS : 0), &layer) == BANYAN_OK);
    support_drop(sessions[0], &context);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(void)
{
    static uint32_t one = 1, three = 3;
    const struct CMUnitTest tests[] = {
        {"a_session_grows_until_all_workers_are_full", sessions_grow_until_all_workers_are_full, NULL, NULL,
         &one},
        {"sessions_grow_until_all_workers_are_full", sessions_grow_until_all_workers_are_full, NULL, NULL,
         &three},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
