// SPDX-License-Identifier: Apache-2.0
// Attention of many (query row, head) pairs on the tile units of x86-64 (AMX), for KV types whose elements
// bfloat16 holds exactly: bfloat16, int8, fp8. A tile product C += A B takes 16 rows of 32 bfloat16 by 16
// columns and adds in float32: 16 times as many products a cycle as vectors of float32. But bfloat16 has 8 of
// float32's 24 bits. So q and weights are cut into three bfloat16 parts each, which sum to them exactly; a
// product of parts is exact, too. (float16 and float32 need two and three parts of keys and values as well:
// no faster than vectors.)
//
//   dots     A = 16 pairs x 32 dims of one part of q          B = 32 dims x 16 keys
//   values   A = 16 pairs x 32 keys of one part of weights    B = 32 keys x 16 columns
//
// A row of B has two of the 32 in turn: two dims of each key, or the same key of two blocks.
//
// Orders of summation (Intel's manual, TDPBF16PS): in a product two chains of 16, for even and odd ones of
// the 32, added to each other and then to C; each addition rounds to nearest. Of dots, the products of the
// first parts are summed in four tiles, 32 dims in turn each, the others in a fifth; the five are added
// without loss. Of values, a tile takes the products of 32 keys, the smallest parts first; those of 64 keys
// are added, and then to the sum as in kernels/narrow.h.
//
// Subnormal numbers count as zero here, and infinities meet zeros among the parts. So amx_begin refuses a q
// whose parts could be subnormal, and the caller computes again with vectors what came out not finite or very
// small.
#include <immintrin.h>
#include <math.h>

#include "kernels/matrix.h"

#define AMX_BYTES     ((size_t)1024) // of a tile
#define AMX_PAIRS     16u            // of a tile
#define AMX_TWOS      (CONVERTED_BLOCKS / 2)
#define AMX_DOT_TILES 5u

#define AMX_CLEAR(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
#define AMX_LOAD(tile, from)                                                                                 \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((size_t)64) : "memory")
#define AMX_STORE(tile, to)                                                                                  \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((size_t)64) : "memory")
#define AMX_ADD(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

static bool amx_takes(enum kernels_kv_type type)
{
    return type == KERNELS_KV_BF16 || type == KERNELS_KV_INT8 || type == KERNELS_KV_FP8;
}

static uint64_t amx_bytes(uint64_t k_pad, uint64_t v_pad)
{
    uint64_t k_tiles = k_pad / 32, v_tiles = v_pad / 16,
             sets = (KERNELS_MATRIX_ROWS + AMX_PAIRS - 1) / AMX_PAIRS;
    return (sets * 3 * k_tiles + CONVERTED_BLOCKS * k_tiles + AMX_TWOS * v_tiles + 3 * AMX_TWOS +
            2 * AMX_DOT_TILES) *
           AMX_BYTES;
}

// Tiles: q [sets of pairs][3 parts][k_tiles], keys [blocks][k_tiles], values [twos of blocks][v_tiles],
// weights [3 parts][twos of blocks], and two times AMX_DOT_TILES of sums.
static void amx_place(struct kernels_matrix *x, char *space)
{
    x->q = space;
    x->keys = x->q + (x->rows + AMX_PAIRS - 1) / AMX_PAIRS * 3 * x->k_tiles * AMX_BYTES;
    x->values = x->keys + CONVERTED_BLOCKS * x->k_tiles * AMX_BYTES;
    x->weights = x->values + AMX_TWOS * x->v_tiles * AMX_BYTES;
    x->sums = x->weights + 3 * AMX_TWOS * AMX_BYTES;
}

