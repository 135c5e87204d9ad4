// SPDX-License-Identifier: Apache-2.0
// The planner: members in, tree out. Pure: no clock, no network, no allocation that outlives the call, the
// same input gives the same tree on every machine. Topology (tree shapes), algorithm (cost of a tree) and
// choice (the cheapest) are separate files.
#ifndef REDUCE_PLAN_H
#define REDUCE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "reduce/shape.h"

struct reduce_plan {
    uint32_t n;             // members
    uint32_t fan_in_host;   // chosen within a host; 0: no host has two members
    uint32_t fan_out_hosts; // chosen between hosts; 0: one host
    double predicted_ns;    // one step of partial_bytes, compute excluded
    uint64_t digest; // of the tree: names, kernels, parents, in rank order, and the algorithm's version
    struct reduce_node *nodes; // [n] by rank, pre-order: subtrees are contiguous; owned
    char why[160];             // the choice in words
};

// Groups by host first, then across hosts; tries the fan-outs and keeps the cheapest (ties: the smaller
// fan-out between hosts, then within). The order of `members` does not matter: they are sorted by host
// (largest bandwidth sum first, then name) and name; that is the order of ranks, whatever the tree. A host
// has the cores of its member that reports most. INVALID_ARGUMENT: none, too many, a duplicate name, a bad
// member or cost. RESOURCE_EXHAUSTED: no memory.
enum common_code reduce_plan_make(const struct reduce_member *members, uint32_t n,
                                  const struct reduce_cost *cost, struct reduce_plan **out,
                                  struct common_error *err);
void reduce_plan_free(struct reduce_plan *plan); // NULL is allowed

// Members change places in the tree, whose shape stays, until no parent has a child that it does not reach;
// nor, where that can be had as well, a child that does not reach it. Of equal changes one within a host
// comes first, then the lowest ranks. Where that does not suffice the tree gets another shape (detour.c). The
// digest follows, predicted_ns stays. Pure. *left: pairs that are parent and child all the same, because no
// tree does without, as with two members alone that do not reach each other. RESOURCE_EXHAUSTED: the tree may
// be another one, and is sound.
enum common_code reduce_plan_avoid(struct reduce_plan *plan, const struct reduce_member *members,
                                   const struct reduce_avoid *avoid, uint32_t n, uint32_t *left);

// How many members a session of `kv_bytes` (K and V of one layer) deserves: the number with the shortest
// step, each member computing as much as it can in that time; of equals the smallest. 1 .. n; n for a cost or
// members that reduce_plan_make refuses. Never falls when kv_bytes rises. Members are the w fastest of those
// given, in the order of reduce_plan_fastest. Not every number is tried: above 16 in steps of an eighth,
// above 64 of a half octave, and n. The caller caps it by the session's chunks.
uint32_t reduce_plan_width(const struct reduce_member *members, uint32_t n, const struct reduce_cost *cost,
                           uint64_t kv_bytes);

// The same for many sessions: the table of what each width costs is made once for a member list (milliseconds
// for a hundred members, half a second for 4096), then each answer takes a look at it. Fails as
// reduce_plan_make.
struct reduce_widths;
enum common_code reduce_widths_make(const struct reduce_member *members, uint32_t n,
                                    const struct reduce_cost *cost, struct reduce_widths **out,
                                    struct common_error *err);
uint32_t reduce_widths_best(const struct reduce_widths *widths, uint64_t kv_bytes);
void reduce_widths_free(struct reduce_widths *widths); // NULL is allowed

// Fills order[n] with indices of members in the order in which a session should take them: first, of each
// host as many as it has cores, then as many again, and so on; of these the fastest first; of equals those of
// the fastest host, then by name. INVALID_ARGUMENT and RESOURCE_EXHAUSTED as reduce_plan_make.
enum common_code reduce_plan_fastest(const struct reduce_member *members, uint32_t n, uint32_t *order,
                                     struct common_error *err);

// Predicted time of a given tree over all plan->n members: compute excluded (bytes NULL), or with compute of
// bytes[rank] each. Formula in cost.c. INFINITY: members or cost that make refuses, or no memory.
double reduce_plan_predict(const struct reduce_plan *plan, const struct reduce_member *members,
                           const struct reduce_cost *cost, const uint64_t *bytes);

// Writes the tree as text, one member a line, with box-drawing characters; the host is named where it differs
// from the parent's. Returns bytes needed without the NUL (as snprintf).
size_t reduce_plan_draw(const struct reduce_plan *plan, const struct reduce_member *members, char *out,
                        size_t len);

#endif
