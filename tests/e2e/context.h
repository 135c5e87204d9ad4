// SPDX-License-Identifier: Apache-2.0
// What a session should hold, kept beside the service: its keys and values, and the float64 reference over
// them. End-to-end tests attach or append rows from here and judge what the service answers.
#ifndef TESTS_E2E_CONTEXT_H
#define TESTS_E2E_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"

struct context {
    banyan_spec spec;                // as given, of layers that are alike; alibi and sinks are borrowed
    uint64_t block_first, block_end; // of what is judged: rows at these positions see each other
    const banyan_partial *partial;   // of what is judged: its missing ranges are not looked at; NULL: none
    uint64_t room;                   // rows
    size_t k_row, v_row;
    uint8_t **k, **v;           // [layers] rows [room], packed as the API takes them
    float **k_scale, **v_scale; // [layers] [room][kv_heads]; entries NULL for a type without scales
};

// Specs that differ in what an answer depends on: the nth of them, at three workers, with one to three
// copies.
#define CONTEXT_SPECS 10
banyan_spec context_spec(uint32_t nth, uint32_t layers);

void context_init(struct context *c, const banyan_spec *spec, uint64_t room);
void context_free(struct context *c);
void context_copy(struct context *to, const struct context *from);

// Fills rows [first, first + count) of all layers with normal numbers, k scaled so that logits are about ±4.
void context_random(struct context *c, uint64_t first, uint64_t count, uint64_t seed);
// Rounds one head's row to the KV type.
void context_set(struct context *c, uint32_t layer, uint64_t position, uint32_t kv_head, const float *k,
                 const float *v);
const void *context_k(const struct context *c, uint32_t layer, uint64_t position);
const void *context_v(const struct context *c, uint32_t layer, uint64_t position);        // NULL: V lies in K
const float *context_k_scale(const struct context *c, uint32_t layer, uint64_t position); // NULL: none
const float *context_v_scale(const struct context *c, uint32_t layer, uint64_t position);

// banyan_attach, or banyan_attach_scaled where the type has scales, of rows from here.
banyan_code context_attach(banyan_session *session, const struct context *c, uint32_t layer, uint64_t first,
                           uint64_t count, banyan_error *error);

// lse of query row `row` of q ([rows][q_heads][k_dim]), which stands at `position`, over the keys [from, to)
// that it sees, in float64; with_sink: the head's attention sink counts, too. *allowed: how far off a served
// one may be.
double context_lse(const struct context *c, uint32_t layer, uint64_t position, uint32_t head,
                   uint64_t visible, const float *q, uint32_t row, uint64_t from, uint64_t to, bool with_sink,
                   double *allowed);

// Fails the test when masses of rows from `first` on are further from the float64 reference than the promise
// of lse allows, or do not add up. visible 0: first + rows. *worst: the largest error seen, as a fraction of
// what is allowed; may be NULL.
void context_check_mass(const struct context *c, uint32_t layer, uint64_t first, uint64_t visible,
                        const float *q, const banyan_mass *mass, double *worst, const char *what);

// Query rows for this spec; free them.
float *context_queries(const banyan_spec *spec, uint32_t rows, uint64_t seed);

// The largest error seen, as a fraction of the promised bound.
struct worst {
    double o, lse;
    char what[160]; // where o was
};

// Fails the test when an answer to rows [first, first + rows) with keys [0, visible) is further from the
// float64 reference than the project promises. visible 0: first + rows. worst may be NULL.
void context_check(const struct context *c, uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible,
                   const float *q, const float *o, const float *lse, struct worst *worst, const char *what);

// The same for any thread: false, and why, instead of failing the test.
bool context_agrees(const struct context *c, uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible,
                    const float *q, const float *o, const float *lse, char *why, size_t why_len);

#endif
