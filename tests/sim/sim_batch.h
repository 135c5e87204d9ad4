// SPDX-License-Identifier: Apache-2.0
// A batch of coordinator/store/store.h as the simulated disk takes it: operations on its tables (sim_disk.h).
#ifndef TESTS_SIM_SIM_BATCH_H
#define TESTS_SIM_SIM_BATCH_H

#include "coordinator/store/store.h"
#include "tests/sim/sim_disk.h"

struct coordinator_batch {
    struct coordinator_batch *next;
    struct sim_op *ops;
    uint32_t n, cap;
    coordinator_store_fn done;
    void *arg;
    enum common_code code;
};

struct sim_op *sim_batch_add(struct coordinator_batch *batch, enum sim_op_kind kind, const char *name,
                             uint64_t a, uint64_t b, uint64_t c, uint64_t d);

#endif
