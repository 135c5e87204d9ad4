// SPDX-License-Identifier: Apache-2.0
#include "tests/client/mirror.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "examples/rounding.h"
#include "kernels/reference.h"
#include "tests/kernels/gather.h"

struct mirror {
    banyan_spec spec;
    uint64_t tokens;
    size_t element;
    uint8_t **k, **v;           // [layers]: [tokens][kv_heads][dim]
    float **k_scale, **v_scale; // [layers]: [tokens][kv_heads]; NULL: a type without
    float *q;                   // [tokens][q_heads][k_dim]
};

static void *get_memory(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!memory)
        abort();
    return memory;
}

// In (−1, 1), of seed and place.
static float value_at(uint64_t seed, uint64_t place)
{
    return (float)((double)(common_mix64(seed ^ common_mix64(place)) >> 11) * 0x1p-52 - 1.0);
}

// Rows [from, to) of `heads` heads: elements or codes, and scales where the type has them.
static void fill(const struct mirror *m, uint8_t *out, float *scales, uint64_t from, uint64_t to,
                 uint32_t dim, uint64_t seed)
{
    float x[1024];
    for (uint64_t row = from * m->spec.kv_heads; row < to * m->spec.kv_heads; row++) {
        for (uint32_t i = 0; i < dim; i++)
            x[i] = value_at(seed, row * dim + i);
        rounding_pack(m->spec.kv_type, x, 1, dim, out + row * dim * m->element, scales ? scales + row : NULL);
    }
}

void mirror_change(struct mirror *m, uint64_t first, uint64_t seed)
{
    for (uint32_t layer = 0; layer < m->spec.layers; layer++) {
        fill(m, m->k[layer], m->k_scale[layer], first, m->tokens, m->spec.k_dim, seed * 1000 + layer * 2);
        fill(m, m->v[layer], m->v_scale[layer], first, m->tokens, m->spec.v_dim, seed * 1000 + layer * 2 + 1);
    }
}

struct mirror *mirror_new(const banyan_spec *spec, uint64_t tokens, uint64_t seed)
{
    struct mirror *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->spec = *spec;
    if (m->spec.scale == 0)
        m->spec.scale = 1.0f / sqrtf((float)spec->k_dim);
    m->tokens = tokens;
    m->element = rounding_bytes(spec->kv_type);
    m->k = calloc(spec->layers, sizeof(uint8_t *));
    m->v = calloc(spec->layers, sizeof(uint8_t *));
    m->k_scale = calloc(spec->layers, sizeof(float *));
    m->v_scale = calloc(spec->layers, sizeof(float *));
    m->q = get_memory(tokens * spec->q_heads * spec->k_dim * sizeof(float));
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        m->k[layer] = get_memory(tokens * spec->kv_heads * spec->k_dim * m->element);
        m->v[layer] = get_memory(tokens * spec->kv_heads * spec->v_dim * m->element);
        if (!banyan_kv_scaled(spec->kv_type))
            continue;
        m->k_scale[layer] = get_memory(tokens * spec->kv_heads * sizeof(float));
        m->v_scale[layer] = get_memory(tokens * spec->kv_heads * sizeof(float));
    }
    for (uint64_t i = 0; i < tokens * spec->q_heads * spec->k_dim; i++)
        m->q[i] = 4 * value_at(seed + 99, i);
    mirror_change(m, 0, seed);
    return m;
}

void mirror_free(struct mirror *m)
{
    if (!m)
        return;
    for (uint32_t layer = 0; layer < m->spec.layers; layer++) {
        free(m->k[layer]);
        free(m->v[layer]);
        free(m->k_scale[layer]);
        free(m->v_scale[layer]);
    }
    free(m->k);
    free(m->v);
    free(m->k_scale);
    free(m->v_scale);
    free(m->q);
    free(m);
}

const void *mirror_k(const struct mirror *m, uint32_t layer, uint64_t first)
{
    return m->k[layer] + first * m->spec.kv_heads * m->spec.k_dim * m->element;
}

const void *mirror_v(const struct mirror *m, uint32_t layer, uint64_t first)
{
    return m->v[layer] + first * m->spec.kv_heads * m->spec.v_dim * m->element;
}