// All tiles: 16 rows of 64 bytes.
static void amx_start(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

static void amx_end(void)
{
    __asm__ volatile("tilerelease" ::);
}

// ---- parts --------------------------------------------------------------------------------------

INLINE __m512i high_half(vf x)
{
    return _mm512_and_si512(_mm512_castps_si512((__m512)x), _mm512_set1_epi32((int)0xffff0000));
}

// The upper halves of two vectors' lanes: word 2 l of x's lane l, word 2 l + 1 of y's.
INLINE vf halves(vf x, vf y)
{
    return (vf)_mm512_or_si512(_mm512_srli_epi32((__m512i)high_half(x), 16), high_half(y));
}

// Two vectors to their three bfloat16 parts, paired in this way.
INLINE void cut(vf x, vf y, vf *part)
{
    for (uint32_t i = 0; i < 3; i++) {
        part[i] = halves(x, y);
        x -= (vf)high_half(x);
        y -= (vf)high_half(y);
    }
}

// Whether rows are taken as they lie, so that dims are paired with their neighbours; else with those 16
// apart.
INLINE bool type_raw(enum kernels_kv_type type, size_t dim)
{
    return type == KERNELS_KV_BF16 && type_pairs(dim);
}

// A row of q as rows of A tiles, words in the order of cut_keys. False: a part could be subnormal, or a
// product beyond what logits may be.
static bool cut_q(const struct kernels_matrix *x, uint32_t r, const float *q)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    char *to = x->q + r / AMX_PAIRS * 3 * x->k_tiles * AMX_BYTES + (size_t)(r % AMX_PAIRS) * 64;
    __mmask16 bad = 0;
    for (size_t t = 0; t < x->k_tiles; t++, to += AMX_BYTES) {
        vf y[2];
        for (uint32_t half = 0; half < 2; half++) {
            y[half] = load_padded(KERNELS_KV_F32, (const char *)q, 32 * t + 16 * half, x->k_dim);
            __m512 size = _mm512_abs_ps((__m512)y[half]);
            __mmask16 some = _mm512_cmp_ps_mask(size, _mm512_setzero_ps(), _CMP_NEQ_UQ);
            bad |= _mm512_mask_cmp_ps_mask(some, size, _mm512_set1_ps(0x1p-80f), _CMP_NGE_UQ);
            bad |= _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p60f), _CMP_NLE_UQ);
        }
        __m512 a = (__m512)y[0], b = (__m512)y[1];
        vf part[3];
        if (type_raw(x->type, x->k_dim))
            cut((vf)_mm512_permutex2var_ps(a, even, b), (vf)_mm512_permutex2var_ps(a, odd, b), part);
        else
            cut(y[0], y[1], part);
        for (uint32_t i = 0; i < 3; i++)
            vf_store((float *)(void *)(to + i * x->k_tiles * AMX_BYTES), part[i]);
    }
    return bad == 0;
}

static bool amx_begin(struct kernels_matrix *x, const struct kernels_spec *spec, const float *const *q,
                      uint32_t rows, char *space)
{
    *x = (struct kernels_matrix){
        .type = spec->kv_type, .rows = rows, .k_dim = spec->k_dim, .v_dim = spec->v_dim};
    x->v_in_k = spec->v_in_k;
    x->v_stride = spec->v_in_k ? spec->k_dim : spec->v_dim;
    x->k_tiles = (spec->k_dim + 31) / 32;
    x->v_tiles = (spec->v_dim + 31) / 32 * 2;
    amx_place(x, space);
    if (fabsf(spec->scale) > 0x1p30f)
        return false;
    for (uint32_t r = 0; r < rows; r++) {
        if (!cut_q(x, r, q[r]))
            return false;
    }
    for (uint32_t r = rows; r % AMX_PAIRS != 0; r++) { // pairs that are none
        char *to = x->q + r / AMX_PAIRS * 3 * x->k_tiles * AMX_BYTES + (size_t)(r % AMX_PAIRS) * 64;
        for (size_t t = 0; t < 3 * x->k_tiles; t++)
            memset(to + t * AMX_BYTES, 0, 64);
    }
    amx_start();
    return true;
}

// A block's keys as B tiles [k_tiles]: row p has dims p and 16 + p of each key; zeros where no row of
// the tile sees the key.
INLINE void cut_keys(const struct kernels_matrix *x, enum kernels_kv_type type, const struct block *b,
                     size_t dim, char *to)
{
    size_t stride = dim * type_bytes(type);
    for (size_t t = 0; t < x->k_tiles; t++) {
        vf row[16] = {{0}};
        for (uint32_t j = b->begin; j < b->end; j++) {
            const char *from = b->k + j * stride;
            if (type_raw(type, dim))
                row[j] = (vf)_mm512_loadu_si512(from + 64 * t);
            else
                row[j] =
                    halves(load_padded(type, from, 32 * t, dim), load_padded(type, from, 32 * t + 16, dim));
        }
        vf_transpose(row);
        for (uint32_t p = 0; p < 16; p++)
            vf_store((float *)(void *)(to + (size_t)p * 64), row[p]);
        to += AMX_BYTES;
    }
}

