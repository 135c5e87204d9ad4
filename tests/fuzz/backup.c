// SPDX-License-Identifier: Apache-2.0
// coordinator/store/restore.c: a backup's file, its head and the database in it. Input: u8 what, then the
// file. What, bit 0: its sums are put right; bit 1: and so is the head's length.
#include <string.h>
#include <unistd.h>

#include "common/hash/hash.h"
#include "coordinator/store/backup.h"
#include "coordinator/store/restore.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    return 0;
}

static void put(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct common_error err;
    uint8_t what = fuzz_u8(&in);
    size_t len;
    const uint8_t *from = fuzz_bytes(&in, in.left, &len);
    uint8_t *file = malloc(len + 1);
    FUZZ_CHECK(file);
    if (len > 0)
        memcpy(file, from, len);
    if (len >= COORDINATOR_BACKUP_HEAD && what & 2)
        put(file + 24, len - COORDINATOR_BACKUP_HEAD);
    if (len >= COORDINATOR_BACKUP_HEAD && what & 1) {
        uint64_t sum = 0;
        for (size_t at = COORDINATOR_BACKUP_HEAD; at < len; at += COORDINATOR_BACKUP_PIECE)
            sum = common_xxh3(file + at,
                              len - at < COORDINATOR_BACKUP_PIECE ? len - at : COORDINATOR_BACKUP_PIECE, sum);
        put(file + 32, sum);
        put(file + 120, common_xxh3(file, 120, 0));
    }
    fuzz_write_file("backup", file, len);
    free(file);
    enum common_code code = coordinator_restore("backup", "store.db", &err);
    if (code == COMMON_OK) { // whole, and never over what is there
        FUZZ_CHECK(access("store.db", F_OK) == 0);
        FUZZ_CHECK(coordinator_restore("backup", "store.db", &err) == COMMON_ALREADY_EXISTS);
    } else { // nothing at all
        FUZZ_CHECK(err.message[0] && access("store.db", F_OK) != 0);
    }
    unlink("store.db");
    unlink("store.db-wal");
    unlink("store.db-shm");
    return 0;
}
