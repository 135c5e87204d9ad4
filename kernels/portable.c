// SPDX-License-Identifier: Apache-2.0
// The portable kernel: any dims, any group, many rows, float32 accumulation, in C with vector extensions.
// Compiled once per instruction set (kernels/CMakeLists.txt gives KERNELS_VARIANT), so its name says what
// decides its bits.
//
// A tile of at most 64 (query row, head) pairs goes over the keys in panels of 4 blocks of 16 keys:
//
//        panel of keys         scores S          weights P = exp(S - m)       hi, lo += P V
//      +---------------+     64 x 64 floats  ->  in place                 ->  64 x v_dim each
//      | 4 x 16 keys   |
//      +---------------+
//
// Accuracy. A logit is hi + lo until m is taken off, for the weights' sake. The sum over panels is
// compensated (hi + lo), so the error does not grow with the number of keys; inside a panel at most 16 + 4
// roundings follow each other. m rises only when a logit passes it by 4, which keeps rescaling, and its
// roundings, rare; the true largest logit is put in at the end.
//
// Two paths: from WIDE rows on, a panel is converted and transposed once and all loops run along keys or
// columns; below, keys are read where they lie (or from a padded copy if a dim is no multiple of the vector).
#include <assert.h>
#include <math.h>

#include "kernels/portable_tiles.h"
#include "kernels/scalar.h"
#include "kernels/variants.h"

#define TILE  64u // (query row, head) pairs
#define WIDE  8u
#define SLACK 4.0f // how far a logit may pass the m in use

struct tile {
    const struct kernels_job *job;
    const struct kernels_spec *spec;
    uint32_t rows; // pairs in this tile
    uint32_t k_dim, v_dim, k_pad, v_pad;
    bool wide, copy_k, copy_v;
    float *q, *scores, *lost, *keys, *values, *hi, *lo; // a dot is scores + lost
    uint64_t position[TILE], from[TILE], to[TILE]; // a pair's query position; it sees keys from .. to - 1
    float slope[TILE];
    float m[TILE], top[TILE]; // m in use, and the largest logit seen
    float s_hi[TILE], s_lo[TILE];
    bool seen[TILE];
    uint32_t block_count;
    struct block blocks[PANEL_BLOCKS];
};

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

// Floats of each part of the scratch; all are multiples of 16.
struct layout {
    uint64_t q, scores, keys, values, sums;
};

static struct layout layout_of(const struct kernels_spec *spec)
{
    uint64_t k_pad = round_up(spec->k_dim, 16), v_pad = round_up(spec->v_dim, 16);
    return (struct layout){.q = TILE * k_pad,
                           .scores = TILE * PANEL,
                           .keys = PANEL * k_pad,
                           .values = PANEL * v_pad,
                           .sums = TILE * v_pad};
}

static uint64_t scratch_bytes(const struct kernels_spec *spec, uint32_t rows)
{
    (void)rows;
    struct layout l = layout_of(spec);
    return (l.q + 2 * l.scores + l.keys + l.values + 2 * l.sums) * sizeof(float);
}

