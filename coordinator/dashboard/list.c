// SPDX-License-Identifier: Apache-2.0
#include "coordinator/dashboard/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/http/http.h"
#include "coordinator/dashboard/ask.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "proto/model/spec.h"

#define KEPT_NS (5 * COMMON_NS_PER_S)

enum sort {
    SORT_ID,
    SORT_NAME,
    SORT_STATE,
    SORT_TOKENS,
    SORT_BYTES,
    SORT_CHUNKS,
    SORT_STEPS,
    SORT_IDLE,
    SORTS
};
static const char *const sorts[SORTS] = {"id", "name", "state", "tokens", "bytes", "chunks", "steps", "idle"};

struct entry {
    uint64_t key, id;
    const char *name; // of the session
};

void coordinator_lists_fini(struct coordinator_lists *lists)
{
    for (size_t i = 0; i < COORDINATOR_LISTS; i++)
        free(lists->kept[i].ids);
    *lists = (struct coordinator_lists){0};
}

// ---- the order ----------------------------------------------------------------------------------

static uint64_t state_rank(struct coordinator_session *s) // the worst first
{
    const char *state = coordinator_session_state_text(s);
    return state[0] == 'u' ? 0 : state[0] == 'd' ? 1 : 2;
}

static uint64_t key_of(struct coordinator_session *s, enum sort sort, uint64_t now)
{
    switch (sort) {
    case SORT_STATE:
        return state_rank(s);
    case SORT_TOKENS:
        return s->counted_length;
    case SORT_BYTES:
        return s->counted_length * s->token_bytes;
    case SORT_CHUNKS:
        return s->layout.n;
    case SORT_STEPS:
        return s->steps;
    case SORT_IDLE:
        return now > s->last_used_ns ? now - s->last_used_ns : 0;
    default:
        return s->id;
    }
}

static int by_id(const struct entry *x, const struct entry *y)
{
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_key(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key ? 1 : by_id(x, y);
}

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (!x->name[0] || !y->name[0]) // those without one behind the others
        return x->name[0] ? -1 : y->name[0] ? 1 : by_id(x, y);
    int order = strcmp(x->name, y->name);
    return order ? order : by_id(x, y);
}

static bool contains(const char *text, const char *part) // whatever the case of its letters
{
    for (size_t len = strlen(part); *text; text++)
        if (strncasecmp(text, part, len) == 0)
            return true;
    return false;
}

static bool matches(struct coordinator_session *s, const struct coordinator_list_wish *wish)
{
    char id[17];
    if (s->state == COORDINATOR_SESSION_CREATING ||
        (wish->state[0] && strcmp(wish->state, coordinator_session_state_text(s)) != 0))
        return false;
    if (!wish->text[0] || contains(s->name, wish->text))
        return true;
    snprintf(id, sizeof(id), "%016" PRIx64, s->id);
    return contains(id, wish->text);
}

// Instead of what the list was. False: no memory, and it is what it was.
static bool list_make(struct coordinator_list *list, const struct coordinator_sessions *sessions,
                      const struct coordinator_list_wish *wish, uint64_t now)
{
    size_t most = sessions->n < COORDINATOR_LIST_MOST ? sessions->n : COORDINATOR_LIST_MOST, n = 0,
           matching = 0;
    struct entry *entries = malloc((most + 1) * sizeof(*entries));
    uint64_t *ids = malloc((most + 1) * sizeof(*ids));
    if (!entries || !ids) {
        free(entries);
        free(ids);
        return false;
    }
    for (uint32_t slot = 0; slot < sessions->n_slots; slot++) {
        struct coordinator_session *s = sessions->slots[slot];
        if (!s || !matches(s, wish))
            continue;
        matching++;
        if (n < most)
            entries[n++] = (struct entry){key_of(s, (enum sort)wish->sort, now), s->id, s->name};
    }
    qsort(entries, n, sizeof(*entries), wish->sort == SORT_NAME ? by_name : by_key);
    for (size_t i = 0; i < n; i++)
        ids[i] = entries[wish->down ? n - 1 - i : i].id;
    free(entries);
    free(list->ids);
    *list =
        (struct coordinator_list){.wish = *wish, .made_ns = now, .ids = ids, .n = n, .matching = matching};
    return true;
}

// ---- those that are kept ------------------------------------------------------------------------

static bool same_wish(const struct coordinator_list_wish *a, const struct coordinator_list_wish *b)
{
    return a->sort == b->sort && a->down == b->down && !strcmp(a->text, b->text) &&
           !strcmp(a->state, b->state);
}

static uint64_t processor_ns(void) // of this thread: what others take meanwhile does not count
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * COMMON_NS_PER_S + (uint64_t)t.tv_nsec;
}

