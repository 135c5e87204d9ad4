// SPDX-License-Identifier: Apache-2.0
// What the tests of the store share. They are one program (store_test.c), which runs all of them over each KV
// type.
#ifndef TESTS_WORKER_STORE_FIXTURE_H
#define TESTS_WORKER_STORE_FIXTURE_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "worker/processors/device.h"
#include "worker/store/store.h"

enum {
    LAYERS = 2,
    HEADS = 2,
    K_DIM = 5,
    V_DIM = 3,
    TOKENS = 48,
    K_ROW_MAX = HEADS * K_DIM * 4,
    V_ROW_MAX = HEADS * V_DIM * 4
};

extern struct worker_shape *shape;             // of the type under test
struct worker_shape *shape_of(uint32_t k_dim); // of it, with keys of another length; unref it
extern struct worker_device *device;           // NULL: the host's memory

// Bytes of the type under test: of a head's elements or codes, of its scale, of a whole row.
extern size_t k_head, v_head, scale, k_row, v_row;

struct bytes {
    uint8_t k[TOKENS * K_ROW_MAX], v[TOKENS * V_ROW_MAX];
};

// What row `row` of a layer holds in its version `version`.
void row_bytes(uint32_t layer, uint32_t row, uint32_t version, uint8_t *k, uint8_t *v);

enum common_code write_rows(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer,
                            uint32_t row, uint32_t count, uint32_t version, enum worker_row to,
                            uint64_t replace_from);
void assert_row(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t version);

struct worker_store *store_of(uint64_t limit);
struct worker_chunk *hold(struct worker_store *store, uint64_t id);
void end(struct worker_store *store); // everything was released: the account is at zero

// The groups of one KV type. Each returns how many tests failed.
int store_memory(uint32_t type);
int store_rows(uint32_t type);
int store_model(uint32_t type);

// Runs a group over the type.
int store_group(const char *name, uint32_t type, const struct CMUnitTest *tests, size_t n);

#endif
