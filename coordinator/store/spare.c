// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/spare.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"

#define TRY_EVERY_NS COMMON_NS_PER_S

static bool hold(struct coordinator_spare *spare)
{
    int error = posix_fallocate(spare->fd, 0, COORDINATOR_SPARE_BYTES);
    if (error == 0)
        spare->state = COORDINATOR_SPARE_HELD;
    else if (ftruncate(spare->fd, 0) != 0) // what there was of it
        common_log_warn("the store's spare space cannot be given back: %s", strerror(errno));
    errno = error;
    return error == 0;
}

void coordinator_spare_open(struct coordinator_spare *spare, const char *path)
{
    char name[PATH_MAX];
    *spare = (struct coordinator_spare){.fd = -1, .tried_ns = common_clock_ns()};
    if (!path || snprintf(name, sizeof name, "%s-spare", path) >= (int)sizeof name)
        return;
    spare->fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (spare->fd < 0 || !hold(spare))
        common_log_warn("no space is kept for deletes on a full disk: %s file=%s", strerror(errno), name);
}

void coordinator_spare_close(struct coordinator_spare *spare)
{
    if (spare->fd >= 0)
        close(spare->fd);
    spare->fd = -1;
}

bool coordinator_spare_lend(struct coordinator_spare *spare)
{
    if (spare->state != COORDINATOR_SPARE_HELD || ftruncate(spare->fd, 0) != 0)
        return false;
    spare->state = COORDINATOR_SPARE_LENT;
    spare->tried_ns = common_clock_ns();
    common_log_warn("the store's disk is full: only what frees space is accepted until %d MiB are free",
                    COORDINATOR_SPARE_BYTES >> 20);
    return true;
}

void coordinator_spare_regain(struct coordinator_spare *spare, struct coordinator_sql *sql)
{
    uint64_t now = common_clock_ns();
    bool lent = spare->state == COORDINATOR_SPARE_LENT;
    if (spare->fd < 0 || spare->state == COORDINATOR_SPARE_HELD || now - spare->tried_ns < TRY_EVERY_NS)
        return;
    spare->tried_ns = now;
    if (lent) // as far as it goes: what does not fit into the file stays in the log
        (void)coordinator_sql_exec(sql, "PRAGMA wal_checkpoint(TRUNCATE)");
    if (hold(spare) && lent)
        common_log_info("the store's disk has room again: all changes are accepted");
}

bool coordinator_spare_serves(const struct coordinator_op *ops, uint32_t n)
{
    bool serves = false;
    for (uint32_t i = 0; i < n; i++) {
        switch (ops[i].kind) {
        case COORDINATOR_OP_WORKER_DROP:
        case COORDINATOR_OP_TOKEN_DROP:
        case COORDINATOR_OP_QUOTA_DROP:
        case COORDINATOR_OP_SESSION_DROP:
        case COORDINATOR_OP_MEMBER_DROP:
        case COORDINATOR_OP_RESUME:
        case COORDINATOR_OP_COPY_LOST: // of a worker that is lost: steps go on with the other copies
        case COORDINATOR_OP_CHUNK_LOST:
        case COORDINATOR_OP_CHUNK_DROP:
        case COORDINATOR_OP_CUT: // of a truncate: a row a session
        case COORDINATOR_OP_CLIP:
            serves = true;
            break;
        case COORDINATOR_OP_NUMBERS: // what comes along with these
        case COORDINATOR_OP_FLOOR:
        case COORDINATOR_OP_RANGE:
        case COORDINATOR_OP_CHUNK:
        case COORDINATOR_OP_FOLLOWER:
        case COORDINATOR_OP_META:
            break;
        default:
            return false;
        }
    }
    return serves;
}
