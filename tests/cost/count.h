// SPDX-License-Identifier: Apache-2.0
// What count.so, preloaded into a process, has counted of it since it began: in the file FOLDER/PID, where
// the environment variable BANYAN_COST names FOLDER.
#ifndef TESTS_COST_COUNT_H
#define TESTS_COST_COUNT_H

#include <stdint.h>

#define COST_FOLDER "BANYAN_COST"

// Counted where the program calls the C library; what a library of ours or another's does counts, what glibc
// does in itself does not.
struct cost_counts {
    uint64_t calls;       // of functions that are system calls: sockets, files, epoll, timers, memory
    uint64_t memory;      // of these, for memory: mmap, munmap, mremap, mprotect, madvise
    uint64_t allocations; // malloc, calloc, realloc, aligned_alloc, posix_memalign
    uint64_t copied;      // bytes of memcpy and memmove that were not expanded in place
    uint64_t
        wiped; // bytes of memset, explicit_bzero, calloc; what malloc and free overwrite where M_PERTURB is on
    uint64_t messages; // frames that have begun to be sent
};

#endif
