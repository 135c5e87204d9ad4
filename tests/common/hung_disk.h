// SPDX-License-Identifier: Apache-2.0
// A disk that hangs: write (the linker's, --wrap) to one file blocks from `hung_disk_hang` until
// `hung_disk_go`.
#ifndef TESTS_COMMON_HUNG_DISK_H
#define TESTS_COMMON_HUNG_DISK_H

#include <stdbool.h>

void hung_disk_of(const char *path); // the file that is meant; it is there
void hung_disk_hang(void);
void hung_disk_go(void);
bool hung_disk_waits(void); // a write waits now

#endif
