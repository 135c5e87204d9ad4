// SPDX-License-Identifier: Apache-2.0
#include "tests/failpoints/script.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/e2e/support.h"
#include "tests/failpoints/states.h"

enum { ROOM = 160 };

#define CALL_NS       (5 * COMMON_NS_PER_S)
#define NO_VERDICT_NS (60 * COMMON_NS_PER_S)

enum kind {
    CREATE,
    ATTACH,
    APPEND,
    BAD_COMMIT,
    REFUSED_APPEND,
    READ,
    STATE,
    FORK,
    TRUNCATE,
    DELETE,
    DRAIN,
    RESUME
};

static const struct op {
    enum kind kind;
    int session;
    uint64_t n; // rows, or a length; of DRAIN and RESUME: a worker
} ops[] = {
    {CREATE, 0, 0},  {CREATE, 1, 0},         {ATTACH, 0, 40},   {STATE, 0, 0},
    {ATTACH, 1, 20}, {APPEND, 0, 4},         {STATE, 0, 0},     {APPEND, 1, 3},
    {READ, 0, 0},    {BAD_COMMIT, 0, 0},     {DRAIN, 0, 1},     {APPEND, 0, 2},
    {FORK, 2, 43},   {APPEND, 2, 3},         {TRUNCATE, 0, 42}, {TRUNCATE, 0, 30},
    {ATTACH, 0, 15}, {REFUSED_APPEND, 1, 0}, {APPEND, 1, 12},   {RESUME, 0, 1},
    {STATE, 0, 0},   {TRUNCATE, 1, 20},      {APPEND, 0, 3},    {READ, 1, 0},
    {APPEND, 0, 2}, // before it a worker may be killed
    {APPEND, 1, 2},  {APPEND, 2, 2},         {READ, 2, 0},      {STATE, 1, 0},
    {ATTACH, 1, 20}, {TRUNCATE, 0, 33},      {TRUNCATE, 0, 33}, {READ, 0, 0},
    {DELETE, 2, 0},  {APPEND, 0, 2},         {STATE, 0, 0},     {TRUNCATE, 1, 0},
    {APPEND, 1, 2},  {READ, 1, 0},
};

enum { OPS = sizeof(ops) / sizeof(ops[0]), MARK = 24 };

// Of script_do_more: what a backup that was taken before does not know.
static const struct op more[] = {{CREATE, SCRIPT_LATER, 0},
                                 {ATTACH, SCRIPT_LATER, 20},
                                 {APPEND, SCRIPT_LATER, 2},
                                 {TRUNCATE, SCRIPT_SECOND, 1}};

struct kept {
    bool exists;
    banyan_session *session;
    struct context context;
    uint64_t length, version; // version: of the bytes that come next
    struct script_states states;
};

struct script {
    uint32_t replicas;
    const volatile int *lost;
    bool (*idle)(void);
    banyan_client *client;
    struct kept kept[SCRIPT_SESSIONS];
    char wrong[600];
};

static const char *const names[SCRIPT_SESSIONS] = {"first", "second", "fork"};

static banyan_spec spec_of(const struct script *s)
{
    return (banyan_spec){.layers = 1,
                         .q_heads = 2,
                         .kv_heads = 1,
                         .k_dim = 16,
                         .v_dim = 16,
                         .kv_type = BANYAN_F32,
                         .chunk_tokens = SCRIPT_CHUNK,
                         .members = 3,
                         .replicas = s->replicas};
}

static bool is_wrong(struct script *s, const char *what, banyan_code code)
{
    if (!s->wrong[0])
        snprintf(s->wrong, sizeof(s->wrong), "%s: %s (%s) %s", what, banyan_code_name(code),
                 banyan_reason_name(ERR->reason), ERR->message);
    return false;
}

static bool passes(banyan_code code)
{
    return code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED || code == BANYAN_ABORTED ||
           code == BANYAN_RESOURCE_EXHAUSTED;
}

static bool covered(const struct script *s)
{
    return *s->lost < (int)s->replicas;
}

// ---- calls until there is a verdict -----------------------------------------------------------------------

static bool refill(struct script *s, struct kept *k);

