// SPDX-License-Identifier: Apache-2.0
// What session mass and session trace share: the session's last steps.
#ifndef CLIENT_CTL_WATCH_H
#define CLIENT_CTL_WATCH_H

#include "client/ctl/ctl.h"

struct ctl_seen { // an opened session and its last steps
    banyan_session *session;
    const banyan_spec *spec;
    banyan_watch watch; // n > 0
};

struct ctl_watch_options {       // as given on the command line
    uint64_t steps, layer, bins; // 0: not given; layer: UINT64_MAX
    uint64_t wait_ns;
    bool heads, each;
};
extern struct ctl_watch_options ctl_watch_given;

// Watches the session that is named, for masses of at most `bins` stretches or, with 0, for traces. What
// fails is reported on stderr.
enum ctl_exit ctl_watch_look(struct ctl *ctl, const char *name, uint32_t bins, struct ctl_seen *out);
void ctl_watch_end(struct ctl_seen *seen);
json_t *ctl_watch_step_json(const banyan_watched_step *step); // what masses and traces say of a step alike
bool ctl_watch_utf8(void);

enum ctl_exit ctl_run_mass(struct ctl *ctl, int n_args, char **args);  // ctl_mass.c
enum ctl_exit ctl_run_trace(struct ctl *ctl, int n_args, char **args); // ctl_trace.c

#endif
