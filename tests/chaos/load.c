// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/load.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "tests/chaos/held.h"
#include "tests/e2e/support.h"

#define NO_VERDICT_NS (90 * COMMON_NS_PER_S) // nothing is disturbed for that long

struct client {
    struct load *load;
    pthread_t thread;
    banyan_client *banyan;
    uint64_t number, seed;
    struct held held[LOAD_SESSIONS + LOAD_FORKS];
    unsigned settled;     // how often
    pthread_mutex_t lock; // over what others look at: counts, wrong, settled
    struct load_counts counts;
    char wrong[600];
};

struct load {
    struct load_options options;
    struct client clients[LOAD_CLIENTS];
    atomic_uint lost;   // copies of every chunk that may have gone since the start
    atomic_uint settle; // how often it was asked for
    atomic_uint full;   // odd: the store is full
    atomic_bool over, beyond;
};

static uint64_t draw(struct client *c, uint64_t n)
{
    c->seed += UINT64_C(0x9e3779b97f4a7c15);
    return common_mix64(c->seed) % n;
}

static void is_wrong(struct client *c, const struct held *h, const char *what, banyan_code code)
{
    pthread_mutex_lock(&c->lock);
    if (!c->wrong[0])
        snprintf(c->wrong, sizeof(c->wrong),
                 "client %" PRIu64 ", session %" PRIx64 " (%u holders, length %" PRIu64 "): %s: %s (%s) %s",
                 c->number, banyan_session_id(h->session), held_replicas(h), h->length, what,
                 banyan_code_name(code), ERR->reason, ERR->message);
    pthread_mutex_unlock(&c->lock);
}

#define COUNT(client, what, n)                                                                               \
    do {                                                                                                     \
        pthread_mutex_lock(&(client)->lock);                                                                 \
        (client)->counts.what += (n);                                                                        \
        pthread_mutex_unlock(&(client)->lock);                                                               \
    } while (0)

static bool stopped(const struct client *c)
{
    return c->wrong[0] != '\0';
}

// Whether the session still has a copy of all that it had.
static bool covered(const struct client *c, const struct held *h)
{
    return atomic_load(&c->load->lost) - h->lost < held_replicas(h);
}

static bool passes(banyan_code code)
{
    return code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED || code == BANYAN_ABORTED ||
           code == BANYAN_RESOURCE_EXHAUSTED;
}

// After a call that failed: whether it is to be made again. Else the session must be emptied, or something is
// wrong.
static bool once_more(struct client *c, struct held *h, const char *what, banyan_code code)
{
    if (!held_ranges_are_right(h, !covered(c, h), ERR))
        is_wrong(c, h, "an error names ranges that the session does not have", code);
    if (passes(code)) {
        COUNT(c, retries, 1);
        support_sleep_ms(2);
        return !stopped(c);
    }
    bool loss = code == BANYAN_DATA_LOSS || code == BANYAN_OUT_OF_RANGE;
    if (loss && !covered(c, h)) {
        COUNT(c, gone_tokens, h->length);
        h->must_empty = true;
    } else {
        if (loss)
            COUNT(c, lost_tokens, h->length);
        is_wrong(c, h, what, code);
    }
    return false;
}

// Calls until there is a verdict: OK, a loss, or something that must not be. False: not OK.
#define UNTIL_VERDICT(client, h, what, call)                                                                 \
    ({                                                                                                       \
        uint64_t until_ = common_clock_ns() + NO_VERDICT_NS;                                                 \
        banyan_code code_;                                                                                   \
        while ((code_ = (call)) != BANYAN_OK && once_more(client, h, what, code_))                           \
            if (common_clock_ns() > until_)                                                                  \
                is_wrong(client, h, what " has no verdict", code_);                                          \
        code_ == BANYAN_OK;                                                                                  \
    })

// ---- steps ------------------------------------------------------------------------------------------------

struct ask { // one step
    uint32_t layer, rows;
    uint64_t first, timeout_ns;
    bool append;
    unsigned full; // of the load, when it began
};

