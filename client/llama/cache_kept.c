// SPDX-License-Identifier: Apache-2.0
#include "client/llama/cache_kept.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "client/llama/spec.h"

static const unsigned char magic[8] = {'B', 'A', 'N', 'Y', 'A', 'N', 'k', '1'};

static void name_of(const unsigned char id[16], char out[64])
{
    int n = snprintf(out, 64, "llama.cpp-kept-");
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, 64 - (size_t)n, "%02x", id[i]);
}

static uint64_t sum_of(const unsigned char *row)
{
    uint64_t sum = 0xcbf29ce484222325; // FNV-1a
    for (int i = 0; i < 32; i++)
        sum = (sum ^ row[i]) * 0x100000001b3;
    return sum;
}

bool cache_kept_wanted(const struct cache *cache)
{
    const struct settings *settings = cluster_settings(NULL, 0);
    if (!settings || settings->keep_ns == 0)
        return false;
    for (uint32_t i = 0; i < cache->n_layers; i++)
        if (cache->layers[i].k->nb[1] < CACHE_KEPT_ROW || cache->layers[i].v->nb[1] < CACHE_KEPT_ROW)
            return false;
    return true;
}

void cache_kept_write(const struct cache_kept *row, void *out, size_t row_bytes)
{
    unsigned char *at = out;
    uint64_t position = row->position | (uint64_t)row->ordered << 63;
    memset(at, 0, row_bytes);
    memcpy(at, magic, sizeof magic);
    memcpy(at + 8, row->id, sizeof row->id);
    memcpy(at + 24, &position, sizeof position);
    uint64_t sum = sum_of(at);
    memcpy(at + 32, &sum, sizeof sum);
}

bool cache_kept_read(const void *row, size_t row_bytes, struct cache_kept *out)
{
    const unsigned char *at = row;
    uint64_t position, sum;
    if (row_bytes < CACHE_KEPT_ROW || memcmp(at, magic, sizeof magic) != 0)
        return false;
    memcpy(&position, at + 24, sizeof position);
    memcpy(&sum, at + 32, sizeof sum);
    if (sum != sum_of(at))
        return false;
    memcpy(out->id, at + 8, sizeof out->id);
    out->position = position & ~(1ull << 63);
    out->ordered = position >> 63;
    return true;
}

bool cache_kept_make(struct cache *cache, uint32_t number)
{
    struct cache_stream *stream = &cache->streams[number];
    banyan_session *kept;
    banyan_error error;
    char name[64];
    uint64_t length = UINT64_MAX;
    if (stream->kept_changes == stream->changes + 1)
        return true;
    for (uint32_t i = 0; i < stream->layers; i++)
        length = stream->lengths[i] < length ? stream->lengths[i] : length;
    if (getrandom(stream->kept, sizeof stream->kept, 0) != sizeof stream->kept) {
        cache_say(cache->why, "a name cannot be drawn: %s", strerror(errno));
        return false;
    }
    name_of(stream->kept, name);
    if (banyan_session_pin(stream->session, length, cluster_settings(NULL, 0)->keep_ns, name, &kept,
                           &error) != BANYAN_OK) {
        cache_say(cache->why, "sequence %u: it cannot be kept: %s", number, error.message);
        return false;
    }
    banyan_session_close(kept);
    stream->kept_changes = stream->changes + 1;
    return true;
}

bool cache_kept_open(struct cache *cache, uint32_t number, const struct cache_kept *row)
{
    banyan_client *client = cluster_client(cache->why, sizeof cache->why);
    banyan_session *kept;
    banyan_session_info info;
    banyan_error error;
    char name[64];
    if (!client)
        return false;
    name_of(row->id, name);
    if (banyan_session_open(client, 0, name, &kept, &error) != BANYAN_OK) {
        cache_say(cache->why, "what the state names, the session %s, is not to be had: %s", name,
                  error.message);
        return false;
    }
    bool done = spec_is(cache, banyan_session_spec(kept));
    if (done && (banyan_session_get_info(kept, &info, &error) != BANYAN_OK)) {
        cache_say(cache->why, "%s: %s", name, error.message);
        done = false;
    } else if (done) {
        uint64_t length = info.length;
        banyan_session_info_free(&info);
        done = cache_fork_of(cache, number, kept, length);
    }
    banyan_session_close(kept);
    return done;
}
