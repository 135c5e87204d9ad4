// SPDX-License-Identifier: Apache-2.0
#include "common/base/random.h"

#include <errno.h>
#include <stdint.h>
#include <sys/random.h>

bool common_random(void *out, size_t len)
{
    uint8_t *p = out;
    while (len > 0) {
        ssize_t got = getrandom(p, len, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        p += got;
        len -= (size_t)got;
    }
    return true;
}