// After a call that failed: whether it is to be made again.
static bool once_more(struct script *s, struct kept *k, const char *what, banyan_code code, uint64_t until)
{
    bool loss = code == BANYAN_DATA_LOSS || code == BANYAN_OUT_OF_RANGE ||
                (code == BANYAN_FAILED_PRECONDITION && ERR->reason == BANYAN_REASON_HOLE);
    if (common_clock_ns() > until)
        return is_wrong(s, "there is no verdict", code);
    if (!passes(code) && !(loss && k && !covered(s)))
        return is_wrong(s, what, code);
    if (s->idle && !s->idle())
        return is_wrong(s, "a daemon does not come back", code);
    if (loss && k)
        return refill(s, k);
    support_sleep_ms(5);
    return true;
}

#define UNTIL_VERDICT(s, k, what, call)                                                                      \
    ({                                                                                                       \
        uint64_t until_ = common_clock_ns() + NO_VERDICT_NS;                                                 \
        banyan_code code_;                                                                                   \
        while ((code_ = (call)) != BANYAN_OK && once_more(s, k, what, code_, until_)) {                      \
        }                                                                                                    \
        code_ == BANYAN_OK;                                                                                  \
    })

static banyan_code step_at(struct script *s, struct kept *k, uint64_t first, bool append)
{
    struct step step = {
        .session = k->session, .first = first, .rows = 1, .seed = first, .timeout_ns = CALL_NS};
    if (append)
        step_append(&step, &k->context);
    banyan_code code = step_run(s->client, &step);
    if (code == BANYAN_OK && !context_agrees(&k->context, 0, first, 1, 0, step.made_q, step.o, step.lse,
                                             ERR->message, sizeof(ERR->message)))
        is_wrong(s, "a wrong answer", code);
    step_free(&step);
    return code;
}

// Rows that were put and not committed go with their holder: put them again.
static banyan_code attach_and_commit(struct kept *k, uint64_t first, uint64_t count)
{
    banyan_code code = context_attach(k->session, &k->context, 0, first, count, ERR);
    if (code == BANYAN_OK)
        code = banyan_commit(k->session, 0, first, count, ERR);
    bool again = code == BANYAN_FAILED_PRECONDITION && ERR->reason == BANYAN_REASON_HOLE;
    return again ? BANYAN_ABORTED : code;
}

// All copies of some rows went with their workers: from the start with the same bytes.
static bool refill(struct script *s, struct kept *k)
{
    k->states.n = 0; // the truncate takes them
    return UNTIL_VERDICT(s, NULL, "a truncate after a loss", banyan_session_truncate(k->session, 0, ERR)) &&
           (!k->length ||
            UNTIL_VERDICT(s, NULL, "an attach after a loss", attach_and_commit(k, 0, k->length)));
}

// Where states went with the only copies of their rows, they are removed before the next one is put.
static banyan_code put_state(struct script *s, struct kept *k)
{
    banyan_code code = script_state_put(k->session, k->length, k->version * 1000 + k->length, ERR);
    if (code != BANYAN_DATA_LOSS || covered(s))
        return code;
    k->states.n = 0;
    code = banyan_state_cut(k->session, 0, ERR);
    return code == BANYAN_OK ? BANYAN_ABORTED : code;
}

static banyan_code look_at_state(struct script *s, struct kept *k, uint64_t position)
{
    bool same;
    banyan_code code = script_state_check(k->session, &k->states, position, &same, ERR);
    if (code == BANYAN_DATA_LOSS && !covered(s))
        return BANYAN_OK;
    if (code == BANYAN_OK && !same && covered(s))
        is_wrong(s, "a state is not what was put", code);
    return code;
}

// The newest at its end, and before each of those that it has.
static bool check_states(struct script *s, struct kept *k)
{
    bool ok = UNTIL_VERDICT(s, k, "a state", look_at_state(s, k, k->length));
    for (uint32_t i = 0; ok && i < k->states.n; i++)
        ok = UNTIL_VERDICT(s, k, "a state", look_at_state(s, k, k->states.at[i].position - 1));
    return ok && !s->wrong[0];
}

// One that had no verdict may have been made.
static banyan_code create(struct script *s, struct kept *k, const char *name)
{
    banyan_spec spec = spec_of(s);
    banyan_code code = banyan_session_create(s->client, &spec, name, &k->session, ERR);
    return code == BANYAN_ALREADY_EXISTS ? banyan_session_open(s->client, 0, name, &k->session, ERR) : code;
}

