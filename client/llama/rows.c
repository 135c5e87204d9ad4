// SPDX-License-Identifier: Apache-2.0
#include "client/llama/rows.h"

#include <stdlib.h>
#include <string.h>

banyan_kv_type rows_kv_type(enum ggml_type k, enum ggml_type v, bool q8_as_int8)
{
    const struct ggml_type_traits *of_k = ggml_get_type_traits(k), *of_v = ggml_get_type_traits(v);
    if (k == v && k == GGML_TYPE_F16)
        return BANYAN_F16;
    if (k == v && k == GGML_TYPE_BF16)
        return BANYAN_BF16;
    if (k == v && k == GGML_TYPE_Q8_0 && q8_as_int8)
        return BANYAN_INT8;
    bool k_known = k == GGML_TYPE_F32 || (of_k->to_float && of_k->from_float_ref);
    bool v_known = v == GGML_TYPE_F32 || (of_v->to_float && of_v->from_float_ref);
    return k_known && v_known ? BANYAN_F32 : 0;
}

size_t rows_bytes(banyan_kv_type held, uint64_t elements)
{
    return (size_t)elements * (held == BANYAN_F32 ? 4 : held == BANYAN_F16 || held == BANYAN_BF16 ? 2 : 1);
}

bool rows_room(struct rows_memory *memory, size_t bytes)
{
    if (bytes <= memory->bytes)
        return true;
    bytes += bytes / 2;
    void *at = malloc(bytes);
    if (!at)
        return false;
    free(memory->at);
    memory->at = at;
    memory->bytes = bytes;
    return true;
}

// The session holds the very bytes of the cache.
static bool same(enum ggml_type cache, banyan_kv_type held)
{
    return (cache == GGML_TYPE_F32 && held == BANYAN_F32) || (cache == GGML_TYPE_F16 && held == BANYAN_F16) ||
           (cache == GGML_TYPE_BF16 && held == BANYAN_BF16);
}

static void widen(enum ggml_type type, const void *row, float *out, size_t elements)
{
    if (type == GGML_TYPE_F32)
        memcpy(out, row, elements * sizeof *out);
    else
        ggml_get_type_traits(type)->to_float(row, out, (int64_t)elements);
}

// One row of float32 as the cache would keep it.
static void narrow(enum ggml_type cache, const float *row, void *out, size_t elements)
{
    if (cache == GGML_TYPE_F32)
        memcpy(out, row, elements * sizeof *row);
    else if (cache == GGML_TYPE_F16)
        ggml_fp32_to_fp16_row(row, out, (int64_t)elements);
    else if (cache == GGML_TYPE_BF16)
        ggml_fp32_to_bf16_row(row, out, (int64_t)elements);
    else
        ggml_get_type_traits(cache)->from_float_ref(row, out, (int64_t)elements);
}

bool rows_make(const void *data, size_t stride, enum ggml_type from, uint64_t rows, uint32_t heads,
               uint32_t dim, enum ggml_type cache, banyan_kv_type held, struct rows_memory *memory,
               struct rows_memory *scale_memory, const void **out, const float **scales)
{
    size_t elements = (size_t)heads * dim, bytes = (rows_bytes(held, rows * elements) + 63) / 64 * 64;
    *scales = NULL;
    if (from == cache && same(cache, held) && stride == elements * ggml_type_size(from)) {
        *out = data;
        return true;
    }
    if (!rows_room(memory, bytes + elements * 8) ||
        (held == BANYAN_INT8 && !rows_room(scale_memory, rows * heads * sizeof(float))))
        return false;
    char *made = memory->at;
    float *row32 = (float *)(made + bytes); // of rows that do not come as float32
    void *kept = row32 + elements; // as the cache would keep it: no type has more than four bytes an element
    for (uint64_t i = 0; i < rows; i++) {
        const void *source = (const char *)data + i * stride;
        char *row = made + rows_bytes(held, i * elements);
        if (from == cache && same(cache, held)) {
            memcpy(row, source, elements * ggml_type_size(from));
            continue;
        }
        if (from != GGML_TYPE_F32)
            widen(from, source, row32, elements);
        const float *values = from == GGML_TYPE_F32 ? source : row32;
        if (held == BANYAN_INT8) {
            banyan_quantise(BANYAN_INT8, values, heads, dim, row, (float *)scale_memory->at + i * heads);
        } else if (same(cache, held)) {
            narrow(cache, values, row, elements);
        } else {
            narrow(cache, values, kept, elements);
            widen(cache, kept, (float *)row, elements);
        }
    }
    *out = made;
    *scales = held == BANYAN_INT8 ? scale_memory->at : NULL;
    return true;
}

bool rows_from_cache(const void *cells, uint64_t rows, uint32_t heads, uint32_t dim, enum ggml_type cache,
                     banyan_kv_type held, void *out, float *scales)
{
    size_t elements = (size_t)heads * dim, row_bytes = ggml_row_size(cache, (int64_t)elements);
    if (same(cache, held)) {
        memcpy(out, cells, rows * row_bytes);
        return true;
    }
    float *row = malloc(elements * sizeof *row);
    if (!row)
        return false;
    for (uint64_t i = 0; i < rows; i++) {
        const void *cell = (const char *)cells + i * row_bytes;
        if (held == BANYAN_F32) {
            widen(cache, cell, (float *)out + i * elements, elements);
            continue;
        }
        widen(cache, cell, row, elements);
        banyan_quantise(BANYAN_INT8, row, heads, dim, (char *)out + i * elements, scales + i * heads);
    }
    free(row);
    return true;
}

bool rows_to_cache(const void *held_rows, const float *scales, uint64_t rows, uint32_t heads, uint32_t dim,
                   enum ggml_type cache, banyan_kv_type held, void *cells)
{
    size_t elements = (size_t)heads * dim, row_bytes = ggml_row_size(cache, (int64_t)elements);
    if (same(cache, held)) {
        memcpy(cells, held_rows, rows * row_bytes);
        return true;
    }
    float *made = malloc(elements * sizeof *made);
    if (!made)
        return false;
    for (uint64_t i = 0; i < rows; i++) {
        const float *row = (const float *)held_rows + i * elements;
        if (held == BANYAN_INT8) {
            const int8_t *codes = (const int8_t *)held_rows + i * elements;
            for (size_t e = 0; e < elements; e++)
                made[e] = scales[i * heads + e / dim] * codes[e];
            row = made;
        }
        narrow(cache, row, (char *)cells + i * row_bytes, elements);
    }
    free(made);
    return true;
}
