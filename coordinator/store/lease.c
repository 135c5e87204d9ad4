// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/lease.h"

#include "common/failpoint.h"

#define WATCHED 1u // flag of BEAT

// ---- the holder -----------------------------------------------------------------------------------------

bool coordinator_lease_hold(struct coordinator_lease *lease, struct coordinator_lease_file *file,
                            uint64_t self)
{
    const struct coordinator_lease_record owner = {.owner = self, .number = COORDINATOR_LEASE_HELD};
    *lease = (struct coordinator_lease){.file = file, .self = self};
    bool held = !file || coordinator_lease_file_write(file, COORDINATOR_LEASE_OWNER, &owner, true);
    COMMON_FAILPOINT("life_leased");
    return held;
}

bool coordinator_lease_mine(const struct coordinator_lease *lease)
{
    struct coordinator_lease_record owner;
    return !lease->file || (coordinator_lease_file_read(lease->file, COORDINATOR_LEASE_OWNER, &owner) &&
                            owner.owner == lease->self);
}

bool coordinator_lease_renew(struct coordinator_lease *lease, uint64_t now_ns)
{
    struct coordinator_lease_record watch;
    if (!lease->file)
        return true;
    if (!lease->watched) {
        lease->watched = coordinator_lease_file_read(lease->file, COORDINATOR_LEASE_WATCH, &watch) &&
                         watch.owner == lease->self;
        if (!lease->watched)
            return true;
    }
    const struct coordinator_lease_record beat = {.owner = lease->self,
                                                  .number = ++lease->beat,
                                                  .flags = WATCHED};
    if (!coordinator_lease_file_write(lease->file, COORDINATOR_LEASE_BEAT, &beat, false))
        return coordinator_lease_valid(lease, now_ns); // it is tried again while there is time
    COMMON_FAILPOINT("lease_beaten");
    if (!coordinator_lease_mine(lease)) // read after BEAT was written: lease.h says why
        return false;
    lease->valid_until_ns = now_ns + COORDINATOR_LEASE_NS;
    return true;
}

// ---- the watcher ----------------------------------------------------------------------------------------

bool coordinator_lease_unfinished(struct coordinator_lease_file *file)
{
    struct coordinator_lease_record owner;
    return file && coordinator_lease_file_read(file, COORDINATOR_LEASE_OWNER, &owner) &&
           owner.number == COORDINATOR_LEASE_TAKING;
}

// Somebody has begun, and ended or waits. The holder may be valid for as long as a lease from now on.
static enum coordinator_lease_verdict finish(struct coordinator_lease_watch *watch, uint64_t taking,
                                             uint64_t now_ns)
{
    if (watch->taking != taking) {
        watch->taking = taking;
        watch->taking_since_ns = now_ns;
    }
    return now_ns - watch->taking_since_ns < COORDINATOR_LEASE_NS + COORDINATOR_LEASE_MARGIN_NS
               ? COORDINATOR_LEASE_WAIT
               : COORDINATOR_LEASE_TAKE;
}

enum coordinator_lease_verdict coordinator_lease_look(struct coordinator_lease_watch *watch,
                                                      struct coordinator_lease_file *file, uint64_t now_ns)
{
    struct coordinator_lease_record owner, beat;
    if (!coordinator_lease_file_read(file, COORDINATOR_LEASE_OWNER, &owner))
        return COORDINATOR_LEASE_WAIT; // an older version has the store: it has no lease that could run out
    if (owner.boot != coordinator_lease_file_boot())
        return COORDINATOR_LEASE_FOREIGN;
    if (owner.number == COORDINATOR_LEASE_TAKING)
        return finish(watch, owner.owner, now_ns);
    if (!coordinator_lease_file_read(file, COORDINATOR_LEASE_BEAT, &beat) || beat.owner != owner.owner ||
        !(beat.flags & WATCHED)) {
        const struct coordinator_lease_record mark = {.owner = owner.owner};
        (void)coordinator_lease_file_write(file, COORDINATOR_LEASE_WATCH, &mark, false); // or the next time
        watch->owner = 0;
        return COORDINATOR_LEASE_WAIT;
    }
    if (watch->owner != beat.owner || watch->beat != beat.number) {
        watch->owner = beat.owner;
        watch->beat = beat.number;
        watch->since_ns = now_ns;
        return COORDINATOR_LEASE_WAIT;
    }
    if (now_ns - watch->since_ns < COORDINATOR_LEASE_NS + COORDINATOR_LEASE_MARGIN_NS)
        return COORDINATOR_LEASE_WAIT;
    const struct coordinator_lease_record taking = {.owner = watch->self, .number = COORDINATOR_LEASE_TAKING};
    if (!coordinator_lease_file_write(file, COORDINATOR_LEASE_OWNER, &taking, true))
        return COORDINATOR_LEASE_WAIT;
    COMMON_FAILPOINT("lease_claimed");
    if (coordinator_lease_file_read(file, COORDINATOR_LEASE_BEAT, &beat) && beat.number == watch->beat)
        return COORDINATOR_LEASE_TAKE;
    return finish(watch, watch->self, now_ns);
}