// Two vectors of pair order of a value's row, zeros where it is not seen.
INLINE void cut_value(enum kernels_kv_type type, const struct block *b, uint32_t j, size_t d, size_t dim,
                      size_t stride, vf *y)
{
    y[0] = y[1] = (vf){0};
    if (!b || j < b->begin || j >= b->end)
        return;
    const char *row = b->v + j * stride * type_bytes(type);
    if (type_pairs(dim)) {
        load_pair(type, row, d, y);
    } else {
        y[0] = load_padded(type, row, d, dim);
        y[1] = load_padded(type, row, d + 16, dim);
    }
}

// Two blocks' values as B tiles [v_tiles]: row p has keys p of either. NULL: no block.
INLINE void cut_values(const struct kernels_matrix *x, enum kernels_kv_type type, const struct block *first,
                       const struct block *second, size_t dim, char *to)
{
    for (size_t c = 0; c < x->v_tiles; c += 2) { // in the order of copy_rows
        for (uint32_t p = 0; p < 16; p++) {
            vf a[2], b[2];
            cut_value(type, first, p, 16 * c, dim, x->v_stride, a);
            cut_value(type, second, p, 16 * c, dim, x->v_stride, b);
            for (uint32_t half = 0; half < 2; half++) {
                vf_store((float *)(void *)(to + half * AMX_BYTES + (size_t)p * 64), halves(a[half], b[half]));
            }
        }
        to += 2 * AMX_BYTES;
    }
}

INLINE void cut_panel(const struct kernels_matrix *x, enum kernels_kv_type type, const struct panel *panel)
{
    for (uint32_t b = 0; b < panel->count; b++)
        cut_keys(x, type, &panel->blocks[b], x->k_dim, x->keys + b * x->k_tiles * AMX_BYTES);
    for (uint32_t h = 0; 2 * h < panel->count; h++) {
        const struct block *first = &panel->blocks[2 * h];
        cut_values(x, type, first, 2 * h + 1 < panel->count ? first + 1 : NULL, x->v_dim,
                   x->values + h * x->v_tiles * AMX_BYTES);
    }
}

static void amx_panel(const struct kernels_matrix *x, const struct panel *panel)
{
    switch (x->type) {
    case KERNELS_KV_BF16:
        cut_panel(x, KERNELS_KV_BF16, panel);
        break;
    case KERNELS_KV_INT8:
        cut_panel(x, KERNELS_KV_INT8, panel);
        break;
    case KERNELS_KV_FP8:
        cut_panel(x, KERNELS_KV_FP8, panel);
        break;
    default: // not taken
        break;
    }
}

// ---- dots ---------------------------------------------------------------------------------------

// One set of pairs with one block: AMX_DOT_TILES tiles to sums.
INLINE void amx_dot(const char *q, const char *keys, size_t tiles, char *sums)
{
    AMX_CLEAR(0);
    AMX_CLEAR(1);
    AMX_CLEAR(2);
    AMX_CLEAR(3);
    AMX_CLEAR(4);
    for (size_t t = 0; t < tiles; t++) {
        AMX_LOAD(5, keys);
        AMX_LOAD(6, q + (2 * tiles + t) * AMX_BYTES);
        AMX_ADD(4, 6, 5);
        AMX_LOAD(7, q + (tiles + t) * AMX_BYTES);
        AMX_ADD(4, 7, 5);
        AMX_LOAD(6, q + t * AMX_BYTES);
        if (t % 4 == 0)
            AMX_ADD(0, 6, 5);
        else if (t % 4 == 1)
            AMX_ADD(1, 6, 5);
        else if (t % 4 == 2)
            AMX_ADD(2, 6, 5);
        else
            AMX_ADD(3, 6, 5);
        keys += AMX_BYTES;
    }
    AMX_STORE(4, sums + 4 * AMX_BYTES);
    AMX_STORE(0, sums);
    AMX_STORE(1, sums + AMX_BYTES);
    AMX_STORE(2, sums + 2 * AMX_BYTES);
    AMX_STORE(3, sums + 3 * AMX_BYTES);
}

