// SPDX-License-Identifier: Apache-2.0
// What a process may still take of its machine, for operators (banyanctl doctor).
#ifndef COMMON_ROOM_H
#define COMMON_ROOM_H

#include <stdint.h>

struct common_room {
    uint64_t files, files_max;                     // descriptors: about so many are open, and may be
    uint64_t memory_bytes, memory_available_bytes; // of the machine; 0: not known
    uint64_t disk_bytes, disk_free_bytes;          // where the path is; 0: not known, or there is no path
};

// Takes some microseconds. path: a file, which need not be there yet, or a folder; NULL: none.
void common_room_look(const char *path, struct common_room *out);

#endif
