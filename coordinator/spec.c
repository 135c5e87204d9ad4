// SPDX-License-Identifier: Apache-2.0
// What a session is: its specification and name, checked.
#include <math.h>
#include <string.h>

#include "coordinator/membership.h"
#include "coordinator/session.h"
#include "proto/kv.h"

#define LAYERS_MAX 1024

#define BAD(...)                                                                                             \
    proto_status_set(status, COMMON_INVALID_ARGUMENT, "", "the specification is wrong: " __VA_ARGS__)

static bool finite_all(const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

static bool sinks_right(const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(values[i]) || values[i] == INFINITY) // -inf is a sink that takes nothing
            return false;
    return true;
}

enum common_code coordinator_spec_check(Banyan__Pb__Spec *m, struct proto_status *status)
{
    if (m->layers < 1 || m->layers > LAYERS_MAX)
        return BAD("%u layers: 1 to %d are allowed", m->layers, LAYERS_MAX);
    if (m->q_heads < 1 || m->q_heads > PROTO_KV_HEADS_MAX)
        return BAD("%u query heads: 1 to %u are allowed", m->q_heads, PROTO_KV_HEADS_MAX);
    if (m->kv_heads < 1 || m->q_heads % m->kv_heads)
        return BAD("%u query heads over %u KV heads: the one must be a multiple of the other", m->q_heads,
                   m->kv_heads);
    if (m->k_dim < 1 || m->k_dim > PROTO_KV_DIM_MAX)
        return BAD("keys of dimension %u: 1 to %u are allowed", m->k_dim, PROTO_KV_DIM_MAX);
    if (m->v_dim < 1 || m->v_dim > PROTO_KV_DIM_MAX)
        return BAD("values of dimension %u: 1 to %u are allowed", m->v_dim, PROTO_KV_DIM_MAX);
    if (proto_kv_element_bytes(m->kv_type) == 0)
        return BAD("KV type %d: F32, F16, BF16, INT8 or FP8_E4M3 are allowed", (int)m->kv_type);
    if (!isfinite(m->scale) || m->scale < 0)
        return BAD("scale %g: it must be finite and not negative (0: 1/sqrt(k_dim))", (double)m->scale);
    if (!isfinite(m->soft_cap) || m->soft_cap < 0)
        return BAD("soft cap %g: it must be finite and not negative (0: none)", (double)m->soft_cap);
    if ((m->n_alibi && m->n_alibi != m->q_heads) || !finite_all(m->alibi, m->n_alibi))
        return BAD("there must be no ALiBi slopes, or a finite one for each query head");
    if ((m->n_sinks && m->n_sinks != m->q_heads) || !sinks_right(m->sinks, m->n_sinks))
        return BAD("there must be no sinks, or a logit below +inf for each query head");
    if (m->chunk_tokens && (m->chunk_tokens < 16 || m->chunk_tokens > 4096 || m->chunk_tokens % 16))
        return BAD("chunks of %u tokens: a multiple of 16 from 16 to 4096 is allowed (0: 256)",
                   m->chunk_tokens);
    if (m->replicas > 1)
        return proto_status_set(status, COMMON_UNIMPLEMENTED, "",
                                "replicas are not there in this version: ask for one");
    m->chunk_tokens = m->chunk_tokens ? m->chunk_tokens : 256;
    m->scale = m->scale > 0 ? m->scale : 1.0f / sqrtf((float)m->k_dim);
    m->replicas = 1;
    return COMMON_OK;
}

Banyan__Pb__Spec *coordinator_spec_copy(const Banyan__Pb__Spec *spec)
{
    size_t bytes = banyan__pb__spec__get_packed_size(spec);
    uint8_t *packed = coordinator_alloc(bytes + 1);
    banyan__pb__spec__pack(spec, packed);
    Banyan__Pb__Spec *copy = banyan__pb__spec__unpack(NULL, bytes, packed);
    free(packed);
    if (!copy)
        abort();
    return copy;
}

enum common_code coordinator_name_check(const char *name, struct proto_status *status)
{
    size_t len = strlen(name);
    if (len >= COORDINATOR_NAME_BYTES)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                "a name of %zu characters: a session's has at most %d", len,
                                COORDINATOR_NAME_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f)
            return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                    "a session's name must be printable");
    return COMMON_OK;
}

void coordinator_batch_whole_session(struct coordinator_batch *batch, const struct coordinator_session *s)
{
    size_t bytes = banyan__pb__spec__get_packed_size(s->spec);
    uint8_t *packed = coordinator_alloc(bytes + 1);
    banyan__pb__spec__pack(s->spec, packed);
    coordinator_batch_session(batch, s->id, s->name, packed, bytes, s->incarnation, s->layout.epoch);
    for (uint32_t i = 0; i < s->n_members; i++)
        coordinator_batch_member(batch, s->id, s->members[i]->name);
    for (uint32_t i = 0; i < s->layout.n; i++)
        coordinator_batch_chunk(batch, s->id, s->layout.chunks[i].index, s->layout.chunks[i].id,
                                s->layout.chunks[i].lost, s->layout.chunks[i].holder->name);
    free(packed);
}

static void nothing(void *arg, enum common_code code, const char *text)
{
    (void)arg, (void)code, (void)text;
}

void coordinator_session_drop_at_workers(struct coordinator_session *s, struct coordinator_gather *gather)
{
    struct coordinator_gather *own = coordinator_gather_new(nothing, NULL);
    for (uint32_t i = 0; i < s->n_members; i++) {
        if (!s->members[i]->channel)
            continue; // its inventory will name a session that is unknown
        // So may that of one that is joining, or the page is behind us: it is told too, but not waited for.
        bool wait = gather && coordinator_worker_active(s->members[i]);
        Banyan__Pb__SessionDropRequest m = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
        m.term = s->c->term;
        m.session = s->id;
        m.life = coordinator_store_life(s->c->store);
        m.claim = coordinator_reconcile_passed(s->members[i], s->id);
        coordinator_worker_call_gather(s->members[i], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &m.base,
                                       wait ? gather : own);
    }
    coordinator_gather_seal(own);
}
