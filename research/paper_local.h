// SPDX-License-Identifier: Apache-2.0
// Local attention: a rank's attention over keys and values that it has, by the processor or by a device
// behind its module. The algorithms know no more of it than this.
//
//     algorithms ──▶ struct paper_local_ops ──┬── paper_cpu.c      blocks in the host's memory
//                                             └── paper_device.c   blocks in the pool of kernels/device.h
//
// Keys and values lie in blocks, as paper_shard.h lays a shard. A block that travels has a place on the host,
// where messages go out and come in. With the processor that is the block itself. With a device the block is
// in its memory, and `up` and `down` copy between the two: the transport does not reach into the device, so
// what a ring passes is staged through the host. Partials end on the host either way.
//
// An error of the device after `open` is reported once on stderr; from then on its partials are NaN, which no
// check lets pass.
#ifndef RESEARCH_PAPER_LOCAL_H
#define RESEARCH_PAPER_LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/attention.h"
#include "kernels/partial.h"
#include "research/paper_formula.h"

struct paper_local_ops;

struct paper_local { // first member of an implementation's own
    const struct paper_local_ops *ops;
    const struct paper_geometry *g;
    struct kernels_spec spec;
    char device[128], kernel[32];     // for people: "cpu", "cuda:0 (NVIDIA H200)"; what decides the bits
    uint64_t staged_bytes, staged_ns; // by up and down, with a device; the reader sets them to 0
};

struct paper_block {
    void *host;      // NULL: a block of a device that does not travel
    uint64_t *parts; // of a device: addresses in its pool
    size_t bytes;    // room
};

struct paper_local_options {
    const char *device; // as --device has it
    const char *module; // NULL: beside the program or in ../lib
    const struct paper_geometry *g;
    uint32_t neighbour; // this rank's number among those of its host, which share its devices
};

struct paper_local_ops {
    bool (*means)(const char *device); // whether --device names this one
    enum common_code (*open)(const struct paper_local_options *options, struct paper_local **out,
                             struct common_error *err);
    void (*close)(struct paper_local *local); // all blocks are gone

    // Counted by paper_kv_count. False: no memory; nothing was made. 0 bytes are fine.
    bool (*block_init)(struct paper_local *local, struct paper_block *block, size_t bytes, bool travels);
    void (*block_fini)(struct paper_local *local, struct paper_block *block); // zeroed is allowed

    // Some megabytes more of `tokens` from kv (the block's host place, or another) into the block, or from
    // the block to its host place. *at: 0 at first. False: all is there.
    bool (*up)(struct paper_local *local, struct paper_block *block, const void *kv, uint64_t tokens,
               uint64_t *at);
    bool (*down)(struct paper_local *local, struct paper_block *block, uint64_t tokens, uint64_t *at);

    // Attention of the query at the last of `total` positions over positions [first, first + tokens), which
    // the block holds. One at a time; q and out are left alone until step says false: out is written.
    void (*begin)(struct paper_local *local, const struct paper_block *block, uint64_t first, uint64_t tokens,
                  uint64_t total, const float *q, const struct kernels_partial *out);
    bool (*step)(struct paper_local *local); // computes or waits for less than a millisecond
};

extern const struct paper_local_ops paper_cpu, paper_device;

// ---- over all of them: paper_local.c ----

bool paper_local_known(const char *device); // whether there is one that it names
enum common_code paper_local_open(const struct paper_local_options *options, struct paper_local **out,
                                  struct common_error *err);
void paper_local_close(struct paper_local *local); // NULL is allowed

// A block that holds a shard's data. False: no memory, and *block is zeroed.
bool paper_block_make(struct paper_local *local, struct paper_block *block, size_t bytes, bool travels,
                      uint64_t first, uint64_t tokens);
void paper_block_free(struct paper_local *local, struct paper_block *block);

#endif
