// SPDX-License-Identifier: Apache-2.0
// The seam between users of attention over stored keys (worker/executor) and the code that computes it (one
// file a variant).
//
// One job = one KV head, a list of key runs, and all query rows and query heads of its group, so each key is
// read once for its whole group. Jobs of several KV heads of the same step are run together, so that memory
// in which heads alternate is read from its beginning to its end. With p = q_first + i the global position of
// query row i, j a key's global position, h a query head:
//
//     x = scale * (q[i][h] . k[j])             then, if soft_cap > 0:  x = soft_cap * tanh(x / soft_cap)
//     x = x + alibi[h] * (j - p)               if alibi is not NULL (alibi[h] >= 0 is a penalty on distance)
//
//     row i sees key j  iff  from(p) <= j < to(p)
//
//     from(p) = max(0, p - window + 1 if window > 0, floor(p / mask_chunk) * mask_chunk if mask_chunk > 0)
//     to(p)   = p + 1, or visible if not_causal
//     and if block_first <= p < block_end: from(p) is at most block_first, to(p) at least block_end
//     and to(p) is at most visible
//
// So each row sees one interval of positions (kernels_row_interval), whose ends do not fall from one row to
// the next. out = the partial (m, s, o) of the seen keys (kernels/partial.h). A key that no row sees is not read,
// and one that a row does not see cannot reach that row: NaN in it does not leak. NaN and Inf in what is seen
// flow through as IEEE says. A weight below exp(-87) of the largest may be taken as zero. Sums of weight
// times value must fit float32: |v| * keys < 1e36.
//
// Bits. A kernel's result is a function of the job alone: not of threads, of scratch contents, of addresses,
// of what other jobs are run together with it. The keys of a job are folded in blocks of KERNELS_BLOCK keys,
// counted from the start of each run; a block never spans two runs. So a stretch of keys may be cut into runs
// at any multiple of KERNELS_BLOCK from its start without changing a bit, and one cut elsewhere changes bits
// but not exactness. Keys that no row sees are still counted into blocks: what is visible does not move block
// borders. The bits of a query row may depend on how many rows share the job.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/partial.h"

#define KERNELS_BLOCK 16u // keys
#define KERNELS_JOBS  8u  // that are worth being run together
#define KERNELS_ALIGN 64u // bytes: start of each run's k and v, of scratch, of packed partials

enum kernels_kv_type {
    KERNELS_KV_F32 = 1,
    KERNELS_KV_F16 = 2,
    KERNELS_KV_BF16 = 3,
    KERNELS_KV_INT8 = 4, // codes -128 .. 127; element = scale * code, one scale per key and KV head
    KERNELS_KV_FP8 = 5,  // OCP e4m3 (largest 448, no infinity, 0x7f and 0xff NaN), scaled in the same way
};

struct kernels_spec {
    enum kernels_kv_type kv_type;
    uint32_t k_dim, v_dim; // may differ
    uint32_t q_heads,
        kv_heads;        // q_heads a multiple of kv_heads; head h belongs to KV head h / (q_heads / kv_heads)
    float scale;         // usually 1 / sqrt(k_dim)
    float soft_cap;      // 0 = off
    uint64_t window;     // 0 = off, else the number of positions that a row sees, its own included
    uint64_t mask_chunk; // 0 = off, else rows see keys from the last multiple of it on: chunked attention
    const float *alibi;  // NULL, or [q_heads] slopes
    bool not_causal;     // rows see keys behind their own position too; with no window, mask_chunk and alibi
    bool v_in_k;         // V is the first v_dim <= k_dim elements of K, under K's scales: MLA
};

// Consecutive keys of one KV head at positions first .. first + rows - 1: k[rows][k_dim], v[rows][v_dim] of
// kv_type.
struct kernels_run {
    const void *k, *v; // each aligned to KERNELS_ALIGN; with v_in_k, v and v_scale are not read
    uint64_t first;
    uint32_t rows;
    const float *k_scale, *v_scale; // [rows], aligned to KERNELS_ALIGN, for INT8 and FP8; else not read
};

struct kernels_job {
    const struct kernels_spec *spec;
    uint32_t kv_head;
    uint32_t rows;                        // query rows
    uint64_t q_first;                     // position of query row 0
    uint64_t visible;                     // keys at positions >= visible are not seen by any row
    uint64_t block_first, block_end;      // rows at block_first .. block_end - 1 see each other; end 0 = none
    const float *q;                       // query row 0 of the group's first head (kv_head * group)
    uint64_t q_row_stride, q_head_stride; // in floats
    const struct kernels_run *runs;       // in any order, with holes, disjoint
    uint32_t run_count;
    struct kernels_partial out; // rows x group x v_dim; overwritten
};

