// SPDX-License-Identifier: Apache-2.0
// The files of a simulated worker's store: with rows in logs, and, once chunks are full, in sealed files.
#include <string.h>

#include "common/base/clock.h"
#include "tests/fuzz/seeds.h"
#include "tests/sim/sim_cluster.h"

static void dump(const struct sim_files *files, const char *name)
{
    struct seed seed = {0};
    for (size_t i = 0; i < files->n; i++) {
        const struct sim_file *file = &files->files[i];
        if (file->len > UINT16_MAX)
            continue;
        seed_u8(&seed, 1);
        seed_put(&seed, file->name, strlen(file->name) + 1);
        seed_u16(&seed, file->len);
        seed_put(&seed, file->bytes, file->len);
    }
    seed_write(&seed, "disk", name);
}

void seed_disk(void)
{
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 1, .store = true});
    sim_cluster_start(cluster);
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.layers = 2}, "a");
    FUZZ_CHECK(sim_wait(made) == COMMON_OK);
    for (uint32_t at = 0; at < 24; at += 4)
        for (uint32_t layer = 0; layer < 2; layer++) {
            FUZZ_CHECK(sim_wait(sim_append(cluster->client, made->session, layer, at, 4, 1)) == COMMON_OK);
            if (at == 4 && layer == 1)
                dump(&cluster->workers[0]->files, "log");
        }
    sim_advance(5 * COMMON_NS_PER_S);
    dump(&cluster->workers[0]->files, "sealed");
    FUZZ_CHECK(sim_wait(sim_fork(cluster->client, made->session, 20, "b")) == COMMON_OK);
    FUZZ_CHECK(sim_wait(sim_truncate(cluster->client, made->session, 9)) == COMMON_OK);
    dump(&cluster->workers[0]->files, "fork");
    sim_cluster_free(cluster);
}