static banyan_code make_fork(struct script *s, const struct kept *of, struct kept *k, uint64_t length,
                             const char *name)
{
    banyan_code code = banyan_session_fork(of->session, length, name, &k->session, ERR);
    return code == BANYAN_ALREADY_EXISTS ? banyan_session_open(s->client, 0, name, &k->session, ERR) : code;
}

static bool append_rows(struct script *s, struct kept *k, uint64_t n)
{
    uint64_t from = k->length;
    bool ok = true;
    for (uint64_t i = 0; ok && i < n; i++) {
        ok = UNTIL_VERDICT(s, k, "an append", step_at(s, k, from + i, true));
        k->length = from + i + ok; // a loss in between is made good up to here
    }
    k->length = from;
    return ok;
}

// A range that was not attached, in a chunk that is there.
static bool bad_commit(struct script *s, struct kept *k)
{
    banyan_code code;
    uint64_t until = common_clock_ns() + NO_VERDICT_NS;
    do {
        code = banyan_commit(k->session, 0, k->length - 1, 2, ERR);
    } while (code != BANYAN_FAILED_PRECONDITION && once_more(s, k, "a commit of a hole", code, until));
    return code == BANYAN_FAILED_PRECONDITION;
}

// Other bytes where rows are acknowledged.
static bool refused_append(struct script *s, struct kept *k)
{
    banyan_code code;
    uint64_t until = common_clock_ns() + NO_VERDICT_NS;
    uint8_t *byte = k->context.k[0] + (k->length - 1) * k->context.k_row;
    do {
        *byte ^= 1;
        struct step step = {.session = k->session, .first = k->length - 1, .rows = 1, .timeout_ns = CALL_NS};
        step_append(&step, &k->context);
        code = step_run(s->client, &step);
        step_free(&step);
        *byte ^= 1;
        if (code == BANYAN_OK)
            return is_wrong(s, "other bytes at an acknowledged position are taken", code);
    } while (code != BANYAN_FAILED_PRECONDITION && once_more(s, k, "a contradiction", code, until));
    return code == BANYAN_FAILED_PRECONDITION;
}

static bool delete_one(struct script *s, struct kept *k)
{
    uint64_t until = common_clock_ns() + NO_VERDICT_NS;
    banyan_code code;
    while ((code = banyan_session_delete(k->session, ERR)) != BANYAN_OK && code != BANYAN_NOT_FOUND)
        if (!once_more(s, NULL, "a delete", code, until))
            return false;
    banyan_session_close(k->session);
    k->session = NULL;
    return true;
}

// What it has goes elsewhere while the script goes on.
static banyan_code drain(struct script *s, const struct op *op)
{
    char worker[16];
    snprintf(worker, sizeof(worker), "w%" PRIu64, op->n);
    return op->kind == DRAIN ? banyan_worker_drain(s->client, worker, "a test", NULL, ERR)
                             : banyan_worker_resume(s->client, worker, NULL, ERR);
}

// ---- the script -------------------------------------------------------------------------------------------

struct script *script_new(uint32_t replicas, const volatile int *lost)
{
    struct script *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->replicas = replicas;
    s->lost = lost;
    return s;
}

void script_set_idle(struct script *s, bool (*idle)(void))
{
    s->idle = idle;
}

void script_free(struct script *s)
{
    for (int i = 0; i < SCRIPT_SESSIONS; i++)
        if (s->kept[i].exists)
            context_free(&s->kept[i].context);
    banyan_disconnect(s->client);
    free(s);
}

int script_length(void)
{
    return OPS;
}

int script_mark(void)
{
    return MARK;
}

bool script_connect(struct script *s, const char *endpoint)
{
    if (banyan_connect(endpoint, &(banyan_options){.timeout_ns = CALL_NS}, &s->client, ERR) != BANYAN_OK)
        return is_wrong(s, "connect", ERR->code);
    for (int i = 0; i < SCRIPT_SESSIONS; i++)
        if (s->kept[i].exists &&
            !UNTIL_VERDICT(s, NULL, "an open",
                           banyan_session_open(s->client, 0, names[i], &s->kept[i].session, ERR)))
            return false;
    return true;
}