static banyan_code try_step(struct client *c, struct held *h, const struct ask *ask)
{
    struct step step = {.session = h->session,
                        .layer = ask->layer,
                        .first = ask->first,
                        .rows = ask->rows,
                        .seed = ask->first + ask->layer,
                        .timeout_ns = ask->timeout_ns};
    if (ask->append)
        step_append(&step, &h->context);
    banyan_code code = step_run(c->banyan, &step);
    if (code == BANYAN_OK) {
        COUNT(c, steps, 1);
        if (!context_agrees(&h->context, ask->layer, ask->first, ask->rows, 0, step.made_q, step.o, step.lse,
                            ERR->message, sizeof(ERR->message))) {
            COUNT(c, wrong, 1);
            is_wrong(c, h, "a wrong answer", code);
        }
    }
    step_free(&step);
    return code;
}

static banyan_code count_failed(struct client *c, const struct held *h, const struct ask *ask,
                                banyan_code code)
{
    if (code == BANYAN_OK || ask->timeout_ns < HELD_LONG_NS || held_replicas(h) == 1 || !covered(c, h))
        return code;
    if (ask->full % 2 || atomic_load(&c->load->full) != ask->full) { // at any time meanwhile
        COUNT(c, failed_full, 1);
    } else if (atomic_load(&c->load->beyond)) {
        COUNT(c, failed_beyond, 1);
    } else {
        COUNT(c, failed_steps, 1);
        fprintf(stderr, "chaos: a failed step: session %" PRIx64 " (%u holders): %s %s: %s\n",
                banyan_session_id(h->session), held_replicas(h), ask->append ? "append" : "read",
                banyan_code_name(code), ERR->message);
    }
    return code;
}

static bool make_step(struct client *c, struct held *h, struct ask ask)
{
    uint64_t begun = common_clock_ns();
    bool eager = draw(c, 10) == 0; // a deadline that some do not meet
    ask.timeout_ns = eager ? (20 + draw(c, 1000)) * COMMON_NS_PER_MS : HELD_LONG_NS;
    bool ok = UNTIL_VERDICT(c, h, "a step",
                            (ask.full = atomic_load(&c->load->full),
                             count_failed(c, h, &ask, try_step(c, h, &ask))));
    uint64_t took = common_clock_ns() - begun;
    if (ok && held_replicas(h) > 1 && covered(c, h)) {
        pthread_mutex_lock(&c->lock);
        if (took > c->counts.longest_pause_ns)
            c->counts.longest_pause_ns = took;
        pthread_mutex_unlock(&c->lock);
    }
    return ok;
}

static void act_append(struct client *c, struct held *h)
{
    h->written = h->length + 1;
    for (uint32_t l = 0; l < h->context.spec.layers; l++)
        if (!make_step(c, h, (struct ask){.layer = l, .rows = 1, .first = h->length, .append = true}))
            return;
    h->length++;
    if (draw(c, 8) == 0 && // nothing comes of sending it again
        make_step(c, h, (struct ask){.rows = 1, .first = h->length - 1, .append = true}))
        COUNT(c, again, 1);
}

static void act_read(struct client *c, struct held *h)
{
    uint64_t first = draw(c, h->length), rows = 1 + draw(c, 4);
    if (draw(c, 4) == 0)
        first = h->length - 1; // sees all that there is
    rows = rows < h->length - first ? rows : h->length - first;
    make_step(c, h,
              (struct ask){.layer = (uint32_t)draw(c, h->context.spec.layers),
                           .rows = (uint32_t)rows,
                           .first = first});
}

// Other bytes at a position that is acknowledged are never taken.
static void act_contradict(struct client *c, struct held *h)
{
    struct context *context = &h->context;
    uint64_t at = h->length - 1;
    uint8_t *k = context->k[0] + at * context->k_row;
    uint8_t was = k[0];
    struct step step = {.session = h->session, .first = at, .rows = 1, .timeout_ns = HELD_LONG_NS};
    k[0] ^= 1;
    step_append(&step, context);
    banyan_code code = step_run(c->banyan, &step);
    k[0] = was;
    step_free(&step);
    if (code == BANYAN_OK || (covered(c, h) && code != BANYAN_FAILED_PRECONDITION && !passes(code)))
        is_wrong(c, h, "other bytes at an acknowledged position", code);
}