// The tiles' sums to scores + lost of a set's pairs. False: one is not finite.
INLINE bool amx_scores(const char *sums, uint32_t rows, float *scores, float *lost)
{
    __mmask16 odd = 0;
    for (uint32_t r = 0; r < rows; r++) {
        vf x[AMX_DOT_TILES];
        for (uint32_t i = 0; i < AMX_DOT_TILES; i++)
            x[i] = vf_load((const float *)(const void *)(sums + i * AMX_BYTES + (size_t)r * 64));
        vf low = x[4];
        vf_add_exact(&x[0], &low, x[1]);
        vf_add_exact(&x[2], &low, x[3]);
        vf_add_exact(&x[0], &low, x[2]);
        vf sum = x[0] + low;
        odd |= _mm512_fpclass_ps_mask((__m512)sum, 0x99);
        vf_store(scores + (size_t)r * ROW, sum);
        vf_store(lost + (size_t)r * ROW, low - (sum - x[0]));
    }
    return odd == 0;
}

// Asks for part `at` of `of` of a panel, from all of its blocks at a time.
static void ask_panel(const struct kernels_matrix *x, const struct panel *panel, uint32_t at, uint32_t of)
{
    size_t bytes = BLOCK * type_bytes(x->type), k = bytes * x->k_dim, v = x->v_in_k ? 0 : bytes * x->v_dim;
    for (size_t line = k * at / of / 64; line < k * (at + 1) / of / 64; line++) {
        for (uint32_t b = 0; b < panel->count; b++)
            __builtin_prefetch(panel->blocks[b].k + line * 64, 0, 2);
    }
    for (size_t line = v * at / of / 64; line < v * (at + 1) / of / 64; line++) {
        for (uint32_t b = 0; b < panel->count; b++)
            __builtin_prefetch(panel->blocks[b].v + line * 64, 0, 2);
    }
}

// scores and lost [rows][ROW] of all pairs with `blocks` blocks.
static void amx_dots(struct kernels_matrix *x, uint32_t blocks, const struct panel *next, float *scores,
                     float *lost)
{
    uint32_t rows = x->rows, sets = (rows + AMX_PAIRS - 1) / AMX_PAIRS;
    for (uint32_t set = 0; set < sets; set++) {
        const char *q = x->q + (size_t)set * 3 * x->k_tiles * AMX_BYTES;
        uint32_t r = set * AMX_PAIRS, some = rows - r < AMX_PAIRS ? rows - r : AMX_PAIRS;
        size_t at = (size_t)r * ROW;
        for (uint32_t b = 0; b <= blocks; b++) { // vectors one block behind: tiles take a while to be stored
            if (b < blocks) {
                amx_dot(q, x->keys + b * x->k_tiles * AMX_BYTES, x->k_tiles,
                        x->sums + (size_t)(b % 2) * AMX_DOT_TILES * AMX_BYTES);
                ask_panel(x, next, set * blocks + b, sets * blocks);
            }
            size_t before = at + (size_t)(b - 1) * BLOCK;
            if (b > 0 && !amx_scores(x->sums + (size_t)((b - 1) % 2) * AMX_DOT_TILES * AMX_BYTES, some,
                                     scores + before, lost + before))
                x->odd = true;
        }
    }
}

// ---- values -------------------------------------------------------------------------------------

// A set's weights as A tiles.
INLINE void amx_weights(const struct kernels_matrix *x, const float *weights, uint32_t rows, uint32_t twos)
{
    for (uint32_t r = 0; r < AMX_PAIRS; r++) {
        for (uint32_t h = 0; h < twos; h++) {
            const float *w = weights + (size_t)r * ROW + h * 2 * BLOCK;
            vf part[3] = {{0}};
            if (r < rows)
                cut(vf_load(w), vf_load(w + BLOCK), part);
            for (uint32_t i = 0; i < 3; i++)
                vf_store((float *)(void *)(x->weights + (i * AMX_TWOS + h) * AMX_BYTES + (size_t)r * 64),
                         part[i]);
        }
    }
}

