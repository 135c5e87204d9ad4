// SPDX-License-Identifier: Apache-2.0
// A chunk's file in memory: which rows it has, in which state, and where their bytes are. Both kinds of files
// (docs/operating/store.md) give the same. Any thread.
#ifndef WORKER_DISK_IMAGE_H
#define WORKER_DISK_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/files/files.h"
#include "worker/store/shape.h"

enum worker_record_type {     // never another meaning for a number
    WORKER_RECORD_CHUNK = 1,  // a chunk's log begins: struct worker_image_head, its layers
    WORKER_RECORD_ROWS = 2,   // struct worker_rows_head, K, V: as worker_store_write
    WORKER_RECORD_SET = 3,    // the same, but the rows are in this state whatever they were
    WORKER_RECORD_STATES = 4, // struct worker_states_head
    WORKER_RECORD_SEALED =
        5, // a sealed file begins: struct worker_image_head, its layers, struct worker_sealed_layer
    WORKER_RECORD_SPEC = 16,  // a session's log begins: the packed spec
    WORKER_RECORD_HEAD = 17,  // struct worker_session_head and what it says follows
    WORKER_RECORD_APPEND = 18 // struct worker_append_head
};

struct worker_image_head {
    uint64_t first;
    uint32_t layers, chunk_tokens, kv_type, zero;
};

struct worker_image_layer { // of the file: bytes of a row's K and V; 0: it has none
    uint32_t k_wire, v_wire;
};

struct worker_rows_head {
    uint32_t layer, row, count, state;
    uint64_t session, term, write; // of the append that brings them; else 0
};

struct worker_states_head {
    uint32_t layer, row, count, from, to, zero;
};

struct worker_sealed_layer { // where its part is: states [chunk_tokens], padded to 8, K, V
    uint64_t at, bytes, sum; // bytes 0: there is none. sum: XXH3 of {chunk, layer}, as u64, and the part
};

struct worker_image {
    uint64_t id;
    struct worker_image_head head;
    struct worker_image_layer *layers; // [head.layers]
    uint8_t **states;                  // [head.layers][chunk_tokens] enum worker_row
    const uint8_t ***k, ***v;          // likewise, of rows that are not ABSENT
    uint64_t bytes;                    // of the file that are good
    uint64_t rows;                     // that it has, in all layers
    bool sealed;
    bool damaged; // what is bad is no torn end: nothing of it may be used
    bool cut;     // it had a torn end
    uint8_t *file;
    void *memory;
};

// Whether an append counts of which the log has a part; false: it and what came after it does not.
typedef bool (*worker_image_fn)(void *arg, uint64_t session, uint64_t term, uint64_t write);

// Reads chunk `id`: its log where there is one, else its sealed file. counts NULL: all appends do. 0 with *out (end it);
// -ENOENT: there is no file; other negative errnos: it cannot be read, or there is no memory.
int worker_image_read(struct worker_files *files, uint64_t id, worker_image_fn counts, void *arg,
                      struct worker_image *out);
void worker_image_end(struct worker_image *image);

// K and V of a layer, row after row; zeros where there is none. [chunk_tokens] rows each.
void worker_image_rows(const struct worker_image *image, uint32_t layer, uint8_t *k, uint8_t *v);
// Whether all layers that have rows are APPENDED or COMMITTED from end to end.
bool worker_image_full(const struct worker_image *image);
bool worker_image_fits(const struct worker_image *image, uint64_t first, const struct worker_shape *shape);

// Reads one layer of a sealed file: K, then V, `count` rows from `row` on at a time, as they travel. What was taken
// counts when it returns 0, and only then: -EBADMSG: the file is damaged, or not of this shape, or lacks the layer; other
// negative errnos. The room is kept from one call to the next; free its bytes.
struct worker_image_room { // zeroed: none
    uint8_t *bytes;
    uint64_t n;
};
typedef void (*worker_image_rows_fn)(void *arg, bool of_v, uint32_t row, uint32_t count, const uint8_t *rows);
int worker_image_layer_read(struct worker_files *files, uint64_t id, uint64_t first,
                            const struct worker_shape *shape, uint32_t layer, struct worker_image_room *room,
                            worker_image_rows_fn take, void *arg);

// Writes the sealed file of an image under another name. 0 or a negative errno.
int worker_image_seal(struct worker_files *files, const struct worker_image *image, const char *name);

enum { WORKER_NAME_BYTES = 48 };
void worker_name_log(uint64_t id, char out[WORKER_NAME_BYTES]);    // chunks/ID.log
void worker_name_sealed(uint64_t id, char out[WORKER_NAME_BYTES]); // chunks/ID.sealed
void worker_name_new(uint64_t id, char out[WORKER_NAME_BYTES]);  // chunks/ID.new: a log that is being written
void worker_name_seal(uint64_t id, char out[WORKER_NAME_BYTES]); // chunks/ID.seal: a sealed file likewise

#endif
