// SPDX-License-Identifier: Apache-2.0
#include "worker/session/follow.h"

#include <stdio.h>

#include "proto/model/spec.h"
#include "worker/session/session.h"

static void go_on(void *arg)
{
    struct worker_follows *follows = arg;
    while (!common_list_empty(&follows->ready)) {
        struct worker_follower *f = common_list_entry(follows->ready.next, struct worker_follower, link);
        common_list_remove(&f->link);
        f->go(f->arg);
    }
}

enum common_code worker_follows_init(struct worker_follows *follows, struct common_loop *loop,
                                     const struct worker_map *sessions, const char *name)
{
    follows->sessions = sessions;
    follows->name = name;
    common_list_init(&follows->ready);
    return common_deferred_new(loop, go_on, follows, &follows->turn);
}

void worker_follows_fini(struct worker_follows *follows)
{
    common_deferred_free(follows->turn);
    worker_map_free(&follows->bringing);
}

void worker_follower_init(struct worker_follower *f, const struct proto_step *step,
                          struct proto_step_result *result, void (*go)(void *arg), void *arg)
{
    *f = (struct worker_follower){.step = step, .result = result, .go = go, .arg = arg};
    common_list_init(&f->behind);
    common_list_init(&f->link);
}

// Whether the item looks at rows that the other one brings, and that have not been acknowledged.
static bool sees(const struct worker_follows *follows, const struct proto_step_item *item,
                 const struct proto_step_item *other)
{
    const struct worker_session *session = worker_map_get(follows->sessions, item->session);
    if (other->session != item->session || other->n_append == 0 || other->incarnation != item->incarnation ||
        !session || !worker_spec_kind(session->spec, item->layer) ||
        proto_spec_source(session->spec->pb, item->layer) != other->layer)
        return false;
    return other->first < item->visible && other->first + other->append_rows > item->length &&
           !(item->n_append && item->first <= other->first); // the same rows, sent once more
}

static bool sees_any(const struct worker_follows *follows, const struct proto_step_item *item,
                     const struct worker_follower *other)
{
    for (uint32_t i = 0; i < other->step->n_items; i++)
        if (sees(follows, item, &other->step->items[i]))
            return true;
    return false;
}

bool worker_follow(struct worker_follows *follows, struct worker_follower *f)
{
    const struct worker_map *bringing = &follows->bringing;
    for (uint32_t i = 0; bringing->count > 0 && i < f->step->n_items; i++) {
        const struct proto_step_item *item = &f->step->items[i];
        struct worker_follower *other =
            item->visible > item->length ? worker_map_get(bringing, item->session) : NULL;
        if (!other || other == f || !sees_any(follows, item, other))
            continue;
        common_list_push(&other->behind, &f->link);
        worker_follow_bring(follows, f);
        return true;
    }
    return false;
}

void worker_follow_bring(struct worker_follows *follows, struct worker_follower *f)
{
    struct worker_map *bringing = &follows->bringing;
    if (f->brings)
        return;
    for (uint32_t i = 0; i < f->step->n_items; i++) {
        const struct proto_step_item *item = &f->step->items[i];
        if (item->n_append == 0 || item->session == 0 || worker_map_get(bringing, item->session) == f)
            continue;
        // Of a session one append is under way: who was there waits before this one, which waits behind it.
        worker_map_remove(bringing, item->session);
        f->brings = worker_map_put(bringing, item->session, f) || f->brings;
    }
}

// Of what it was to see, what is not there fails here: that tokens are missing would be said as if they were lost.
static void fail_unstored(const struct worker_follows *follows, struct worker_follower *f,
                          const struct worker_follower *other, bool stored)
{
    for (uint32_t i = 0; i < f->step->n_items; i++) {
        struct proto_step_result_item *result = &f->result->items[i];
        for (uint32_t k = 0; k < other->step->n_items && result->code == COMMON_OK; k++) {
            if ((stored && other->result->items[k].code == COMMON_OK) ||
                !sees(follows, &f->step->items[i], &other->step->items[k]))
                continue;
            result->code = COMMON_ABORTED;
            snprintf(result->message, sizeof result->message, "an earlier part of the append was not stored");
            snprintf(result->worker, sizeof result->worker, "%s", follows->name);
        }
    }
}

void worker_follow_over(struct worker_follows *follows, struct worker_follower *f, bool stored)
{
    common_list_remove(&f->link);
    for (uint32_t i = 0; f->brings && i < f->step->n_items; i++) {
        const struct proto_step_item *item = &f->step->items[i];
        if (item->n_append > 0 && worker_map_get(&follows->bringing, item->session) == f)
            worker_map_remove(&follows->bringing, item->session);
    }
    f->brings = false;
    while (!common_list_empty(&f->behind)) {
        struct worker_follower *next = common_list_entry(f->behind.next, struct worker_follower, link);
        common_list_remove(&next->link);
        fail_unstored(follows, next, f, stored);
        common_list_push(&follows->ready, &next->link);
        common_deferred_mark(follows->turn);
    }
}