const float *mirror_k_scale(const struct mirror *m, uint32_t layer, uint64_t first)
{
    return m->k_scale[layer] ? m->k_scale[layer] + first * m->spec.kv_heads : NULL;
}

const float *mirror_v_scale(const struct mirror *m, uint32_t layer, uint64_t first)
{
    return m->v_scale[layer] ? m->v_scale[layer] + first * m->spec.kv_heads : NULL;
}

const float *mirror_q(const struct mirror *m, uint64_t first)
{
    return m->q + first * m->spec.q_heads * m->spec.k_dim;
}

static void compare(double got, double want, double bound, const char *what, uint64_t position, uint32_t head)
{
    if ((isnan(want) && isnan(got)) || got == want || fabs(got - want) <= bound)
        return;
    fail_msg("%s at position %llu, head %u: %.9g, the reference says %.9g (bound %.3g)", what,
             (unsigned long long)position, head, got, want, bound);
}

static void check_head(const struct mirror *m, const struct kernels_spec *spec, uint32_t layer,
                       uint32_t kv_head, uint64_t first, uint32_t rows, uint64_t visible, const float *o,
                       const float *lse)
{
    uint32_t group = kernels_spec_group(spec), dv = spec->v_dim;
    struct kernels_run run;
    struct kernels_job job = {
        .spec = spec,
        .kv_head = kv_head,
        .rows = rows,
        .q_first = first,
        .visible = visible,
        .q = mirror_q(m, first) + (size_t)kv_head * group * spec->k_dim,
        .q_row_stride = (uint64_t)spec->q_heads * spec->k_dim,
        .q_head_stride = spec->k_dim,
        .runs = &run,
        .run_count = 1,
    };
    const struct kernels_interval seen = gather_seen(&job);
    const enum kernels_kv_type type = (enum kernels_kv_type)m->spec.kv_type;
    void *k = gather_rows(type, m->k[layer], spec->kv_heads, spec->k_dim, kv_head, seen);
    void *v = gather_rows(type, m->v[layer], spec->kv_heads, dv, kv_head, seen);
    float *k_scale = gather_scales(m->k_scale[layer], spec->kv_heads, kv_head, seen);
    float *v_scale = gather_scales(m->v_scale[layer], spec->kv_heads, kv_head, seen);
    run = (struct kernels_run){.k = k,
                               .v = v,
                               .first = seen.from,
                               .rows = (uint32_t)(seen.to - seen.from),
                               .k_scale = k_scale,
                               .v_scale = v_scale};
    double *want = calloc((size_t)rows * group * dv, sizeof *want);
    struct kernels_reference_row *judge = calloc((size_t)rows * group, sizeof *judge);
    kernels_reference(&job, m->spec.sinks, want, judge);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t g = 0; g < group; g++) {
            const struct kernels_reference_row *row = &judge[r * group + g];
            size_t at = (size_t)r * spec->q_heads + kv_head * group + g;
            for (uint32_t d = 0; d < dv; d++)
                compare((double)o[at * dv + d], want[((size_t)r * group + g) * dv + d],
                        kernels_reference_bound_o(row), "o", first + r, kv_head * group + g);
            if (lse)
                compare((double)lse[at], row->lse, kernels_reference_bound_lse(row), "lse", first + r,
                        kv_head * group + g);
        }
    free(want);
    free(judge);
    free(k);
    free(v);
    free(k_scale);
    free(v_scale);
}

void mirror_check(const struct mirror *m, uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible,
                  const float *o, const float *lse)
{
    const struct kernels_spec spec = {
        .kv_type = gather_type((enum kernels_kv_type)m->spec.kv_type),
        .k_dim = m->spec.k_dim,
        .v_dim = m->spec.v_dim,
        .q_heads = m->spec.q_heads,
        .kv_heads = m->spec.kv_heads,
        .scale = m->spec.scale,
        .soft_cap = m->spec.soft_cap,
        .window = m->spec.window,
        .alibi = m->spec.alibi,
    };
    if (visible == 0)
        visible = first + rows;
    assert_true(visible <= m->tokens);
    for (uint32_t head = 0; head < spec.kv_heads; head++)
        check_head(m, &spec, layer, head, first, rows, visible, o, lse);
}