static void tile_init(struct tile *t, const struct kernels_job *job, uint64_t first, uint32_t rows,
                      float *scratch)
{
    const struct kernels_spec *spec = job->spec;
    uint32_t group = kernels_spec_group(spec);
    struct layout l = layout_of(spec);
    t->job = job;
    t->spec = spec;
    t->rows = rows;
    t->k_dim = spec->k_dim;
    t->v_dim = spec->v_dim;
    t->k_pad = round_up(spec->k_dim, LANES);
    t->v_pad = round_up(spec->v_dim, LANES);
    t->wide = rows >= WIDE;
    t->copy_k = !t->wide && t->k_pad != t->k_dim;
    t->copy_v = t->v_pad != t->v_dim || (t->wide && spec->kv_type != KERNELS_KV_F32);
    t->q = scratch;
    t->scores = t->q + l.q;
    t->lost = t->scores + l.scores;
    t->keys = t->lost + l.scores;
    t->values = t->keys + l.keys;
    t->hi = t->values + l.values;
    t->lo = t->hi + l.sums;
    t->block_count = 0;
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t i = (first + r) / group, h = (first + r) % group;
        uint64_t p = job->q_first + i;
        t->position[r] = p;
        t->to[r] = job->visible <= p ? job->visible : p + 1;
        t->from[r] = spec->window && p >= spec->window ? p - spec->window + 1 : 0;
        t->slope[r] = spec->alibi ? spec->alibi[(uint64_t)job->kv_head * group + h] : 0;
        t->m[r] = t->top[r] = -INFINITY;
        t->s_hi[r] = t->s_lo[r] = 0;
        t->seen[r] = false;
        float *q = t->q + (size_t)r * t->k_pad;
        memset(q, 0, t->k_pad * sizeof(float));
        memcpy(q, job->q + i * job->q_row_stride + h * job->q_head_stride, t->k_dim * sizeof(float));
    }
    uint32_t full = round_up(rows, WIDE_ROWS); // the wide path works on whole row tiles
    memset(t->q + (size_t)rows * t->k_pad, 0, (size_t)(full - rows) * t->k_pad * sizeof(float));
    memset(t->hi, 0, (size_t)full * t->v_pad * sizeof(float));
    memset(t->lo, 0, (size_t)full * t->v_pad * sizeof(float));
}

// Which keys of each block of the panel a pair sees. False: none.
static bool row_ranges(const struct tile *t, uint32_t r, struct ranges *out)
{
    bool any = false;
    for (uint32_t b = 0; b < t->block_count; b++) {
        const struct block *x = &t->blocks[b];
        uint64_t begin = x->first + x->begin, end = x->first + x->end;
        if (begin < t->from[r])
            begin = t->from[r];
        if (end > t->to[r])
            end = t->to[r];
        if (end <= begin)
            begin = end = x->first;
        out->begin[b] = (uint32_t)(begin - x->first);
        out->end[b] = (uint32_t)(end - x->first);
        any = any || begin < end;
    }
    return any;
}

INLINE void score_panel(struct tile *t, enum kernels_kv_type type)
{
    if (t->wide) {
        for (uint32_t b = 0; b < t->block_count; b++)
            transpose_block(type, &t->blocks[b], t->k_dim, t->keys + b * BLOCK);
        for (uint32_t c = 0; c < t->block_count * BLOCK; c += WIDE_KEYS) {
            for (uint32_t r = 0; r < t->rows; r += WIDE_ROWS)
                dot_wide(t->q + (size_t)r * t->k_pad, t->k_pad, t->keys + c, t->k_dim,
                         t->scores + (size_t)r * PANEL + c, t->lost + (size_t)r * PANEL + c);
        }
        return;
    }
    for (uint32_t b = 0; b < t->block_count; b++) {
        const struct block *x = &t->blocks[b];
        const char *k = x->k;
        size_t stride = t->k_dim * type_bytes(type);
        enum kernels_kv_type as = type;
        if (t->copy_k) {
            copy_rows(type, k, x, t->k_dim, t->k_pad, t->keys);
            k = (const char *)t->keys;
            stride = t->k_pad * sizeof(float);
            as = KERNELS_KV_F32;
        }
        for (uint32_t r = 0; r < t->rows;) {
            const float *q = t->q + (size_t)r * t->k_pad;
            float *hi = t->scores + (size_t)r * PANEL + b * BLOCK,
                  *lo = t->lost + (size_t)r * PANEL + b * BLOCK;
            uint32_t left = t->rows - r;
            if (left >= 3 && LANES == 16) {
                dot_rows(as, 4, q, left, k, stride, x->begin, x->end, t->k_pad, hi, lo);
                r += 4;
            } else if (left >= 2) {
                dot_rows(as, 2, q, left, k, stride, x->begin, x->end, t->k_pad, hi, lo);
                r += 2;
            } else {
                dot_rows(as, 1, q, left, k, stride, x->begin, x->end, t->k_pad, hi, lo);
                r += 1;
            }
        }
    }
}

static float sum_lanes(vf x)
{
    float v[LANES];
    vf_store(v, x);
    for (uint32_t half = LANES / 2; half; half /= 2) {
        for (uint32_t l = 0; l < half; l++)
            v[l] += v[l + half];
    }
    return v[0];
}

