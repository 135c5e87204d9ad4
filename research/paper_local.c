// SPDX-License-Identifier: Apache-2.0
#include "research/paper_local.h"

#include "research/paper_shard.h"

static const struct paper_local_ops *const all[] = {
    &paper_cpu,
    &paper_device,
};

static const struct paper_local_ops *find(const char *device)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->means(device))
            return all[i];
    return NULL;
}

bool paper_local_known(const char *device)
{
    return find(device);
}

enum common_code paper_local_open(const struct paper_local_options *options, struct paper_local **out,
                                  struct common_error *err)
{
    return find(options->device)->open(options, out, err);
}

void paper_local_close(struct paper_local *local)
{
    if (local)
        local->ops->close(local);
}

bool paper_block_make(struct paper_local *local, struct paper_block *block, size_t bytes, bool travels,
                      uint64_t first, uint64_t tokens)
{
    uint64_t at = 0;
    if (!local->ops->block_init(local, block, bytes, travels))
        return false;
    void *kv = block->host ? block->host : paper_kv_alloc(bytes);
    if (!kv) {
        paper_block_free(local, block);
        return false;
    }
    paper_shard_fill(local->g, kv, first, tokens);
    while (local->ops->up(local, block, kv, tokens, &at))
        ;
    if (!block->host)
        paper_kv_free(kv);
    return true;
}

void paper_block_free(struct paper_local *local, struct paper_block *block)
{
    local->ops->block_fini(local, block);
    *block = (struct paper_block){0};
}