// ---- attach -----------------------------------------------------------------------------------------------

// Rows that were put and not committed go with their holder, also when that was only taken for lost. The
// service says which (nothing else may be missing), and putting them again is the remedy.
static bool went_with_their_holder(banyan_code code, uint64_t first, uint64_t count)
{
    if (code != BANYAN_FAILED_PRECONDITION || strcmp(ERR->reason, "HOLE") != 0 || ERR->n_ranges == 0)
        return false;
    for (uint32_t i = 0; i < ERR->n_ranges; i++)
        if (ERR->ranges[i].first < first || ERR->ranges[i].count > first + count - ERR->ranges[i].first)
            return false;
    return true;
}

// BANYAN_ABORTED stands for: once more from the start.
static banyan_code attach_and_commit(struct client *c, struct held *h, uint32_t layer, uint64_t count)
{
    banyan_code code = context_attach(h->session, &h->context, layer, h->length, count, ERR);
    if (code != BANYAN_OK)
        return code;
    code = banyan_commit(h->session, layer, h->length, count, ERR);
    bool away = code == BANYAN_DATA_LOSS && covered(c, h); // committed, and a worker refused: attach it again
    return away || went_with_their_holder(code, h->length, count) ? BANYAN_ABORTED : code;
}

static void act_attach(struct client *c, struct held *h)
{
    uint64_t count = 1 + draw(c, HELD_BLOCK);
    h->written = h->length + count;
    for (uint32_t l = 0; l < h->context.spec.layers; l++)
        if (!UNTIL_VERDICT(c, h, "an attach", attach_and_commit(c, h, l, count)))
            return;
    h->length += count;
    COUNT(c, attaches, 1);
}

// ---- truncate, fork, delete -------------------------------------------------------------------------------

static bool truncate_to(struct client *c, struct held *h, uint64_t length)
{
    unsigned before = atomic_load(&c->load->lost);
    h->must_empty = false;
    if (!UNTIL_VERDICT(c, h, "a truncate", banyan_session_truncate(h->session, length, ERR))) {
        h->must_empty = !stopped(c);
        return false;
    }
    if (!length)
        h->lost = before;
    held_forget(h, length, draw(c, UINT64_MAX));
    COUNT(c, truncates, 1);
    return true;
}

static void act_delete(struct client *c, struct held *h)
{
    banyan_code code = BANYAN_OK;
    uint64_t until = common_clock_ns() + NO_VERDICT_NS;
    while ((code = banyan_session_delete(h->session, ERR)) != BANYAN_OK && code != BANYAN_NOT_FOUND) {
        if (!passes(code) || common_clock_ns() > until) {
            is_wrong(c, h, "a delete", code);
            return;
        }
        support_sleep_ms(5);
    }
    held_free(h);
}

static struct held *free_fork(struct client *c)
{
    for (int i = LOAD_SESSIONS; i < LOAD_SESSIONS + LOAD_FORKS; i++)
        if (!c->held[i].session)
            return &c->held[i];
    return NULL;
}

static void act_fork(struct client *c, struct held *h, struct held *to)
{
    uint64_t length = draw(c, h->length + 1);
    unsigned before = h->lost;
    banyan_session *session = NULL;
    // One without a verdict may have been made: it is nameless, and goes when it has not been used for a
    // while
    if (!UNTIL_VERDICT(c, h, "a fork", banyan_session_fork(h->session, length, NULL, &session, ERR)))
        return;
    held_fork(to, h, session, length, draw(c, UINT64_MAX));
    to->lost = before;
    to->left = 10 + (unsigned)draw(c, 60);
    COUNT(c, forks, 1);
}

// ---- a thread ---------------------------------------------------------------------------------------------