// A part of the weights times two tiles of values: tiles 0 and 1 take the keys of one two of blocks, 2 and 3
// those of the next, `next` bytes on, if there is one.
INLINE void amx_products(const char *weights, const char *values, size_t next, bool both)
{
    AMX_LOAD(4, weights);
    AMX_LOAD(5, values);
    AMX_ADD(0, 4, 5);
    AMX_LOAD(6, values + AMX_BYTES);
    AMX_ADD(1, 4, 6);
    if (both) {
        AMX_LOAD(7, weights + AMX_BYTES);
        AMX_LOAD(5, values + next);
        AMX_ADD(2, 7, 5);
        AMX_LOAD(6, values + next + AMX_BYTES);
        AMX_ADD(3, 7, 6);
    }
}

// hi, lo [rows][width] += two columns of tiles, [first, second two of blocks][2].
INLINE void amx_keep(const char *sums, uint32_t rows, size_t width, float *hi, float *lo)
{
    for (uint32_t r = 0; r < rows; r++) {
        REPEAT(c, 2, {
            const char *from = sums + c * AMX_BYTES + (size_t)r * 64;
            size_t at = r * width + c * 16;
            vf sum = vf_load(hi + at), chain = vf_load((const float *)(const void *)from);
            chain += vf_load((const float *)(const void *)(from + 2 * AMX_BYTES));
            chain += vf_load(lo + at);
            vf_carry(&sum, &chain);
            vf_store(hi + at, sum);
            vf_store(lo + at, chain);
        });
    }
}

// One set of pairs, one or two twos of blocks from `two` on.
INLINE void amx_fold_set(const struct kernels_matrix *x, uint32_t rows, uint32_t two, bool both, float *hi,
                         float *lo)
{
    size_t width = x->v_tiles * 16, next = x->v_tiles * AMX_BYTES;
    const char *weights = x->weights + two * AMX_BYTES, *values = x->values + two * next;
    for (size_t c = 0; c <= x->v_tiles; c += 2) { // vectors one step behind: tiles take a while to be stored
        char *sums = x->sums + c / 2 % 2 * 4 * AMX_BYTES, *before = x->sums + (c / 2 + 1) % 2 * 4 * AMX_BYTES;
        if (c < x->v_tiles) {
            AMX_CLEAR(0);
            AMX_CLEAR(1);
            AMX_CLEAR(2);
            AMX_CLEAR(3);
            for (uint32_t i = 3; i-- > 0;)
                amx_products(weights + i * AMX_TWOS * AMX_BYTES, values + c * AMX_BYTES, next, both);
            AMX_STORE(0, sums);
            AMX_STORE(1, sums + AMX_BYTES);
            AMX_STORE(2, sums + 2 * AMX_BYTES);
            AMX_STORE(3, sums + 3 * AMX_BYTES);
        }
        if (c > 0)
            amx_keep(before, rows, width, hi + (c - 2) * 16, lo + (c - 2) * 16);
    }
}

static void amx_folds(const struct kernels_matrix *x, uint32_t blocks, const float *weights, float *hi,
                      float *lo)
{
    uint32_t twos = (blocks + 1) / 2;
    size_t width = x->v_tiles * 16;
    for (uint32_t r = 0; r < x->rows; r += AMX_PAIRS) {
        uint32_t rows = x->rows - r < AMX_PAIRS ? x->rows - r : AMX_PAIRS;
        amx_weights(x, weights + (size_t)r * ROW, rows, twos);
        for (uint32_t two = 0; two < twos; two += 2)
            amx_fold_set(x, rows, two, two + 1 < twos, hi + r * width, lo + r * width);
    }
}

const struct kernels_matrix_ops kernels_matrix_amx = {
    .rows_from = 17,
    .takes = amx_takes,
    .bytes = amx_bytes,
    .begin = amx_begin,
    .end = amx_end,
    .panel = amx_panel,
    .dots = amx_dots,
    .folds = amx_folds,
};
