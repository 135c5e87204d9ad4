// SPDX-License-Identifier: Apache-2.0
// 'session verify', the part about the step that the coordinator keeps of the session.
#ifndef CLIENT_CTL_VERIFY_H
#define CLIENT_CTL_VERIFY_H

#include <jansson.h>

#include "client/banyan.h"
#include "client/ctl/work.h"
#include "proto/banyan.pb-c.h"

#define CTL_VERIFY_ANY_LAYER UINT64_MAX

struct ctl_kept {
    banyan_kept_step step; // rows 0: there is none to verify. To be freed
    bool gone;             // there was one, and the session lost rows that it saw while they were read
    bool ahead;            // not all layers have what it saw: it cannot be read yet
    double o, lse;         // largest errors, as fractions of what is allowed, over all copies of the rows
    uint64_t position;     // where the worst is
    uint32_t head, copy;
    double got, want;
};

// Gets it, reads what its rows saw from each of `copies` holders, computes, compares. layer: leaves it alone
// where it is of another one.
enum ctl_exit ctl_kept_verify(banyan_session *session, const Banyan__Pb__Spec *spec, uint32_t copies,
                              uint64_t layer, struct ctl_kept *kept, struct ctl_problem *problem);

bool ctl_kept_is_wrong(const struct ctl_kept *kept);
json_t *ctl_kept_json(const struct ctl_kept *kept);
void ctl_kept_tell(const struct ctl_kept *kept); // for people: wrong on stderr, else a line on stdout

#endif
