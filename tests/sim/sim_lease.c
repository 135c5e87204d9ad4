// SPDX-License-Identifier: Apache-2.0
// coordinator/store/lease_file.h on simulated disks: records that all processes of the world see at once. They outlive
// the coordinators, as disks do. A disk that stalls takes them all the same: they are in the memory of the machine.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/lease_file.h"
#include "tests/sim/sim_disk.h"

enum { LEASES_MAX = 64 };

struct records {
    char path[128];
    bool there[COORDINATOR_LEASE_SLOTS], locked;
    struct coordinator_lease_record slots[COORDINATOR_LEASE_SLOTS];
};

struct coordinator_lease_file {
    struct records *records;
    bool locked; // by this one
};

static struct records leases[LEASES_MAX];

void sim_leases_forget(void)
{
    memset(leases, 0, sizeof leases);
}

enum common_code coordinator_lease_file_open(const char *store_path, bool shared,
                                             struct coordinator_lease_file **out, struct common_error *err)
{
    (void)shared, (void)err;
    struct records *records = leases;
    while (*records->path && strcmp(records->path, store_path) != 0)
        assert(++records < leases + LEASES_MAX);
    snprintf(records->path, sizeof records->path, "%s", store_path);
    struct coordinator_lease_file *file = calloc(1, sizeof *file);
    if (!file)
        abort();
    file->records = records;
    *out = file;
    return COMMON_OK;
}

void coordinator_lease_file_close(struct coordinator_lease_file *file)
{
    if (!file)
        return;
    coordinator_lease_file_unlock(file);
    free(file);
}

bool coordinator_lease_file_read(const struct coordinator_lease_file *file, enum coordinator_lease_slot slot,
                                 struct coordinator_lease_record *out)
{
    *out = file->records->slots[slot];
    return file->records->there[slot];
}

bool coordinator_lease_file_write(struct coordinator_lease_file *file, enum coordinator_lease_slot slot,
                                  const struct coordinator_lease_record *record, bool durable)
{
    (void)durable;
    file->records->slots[slot] = *record;
    file->records->there[slot] = true;
    return true;
}

bool coordinator_lease_file_lock(struct coordinator_lease_file *file)
{
    if (file->records->locked && !file->locked)
        return false;
    file->records->locked = file->locked = true;
    return true;
}

void coordinator_lease_file_unlock(struct coordinator_lease_file *file)
{
    if (file->locked)
        file->records->locked = file->locked = false;
}

uint64_t coordinator_lease_file_boot(void)
{
    return 0;
}