static void pretend(struct script *s, const struct op *op)
{
    struct kept *k = &s->kept[op->session];
    const banyan_spec spec = spec_of(s);
    switch (op->kind) {
    case CREATE:
        context_init(&k->context, &spec, ROOM);
        context_random(&k->context, 0, ROOM, (uint64_t)op->session);
        k->exists = true;
        k->length = 0;
        k->states = (struct script_states){0};
        break;
    case FORK:
        context_copy(&k->context, &s->kept[0].context);
        context_random(&k->context, op->n, ROOM - op->n, 77);
        k->exists = true;
        k->length = op->n;
        k->states = s->kept[0].states;
        k->states.maybe = true;
        script_states_cut(&k->states, op->n);
        break;
    case ATTACH:
    case APPEND:
        k->length += op->n;
        break;
    case STATE:
        script_states_add(&k->states, k->length, k->version * 1000 + k->length);
        break;
    case TRUNCATE:
        script_states_cut(&k->states, op->n);
        k->length = op->n;
        context_random(&k->context, op->n, ROOM - op->n, 1000 + ++k->version * 10 + (uint64_t)op->session);
        break;
    case DELETE:
        context_free(&k->context);
        k->exists = false;
        break;
    case BAD_COMMIT:
    case REFUSED_APPEND:
    case READ:
    case DRAIN:
    case RESUME:
        break;
    }
}

void script_pretend(struct script *s, int nth)
{
    pretend(s, &ops[nth]);
}

static bool really_do(struct script *s, const struct op *op)
{
    struct kept *k = &s->kept[op->session];
    switch (op->kind) {
    case CREATE:
        return UNTIL_VERDICT(s, NULL, "a create", create(s, k, names[op->session]));
    case FORK:
        return UNTIL_VERDICT(s, &s->kept[0], "a fork",
                             make_fork(s, &s->kept[0], k, op->n, names[op->session]));
    case ATTACH:
        return UNTIL_VERDICT(s, k, "an attach", attach_and_commit(k, k->length, op->n));
    case APPEND:
        return append_rows(s, k, op->n);
    case TRUNCATE:
        return UNTIL_VERDICT(s, k, "a truncate", banyan_session_truncate(k->session, op->n, ERR));
    case DELETE:
        return delete_one(s, k);
    case STATE:
        return UNTIL_VERDICT(s, k, "a state's put", put_state(s, k));
    case BAD_COMMIT:
        return bad_commit(s, k);
    case REFUSED_APPEND:
        return refused_append(s, k);
    case READ:
        return UNTIL_VERDICT(s, k, "a read", step_at(s, k, k->length - 1, false));
    case DRAIN:
    case RESUME:
        return UNTIL_VERDICT(s, NULL, "a drain or its end", drain(s, op));
    }
    return false;
}

bool script_do(struct script *s, int nth)
{
    bool ok = really_do(s, &ops[nth]) && !s->wrong[0];
    if (ok)
        script_pretend(s, nth);
    else
        is_wrong(s, "an operation has failed", BANYAN_UNKNOWN);
    return ok;
}

bool script_recover(struct script *s, int nth)
{
    const struct op *op = &ops[nth];
    for (int i = 0; i < SCRIPT_SESSIONS; i++) {
        struct kept *k = &s->kept[i];
        banyan_session_info info;
        if (!k->exists)
            continue;
        if (!k->session ||
            !UNTIL_VERDICT(s, NULL, "its state", banyan_session_get_info(k->session, &info, ERR)))
            return op->kind == DELETE && i == op->session; // it was deleted already
        bool its = i == op->session, grows = op->kind == APPEND || op->kind == ATTACH;
        uint64_t least = its && op->kind == TRUNCATE ? op->n : k->length,
                 most = k->length + (its && grows ? op->n : 0);
        uint64_t length = info.length;
        banyan_session_info_free(&info);
        if (covered(s) && (length < least || length > most))
            return is_wrong(s, "a session has another length than was acknowledged", BANYAN_OK);
        uint64_t to = length < k->length ? length : k->length;
        if (!UNTIL_VERDICT(s, k, "a truncate of another's session",
                           banyan_session_truncate(k->session, to, ERR)))
            return false;
        if (to < k->length && !(its && op->kind == TRUNCATE))
            return is_wrong(s, "acknowledged rows are gone", BANYAN_OK);
    }
    return true;
}

