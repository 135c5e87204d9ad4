// SPDX-License-Identifier: Apache-2.0
// A snapshot's manifest: what a session is, how long, and which files hold its rows. Pure: no file is touched
// here.
//
//   DIR/manifest.json
//   DIR/layer-0003-000000065536.safetensors[.zst]    rows of layer 3 from position 65536 on
//
// Of a session that has forgotten rows (its spec's 'forget') the manifest has the floor, and of a layer the
// files begin where its rows do: at the first one that a row at or past the floor sees.
//
// A file holds K and V of one layer and one run of tokens, 64 MiB of rows at most, as tensors layers.N.k,
// layers.N.v (not where V lies in K), layers.N.k_scale and layers.N.v_scale (types with scales): what
// 'banyanctl attach' takes. The manifest has each file's bytes and xxh3 (of the .safetensors, also where it
// is compressed), and an xxh3 of itself. Files are named by layer and position alone: a manifest cannot name
// anything else.
#ifndef CLIENT_SNAPSHOT_H
#define CLIENT_SNAPSHOT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/tensor/safetensors.h"

#define SNAPSHOT_ROWS_BYTES   (UINT64_C(64) << 20) // of one file
#define SNAPSHOT_HEAD_BYTES   4096                 // of its header, at most
#define SNAPSHOT_LENGTH_MAX   (UINT64_C(1) << 40)  // tokens
#define SNAPSHOT_FILES_MAX    (UINT32_C(1) << 20)
#define SNAPSHOT_NAME_BYTES   64
#define SNAPSHOT_MANIFEST_MAX (UINT64_C(512) << 20) // bytes

struct snapshot_layer {
    uint32_t kv_heads, k_dim, v_dim; // kv_heads 0: it has no rows of its own; v_dim 0: V lies in K
    uint64_t from;                   // rows below are forgotten
};

struct snapshot_shape { // what the session's spec says of its rows
    uint32_t n_layers;  // 1 .. 1024
    enum common_dtype dtype;
    const struct snapshot_layer *layers; // [n_layers]; heads and dimensions are 1 .. 1024
};

struct snapshot_file {
    uint32_t layer;
    uint64_t first, tokens;
    uint64_t bytes;  // of the .safetensors
    uint64_t stored; // of the file: less where it is compressed
    uint64_t sum;    // xxh3 of the .safetensors
};

struct snapshot {
    bool zstd;
    uint64_t length; // tokens of each layer
    uint64_t floor;  // of the session; 0: nothing is forgotten
    json_t *spec,
        *info; // objects; spec: as 'session create --spec' takes it; info: about the session, for people
    size_t n_files;
    struct snapshot_file *files; // by layer, then by position
};

// Bytes of a token's K and V of the layer, scales included; 0: it has no rows of its own.
uint64_t snapshot_row_bytes(const struct snapshot_shape *shape, uint32_t layer);
// Tokens of one file of the layer that should have at most `bytes` of rows (or one row): whole chunks where
// one fits.
uint64_t snapshot_file_tokens(const struct snapshot_shape *shape, uint32_t layer, uint64_t bytes,
                              uint64_t chunk_tokens);

// The files that it is to have, in their order, for its length: snapshot->files and n_files. False: out of
// memory.
bool snapshot_plan(struct snapshot *snapshot, const struct snapshot_shape *shape, uint64_t file_bytes,
                   uint64_t chunk_tokens);
// The order in which files are restored: all but the last in any order or at a time, then the last one, which
// has the first rows of the last layer that has any. Until then the session has no token that all layers
// have, but those that it has forgotten; and its floor does not rise (coordinator/place/forget.h).
const struct snapshot_file *snapshot_nth(const struct snapshot *snapshot, size_t nth);

void snapshot_file_name(const struct snapshot *snapshot, const struct snapshot_file *file,
                        char out[SNAPSHOT_NAME_BYTES]);

// The tensors of a file, in its order: scales, then K, then V. Without data. Returns how many, 4 at most.
struct snapshot_names {
    char text[4][32];
};
size_t snapshot_tensors(const struct snapshot_shape *shape, const struct snapshot_file *file,
                        struct snapshot_names *names, struct common_safetensor out[4]);

// The manifest as text; free it. NULL: out of memory.
char *snapshot_text(const struct snapshot *snapshot);

// Reads one. INVALID_ARGUMENT says what is wrong. On success the snapshot is to be cleared.
enum common_code snapshot_parse(const char *text, size_t len, struct snapshot *out, struct common_error *err);
// Whether the files hold exactly the rows [from, length) of each layer with rows of its own, and are as large
// as these are. The shape is that of the snapshot's spec and floor.
enum common_code snapshot_check(const struct snapshot *snapshot, const struct snapshot_shape *shape,
                                struct common_error *err);
void snapshot_clear(struct snapshot *snapshot);

#endif
