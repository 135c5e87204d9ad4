// SPDX-License-Identifier: Apache-2.0
// Audits during faults: in half of the seeds the coordinator has steps computed again by workers (--audit),
// and none of its answers may be called wrong, whatever becomes of rows, holders and sessions in between.
#include "tests/sim/chaos.h"

#include <stdio.h>

#include "common/hash/hash.h"
#include "coordinator/state.h"
#include "coordinator/steps/audit.h"

void chaos_choose_audit(struct coordinator_options *options)
{
    options->audit = chaos.seed / 64 % 2 ? 1 + chaos.seed % 3 : 0;
    if (chaos.seed / 128 % 2) // one row and head, chunk by chunk
        options->audit_madds = 256;
    options->keep_bytes = chaos.seed % 5 ? options->keep_bytes : 4096; // a few steps
}

// A step that is kept may be asked for at any time: one of them is audited now, whatever its session has been
// through.
static void audit_again(struct coordinator_steps *steps)
{
    uint64_t draw = common_mix64(sim_clock());
    struct common_list *at = steps->keep.all.next;
    for (uint32_t i = 0; steps->keep.n && i < draw % steps->keep.n; i++)
        at = at->next;
    if (steps->keep.n && draw / 64 % 4 == 0)
        coordinator_audit_add(steps, common_list_entry(at, struct coordinator_kept, link));
}

// Of the coordinator's present life.
void chaos_check_audits(void)
{
    struct coordinator *c = chaos.cluster->coordinator;
    if (!c || c->core.stopping)
        return;
    struct coordinator_steps *steps = &c->steps;
    uint64_t bytes = 0;
    uint32_t n = 0;
    if (steps->count_audit_differences && !chaos.flipped) // what a flip has altered is called wrong, rightly
        chaos_violated(NULL, "an audit calls an answer wrong");
    for (const struct common_list *at = steps->keep.all.next; steps->core && at != &steps->keep.all;
         at = at->next, n++)
        bytes += common_list_entry(at, struct coordinator_kept, link)->bytes;
    if (bytes != steps->keep.bytes || n != steps->keep.n || (n && bytes > c->core.options.keep_bytes))
        chaos_violated(NULL, "steps that are kept are miscounted");
    if (c->core.options.audit)
        audit_again(steps);
    chaos.audited = steps->count_audited > chaos.audited ? steps->count_audited : chaos.audited;
}