// The order of this wish, made where there is none or it is old. RESOURCE_EXHAUSTED: not now. UNAVAILABLE: no memory.
static enum common_code lists_get(struct coordinator_lists *lists,
                                  const struct coordinator_sessions *sessions,
                                  const struct coordinator_list_wish *wish, uint64_t now,
                                  struct coordinator_list **out, struct common_error *err)
{
    struct coordinator_list *found = NULL, *unused = &lists->kept[0];
    for (struct coordinator_list *list = lists->kept; list < lists->kept + COORDINATOR_LISTS; list++) {
        if (list->made_ns && same_wish(&list->wish, wish))
            found = list;
        if (list->used_ns < unused->used_ns)
            unused = list;
    }
    if (!found && now < lists->next_ns)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "sessions are being sorted for other requests: try again in a moment");
    if (!found || (now - found->made_ns >= KEPT_NS && now >= lists->next_ns)) {
        uint64_t began = processor_ns();
        found = found ? found : unused;
        if (!list_make(found, sessions, wish, now))
            return common_error_set(err, COMMON_UNAVAILABLE, "the coordinator is out of memory");
        lists->next_ns = common_clock_after(COORDINATOR_LISTS_REST * (processor_ns() - began));
    }
    found->used_ns = now;
    *out = found;
    return COMMON_OK;
}

// ---- a page -------------------------------------------------------------------------------------

static json_t *row_json(const struct coordinator_dashboard *d, struct coordinator_session *s, uint64_t now)
{
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(s->spec, l);
        bytes += coordinator_session_held(s, l) * (layer.k_row + layer.v_row);
    }
    return json_pack(
        "{s:o, s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "id",
        coordinator_dashboard_id(s->id), "tenant", coordinator_tenant_name(&d->c->tenants, s->tenant), "name",
        coordinator_dashboard_text(s->name), "state", coordinator_session_state_text(s), "tokens",
        coordinator_dashboard_u64(s->counted_length), "bytes", coordinator_dashboard_u64(bytes), "chunks",
        coordinator_dashboard_u64(s->layout.n), "thin_chunks", coordinator_dashboard_u64(s->thin), "layers",
        coordinator_dashboard_u64(s->spec->layers), "members", coordinator_dashboard_u64(s->n_members),
        "replicas", coordinator_dashboard_u64(s->spec->replicas), "steps",
        coordinator_dashboard_u64(s->steps), "idle_ns",
        coordinator_dashboard_u64(now > s->last_used_ns ? now - s->last_used_ns : 0));
}

static enum common_code read_wish(const char *query, struct coordinator_list_wish *out,
                                  struct common_error *err)
{
    char sort[16] = "name", order[8] = "up";
    *out = (struct coordinator_list_wish){0};
    if (common_http_query(query, "sort", sort, sizeof(sort)) != COMMON_HTTP_BAD)
        while (out->sort < SORTS && strcmp(sorts[out->sort], sort) != 0)
            out->sort++;
    else
        out->sort = SORTS;
    if (out->sort == SORTS)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "sort takes id, name, state, tokens, bytes, chunks, steps or idle");
    if (common_http_query(query, "order", order, sizeof(order)) == COMMON_HTTP_BAD ||
        (strcmp(order, "up") != 0 && strcmp(order, "down") != 0))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "order takes up or down");
    out->down = order[0] == 'd';
    if (common_http_query(query, "q", out->text, sizeof(out->text)) == COMMON_HTTP_BAD)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "q takes at most %d bytes of text",
                                COORDINATOR_LIST_TEXT);
    if (common_http_query(query, "state", out->state, sizeof(out->state)) == COMMON_HTTP_BAD ||
        (out->state[0] && strcmp(out->state, "active") != 0 && strcmp(out->state, "degraded") != 0 &&
         strcmp(out->state, "unavailable") != 0))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "state takes active, degraded or unavailable");
    return COMMON_OK;
}

COORDINATOR_DASHBOARD_ASK(sessions)
{
    (void)id;
    struct coordinator_list_wish wish;
    uint64_t limit, offset, now = common_clock_ns();
    enum common_code code = read_wish(query, &wish, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "limit", 100, 1, COORDINATOR_LIST_PAGE, &limit, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "offset", 0, 0, COORDINATOR_LIST_MOST, &offset, err);
    struct coordinator_list *list = NULL;
    if (code == COMMON_OK)
        code = lists_get(&d->lists, &d->c->sessions, &wish, now, &list, err);
    if (code != COMMON_OK)
        return code;
    json_t *rows = json_array();
    for (size_t i = offset; i < list->n && i - offset < limit; i++) {
        struct coordinator_session *s = coordinator_session_find(&d->c->sessions, list->ids[i]);
        json_array_append_new(rows, s ? row_json(d, s, now) : json_null()); // deleted meanwhile
    }
    *out = json_pack("{s:o, s:o, s:o, s:o, s:o}", "total", coordinator_dashboard_u64(d->c->sessions.n),
                     "matching", coordinator_dashboard_u64(list->matching), "sorted",
                     coordinator_dashboard_u64(list->n), "offset", coordinator_dashboard_u64(offset),
                     "sessions", rows);
    return COMMON_OK;
}
