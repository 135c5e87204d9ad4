// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/spec.h"

#include <math.h>
#include <string.h>

#include "coordinator/core.h"
#include "coordinator/sessions/session.h"
#include "proto/kv.h"

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
    if (m->layers < 1 || m->layers > PROTO_LAYERS_MAX)
        return BAD("%u layers: 1 to %u are allowed", m->layers, PROTO_LAYERS_MAX);
    if (m->q_heads < 1 || m->q_heads > PROTO_KV_HEADS_MAX)
        return BAD("%u query heads: 1 to %u are allowed", m->q_heads, PROTO_KV_HEADS_MAX);
    if (m->kv_heads < 1 || m->q_heads % m->kv_heads)
        return BAD("%u query heads over %u KV heads: query heads must be a multiple of KV heads", m->q_heads,
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
                                "this version has no replicas: ask for one holder");
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