static void act(struct client *c, struct held *h)
{
    struct held *to = free_fork(c);
    bool plain = c->load->options.plain;
    if (h->must_empty || h->length + HELD_BLOCK + 1 >= HELD_ROOM)
        truncate_to(c, h, 0);
    else if (h->left && --h->left == 0)
        act_delete(c, h);
    else if (!plain && draw(c, 40) == 0)
        truncate_to(c, h, draw(c, h->length + 1));
    else if (!plain && to && draw(c, 40) == 0)
        act_fork(c, h, to);
    else if (!plain && draw(c, 8) == 0)
        act_attach(c, h);
    else if (!h->length || draw(c, 2) == 0)
        act_append(c, h);
    else if (draw(c, 40) == 0 && covered(c, h))
        act_contradict(c, h);
    else
        act_read(c, h);
}

// All of what it has is there, and R copies of it; or it is empty, and what comes next has R.
static bool is_whole(struct client *c, struct held *h, bool *degraded)
{
    banyan_session_info info;
    *degraded = false;
    if (h->length && !make_step(c, h, (struct ask){.rows = 1, .first = h->length - 1}))
        return false; // rows are gone
    if (banyan_session_get_info(h->session, &info, ERR) != BANYAN_OK)
        return false;
    *degraded = strcmp(info.state, "degraded") == 0;
    bool active = strcmp(info.state, "active") == 0;
    banyan_session_info_free(&info);
    return active;
}

static void make_whole(struct client *c, struct held *h)
{
    uint64_t begun = common_clock_ns();
    bool degraded;
    while (!stopped(c)) {
        unsigned before = atomic_load(&c->load->lost);
        uint64_t waited = common_clock_ns() - begun;
        if (!h->must_empty && is_whole(c, h, &degraded) && !h->must_empty) {
            h->lost = before;
            return;
        }
        if (h->must_empty || (degraded && waited > c->load->options.restore_ns)) {
            COUNT(c, emptied, 1);
            if (degraded && c->load->options.restore_ns)
                fprintf(stderr,
                        "chaos: session %" PRIx64 " (%u holders, length %" PRIu64
                        ") has not got its copies back\n",
                        banyan_session_id(h->session), held_replicas(h), h->length);
            if (truncate_to(c, h, 0))
                act_append(c, h); // its first chunk is placed again
        }
        if (waited > NO_VERDICT_NS)
            is_wrong(c, h, "it does not get its copies back", BANYAN_OK);
        support_sleep_ms(5);
    }
}

static void settle(struct client *c)
{
    unsigned wanted = atomic_load(&c->load->settle);
    if (wanted == c->settled)
        return;
    for (int i = 0; i < LOAD_SESSIONS + LOAD_FORKS; i++)
        if (c->held[i].session)
            make_whole(c, &c->held[i]);
    pthread_mutex_lock(&c->lock);
    c->settled = wanted;
    pthread_mutex_unlock(&c->lock);
}

static void *client_main(void *arg)
{
    struct client *c = arg;
    while (!atomic_load(&c->load->over) && !stopped(c)) {
        struct held *h = &c->held[draw(c, LOAD_SESSIONS + LOAD_FORKS)];
        settle(c);
        if (h->session)
            act(c, h);
    }
    return NULL;
}

// ---- the outside ------------------------------------------------------------------------------------------

struct load *load_start(const struct load_options *options)
{
    struct load *load = calloc(1, sizeof(*load));
    assert_non_null(load);
    load->options = *options;
    for (uint64_t i = 0; i < LOAD_CLIENTS; i++) {
        struct client *c = &load->clients[i];
        banyan_options how = {.timeout_ns = HELD_LONG_NS};
        c->load = load;
        c->number = i;
        c->seed = options->seed + i * 1000003;
        pthread_mutex_init(&c->lock, NULL);
        OK(banyan_connect(options->endpoints[i], &how, &c->banyan, ERR));
        for (uint64_t k = 0; k < LOAD_SESSIONS; k++)
            held_make(&c->held[k], c->banyan, i * LOAD_SESSIONS + k, options->replicas, draw(c, UINT64_MAX));
    }
    for (int i = 0; i < LOAD_CLIENTS; i++)
        assert_int_equal(pthread_create(&load->clients[i].thread, NULL, client_main, &load->clients[i]), 0);
    return load;
}

