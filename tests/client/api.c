// SPDX-License-Identifier: Apache-2.0
#include "tests/client/api.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

struct harness_cluster *api_cluster;
const char *api_transport;
banyan_client *api_client;

const banyan_spec api_spec = {
    .layers = 2, .q_heads = 4, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_BF16};

int api_connect(void **state)
{
    (void)state;
    banyan_error error;
    banyan_options options = {.timeout_ns = 120 * COMMON_NS_PER_S};
    if (banyan_connect(harness_cluster_endpoint(api_cluster, api_transport), &options, &api_client, &error) ==
        BANYAN_OK)
        return 0;
    fprintf(stderr, "%s\n", error.message);
    return -1;
}

int api_disconnect(void **state)
{
    (void)state;
    banyan_disconnect(api_client);
    api_client = NULL;
    return 0;
}

banyan_session *api_session(const banyan_spec *spec)
{
    banyan_session *session = NULL;
    OK(banyan_session_create(api_client, spec, NULL, &session, err));
    return session;
}

void api_drop(banyan_session *session)
{
    OK(banyan_session_delete(session, err));
    banyan_session_close(session);
}

void api_attach(banyan_session *session, const struct mirror *m, uint64_t first, uint64_t count)
{
    for (uint32_t layer = 0; layer < banyan_session_spec(session)->layers; layer++) {
        if (banyan_kv_scaled(banyan_session_spec(session)->kv_type))
            OK(banyan_attach_scaled(session, layer, first, count, mirror_k(m, layer, first),
                                    mirror_k_scale(m, layer, first), mirror_v(m, layer, first),
                                    mirror_v_scale(m, layer, first), err));
        else
            OK(banyan_attach(session, layer, first, count, mirror_k(m, layer, first),
                             mirror_v(m, layer, first), err));
        OK(banyan_commit(session, layer, first, count, err));
    }
}

void question_make(struct question *q, banyan_session *session, const struct mirror *m, uint32_t layer,
                   uint64_t first, uint32_t rows, bool append)
{
    const banyan_spec *spec = banyan_session_spec(session);
    q->o = calloc((size_t)rows * spec->q_heads, spec->v_dim * sizeof(float));
    q->lse = calloc((size_t)rows * spec->q_heads, sizeof(float));
    q->item = (banyan_item){
        .session = session,
        .layer = layer,
        .first = first,
        .rows = rows,
        .q = mirror_q(m, first),
        .k = append ? mirror_k(m, layer, first) : NULL,
        .v = append ? mirror_v(m, layer, first) : NULL,
        .k_scale = append ? mirror_k_scale(m, layer, first) : NULL,
        .v_scale = append ? mirror_v_scale(m, layer, first) : NULL,
        .o = q->o,
        .lse = q->lse,
        .error = &q->error,
    };
}

void question_free(struct question *q)
{
    free(q->o);
    free(q->lse);
}

void api_check(banyan_session *session, const struct mirror *m, uint32_t layer, uint64_t first, uint32_t rows,
               bool append)
{
    struct question q;
    question_make(&q, session, m, layer, first, rows, append);
    OK(banyan_attend(api_client, &q.item, 1, 0, NULL, err));
    if (q.item.code != BANYAN_OK)
        fail_msg("item: %s: %s", banyan_code_name(q.item.code), q.error.message);
    mirror_check(m, layer, first, rows, 0, q.o, q.lse);
    question_free(&q);
}

banyan_code api_ask(banyan_session *session, const struct mirror *m, uint32_t layer, uint64_t first,
                    uint32_t rows, bool append, banyan_error *error)
{
    struct question q;
    question_make(&q, session, m, layer, first, rows, append);
    OK(banyan_attend(api_client, &q.item, 1, 0, NULL, err));
    *error = q.error;
    if (q.item.code != BANYAN_OK)
        assert_true(q.o[0] == 0 && q.lse[0] == 0); // outputs are written only on success
    question_free(&q);
    return q.item.code;
}