bool script_check_one(struct script *s, int session)
{
    struct kept *k = &s->kept[session];
    for (uint64_t p = k->length; k->exists && p-- > 0;)
        if (!UNTIL_VERDICT(s, k, "a read at the end", step_at(s, k, p, false)) || s->wrong[0])
            return false;
    return !k->exists || check_states(s, k);
}

bool script_check(struct script *s)
{
    for (int i = 0; i < SCRIPT_SESSIONS; i++)
        if (!script_check_one(s, i))
            return false;
    return true;
}

static bool is_whole(struct script *s, struct kept *k, bool *whole)
{
    banyan_session_info info;
    if (!UNTIL_VERDICT(s, NULL, "its state", banyan_session_get_info(k->session, &info, ERR)))
        return false;
    *whole = strcmp(info.state, "degraded") != 0;
    banyan_session_info_free(&info);
    return true;
}

bool script_wait_whole(struct script *s)
{
    uint64_t until = common_clock_ns() + NO_VERDICT_NS;
    for (int i = 0; i < SCRIPT_SESSIONS; i++)
        for (bool whole = !s->kept[i].exists; !whole; support_sleep_ms(10))
            if (!is_whole(s, &s->kept[i], &whole) || common_clock_ns() > until)
                return is_wrong(s, "a session does not get its copies back", BANYAN_OK);
    return true;
}

bool script_delete_all(struct script *s)
{
    for (int i = 0; i < SCRIPT_SESSIONS; i++)
        if (s->kept[i].exists && !delete_one(s, &s->kept[i]))
            return false;
    return true;
}

// ---- beside the script ------------------------------------------------------------------------------------

bool script_do_more(struct script *s)
{
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        if (!really_do(s, &more[i]) || s->wrong[0])
            return is_wrong(s, "an operation has failed", BANYAN_UNKNOWN);
        pretend(s, &more[i]);
    }
    return true;
}

static banyan_code open_name(struct script *s, const char *name, banyan_session **out)
{
    banyan_code code = banyan_session_open(s->client, 0, name, out, ERR);
    return code == BANYAN_NOT_FOUND ? BANYAN_OK : code; // *out is NULL then
}

bool script_same(struct script *s, int session, const char *name)
{
    struct kept other = {.context = s->kept[session].context};
    banyan_session_info info;
    if (!UNTIL_VERDICT(s, NULL, "an open", open_name(s, name, &other.session)))
        return false;
    if (!other.session)
        return is_wrong(s, "there is no such session", BANYAN_NOT_FOUND);
    bool ok = UNTIL_VERDICT(s, NULL, "its state", banyan_session_get_info(other.session, &info, ERR));
    other.length = ok ? info.length : 0;
    if (ok)
        banyan_session_info_free(&info);
    if (ok && other.length != s->kept[session].length)
        ok = is_wrong(s, "what was restored has another length", BANYAN_OK);
    for (uint64_t p = other.length; ok && p-- > 0;)
        ok =
            UNTIL_VERDICT(s, NULL, "a read of another session", step_at(s, &other, p, false)) && !s->wrong[0];
    banyan_session_close(other.session);
    return ok;
}

bool script_drop(struct script *s, const char *name)
{
    struct kept other = {0};
    return UNTIL_VERDICT(s, NULL, "an open", open_name(s, name, &other.session)) &&
           (!other.session || delete_one(s, &other));
}

void script_forget(struct script *s, int session)
{
    struct kept *k = &s->kept[session];
    banyan_session_close(k->session);
    context_free(&k->context);
    *k = (struct kept){0};
}

bool script_delete(struct script *s, int session)
{
    if (!delete_one(s, &s->kept[session]))
        return false;
    script_forget(s, session);
    return true;
}

bool script_refill(struct script *s, int session)
{
    return refill(s, &s->kept[session]);
}

bool script_covered(const struct script *s)
{
    return covered(s);
}

banyan_client *script_client(const struct script *s)
{
    return s->client;
}

banyan_session *script_session(const struct script *s, int session)
{
    return s->kept[session].session;
}

const struct context *script_context(const struct script *s, int session)
{
    return &s->kept[session].context;
}

uint64_t script_tokens(const struct script *s, int session)
{
    return s->kept[session].length;
}

const char *script_name(int session)
{
    return names[session];
}

const char *script_wrong(const struct script *s)
{
    return s->wrong;
}
