// SPDX-License-Identifier: Apache-2.0
#include "kernels/partial.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/scalar.h"

#define ALIGN 64u

// Lengths of the two small planes and of o in bytes, each padded. False if the block passes 2^62 bytes.
static bool plane_bytes(uint32_t rows, uint32_t heads, uint32_t dv, uint64_t *small, uint64_t *large)
{
    uint64_t n = (uint64_t)rows * heads; // < 2^64
    if (n == 0 || dv == 0 || n > (UINT64_C(1) << 59) / dv)
        return false;
    *small = (n * sizeof(float) + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    *large = (n * dv * sizeof(float) + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    return *large <= (UINT64_C(1) << 62) - 2 * *small;
}

uint64_t kernels_partial_bytes(uint32_t rows, uint32_t heads, uint32_t dv)
{
    uint64_t small, large;
    return plane_bytes(rows, heads, dv, &small, &large) ? 2 * small + large : 0;
}

void kernels_partial_view(void *block, uint32_t rows, uint32_t heads, uint32_t dv,
                          struct kernels_partial *out)
{
    uint64_t small = 0, large = 0;
    bool fits = plane_bytes(rows, heads, dv, &small, &large);
    assert(fits && (uintptr_t)block % ALIGN == 0);
    char *base = block;
    *out = (struct kernels_partial){.rows = rows,
                                    .heads = heads,
                                    .dv = dv,
                                    .m = (float *)base,
                                    .s = (float *)(base + small),
                                    .o = (float *)(base + 2 * small)};
}

void kernels_partial_pad(void *block, uint32_t rows, uint32_t heads, uint32_t dv)
{
    uint64_t small = 0, large = 0;
    bool fits = plane_bytes(rows, heads, dv, &small, &large);
    assert(fits);
    char *base = block;
    uint64_t n = (uint64_t)rows * heads * sizeof(float);
    memset(base + n, 0, small - n);
    memset(base + small + n, 0, small - n);
    memset(base + 2 * small + n * dv, 0, large - n * dv);
}

void kernels_partial_reset(const struct kernels_partial *p)
{
    size_t n = (size_t)p->rows * p->heads;
    for (size_t i = 0; i < n; i++)
        p->m[i] = -INFINITY;
    memset(p->s, 0, n * sizeof(float));
    memset(p->o, 0, n * p->dv * sizeof(float));
}

static bool massless(float m, float s)
{
    return s == 0 && !isnan(m);
}

static void merge_one(float *m, float *s, float *o, float from_m, float from_s, const float *from_o,
                      uint32_t dv)
{
    if (massless(from_m, from_s)) {
        if (signbit(from_s) && massless(*m, *s))
            *s = -0.0f; // keys were seen, if without mass
        return;
    }
    if (massless(*m, *s)) {
        *m = from_m;
        *s = from_s;
        memcpy(o, from_o, dv * sizeof(float));
        return;
    }
    // The larger m, or a NaN. Where both are infinite the difference is NaN, and so are both factors.
    float top = isnan(*m) || *m >= from_m ? *m : from_m;
    float a = (float)kernels_scalar_exp((double)*m - (double)top);
    float b = (float)kernels_scalar_exp((double)from_m - (double)top);
    *m = top;
    *s = *s * a + from_s * b;
    for (uint32_t i = 0; i < dv; i++)
        o[i] = o[i] * a + from_o[i] * b;
}

void kernels_partial_merge_at(const struct kernels_partial *into, uint32_t first_row, uint32_t first_head,
                              const struct kernels_partial *from)
{
    assert(into->dv == from->dv && first_row <= into->rows && from->rows <= into->rows - first_row &&
           first_head <= into->heads && from->heads <= into->heads - first_head);
    uint32_t dv = into->dv;
    for (uint32_t r = 0; r < from->rows; r++) {
        for (uint32_t h = 0; h < from->heads; h++) {
            size_t i = ((size_t)first_row + r) * into->heads + first_head + h,
                   j = (size_t)r * from->heads + h;
            merge_one(into->m + i, into->s + i, into->o + i * dv, from->m[j], from->s[j], from->o + j * dv,
                      dv);
        }
    }
}

void kernels_partial_merge(const struct kernels_partial *into, const struct kernels_partial *from)
{
    assert(into->rows == from->rows && into->heads == from->heads);
    kernels_partial_merge_at(into, 0, 0, from);
}

// Ends one partial: o = in * scale, and the log-sum-exp.
static float finish_one(float m, float s, const float *in, float sink, uint32_t dv, float *o)
{
    if (massless(m, s)) {
        // 0/0 where keys were seen, unless a sink takes the mass; nothing seen gives zeros
        float fill = isnan(sink) || (signbit(s) && sink == -INFINITY) ? NAN : 0.0f;
        for (uint32_t i = 0; i < dv; i++)
            o[i] = fill;
        return sink;
    }
    if (isnan(m))
        s = NAN; // the weight of o is unknown
    if (sink == -INFINITY) {
        for (uint32_t i = 0; i < dv; i++)
            o[i] = in[i] / s;
        return (float)((double)m + kernels_scalar_log(s));
    }
    double top = isnan(m) || m >= sink ? m : sink;
    double a = kernels_scalar_exp(m - top), mass = s * a + kernels_scalar_exp(sink - top);
    for (uint32_t i = 0; i < dv; i++)
        o[i] = (float)(in[i] * a / mass);
    return (float)(top + kernels_scalar_log(mass));
}

void kernels_partial_finish(const struct kernels_partial *p, const float *sinks, float *o, float *lse)
{
    for (uint32_t r = 0; r < p->rows; r++) {
        for (uint32_t h = 0; h < p->heads; h++) {
            size_t i = (size_t)r * p->heads + h;
            lse[i] = finish_one(p->m[i], p->s[i], p->o + i * p->dv, sinks ? sinks[h] : -INFINITY, p->dv,
                                o + i * p->dv);
        }
    }
}

void kernels_coverage_count(struct kernels_coverage *c, uint64_t chunk_id, uint64_t rows, uint64_t epoch)
{
    if (rows == 0)
        return;
    c->tokens += rows;
    c->sum += kernels_coverage_mix(chunk_id, rows, epoch);
}

void kernels_coverage_add(struct kernels_coverage *into, const struct kernels_coverage *from)
{
    into->tokens += from->tokens;
    into->sum += from->sum;
}

bool kernels_coverage_equal(const struct kernels_coverage *a, const struct kernels_coverage *b)
{
    return a->tokens == b->tokens && a->sum == b->sum;
}
