// SPDX-License-Identifier: Apache-2.0
// Sessions that come from others: copies of a stream, states that are taken up again, and sequences that
// share their cells.
#include <stddef.h>

#include "client/llama/cache.h"

// ---- forks ---------------------------------------------------------------------------------------------

// The origin's first `length` rows, or as many as all its layers have, as the stream's session. What fails is
// in the stream's `lost`.
static void fork_to(struct cache *cache, uint32_t from, uint32_t to, uint64_t length)
{
    struct cache_stream *origin = &cache->streams[from], *stream = &cache->streams[to];
    banyan_error error;
    char name[128];
    cache_drop_session(stream, true);
    stream->lost[0] = '\0';
    if (!cache_ask(cache, from))
        cache_say(stream->lost, "it was copied from sequence %u, which could not be read", from);
    for (uint32_t i = 0; i < origin->layers; i++)
        length = origin->lengths[i] < length ? origin->lengths[i] : length;
    if (origin->lost[0])
        cache_say(stream->lost, "%s", origin->lost);
    if (stream->lost[0] || !origin->session || length == 0)
        return;
    if (!cache_take_lengths(stream, origin->layers)) {
        cache_say(stream->lost, "there was no memory for a copy");
        return;
    }
    cache_name_of(cache, to, name);
    banyan_code code = banyan_session_fork(origin->session, length, name, &stream->session, &error);
    if (code == BANYAN_ALREADY_EXISTS) // another machine's process of this number has it
        code = banyan_session_fork(origin->session, length, NULL, &stream->session, &error);
    if (code != BANYAN_OK) {
        cache_say(stream->lost, "it could not be copied from sequence %u: %s", from, error.message);
        return;
    }
    for (uint32_t i = 0; i < stream->layers; i++)
        stream->lengths[i] = length;
    stream->window = origin->window;
    stream->chunk = origin->chunk;
}

bool cache_fork_of(struct cache *cache, uint32_t number, banyan_session *origin, uint64_t length)
{
    struct cache_stream *stream = &cache->streams[number];
    const struct settings *settings = cluster_settings(NULL, 0);
    banyan_error error;
    char name[128];
    cache_drop_session(stream, true);
    stream->lost[0] = '\0';
    if (!cache_take_lengths(stream, cache->n_layers)) {
        cache_say(cache->why, "no memory");
        return false;
    }
    cache_keep_from_now(settings);
    cache_name_of(cache, number, name);
    banyan_code code = banyan_session_pin(origin, length, settings->ttl_ns, name, &stream->session, &error);
    if (code == BANYAN_ALREADY_EXISTS)
        code = banyan_session_pin(origin, length, settings->ttl_ns, NULL, &stream->session, &error);
    if (code != BANYAN_OK) {
        cache_say(cache->why, "sequence %u: it cannot be taken up again: %s", number, error.message);
        return false;
    }
    for (uint32_t i = 0; i < stream->layers; i++)
        stream->lengths[i] = length;
    stream->window = cache->window;
    stream->chunk = cache->chunk;
    stream->changes++;
    return true;
}

static void copy(struct cache *cache, uint32_t from, uint32_t to)
{
    struct cache_stream *origin = &cache->streams[from], *stream = &cache->streams[to];
    // A copy comes tensor by tensor: the first has done it.
    if (stream->copied_from == from && stream->copied_changes == origin->changes &&
        stream->changes_after == stream->changes)
        return;
    fork_to(cache, from, to, UINT64_MAX);
    if (stream->lost[0])
        return; // the next copy tries again
    stream->copied_from = from;
    stream->copied_changes = origin->changes;
    stream->changes_after = stream->changes;
}

void cache_copy(struct cache *cache, uint32_t from, uint32_t to)
{
    pthread_mutex_lock(&cache->lock);
    if (from < cache->n_streams && to < cache->n_streams && from != to)
        copy(cache, from, to);
    pthread_mutex_unlock(&cache->lock);
}

// ---- sequences that share their cells -------------------------------------------------------------------

static bool in_plan(const struct cells *shared, uint32_t number)
{
    for (uint32_t i = 0; i < shared->n_parts; i++)
        if (shared->parts[i].list == number)
            return true;
    return false;
}

bool cache_follow(struct cache *cache)
{
    struct cells *shared = cache->shared;
    if (!cache_room(cache))
        return false;
    for (uint32_t i = 0; i < shared->n_parts; i++)
        if (shared->parts[i].fork_of != CELLS_NONE)
            fork_to(cache, shared->parts[i].fork_of, shared->parts[i].list, shared->parts[i].first);
    cache->restored = CELLS_NONE;
    if (!cells_apply(shared, cache->window || cache->chunk)) {
        cache_say(cache->why, "no memory");
        return false;
    }
    for (uint32_t i = 0; i < shared->n_lists; i++) {
        struct cache_stream *stream = &cache->streams[i];
        if (in_plan(shared, i) || !stream->session || stream->unsure)
            continue;
        if (shared->lists[i].length == 0)
            cache_drop_session(stream, true);
        else
            (void)cache_truncate(cache, i, shared->lists[i].length); // it is asked again when it is used
    }
    return true;
}

// Rows of `count` cells from `first` on of the list, which another stream has from `from` on.
static bool collect_run(struct cache *cache, uint32_t number, uint32_t first, uint32_t count, uint32_t origin,
                        uint32_t from)
{
    struct cache_stream *stream = &cache->streams[number];
    if (!cache_ask(cache, origin))
        return false;
    if (cache->streams[origin].lost[0] || !cache->streams[origin].session) {
        cache_say(cache->why, "sequence %u: %s; its prompt must be processed from the start again", origin,
                  cache->streams[origin].lost[0] ? cache->streams[origin].lost : "it has no session");
        return false;
    }
    for (uint32_t i = 0; i < stream->layers; i++) {
        if (!cache_move_rows(cache, origin, &cache->layers[i], from, stream->session, first, count))
            return false;
        stream->lengths[i] = first + count;
    }
    return true;
}

bool cache_collect(struct cache *cache, uint32_t number)
{
    const struct cells_list *made = &cache->shared->lists[number];
    bool done = cache_room(cache);
    if (done && cache->streams[number].session)
        cache_drop_session(&cache->streams[number], true);
    done = done && cache_create_session(cache, number);
    for (uint32_t first = 0, run; done && first < made->length; first += run) {
        uint32_t most = 1;
        while (first + most < made->length && made->cell[first + most] == made->cell[first] + most)
            most++;
        uint32_t origin = cells_find(cache->shared, made->cell[first], most, number, &run);
        done = origin != CELLS_NONE && collect_run(cache, number, first, run, origin,
                                                   cache->shared->lists[origin].at[made->cell[first]]);
    }
    if (done)
        return true;
    cells_cut(cache->shared, number, 0);
    if (number < cache->n_streams)
        cache_drop_session(&cache->streams[number], true);
    return false;
}
