// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/flip.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int flip_in_memory(int pid, const void *bytes, size_t len)
{
    enum { PIECE = 1 << 20 };
    const unsigned long most = 1ul << 32; // a mapping that is larger is a sanitizer's
    char path[64], line[512];
    int flipped = 0;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int memory = open(path, O_RDWR | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    uint8_t *piece = malloc(PIECE);
    while (memory >= 0 && maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char mode[8];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || strncmp(mode, "rw", 2) != 0 ||
            to - from > most)
            continue;
        for (unsigned long at = from; at < to; at += PIECE - len) {
            ssize_t n = pread(memory, piece, to - at < PIECE ? to - at : PIECE, (off_t)at);
            uint8_t *hit = n > 0 ? memmem(piece, (size_t)n, bytes, len) : NULL;
            if (!hit)
                continue;
            uint8_t other = *hit ^ 0x20;
            if (pwrite(memory, &other, 1, (off_t)(at + (unsigned long)(hit - piece))) == 1)
                flipped++;
        }
    }
    free(piece);
    if (maps)
        fclose(maps);
    if (memory >= 0)
        close(memory);
    return memory < 0 || !maps ? -1 : flipped;
}
