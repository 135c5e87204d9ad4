// SPDX-License-Identifier: Apache-2.0
// From dots to weights in kernels/portable.c: scales of codes, soft cap and ALiBi, m, exp.
#pragma once

#include "kernels/scalar.h"
#include "kernels/tile.h"

// Dots of codes times their keys' scales, hi + lo as before. scales: by column of the scores.
INLINE void score_scale(struct tile *t, enum kernels_kv_type type, uint32_t columns, const float *scales)
{
    vf factor = vf_splat(type_factor(type));
    for (uint32_t r = 0; r < t->rows; r++) {
        float *hi = t->scores + (size_t)r * ROW, *lo = t->lost + (size_t)r * ROW;
        for (uint32_t c = 0; c < columns; c += LANES) {
            vf scale = vf_load(scales + c), x = vf_load(hi + c) * factor;
            vf product = x * scale;
            vf lost = vf_fma_exact(x, scale, -product);
            vf_store(lo + c, vf_fma(vf_load(lo + c) * factor, scale, lost));
            vf_store(hi + c, product);
        }
    }
}

// Dots of a block to logits, in place, where there is a soft cap or ALiBi: in double, a logit being hi + lo
// as a dot was. first: the position of the block.
static void bend(const struct tile *t, uint32_t r, uint32_t block, uint64_t first)
{
    float *hi = t->scores + (size_t)r * ROW + block * BLOCK, *lo = t->lost + (size_t)r * ROW + block * BLOCK;
    double distance = (double)(int64_t)(first - t->position[r]);
    double scale = t->spec->scale, cap = t->spec->soft_cap, slope = t->slope[r];
    for (uint32_t j = 0; j < BLOCK; j++) {
        double low = isfinite(hi[j]) ? lo[j] : 0, x = ((double)hi[j] + low) * scale;
        if (cap > 0)
            x = cap * kernels_scalar_tanh(x / cap);
        x += slope * (distance + j);
        hi[j] = (float)x;
        lo[j] = (float)(x - hi[j]);
    }
}

static void bend_panel(const struct tile *t, const struct panel *panel)
{
    for (uint32_t r = 0; t->bent && r < t->rows; r++) {
        for (uint32_t b = 0; b < panel->count; b++)
            bend(t, r, b, panel->blocks[b].first);
    }
}

static vi lane_numbers(void)
{
    vi x = {0};
    for (int l = 0; l < LANES; l++)
        x[l] = l;
    return x;
}

// All ones in the lanes of keys begin .. end - 1, the first lane being key `at`.
INLINE vi lane_mask(vi lanes, uint32_t at, uint32_t begin, uint32_t end)
{
    vi key = lanes + (int32_t)at;
    return (key >= (int32_t)begin) & (key < (int32_t)end);
}

// The largest logit among those that the pair sees. Scores are dots, unless bent: then they are logits.
// range: NULL = all columns are seen.
INLINE float largest_logit(const struct tile *t, uint32_t r, uint32_t columns, const struct ranges *range)
{
    const float *x = t->scores + (size_t)r * ROW;
    vi lanes = lane_numbers();
    vf none = vf_splat(-INFINITY), top = none, scale = vf_splat(t->bent ? 1 : t->spec->scale);
    for (uint32_t c = 0; c < columns; c += LANES) {
        uint32_t b = c / BLOCK, l = c % BLOCK;
        if (range && range->begin[b] == range->end[b])
            continue;
        vf y = vf_load(x + c) * scale;
        if (range)
            y = vf_select(lane_mask(lanes, l, range->begin[b], range->end[b]), y, none);
        top = vf_max(y, top); // a NaN is passed over here; its weight will be NaN
    }
    return vf_max_lanes(top);
}

// Weights exp(x - m) in place of scores, zero where the pair does not see the key, times the value's scale if
// there is one. Returns the sum without those scales.
INLINE float weigh(struct tile *t, uint32_t r, uint32_t columns, const struct ranges *range, float m,
                   const float *v_scales)
{
    float *x = t->scores + (size_t)r * ROW;
    const float *lost = t->lost + (size_t)r * ROW;
    vi lanes = lane_numbers();
    vf sum = {0}, scale = vf_splat(t->bent ? 1 : t->spec->scale), minus_m = vf_splat(-m);
    for (uint32_t c = 0; c < columns; c += LANES) {
        uint32_t b = c / BLOCK, l = c % BLOCK;
        if (range && range->begin[b] == range->end[b]) {
            vf_store(x + c, (vf){0});
            continue;
        }
        vf low = vf_finite(vf_load(lost + c)); // what an infinite dot lost is not a number
        vf y = vf_fma(low, scale, vf_fma_exact(vf_load(x + c), scale, minus_m));
        vf w = vf_exp(y), scaled = w;
        if (v_scales)
            scaled = w * vf_load(v_scales + c);
        if (range) {
            vi seen = lane_mask(lanes, l, range->begin[b], range->end[b]);
            w = vf_select(seen, w, (vf){0});
            scaled = vf_select(seen, scaled, (vf){0});
        }
        vf_store(x + c, scaled);
        sum += w;
    }
    return vf_sum_lanes(sum);
}

static void rescale(struct tile *t, uint32_t r, float factor)
{
    float *hi = t->hi + (size_t)r * t->v_pad, *lo = t->lo + (size_t)r * t->v_pad;
    for (uint32_t c = 0; c < t->v_pad; c++) {
        hi[c] *= factor;
        lo[c] *= factor;
    }
    t->s_hi[r] *= factor;
    t->s_lo[r] *= factor;
}

// A pair's m for a panel whose scores are there.
INLINE void softmax_top(struct tile *t, uint32_t r, uint32_t columns, const struct ranges *range)
{
    float largest = largest_logit(t, r, columns, range);
    t->seen[r] = true;
    if (largest > t->top[r])
        t->top[r] = largest;
    if (t->m[r] == -INFINITY) {
        t->m[r] = largest; // nothing but zeros, and what zero times a value gave, to rescale
    } else if (largest > t->m[r] + SLACK) {
        rescale(t, r, (float)kernels_scalar_exp((double)t->m[r] - (double)largest));
        t->m[r] = largest;
    }
}

INLINE void softmax_weigh(struct tile *t, uint32_t r, uint32_t columns, const struct ranges *range,
                          const float *v_scales)
{
    // All logits so far are -inf: any finite m makes their weights zero
    float sum = weigh(t, r, columns, range, t->m[r] == -INFINITY ? 0 : t->m[r], v_scales);
    float hi = t->s_hi[r], total = hi + sum, part = total - hi;
    t->s_lo[r] += (hi - (total - part)) + (sum - part);
    t->s_hi[r] = total;
}

// Scores of whole columns to weights. In two passes: what a weight waits for is long done.
INLINE void softmax_whole(struct tile *t, uint32_t columns, const float *v_scales)
{
    for (uint32_t r = 0; r < t->rows; r++)
        softmax_top(t, r, columns, NULL);
    if (v_scales) {
        for (uint32_t r = 0; r < t->rows; r++)
            softmax_weigh(t, r, columns, NULL, v_scales);
    } else {
        for (uint32_t r = 0; r < t->rows; r++)
            softmax_weigh(t, r, columns, NULL, NULL);
    }
}