static float max_lanes(vf x)
{
    float v[LANES];
    vf_store(v, x);
    for (uint32_t half = LANES / 2; half; half /= 2) {
        for (uint32_t l = 0; l < half; l++)
            v[l] = v[l] > v[l + half] ? v[l] : v[l + half];
    }
    return v[0];
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

// tanh in plain double, accurate to 1e-10 and free of branches, so that loops over it vectorise. Odd series
// near zero, where 1 - 2 / (e^2x + 1) would cancel.
INLINE double tanh_of(double x)
{
    double a = x < 0 ? -x : x, z = x * x;
    double near = a * (1 + z * (-1.0 / 3 + z * (2.0 / 15 + z * (-17.0 / 315 + z * (62.0 / 2835)))));
    double y = 2 * (a > 20 ? 20 : a), t = y * 1.4426950408889634 + 0x1.8p52;
    double r = y - (t - 0x1.8p52) * 0.6931471805599453;
    double p = 1.0 / 3628800;
    for (int k = 9; k >= 0; k--) { // e^r, |r| <= 0.35: terms to r^10 / 10!
        static const double factor[] = {1,         1,         1.0 / 2,    1.0 / 6,     1.0 / 24,
                                        1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880};
        p = p * r + factor[k];
    }
    uint64_t bits;
    memcpy(&bits, &t, sizeof(bits));
    double far = 1 - 2 / (p * kernels_scalar_bits((bits + 1023) << 52) + 1);
    double up = a < 0.05 ? near : far;
    return x < 0 ? -up : up;
}

// Dots to logits, in place, where there is a soft cap or ALiBi: in double, a logit being hi + lo as a dot
// was.
static void bend_block(const struct tile *t, uint32_t r, uint32_t b)
{
    float *hi = t->scores + (size_t)r * PANEL + b * BLOCK, *lo = t->lost + (size_t)r * PANEL + b * BLOCK;
    double distance = (double)(int64_t)(t->blocks[b].first - t->position[r]);
    double scale = t->spec->scale, cap = t->spec->soft_cap, slope = t->slope[r];
    for (uint32_t j = 0; j < BLOCK; j++) {
        double low = isfinite(hi[j]) ? lo[j] : 0, x = ((double)hi[j] + low) * scale;
        if (cap > 0)
            x = cap * tanh_of(x / cap);
        x += slope * (distance + j);
        hi[j] = (float)x;
        lo[j] = (float)(x - hi[j]);
    }
}

// The largest logit among those that the pair sees. Scores are dots, unless `bent`: then they are logits.
INLINE float largest_logit(struct tile *t, uint32_t r, const struct ranges *range, vi lanes, bool bent)
{
    const float *x = t->scores + (size_t)r * PANEL;
    vf none = vf_splat(-INFINITY), top = none, scale = vf_splat(bent ? 1 : t->spec->scale);
    for (uint32_t b = 0; b < t->block_count; b++) {
        if (range->begin[b] == range->end[b])
            continue;
        if (bent)
            bend_block(t, r, b);
        bool whole = range->begin[b] == 0 && range->end[b] == BLOCK;
        for (uint32_t l = 0; l < BLOCK; l += LANES) {
            vf y = vf_load(x + b * BLOCK + l) * scale;
            if (!whole)
                y = vf_select(lane_mask(lanes, l, range->begin[b], range->end[b]), y, none);
            top = vf_max(y, top); // a NaN is passed over here; its weight will be NaN
        }
    }
    return max_lanes(top);
}

// Weights exp(x - m) in place of scores, zero where the pair does not see the key. Returns their sum.
INLINE float weigh(struct tile *t, uint32_t r, const struct ranges *range, vi lanes, float m, bool bent)
{
    float *x = t->scores + (size_t)r * PANEL;
    const float *lost = t->lost + (size_t)r * PANEL;
    vf sum = {0}, scale = vf_splat(bent ? 1 : t->spec->scale), minus_m = vf_splat(-m);
    for (uint32_t b = 0; b < t->block_count; b++) {
        if (range->begin[b] == range->end[b])
            continue;
        bool whole = range->begin[b] == 0 && range->end[b] == BLOCK;
        for (uint32_t l = 0; l < BLOCK; l += LANES) {
            vf low = vf_load(lost + b * BLOCK + l);
            low = vf_select(low == low, low, (vf){0}); // what an infinite dot lost is NaN
            vf y = vf_fma(low, scale, vf_fma_exact(vf_load(x + b * BLOCK + l), scale, minus_m));
            vf w = vf_exp(y);
            if (!whole)
                w = vf_select(lane_mask(lanes, l, range->begin[b], range->end[b]), w, (vf){0});
            vf_store(x + b * BLOCK + l, w);
            sum += w;
        }
    }
    return sum_lanes(sum);
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

INLINE void softmax_row(struct tile *t, uint32_t r, const struct ranges *range, bool bent)
{
    vi lanes = lane_numbers();
    float largest = largest_logit(t, r, range, lanes, bent);
    t->seen[r] = true;
    if (largest > t->top[r])
        t->top[r] = largest;
    if (t->m[r] == -INFINITY) {
        t->m[r] = largest; // nothing but zeros, and what zero times a value gave, to rescale
    } else if (largest > t->m[r] + SLACK) {
        rescale(t, r, (float)kernels_scalar_exp((double)t->m[r] - (double)largest));
        t->m[r] = largest;
    }
    // All logits so far are -inf: any finite m makes their weights zero
    float sum = weigh(t, r, range, lanes, t->m[r] == -INFINITY ? 0 : t->m[r], bent);
    float hi = t->s_hi[r], total = hi + sum, part = total - hi;
    t->s_lo[r] += (hi - (total - part)) + (sum - part);
    t->s_hi[r] = total;
}

static bool same_ranges(const struct ranges *a, const struct ranges *b, uint32_t blocks)
{
    return !memcmp(a->begin, b->begin, blocks * sizeof(a->begin[0])) &&
           !memcmp(a->end, b->end, blocks * sizeof(a->end[0]));
}

// seen[r]: ranges of pair r; rows without any have begin == end everywhere.
INLINE void fold_panel(struct tile *t, enum kernels_kv_type type, const struct values *v,
                       const struct ranges *range)
{
    for (uint32_t r = 0; r < t->rows;) {
        uint32_t alike = 1, most = t->rows - r < 4 ? t->rows - r : 4;
        while (alike < most && same_ranges(&range[r], &range[r + alike], v->blocks))
            alike++;
        const float *w = t->scores + (size_t)r * PANEL;
        float *hi = t->hi + (size_t)r * t->v_pad, *lo = t->lo + (size_t)r * t->v_pad;
        if (alike == 4 && LANES == 16) {
            fold_value_rows(type, 4, w, v, &range[r], t->v_pad, hi, lo);
            r += 4;
        } else if (alike >= 2) {
            fold_value_rows(type, 2, w, v, &range[r], t->v_pad, hi, lo);
            r += 2;
        } else {
            fold_value_rows(type, 1, w, v, &range[r], t->v_pad, hi, lo);
            r += 1;
        }
    }
}

INLINE void run_panel(struct tile *t, enum kernels_kv_type type)
{
    struct ranges range[TILE];
    score_panel(t, type);
    bool bent = t->spec->soft_cap > 0 || t->spec->alibi;
    for (uint32_t r = 0; r < t->rows; r++) {
        if (!row_ranges(t, r, &range[r]))
            continue;
        if (bent)
            softmax_row(t, r, &range[r], true);
        else
            softmax_row(t, r, &range[r], false);
    }
    struct values v = {.blocks = t->block_count};
    for (uint32_t b = 0; b < t->block_count; b++) {
        v.rows[b] = t->blocks[b].v;
        if (t->copy_v) {
            float *out = t->values + (size_t)b * BLOCK * t->v_pad;
            copy_rows(type, t->blocks[b].v, &t->blocks[b], t->v_dim, t->v_pad, out);
            v.rows[b] = (const char *)out;
        }
    }
    v.stride = t->copy_v ? t->v_pad * sizeof(float) : t->v_dim * type_bytes(type);
    if (t->copy_v)
        fold_panel(t, KERNELS_KV_F32, &v, range);
    else
        fold_panel(t, type, &v, range);
    t->block_count = 0;
}

static void flush_panel(struct tile *t)
{
    if (t->block_count == 0)
        return;
    switch (t->spec->kv_type) {
    case KERNELS_KV_F16:
        run_panel(t, KERNELS_KV_F16);
        break;
    case KERNELS_KV_BF16:
        run_panel(t, KERNELS_KV_BF16);
        break;
    default:
        run_panel(t, KERNELS_KV_F32);
        break;
    }
}

// Cuts a run into blocks from its start and hands on those of which the tile sees a key.
static void feed_run(struct tile *t, const struct kernels_run *run)
{
    uint64_t from = t->from[0], to = t->to[t->rows - 1]; // both rise with the row
    uint64_t begin = from > run->first ? from - run->first : 0;
    uint64_t end = to > run->first ? to - run->first : 0;
    if (end > run->rows)
        end = run->rows;
    size_t bytes = kernels_kv_bytes(t->spec->kv_type);
    for (uint64_t at = begin / BLOCK * BLOCK; at < end; at += BLOCK) {
        struct block *b = &t->blocks[t->block_count++];
        b->k = (const char *)run->k + at * t->k_dim * bytes;
        b->v = (const char *)run->v + at * t->v_dim * bytes;
        b->first = run->first + at;
        b->begin = begin > at ? (uint32_t)(begin - at) : 0;
        b->end = end - at < BLOCK ? (uint32_t)(end - at) : BLOCK;
        if (t->block_count == PANEL_BLOCKS)
            flush_panel(t);
    }
}

static void finish_row(const struct tile *t, uint32_t r, float *m, float *s, float *o)
{
    const float *hi = t->hi + (size_t)r * t->v_pad, *lo = t->lo + (size_t)r * t->v_pad;
    if (!t->seen[r]) {
        *m = -INFINITY;
        *s = 0;
        memset(o, 0, t->v_dim * sizeof(float));
        return;
    }
    float factor =
        t->m[r] == -INFINITY ? 1.0f : (float)kernels_scalar_exp((double)t->m[r] - (double)t->top[r]);
    bool nan = false;
    for (uint32_t c = 0; c < t->v_dim; c++) {
        float sum = isfinite(hi[c]) ? hi[c] + lo[c] : hi[c]; // what an infinite hi lost is NaN
        o[c] = sum * factor;
        nan = nan || isnan(o[c]);
    }
    *m = t->top[r];
    *s = (isfinite(t->s_hi[r]) ? t->s_hi[r] + t->s_lo[r] : t->s_hi[r]) * factor;
    if (*s == 0)
        *s = nan ? NAN : -0.0f; // keys seen, no mass: kernels/partial.h
}

static void run(const struct kernels_job *job, void *scratch)
{
    uint32_t group = kernels_spec_group(job->spec), v_dim = job->spec->v_dim;
    uint64_t pairs = (uint64_t)job->rows * group;
    assert(job->out.rows == job->rows && job->out.heads == group && job->out.dv == v_dim);
    struct tile t;
    for (uint64_t first = 0; first < pairs; first += TILE) {
        uint32_t rows = pairs - first < TILE ? (uint32_t)(pairs - first) : TILE;
        tile_init(&t, job, first, rows, scratch);
        for (uint32_t i = 0; i < job->run_count; i++)
            feed_run(&t, &job->runs[i]);
        flush_panel(&t);
        for (uint32_t r = 0; r < rows; r++)
            finish_row(&t, r, job->out.m + first + r, job->out.s + first + r,
                       job->out.o + (size_t)(first + r) * v_dim);
    }
}

static bool supports(const struct kernels_spec *spec)
{
    return !kernels_kv_scaled(spec->kv_type);
}

#if LANES == 16
const struct kernels_attention kernels_portable_avx512 = {
    .name = "portable-avx512",
    .rank = 30,
    .usable = kernels_cpu_avx512,
#elif LANES == 8
const struct kernels_attention kernels_portable_avx2 = {
    .name = "portable-avx2",
    .rank = 20,
    .usable = kernels_cpu_avx2,
#else
const struct kernels_attention kernels_portable = {
    .name = "portable",
    .rank = 10,
#endif
    .supports = supports,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
