// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/copy.h"

#define TO(state) (1u << COORDINATOR_COPY_##state)
const struct common_machine coordinator_copy_machine = {
    .name = "copy",
    .n = COORDINATOR_COPY_STATES,
    .states = {"coming", "sync", "leaving", "wrong", "gone"},
    .next =
        {
            [COORDINATOR_COPY_COMING] = TO(SYNC) | TO(WRONG) | TO(GONE),
            [COORDINATOR_COPY_SYNC] = TO(LEAVING) | TO(WRONG) | TO(GONE),
            [COORDINATOR_COPY_LEAVING] = TO(SYNC) | TO(WRONG) | TO(GONE),
            [COORDINATOR_COPY_WRONG] = TO(GONE),
            [COORDINATOR_COPY_GONE] = TO(SYNC),
        },
};
#undef TO

#define TO(report) (1u << COORDINATOR_REPORT_##report)
const struct common_machine coordinator_report_machine = {
    .name = "report",
    .n = COORDINATOR_REPORTS,
    .states = {"silent", "doubting", "heard", "doubtful"},
    .next =
        {
            [COORDINATOR_REPORT_SILENT] = TO(DOUBTING) | TO(HEARD),
            [COORDINATOR_REPORT_DOUBTING] = TO(SILENT) | TO(DOUBTFUL),
            [COORDINATOR_REPORT_HEARD] = TO(SILENT) | TO(DOUBTFUL),
            [COORDINATOR_REPORT_DOUBTFUL] = TO(DOUBTING) | TO(HEARD),
        },
};

void coordinator_copy_set_state(struct coordinator_copy *copy, enum coordinator_copy_state state)
{
    if (copy->state == state)
        return;
    common_machine_move(&coordinator_copy_machine, copy->state, state);
    copy->state = state;
}

static void set_report(struct coordinator_copy *copy, bool heard, bool doubtful)
{
    static const enum coordinator_copy_report reports[2][2] = {
        {COORDINATOR_REPORT_SILENT, COORDINATOR_REPORT_DOUBTING},
        {COORDINATOR_REPORT_HEARD, COORDINATOR_REPORT_DOUBTFUL},
    };
    enum coordinator_copy_report report = reports[heard][doubtful];
    if (copy->report == report)
        return;
    common_machine_move(&coordinator_report_machine, copy->report, report);
    copy->report = report;
}

void coordinator_copy_set_heard(struct coordinator_copy *copy, bool heard)
{
    set_report(copy, heard, coordinator_copy_doubtful(copy));
}

void coordinator_copy_set_doubtful(struct coordinator_copy *copy, bool doubtful)
{
    set_report(copy, coordinator_copy_heard(copy), doubtful);
}