// What decides which keys a row sees.
struct kernels_mask {
    uint64_t visible, window, mask_chunk, block_first, block_end;
    bool not_causal;
};

struct kernels_interval {
    uint64_t from, to; // positions from .. to - 1; from <= to
};

#ifdef __CUDACC__
#define KERNELS_ANYWHERE __host__ __device__
#else
#define KERNELS_ANYWHERE
#endif

// The keys that the row at position p sees: the rule above.
static inline KERNELS_ANYWHERE struct kernels_interval kernels_row_interval(const struct kernels_mask *mask,
                                                                            uint64_t p)
{
    struct kernels_interval i = {0, mask->not_causal || p >= mask->visible ? mask->visible : p + 1};
    if (mask->window != 0 && p >= mask->window)
        i.from = p - mask->window + 1;
    if (mask->mask_chunk != 0 && i.from < p - p % mask->mask_chunk)
        i.from = p - p % mask->mask_chunk;
    if (p >= mask->block_first && p < mask->block_end) {
        i.from = i.from < mask->block_first ? i.from : mask->block_first;
        i.to = i.to > mask->block_end ? i.to : mask->block_end;
    }
    i.to = i.to < mask->visible ? i.to : mask->visible;
    i.from = i.from < i.to ? i.from : i.to;
    return i;
}

struct kernels_attention {
    const char *name;     // also the value of BANYAN_KERNEL; names what decides the bits
    uint32_t rank;        // the usable kernel with the highest rank that supports a spec is its default
    bool (*usable)(void); // can this CPU run it? NULL = always
    bool (*supports)(const struct kernels_spec *spec); // NULL = every valid spec
    // For `jobs` jobs of `rows` query rows at a time; NULL = none.
    uint64_t (*scratch_bytes)(const struct kernels_spec *spec, uint32_t rows, uint32_t jobs);
    // n >= 1 jobs, which differ in kv_head, q, out, and in k, v and scales of their runs alone. Cannot fail,
    // allocates nothing, any thread.
    void (*run)(const struct kernels_job *jobs, uint32_t n, void *scratch);
};

// Query heads of one KV head. The spec must be valid.
static inline uint32_t kernels_spec_group(const struct kernels_spec *spec)
{
    return spec->q_heads / spec->kv_heads;
}

static inline struct kernels_mask kernels_job_mask(const struct kernels_job *job)
{
    struct kernels_mask mask;
    mask.visible = job->visible;
    mask.window = job->spec->window;
    mask.mask_chunk = job->spec->mask_chunk;
    mask.block_first = job->block_first;
    mask.block_end = job->block_end;
    mask.not_causal = job->spec->not_causal;
    return mask;
}

// NULL if the spec makes sense, else what is wrong with it (a static string). Checks a peer's input: known
// type, dims 1 .. 65535, heads 1 .. 65535 and divisible, finite scale, finite soft_cap >= 0, finite slopes,
// no other mask beside not_causal, v_dim <= k_dim with v_in_k.
const char *kernels_spec_problem(const struct kernels_spec *spec);

// Bytes of one element, 0 for a type unknown.
uint32_t kernels_kv_bytes(enum kernels_kv_type type);

// Whether a type has a float32 scale per key and KV head, for K and for V.
bool kernels_kv_scaled(enum kernels_kv_type type);

// The registry. Kernels that this CPU cannot run are listed, but neither found nor defaulted to.
uint32_t kernels_attention_count(void);
const struct kernels_attention *kernels_attention_at(uint32_t i); // NULL past the end
bool kernels_attention_usable(const struct kernels_attention *kernel);
bool kernels_attention_supports(const struct kernels_attention *kernel, const struct kernels_spec *spec);
const struct kernels_attention *kernels_attention_find(const char *name); // NULL: unknown or not usable here

// The kernel for a spec: the one that BANYAN_KERNEL names, if set, else the usable one with the highest rank.
// NULL if BANYAN_KERNEL names none that is usable here and supports the spec (never silently another), or no
// kernel supports it. The caller keeps the answer for a session's life: the environment is read at each call.
const struct kernels_attention *kernels_attention_default(const struct kernels_spec *spec);

uint64_t kernels_attention_scratch(const struct kernels_attention *kernel, const struct kernels_spec *spec,
                                   uint32_t rows, uint32_t jobs);

// 64 bits that name what decides a kernel's bits beside the data: its name, this file's rules, the split
// rule, the compiler. Part of the plan digest.
uint64_t kernels_attention_digest(const struct kernels_attention *kernel);
