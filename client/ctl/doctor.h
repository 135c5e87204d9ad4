// SPDX-License-Identifier: Apache-2.0
// What the files of `doctor` share: its findings.
#ifndef CLIENT_CTL_DOCTOR_H
#define CLIENT_CTL_DOCTOR_H

#include "client/ctl/ctl.h"

enum ctl_doctor_level { CTL_DOCTOR_OK, CTL_DOCTOR_WARN, CTL_DOCTOR_FAIL };

struct ctl_doctor {
    struct ctl *ctl;
    uint64_t look_ns; // how long to wait for each process
    json_t *findings;
    unsigned counts[3];
    bool refused;    // by a coordinator: the token is wrong
    int64_t skew_ns; // the active coordinator's clock less this machine's
};

// advice: what to do where it is not OK.
void ctl_doctor_find(struct ctl_doctor *d, enum ctl_doctor_level level, const char *what, const char *advice,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
// Version, clock, files, memory and disk of a process: "coordinator…", or "worker NAME".
void ctl_doctor_process(struct ctl_doctor *d, const char *who, const banyan_examined *examined);

void ctl_doctor_cluster(struct ctl_doctor *d); // ctl_doctor_cluster.c: workers, sessions, limits

#endif
