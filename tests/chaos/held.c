// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/held.h"

#include "tests/e2e/support.h"

static banyan_spec spec_of(uint64_t number, uint32_t replicas)
{
    static const banyan_kv_type types[] = {BANYAN_F32, BANYAN_BF16, BANYAN_F32, BANYAN_INT8};
    static const uint32_t members[] = {3, 0, 4, 2, 1};
    return (banyan_spec){.layers = 1 + (uint32_t)(number % 2),
                         .q_heads = 4,
                         .kv_heads = 2,
                         .k_dim = 16,
                         .v_dim = 16,
                         .kv_type = types[number % 4],
                         .chunk_tokens = 32,
                         .members = members[number % 5],
                         .replicas = replicas ? replicas : 1 + (uint32_t)(number % 3),
                         // what a fork without a verdict has left goes by itself
                         .idle_ttl_ns = UINT64_C(3600000000000)};
}

void held_make(struct held *h, banyan_client *client, uint64_t number, uint32_t replicas, uint64_t seed)
{
    banyan_spec spec = spec_of(number, replicas);
    *h = (struct held){0};
    context_init(&h->context, &spec, HELD_ROOM);
    context_random(&h->context, 0, HELD_ROOM, seed);
    OK(banyan_session_create(client, &spec, NULL, &h->session, ERR));
}

void held_fork(struct held *to, const struct held *h, banyan_session *session, uint64_t length, uint64_t seed)
{
    *to = (struct held){.session = session, .length = length, .written = length};
    context_copy(&to->context, &h->context);
    context_random(&to->context, length, HELD_ROOM - length, seed);
}

void held_forget(struct held *h, uint64_t length, uint64_t seed)
{
    context_random(&h->context, length, HELD_ROOM - length, seed);
    h->length = h->written = length;
}

void held_free(struct held *h)
{
    banyan_session_close(h->session);
    context_free(&h->context);
    *h = (struct held){0};
}

unsigned held_replicas(const struct held *h)
{
    return h->context.spec.replicas;
}

bool held_ranges_are_right(const struct held *h, bool all_gone, const banyan_error *error)
{
    uint64_t chunk = h->context.spec.chunk_tokens, most = h->written > h->length ? h->written : h->length;
    uint64_t end = all_gone ? UINT64_MAX : (most + chunk - 1) / chunk * chunk, at = 0;
    for (uint32_t i = 0; i < error->n_ranges; i++) {
        const banyan_range *r = &error->ranges[i];
        if (r->count == 0 || r->first < at || r->first > end || r->count > end - r->first)
            return false;
        at = r->first + r->count;
    }
    return true;
}
