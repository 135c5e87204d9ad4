// SPDX-License-Identifier: Apache-2.0
// Plans and steps of a scripted worker. Private to the simulator.
#ifndef TESTS_SIM_SIM_STEP_H
#define TESTS_SIM_SIM_STEP_H

#include "tests/sim/sim_worker.h"

void sim_handle_plan_install(struct sim_worker *worker, struct proto_request *request);
void sim_handle_plan_drop(struct sim_worker *worker, struct proto_request *request);
void sim_handle_step(struct sim_worker *worker, struct proto_request *request);
void sim_plans_close(struct sim_worker *worker);

// False: it was refused (ABORTED, OLD_TERM).
bool sim_term_check(struct sim_worker *worker, uint64_t term, struct proto_request *request);
void sim_refuse(struct proto_request *request, const struct common_error *err, const char *reason);

#endif
