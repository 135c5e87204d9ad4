// SPDX-License-Identifier: Apache-2.0
// A tile of kernels/portable.c: its query rows, what they see, their sums, and where these lie in the
// scratch.
#pragma once

#include <math.h>

#include "kernels/matrix.h"
#include "kernels/wide.h"

#define TILE        64u // (query row, head) pairs
#define WIDE        (LANES == 16 ? 17u : 9u)
#define COPIED      8u   // pairs from which costly conversions are done once
#define WIDE_BLOCKS 4u   // converted keys of 128 dims take 32 KB, of a cache of 32 or 48
#define SLACK       4.0f // how far a logit may pass the m in use

_Static_assert(TILE <= KERNELS_MATRIX_ROWS, "a tile's pairs fit the matrix units' space");

struct tile {
    const struct kernels_job *job;
    const struct kernels_spec *spec;
    uint64_t first; // of the job's pairs
    uint32_t rows;  // pairs in this tile
    uint32_t k_dim, v_dim, k_pad, v_pad;
    uint32_t v_stride; // elements from a value to the next
    bool wide;
    uint32_t blocks; // of a full panel
    bool in_place;   // whole panels may be read where they lie
    bool bent;       // soft cap or ALiBi: scores become logits before their maximum is taken
    float *q, *scores, *lost, *keys, *values, *hi, *lo; // a dot is scores + lost
    uint64_t position[TILE], from[TILE], to[TILE]; // a pair's query position; it sees keys from .. to - 1
    uint64_t all_from, all_to;                     // what all pairs see
    float slope[TILE];
    float m[TILE], top[TILE]; // m in use, and the largest logit seen
    float s_hi[TILE], s_lo[TILE];
    bool seen[TILE];
    const struct kernels_matrix_ops *units; // matrix units that take the panels, or NULL
    struct kernels_matrix matrix;
};

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

// Floats of each part of the scratch; all are multiples of 16. First what all jobs use in turn, then q, hi
// and lo of each.
struct layout {
    uint64_t scores, keys, values, q, sums;
};

static struct layout layout_of(const struct kernels_spec *spec, uint64_t pairs)
{
    uint64_t k_pad = round_up(spec->k_dim, 32), v_pad = round_up(spec->v_dim, 32);
    uint64_t rows = pairs < WIDE ? WIDE - 1 : round_up(TILE, WIDE_ROWS);
    return (struct layout){.scores = rows * ROW,
                           .keys = CONVERTED_BLOCKS * BLOCK * k_pad,
                           .values = CONVERTED_BLOCKS * BLOCK * v_pad,
                           .q = rows * k_pad,
                           .sums = rows * v_pad};
}

static uint64_t layout_bytes(const struct kernels_spec *spec, uint64_t pairs, uint64_t jobs)
{
    struct layout l = layout_of(spec, pairs);
    return (2 * l.scores + l.keys + l.values + jobs * (l.q + 2 * l.sums)) * sizeof(float);
}

// Enough for fewer rows, too.
static uint64_t scratch_bytes(const struct kernels_spec *spec, uint32_t rows, uint32_t jobs)
{
    uint64_t few = layout_bytes(spec, 1, jobs < KERNELS_JOBS ? jobs : KERNELS_JOBS);
    uint64_t many = layout_bytes(spec, (uint64_t)rows * kernels_spec_group(spec), 1);
    return few > many ? few : many;
}

// Keys with values in them are long. Many pairs, too, read them along their dims then: sums of lanes are few,
// and copies, transposed or not, are more than a first cache holds.
static bool long_keys(const struct kernels_spec *spec)
{
    return spec->v_in_k && LANES > 4;
}

static const float *row_q(const struct tile *t, uint32_t r)
{
    uint64_t pair = t->first + r, group = kernels_spec_group(t->spec);
    return t->job->q + pair / group * t->job->q_row_stride + pair % group * t->job->q_head_stride;
}

// The tile of one of the jobs that are run together: its number among them.
static void tile_init(struct tile *t, const struct kernels_job *job, uint32_t number, uint64_t first,
                      uint32_t rows, float *scratch)
{
    const struct kernels_spec *spec = job->spec;
    uint32_t group = kernels_spec_group(spec);
    struct layout l = layout_of(spec, (uint64_t)job->rows * group);
    struct kernels_mask mask = kernels_job_mask(job);
    t->job = job;
    t->spec = spec;
    t->first = first;
    t->rows = rows;
    t->k_dim = spec->k_dim;
    t->v_dim = spec->v_dim;
    t->v_stride = spec->v_in_k ? spec->k_dim : spec->v_dim;
    t->k_pad = round_up(spec->k_dim, 2 * LANES);
    t->v_pad = round_up(spec->v_dim, 2 * LANES);
    t->wide = rows >= WIDE && !long_keys(spec);
    bool copied = long_keys(spec) && rows >= COPIED && type_costly(spec->kv_type);
    t->in_place = !t->wide && !copied && type_pairs(spec->k_dim) && type_pairs(spec->v_dim);
    // fp8 is looked through for NaN first: what fits a first cache
    bool long_panels = t->in_place && spec->kv_type != KERNELS_KV_FP8;
    t->blocks = t->wide ? WIDE_BLOCKS : long_panels ? MOST_BLOCKS : type_blocks(spec->kv_type);
    t->bent = spec->soft_cap > 0 || spec->alibi;
    t->scores = scratch;
    t->lost = t->scores + l.scores;
    t->keys = t->lost + l.scores;
    t->values = t->keys + l.keys;
    t->q = t->values + l.values + number * (l.q + 2 * l.sums);
    t->hi = t->q + l.q;
    t->lo = t->hi + l.sums;
    t->units = NULL;
    t->all_from = 0;
    t->all_to = UINT64_MAX;
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t i = (first + r) / group, h = (first + r) % group;
        uint64_t p = job->q_first + i;
        t->position[r] = p;
        struct kernels_interval sees = kernels_row_interval(&mask, p);
        t->from[r] = sees.from;
        t->to[r] = sees.to;
        t->all_from = t->from[r] > t->all_from ? t->from[r] : t->all_from;
        t->all_to = t->to[r] < t->all_to ? t->to[r] : t->all_to;
        t->slope[r] = spec->alibi ? spec->alibi[(uint64_t)job->kv_head * group + h] : 0;
        t->m[r] = t->top[r] = -INFINITY;
        t->s_hi[r] = t->s_lo[r] = 0;
        t->seen[r] = false;
        float *q = t->q + (size_t)r * t->k_pad;
        if (t->k_pad != t->k_dim)
            memset(q, 0, t->k_pad * sizeof(float));
        type_arrange(spec->kv_type, t->k_dim, row_q(t, r), q);
    }
    uint32_t full = t->wide ? round_up(rows, WIDE_ROWS) : rows; // the wide path works on whole row tiles
    memset(t->q + (size_t)rows * t->k_pad, 0, (size_t)(full - rows) * t->k_pad * sizeof(float));
    memset(t->hi, 0, (size_t)rows * t->v_pad * sizeof(float));
    memset(t->lo, 0, (size_t)rows * t->v_pad * sizeof(float));
}

// Which keys of each block of the panel a pair sees. False: none.
static bool row_ranges(const struct tile *t, const struct panel *panel, uint32_t r, struct ranges *out)
{
    bool any = false;
    for (uint32_t b = 0; b < panel->count; b++) {
        const struct block *x = &panel->blocks[b];
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