void load_lost(struct load *load, unsigned copies)
{
    atomic_fetch_add(&load->lost, copies);
}

void load_store_full(struct load *load, bool full)
{
    if (full == (atomic_load(&load->full) % 2 == 0))
        atomic_fetch_add(&load->full, 1);
}

void load_beyond(struct load *load)
{
    atomic_store(&load->beyond, true);
}

bool load_settle(struct load *load, uint64_t timeout_ns)
{
    unsigned wanted = atomic_fetch_add(&load->settle, 1) + 1;
    uint64_t until = common_clock_after(timeout_ns);
    for (int i = 0; i < LOAD_CLIENTS;) {
        struct client *c = &load->clients[i];
        pthread_mutex_lock(&c->lock);
        bool done = c->settled == wanted || c->wrong[0];
        pthread_mutex_unlock(&c->lock);
        if (done)
            i++;
        else if (common_clock_left(until) == 0)
            return false;
        else
            support_sleep_ms(5);
    }
    atomic_store(&load->beyond, false);
    return true;
}

void load_get(struct load *load, struct load_counts *out)
{
    *out = (struct load_counts){0};
    for (int i = 0; i < LOAD_CLIENTS; i++) {
        struct client *c = &load->clients[i];
        pthread_mutex_lock(&c->lock);
        const uint64_t *from = (const uint64_t *)&c->counts;
        for (size_t k = 0; k < sizeof(*out) / sizeof(uint64_t); k++)
            ((uint64_t *)out)[k] += from[k];
        uint64_t others = out->longest_pause_ns - c->counts.longest_pause_ns;
        out->longest_pause_ns = others > c->counts.longest_pause_ns ? others : c->counts.longest_pause_ns;
        pthread_mutex_unlock(&c->lock);
    }
}

void load_forget_pauses(struct load *load)
{
    for (int i = 0; i < LOAD_CLIENTS; i++) {
        struct client *c = &load->clients[i];
        pthread_mutex_lock(&c->lock);
        c->counts.longest_pause_ns = 0;
        pthread_mutex_unlock(&c->lock);
    }
}

const char *load_wrong(struct load *load)
{
    for (int i = 0; i < LOAD_CLIENTS; i++) {
        struct client *c = &load->clients[i];
        pthread_mutex_lock(&c->lock);
        bool wrong = c->wrong[0] != '\0';
        pthread_mutex_unlock(&c->lock);
        if (wrong)
            return c->wrong;
    }
    return NULL;
}

// Each of its layers from the end, which sees everything, and a row somewhere.
static void look_at(struct client *c, struct held *h)
{
    if (h->must_empty)
        truncate_to(c, h, 0);
    for (uint32_t l = 0; h->length && l < h->context.spec.layers; l++)
        if (!make_step(c, h, (struct ask){.layer = l, .rows = 1, .first = h->length - 1}) ||
            !make_step(c, h, (struct ask){.layer = l, .rows = 1, .first = draw(c, h->length)}))
            break;
    if (h->must_empty)
        truncate_to(c, h, 0);
    act_append(c, h);
}

bool load_end(struct load *load)
{
    atomic_store(&load->over, true);
    for (int i = 0; i < LOAD_CLIENTS; i++)
        pthread_join(load->clients[i].thread, NULL);
    for (int i = 0; i < LOAD_CLIENTS; i++) {
        struct client *c = &load->clients[i];
        for (int k = 0; k < LOAD_SESSIONS + LOAD_FORKS && !stopped(c); k++)
            if (c->held[k].session) {
                look_at(c, &c->held[k]);
                if (!stopped(c))
                    act_delete(c, &c->held[k]);
            }
    }
    return !load_wrong(load);
}

void load_free(struct load *load)
{
    for (int i = 0; load && i < LOAD_CLIENTS; i++) {
        struct client *c = &load->clients[i];
        for (int k = 0; k < LOAD_SESSIONS + LOAD_FORKS; k++)
            if (c->held[k].session)
                held_free(&c->held[k]);
        banyan_disconnect(c->banyan);
        pthread_mutex_destroy(&c->lock);
    }
    free(load);
}
