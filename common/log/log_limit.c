// SPDX-License-Identifier: Apache-2.0
#include "common/log/log_limit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define SETS 64
#define WAYS 4 // kinds with one set

struct kind {
    uint64_t key, second, left_out;
    uint32_t n; // written in that second; 0: the place is free
    enum common_log_level level;
    char text[COMMON_LOG_LEFT_TEXT];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kind kinds[SETS][WAYS];
static _Atomic uint32_t owed; // kinds with something left out

// The one with this key, or one that may become it: what is owed is kept until it has been said.
static struct kind *place_for(uint64_t key, uint64_t second)
{
    struct kind *set = kinds[key % SETS], *best = NULL;
    for (int i = 0; i < WAYS; i++)
        if (set[i].n && set[i].key == key)
            return &set[i];
    for (int i = 0; i < WAYS; i++) {
        if (!set[i].n || (set[i].second != second && !set[i].left_out))
            return &set[i];
        if (!set[i].left_out && (!best || set[i].n < best->n))
            best = &set[i];
    }
    return best;
}

bool common_log_limit_pass(uint64_t key, uint32_t rate, enum common_log_level level, const char *text,
                           uint64_t second)
{
    bool pass = true;
    pthread_mutex_lock(&lock);
    struct kind *kind = place_for(key, second);
    if (kind && (!kind->n || kind->key != key || (kind->second != second && !kind->left_out))) {
        kind->key = key;
        kind->second = second;
        kind->n = 1;
        kind->level = level;
        snprintf(kind->text, sizeof kind->text, "%s", text);
    } else if (kind && kind->n < rate) {
        kind->n++;
    } else if (kind) {
        pass = false;
        if (!kind->left_out++)
            atomic_fetch_add(&owed, 1);
    }
    pthread_mutex_unlock(&lock);
    return pass;
}

bool common_log_limit_left(uint64_t second, struct common_log_left *out)
{
    bool found = false;
    if (!atomic_load_explicit(&owed, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SETS * WAYS && !found; i++) {
        struct kind *kind = &kinds[i / WAYS][i % WAYS];
        if (!kind->left_out || kind->second == second)
            continue;
        out->level = kind->level;
        out->n = kind->left_out;
        snprintf(out->text, sizeof out->text, "%s", kind->text);
        kind->left_out = 0;
        kind->n = 0;
        atomic_fetch_sub(&owed, 1);
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
