// SPDX-License-Identifier: Apache-2.0
#include "coordinator/trail/kept.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "coordinator/core.h"
#include "proto/rpc/status.h"

#define GRAIN_NS (10 * COMMON_NS_PER_MS) // answers leave together at its multiples

struct answer {
    struct common_list link;
    struct proto_request *request;
    uint64_t number, due_ns;
    bool must;
    char trouble[128];
};

struct coordinator_trail_kept {
    struct common_list answers; // by number
    struct common_list lost;    // that fail at the end of this turn
    struct common_timer *timer;
    struct common_deferred *fail;
    uint64_t timer_ns; // when it runs; 0: it does not
};

static void leave(struct answer *a, enum common_code code)
{
    static const char *const why[] = {"is not in the audit log", "is not in the audit log yet"};
    struct proto_status status;
    common_list_remove(&a->link);
    if (code == COMMON_OK || !a->must) {
        proto_request_release(a->request);
    } else {
        proto_status_set(
            &status, code, "AUDIT_LOG",
            "this was done, and its record %s (%.100s): with --audit-required that is a failure; "
            "check the state before you repeat it",
            why[code == COMMON_DEADLINE_EXCEEDED], a->trouble);
        proto_request_fail_status(a->request, &status);
    }
    free(a);
}

static struct answer *first_of(const struct common_list *list)
{
    return common_list_empty(list) ? NULL : (struct answer *)(void *)list->next;
}

static void fail_lost(void *arg)
{
    struct coordinator_trail_kept *kept = arg;
    for (struct answer *a; (a = first_of(&kept->lost));)
        leave(a, COMMON_UNKNOWN);
}

static void wait_until(struct coordinator_trail_kept *kept, uint64_t due_ns)
{
    if (kept->timer_ns && kept->timer_ns <= due_ns)
        return;
    kept->timer_ns = due_ns;
    common_timer_start(kept->timer, common_clock_left(due_ns), false);
}

static void on_due(void *arg)
{
    struct coordinator_trail_kept *kept = arg;
    uint64_t now = common_clock_ns(), next = UINT64_MAX;
    kept->timer_ns = 0;
    for (struct common_list *at = kept->answers.next, *after; at != &kept->answers; at = after) {
        struct answer *a = (struct answer *)(void *)at;
        after = at->next;
        if (a->due_ns <= now)
            leave(a, COMMON_DEADLINE_EXCEEDED);
        else
            next = a->due_ns < next ? a->due_ns : next;
    }
    if (next != UINT64_MAX)
        wait_until(kept, next);
}

enum common_code coordinator_trail_kept_new(struct common_loop *loop, struct coordinator_trail_kept **out)
{
    struct coordinator_trail_kept *kept = coordinator_alloc(sizeof *kept);
    common_list_init(&kept->answers);
    common_list_init(&kept->lost);
    enum common_code code = common_timer_new(loop, on_due, kept, &kept->timer);
    if (code == COMMON_OK)
        code = common_deferred_new(loop, fail_lost, kept, &kept->fail);
    if (code != COMMON_OK) {
        coordinator_trail_kept_free(kept);
        return code;
    }
    *out = kept;
    return COMMON_OK;
}

void coordinator_trail_kept_add(struct coordinator_trail_kept *kept, struct proto_request *request,
                                uint64_t number, uint64_t due_ns, bool must, const char *trouble)
{
    struct answer *a = coordinator_alloc(sizeof *a);
    *a = (struct answer){
        .request = request, .number = number, .due_ns = due_ns - due_ns % GRAIN_NS, .must = must};
    snprintf(a->trouble, sizeof a->trouble, "%s", trouble);
    common_list_push(number ? &kept->answers : &kept->lost, &a->link);
    if (number)
        wait_until(kept, a->due_ns);
    else
        common_deferred_mark(kept->fail);
}

void coordinator_trail_kept_done(struct coordinator_trail_kept *kept, uint64_t number, bool written,
                                 const char *trouble)
{
    struct answer *a = first_of(&kept->answers);
    if (!a || a->number != number)
        return; // none waits for this one, or it has left at its time
    if (!written)
        snprintf(a->trouble, sizeof a->trouble, "%s", trouble);
    leave(a, written ? COMMON_OK : COMMON_UNKNOWN);
}

void coordinator_trail_kept_release(struct coordinator_trail_kept *kept)
{
    fail_lost(kept);
    for (struct answer *a; (a = first_of(&kept->answers));)
        leave(a, COMMON_DEADLINE_EXCEEDED);
    common_timer_stop(kept->timer);
    kept->timer_ns = 0;
}

void coordinator_trail_kept_free(struct coordinator_trail_kept *kept)
{
    if (!kept)
        return;
    assert(common_list_empty(&kept->answers) && common_list_empty(&kept->lost));
    common_deferred_free(kept->fail);
    common_timer_free(kept->timer);
    free(kept);
}
