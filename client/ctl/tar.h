// SPDX-License-Identifier: Apache-2.0
// Writes a tar file (POSIX.1-1988 ustar) of small members.
#ifndef CLIENT_CTL_TAR_H
#define CLIENT_CTL_TAR_H

#include <stdbool.h>
#include <stddef.h>

// name: at most 99 bytes. False: errno says why.
bool ctl_tar_add(int fd, const char *name, const void *data, size_t len);
bool ctl_tar_end(int fd);

#endif
