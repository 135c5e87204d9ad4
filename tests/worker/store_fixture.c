// SPDX-License-Identifier: Apache-2.0
#include "tests/worker/store_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "worker/memory/memory.h"

struct worker_shape *shape;
static uint32_t kv_type;

size_t k_head, v_head, scale, k_row, v_row;

struct worker_shape *shape_of(uint32_t k_dim)
{
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    spec.layers = LAYERS;
    spec.q_heads = spec.kv_heads = HEADS;
    spec.k_dim = k_dim;
    spec.v_dim = V_DIM;
    spec.kv_type = kv_type;
    spec.chunk_tokens = TOKENS;
    struct worker_shape *made = worker_shape_new(&spec);
    assert_non_null(made);
    return made;
}

static int take_type(void **state)
{
    kv_type = *(const uint32_t *)*state;
    worker_shape_unref(shape);
    shape = shape_of(K_DIM);
    size_t element = kv_type == KERNELS_KV_F32                                 ? 4
                     : kv_type == KERNELS_KV_F16 || kv_type == KERNELS_KV_BF16 ? 2
                                                                               : 1;
    scale = element == 1 ? 4 : 0;
    k_head = K_DIM * element;
    v_head = V_DIM * element;
    k_row = HEADS * (k_head + scale);
    v_row = HEADS * (v_head + scale);
    return 0;
}

void row_bytes(uint32_t layer, uint32_t row, uint32_t version, uint8_t *k, uint8_t *v)
{
    uint64_t seed = common_mix64((uint64_t)layer << 40 | (uint64_t)row << 8 | version);
    for (uint32_t i = 0; i < k_row; i++)
        k[i] = (uint8_t)(common_mix64(seed + i));
    for (uint32_t i = 0; i < v_row; i++)
        v[i] = (uint8_t)(common_mix64(seed + 1000 + i));
}

enum common_code write_rows(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer,
                            uint32_t row, uint32_t count, uint32_t version, enum worker_row to,
                            uint64_t replace_from)
{
    static struct bytes bytes;
    for (uint32_t i = 0; i < count; i++)
        row_bytes(layer, row + i, version, bytes.k + (size_t)i * k_row, bytes.v + (size_t)i * v_row);
    struct worker_rows piece = {chunk, layer, row, count, bytes.k, bytes.v};
    return worker_store_write(store, &piece, 1, to, replace_from, NULL);
}

void assert_row(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t version)
{
    uint8_t k[K_ROW_MAX], v[V_ROW_MAX], want_k[K_ROW_MAX], want_v[V_ROW_MAX];
    worker_chunk_read(chunk, layer, row, 1, k, v);
    row_bytes(layer, row, version, want_k, want_v);
    assert_memory_equal(k, want_k, k_row);
    assert_memory_equal(v, want_v, v_row);
}

struct worker_device *device;

struct worker_store *store_of(uint64_t limit)
{
    return worker_store_new(limit, device ? worker_memory_of_device(limit, device)
                                          : worker_memory_host(limit, NULL));
}

struct worker_chunk *hold(struct worker_store *store, uint64_t id)
{
    struct worker_chunk *chunk = NULL;
    assert_int_equal(worker_store_hold(store, id, 0, shape, &chunk, NULL), COMMON_OK);
    return chunk;
}

void end(struct worker_store *store)
{
    assert_int_equal(worker_store_used(store), 0);
    assert_int_equal(worker_store_chunks(store), 0);
    worker_store_free(store);
}

int store_group(const char *name, uint32_t type, const struct CMUnitTest *tests, size_t n)
{
    static const char *const names[] = {"", "f32", "f16", "bf16", "int8", "fp8"};
    struct CMUnitTest *of_type = malloc(n * sizeof *of_type);
    char text[64];
    assert_non_null(of_type);
    snprintf(text, sizeof text, "%s, %s", name, names[type]);
    for (size_t i = 0; i < n; i++) {
        of_type[i] = tests[i];
        of_type[i].setup_func = take_type;
        of_type[i].initial_state = &type;
    }
    int failed = _cmocka_run_group_tests(text, of_type, n, NULL, NULL);
    free(of_type);
    worker_shape_unref(shape);
    shape = NULL;
    return failed;
}
