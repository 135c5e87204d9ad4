// SPDX-License-Identifier: Apache-2.0
// Bits that flip where rows are kept: in the memory of a worker, in chunks that are sealed, and in a worker's
// files.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/flip.h"
#include "tests/e2e/support.h"
#include "tests/failpoints/act.h"

enum { LOSS = 10, AGAIN = 9, AT = 3, WORKERS = 3, SEALED_MS = 4000 };

static bool flip_memory(struct act *act)
{
    const struct context *c = script_context(act->script, SCRIPT_FIRST);
    int flipped = 0;
    for (uint32_t w = 0; w < WORKERS && flipped == 0; w++)
        flipped = flip_in_memory(harness_cluster_pid(act->cluster, w), context_v(c, 0, AT), c->v_row);
    act->impossible = flipped < 0;
    return flipped > 0 || act_wrong(act, "no worker has the row in its memory, or nobody may write into it");
}

// Until all copies were compared, and are right.
static bool scrub(struct act *act)
{
    for (uint64_t until = act_until(); !act_out_of_time(until);) {
        int code = act_ctl(act, "scrub %s --wait --wait-timeout 20s", script_name(SCRIPT_FIRST));
        if (code == 0)
            return true;
        if (code != LOSS && code != AGAIN && !act_again(act, code))
            return act_wrong(act, "scrub: exit code %d", code);
        if (code == LOSS && !script_covered(act->script) && !script_check_one(act->script, SCRIPT_FIRST))
            return act_wrong(act, "%s", script_wrong(act->script)); // it fills in what is lost
    }
    return act_wrong(act, "a scrub does not come to its end");
}

// All copies of each row are the same, and answers are right: a scrub that has said so has compared them.
static bool verify(struct act *act)
{
    int code = -1;
    for (uint64_t until = act_until(); code != 0 && !act_out_of_time(until);) {
        code = act_ctl(act, "session verify %s", script_name(SCRIPT_FIRST));
        if (code != 0 && !act_again(act, code))
            return act_wrong(act, "a scrub says that all is right, and a verify: exit code %d", code);
    }
    return code == 0 || act_wrong(act, "a verify does not come to its end");
}

bool act_flip(struct act *act)
{
    struct script *s = act->script;
    support_wait_sealed(script_client(s), script_session(s, SCRIPT_FIRST),
                        script_tokens(s, SCRIPT_FIRST) / SCRIPT_CHUNK);
    harness_cluster_signal(act->cluster, HARNESS_COORDINATOR,
                           SIGKILL); // the next one has compared nothing yet
    if (!act->mend() || !act_wait_workers(act) || !flip_memory(act))
        return act_wrong(act, "the coordinator does not come back");
    if (!act->stores || act->heals_fail)
        ++*act->lost;
    act->arm();
    if (!scrub(act) || !verify(act))
        return false;
    return (script_check(s) && script_wait_whole(s)) || act_wrong(act, "%s", script_wrong(s));
}

bool act_damage(struct act *act)
{
    struct script *s = act->script;
    support_sleep_ms(
        SEALED_MS); // a file that is cut is as after a loss of power: one that is sealed is damaged
    harness_cluster_signal(act->cluster, 0, SIGKILL);
    if (act_flip_files(act) == 0)
        return act_wrong(act, "the worker has no files");
    ++*act->lost;
    act->arm();
    if (!act->mend() || !act_wait_workers(act))
        return act_wrong(act, "the worker does not come back");
    return (script_check(s) && script_wait_whole(s)) || act_wrong(act, "%s", script_wrong(s));
}
