// SPDX-License-Identifier: Apache-2.0
// A chunk whose memory is not what it should be (sums.h), and whose file may be: the file is read and summed
// up beside the loop (fetch.h), and where it is right the memory is rewritten from it, some rows at a time.
//
//     READING ──ended──▶ read ──worker_reread_write: MORE, PINNED──▶ DONE, or NONE at any time
//
// What is written is right whatever the file is meanwhile: its sum was compared. So a row of the memory is as it was,
// or right; who stops in between leaves it so.
#ifndef WORKER_DISK_REREAD_H
#define WORKER_DISK_REREAD_H

#include <stdint.h>

struct worker_chunk;
struct worker_disk;
struct worker_reread; // opaque
struct worker_spec;

// Begins. The seal is of the layers that the spec keeps; a reference to it is taken. ended: on the loop, never on this stack.
// NULL: there are no files, or no memory.
struct worker_reread *worker_disk_reread(struct worker_disk *disk, const struct worker_chunk *chunk,
                                         struct worker_spec *spec, uint64_t seal, void (*ended)(void *arg),
                                         void *arg);

enum worker_reread_result {
    WORKER_REREAD_DONE,   // the memory has all of it
    WORKER_REREAD_MORE,   // and not all of it: call again
    WORKER_REREAD_PINNED, // the memory is being read: nothing was written; later
    WORKER_REREAD_NONE,   // the file is not there, or has something else; or the chunk lacks rows
};

// Once it has ended. Writes rows of so many bytes, at least one, into the chunk, which is the same or one in its place.
// Rows that are on the disk alone are right as they are.
enum worker_reread_result worker_reread_write(struct worker_reread *reread, struct worker_chunk *chunk,
                                              uint64_t bytes);
void worker_reread_free(struct worker_reread *reread); // once it has ended; NULL is allowed

#endif
