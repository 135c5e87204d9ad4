// SPDX-License-Identifier: Apache-2.0
// Memory of the tests of the llama.cpp plug-in: it is there, or the program ends.
#ifndef TESTS_LLAMA_MEMORY_H
#define TESTS_LLAMA_MEMORY_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

// n elements of `size` bytes, all 0.
static inline void *memory_make(size_t n, size_t size)
{
    void *memory = calloc(n ? n : 1, size);
    if (!memory) {
        fprintf(stderr, "no memory for %zu elements of %zu bytes\n", n, size);
        abort();
    }
    return memory;
}

#endif
