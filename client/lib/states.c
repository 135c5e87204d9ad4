// SPDX-License-Identifier: Apache-2.0
// States: bytes of the caller's at positions of a session, and the calls that share or cut them: forks and
// truncates. They are rows of a session of their own, which the coordinator deletes with the one that it
// belongs to (coordinator/session/states.h). All that rows are promised holds for them: copies, seals,
// checksums, the disk tier, forks, quotas.
//
//   put   info ─▶ open, or create ─▶ read the index ─▶ attach state and index ─▶ commit ─▶ info
//   get   open ─▶ read the index ─▶ read rows ─▶ compare with the sum
#include "client/lib/states.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/session.h"
#include "client/lib/session/truncate.h"
#include "client/lib/state_index.h"
#include "common/hash/hash.h"

#define NAME_BYTES 48
#define ROW_DIM    (CLIENT_STATE_ROW / 4)

static void name_of(uint64_t session, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "states-of-0x%016" PRIx64, session);
}

// ---- the session that holds them ----------------------------------------------------------------

// Opened, with its index.
struct held {
    banyan_session *session;
    struct client_state_index index;
};

static void held_close(struct held *held)
{
    client_state_index_free(&held->index);
    banyan_session_close(held->session);
}

static banyan_code held_check(const banyan_session *session, banyan_error *error)
{
    const banyan_spec *spec = banyan_session_spec(session);
    if (spec->layers == 1 && spec->kv_heads == 1 && spec->k_dim == ROW_DIM && spec->v_in_k &&
        spec->kv_type == BANYAN_F32)
        return BANYAN_OK;
    return client_error_set(error, BANYAN_FAILED_PRECONDITION,
                            "session 0x%016" PRIx64 " has a name of states, and holds something else: "
                            "delete it",
                            banyan_session_id(session));
}

// id 0: by its name. Close it in any case. NOT_FOUND: there is none.
static banyan_code held_open(banyan_client *client, uint64_t id, const char *name, struct held *out,
                             banyan_error *error)
{
    *out = (struct held){0};
    banyan_code code = banyan_session_open(client, id, name, &out->session, error);
    if (code == BANYAN_OK)
        code = held_check(out->session, error);
    return code == BANYAN_OK ? client_state_index_read(out->session, &out->index, error) : code;
}

struct made {
    uint64_t states;
};

static banyan_code take_made(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    (void)error;
    ((struct made *)arg)->states = ((const Banyan__Pb__SessionCreateReply *)body)->states;
    return BANYAN_OK;
}

// Made by the message itself: the reply says whether the coordinator knows what the name means.
static banyan_code held_make(const banyan_session *of, const char *name, banyan_error *error)
{
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__SessionCreateRequest request = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    struct made made = {0};
    spec.layers = spec.q_heads = spec.kv_heads = spec.v_dim = 1;
    spec.k_dim = ROW_DIM;
    spec.v_in_k = true;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.replicas = of->spec.replicas;
    request.spec = &spec;
    request.name = (char *)name;
    banyan_code code = client_unary(of->client, BANYAN__PB__METHOD__METHOD_SESSION_CREATE, &request.base,
                                    true, 0, take_made, &made, error);
    if (code == BANYAN_ALREADY_EXISTS) // another client's, or of a try whose answer was lost
        return BANYAN_OK;
    if (code != BANYAN_OK || made.states == of->id)
        return code;
    struct held held;
    if (held_open(of->client, 0, name, &held, NULL) == BANYAN_OK)
        banyan_session_delete(held.session, NULL);
    held_close(&held);
    return client_error_set(error, BANYAN_UNIMPLEMENTED,
                            "the coordinator runs an older build, which keeps no states: update it");
}

// ---- truncates and forks ------------------------------------------------------------------------

// The session that holds states has none itself.
static banyan_code truncate_held(banyan_session *held, uint64_t rows, banyan_error *error)
{
    uint64_t none;
    return client_truncate(held, rows, true, &none, error);
}

// Removes what is past a position.
static banyan_code cut(struct held *held, uint64_t position, banyan_error *error)
{
    const struct client_state *last = client_state_last(&held->index, UINT32_MAX, position);
    uint64_t end = last ? client_state_end(last) : 0;
    return end < held->index.rows ? truncate_held(held->session, end, error) : BANYAN_OK;
}

// Nothing to cut is fine. Of states whose index is lost all go.
static banyan_code cut_opened(banyan_code opened, struct held *held, uint64_t position, banyan_error *error)
{
    banyan_code code = opened;
    if (opened == BANYAN_OK)
        code = cut(held, position, error);
    else if (opened == BANYAN_NOT_FOUND)
        code = BANYAN_OK;
    else if (opened == BANYAN_DATA_LOSS && held->session)
        code = truncate_held(held->session, 0, error);
    held_close(held);
    return code;
}

// Of the session whose states `held` has.
static banyan_code cut_before(banyan_client *client, uint64_t id, uint64_t length, banyan_error *error)
{
    struct held held;
    banyan_code code = cut_opened(held_open(client, id, NULL, &held, error), &held, length, error);
    return code == BANYAN_FAILED_PRECONDITION ? BANYAN_OK : code; // what has the name holds no states
}

banyan_code banyan_session_truncate(banyan_session *session, uint64_t length, banyan_error *error)
{
    uint64_t states = 0;
    if (!session)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the session is NULL");
    banyan_code code = client_check_blocking(session->client, error);
    if (code == BANYAN_OK)
        code = client_truncate(session, length, false, &states, error);
    if (code != BANYAN_OK || !states)
        return code;
    code = cut_before(session->client, states, length, error);
    return code == BANYAN_OK ? client_truncate(session, length, true, &states, error) : code;
}

// Gives a fork at this length the states that it has in common with its origin, whose are in session `id`.
// Where that fails the fork has none: it can do without.
static void share(banyan_client *client, uint64_t id, uint64_t length, uint64_t fork)
{
    struct held held;
    char name[NAME_BYTES];
    banyan_session *shared;
    uint64_t none;
    if (!id || !length)
        return;
    name_of(fork, name);
    if (held_open(client, id, NULL, &held, NULL) == BANYAN_OK) {
        const struct client_state *last = client_state_last(&held.index, UINT32_MAX, length);
        if (last && client_session_fork(held.session, client_state_end(last), 0, name, &shared, &none,
                                        NULL) == BANYAN_OK)
            banyan_session_close(shared);
    }
    held_close(&held);
}

banyan_code banyan_session_fork(banyan_session *session, uint64_t length, const char *name,
                                banyan_session **out, banyan_error *error)
{
    uint64_t states = 0;
    banyan_code code = client_session_fork(session, length, 0, name, out, &states, error);
    if (code == BANYAN_OK)
        share(session->client, states, length, (*out)->id);
    return code;
}

banyan_code banyan_session_create_from(banyan_client *client, const banyan_spec *spec, const char *name,
                                       const void *hashes, uint32_t n, banyan_session **out, uint64_t *length,
                                       banyan_error *error)
{
    uint64_t states = 0;
    banyan_code code = client_session_create_from(client, spec, name, hashes, n, out, length, &states, error);
    if (code == BANYAN_OK)
        share(client, states, *length, (*out)->id);
    return code;
}

// ---- put ----------------------------------------------------------------------------------------

// Of the session whose states they are: not by banyan_session_get_info, which the handle remembers.
struct looked {
    uint64_t length, incarnation;
};

static banyan_code take_looked(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    const Banyan__Pb__SessionInfoReply *reply = (const Banyan__Pb__SessionInfoReply *)body;
    (void)error;
    *(struct looked *)arg = (struct looked){reply->length, reply->incarnation};
    return BANYAN_OK;
}

static banyan_code look_at(const banyan_session *session, struct looked *out, banyan_error *error)
{
    Banyan__Pb__SessionInfoRequest request = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    request.session = session->id;
    return client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_INFO, &request.base, true, 0,
                        take_looked, out, error);
}

// ABORTED: it is not as the handle has seen it.
static banyan_code look(const banyan_session *session, struct looked *out, banyan_error *error)
{
    banyan_code code = look_at(session, out, error);
    if (code != BANYAN_OK || out->incarnation == atomic_load(&session->incarnation))
        return code;
    client_error_set(error, BANYAN_ABORTED, "the session was truncated meanwhile: read its state first");
    if (error)
        error->reason = BANYAN_REASON_OLD_INCARNATION;
    return BANYAN_ABORTED;
}

static banyan_code check_put(const banyan_session *session, const struct client_state *state,
                             const void *data, const void *digest, banyan_error *error)
{
    if (!session || !data || !digest)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    if (!state->bytes || !state->position)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "a state has at least one byte, and stands behind at least one token");
    if (state->layer >= session->spec.layers)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "layer %u of a session with %u", state->layer,
                                session->spec.layers);
    return client_check_blocking(session->client, error);
}

// Whether it can stand behind those that are there; *there: it does already.
static banyan_code check_order(const struct client_state_index *index, const struct client_state *state,
                               bool *there, banyan_error *error)
{
    const struct client_state *same = client_state_last(index, state->layer, state->position),
                              *last = client_state_last(index, UINT32_MAX, UINT64_MAX);
    if (same && same->position == state->position) {
        *there = same->bytes == state->bytes && same->sum == state->sum &&
                 memcmp(same->digest, state->digest, sizeof state->digest) == 0;
        if (*there)
            return BANYAN_OK;
        client_error_set(error, BANYAN_FAILED_PRECONDITION,
                         "layer %u has another state at %" PRIu64 ": remove it first (banyan_state_cut)",
                         state->layer, state->position);
        if (error)
            error->reason = BANYAN_REASON_OTHER_BYTES;
        return BANYAN_FAILED_PRECONDITION;
    }
    if (last && last->position > state->position)
        return client_error_set(error, BANYAN_FAILED_PRECONDITION,
                                "a state at %" PRIu64 " is there: states are put by ascending positions; "
                                "remove those past %" PRIu64 " first (banyan_state_cut)",
                                last->position, state->position);
    return BANYAN_OK;
}

// The state's whole rows from where they lie, then its last part and the index.
static banyan_code put_rows(struct held *held, const struct client_state *state, const uint8_t *data,
                            banyan_error *error)
{
    uint64_t whole = state->bytes / CLIENT_STATE_ROW, first = state->first_row,
             count = client_state_rows(state->bytes) + 1;
    size_t rest = state->bytes % CLIENT_STATE_ROW;
    uint8_t end[2 * CLIENT_STATE_ROW] = {0};
    if (rest)
        memcpy(end, data + whole * CLIENT_STATE_ROW, rest);
    client_state_index_row(&held->index, state, end + (rest ? CLIENT_STATE_ROW : 0));
    banyan_code code = BANYAN_OK;
    if (whole)
        code = banyan_attach(held->session, 0, first, whole, data, NULL, error);
    if (code == BANYAN_OK)
        code = banyan_attach(held->session, 0, first + whole, rest ? 2 : 1, end, NULL, error);
    return code == BANYAN_OK ? banyan_commit(held->session, 0, first, count, error) : code;
}

static banyan_code put(banyan_session *session, struct client_state *state, const void *data,
                       banyan_error *error)
{
    char name[NAME_BYTES];
    struct held held;
    struct looked before, after;
    bool there = false;
    banyan_code code = look(session, &before, error);
    if (code == BANYAN_OK && state->position > before.length) {
        client_error_set(error, BANYAN_OUT_OF_RANGE,
                         "a state at %" PRIu64 " of a session with %" PRIu64 " tokens", state->position,
                         before.length);
        if (error)
            error->reason = BANYAN_REASON_PAST_END;
        return BANYAN_OUT_OF_RANGE;
    }
    if (code != BANYAN_OK)
        return code;
    name_of(session->id, name);
    code = held_open(session->client, 0, name, &held, error);
    if (code == BANYAN_NOT_FOUND) {
        held_close(&held);
        code = held_make(session, name, error);
        if (code != BANYAN_OK)
            return code;
        code = held_open(session->client, 0, name, &held, error);
    }
    if (code == BANYAN_OK)
        code = check_order(&held.index, state, &there, error);
    state->first_row = held.index.rows;
    if (code == BANYAN_OK && !there) {
        code = put_rows(&held, state, data, error);
        // A truncate that came in between has not seen this one.
        if (code == BANYAN_OK && (code = look(session, &after, error)) != BANYAN_OK)
            truncate_held(held.session, held.index.rows, NULL);
    }
    held_close(&held);
    return code;
}

banyan_code banyan_state_put(banyan_session *session, uint32_t layer, uint64_t position, const void *data,
                             uint64_t bytes, const void *digest, banyan_error *error)
{
    struct client_state state = {.layer = layer, .position = position, .bytes = bytes};
    banyan_code code = check_put(session, &state, data, digest, error);
    if (code != BANYAN_OK)
        return code;
    state.sum = common_xxh3(data, bytes, 0);
    memcpy(state.digest, digest, sizeof state.digest);
    return put(session, &state, data, error);
}

// ---- get ----------------------------------------------------------------------------------------

static banyan_state described(const struct client_state *s)
{
    banyan_state out = {.layer = s->layer, .position = s->position, .bytes = s->bytes};
    memcpy(out.digest, s->digest, sizeof out.digest);
    return out;
}

static banyan_code no_state(const banyan_session *session, uint64_t position, banyan_error *error)
{
    return client_error_set(error, BANYAN_NOT_FOUND,
                            "session 0x%016" PRIx64 " has no state at or before %" PRIu64, session->id,
                            position);
}

// Its rows are there: so much memory is not more than what the session holds.
static banyan_code read_state(struct held *held, const struct client_state *s, banyan_state *out,
                              banyan_error *error)
{
    uint64_t rows = client_state_rows(s->bytes);
    uint8_t *data = malloc(rows * CLIENT_STATE_ROW);
    if (!data)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    banyan_code code = banyan_read_rows(held->session, 0, s->first_row, rows, data, NULL, NULL, NULL, error);
    if (code == BANYAN_OK && common_xxh3(data, s->bytes, 0) != s->sum) {
        code = client_error_set(error, BANYAN_DATA_LOSS, "the state at %" PRIu64 " is not what was put",
                                s->position);
        if (error)
            error->reason = BANYAN_REASON_HASH_MISMATCH;
    }
    if (code != BANYAN_OK) {
        free(data);
        return code;
    }
    *out = described(s);
    out->data = data;
    return BANYAN_OK;
}

static banyan_code held_of(banyan_session *session, struct held *out, banyan_error *error)
{
    char name[NAME_BYTES];
    *out = (struct held){0};
    if (!session)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the session is NULL");
    name_of(session->id, name);
    return held_open(session->client, 0, name, out, error);
}

banyan_code banyan_state_get(banyan_session *session, uint32_t layer, uint64_t position, banyan_state *out,
                             banyan_error *error)
{
    struct held held;
    if (!out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "out is NULL");
    banyan_code code = held_of(session, &held, error);
    const struct client_state *found =
        code == BANYAN_OK ? client_state_last(&held.index, layer, position) : NULL;
    if (found)
        code = read_state(&held, found, out, error);
    else if (code == BANYAN_OK || code == BANYAN_NOT_FOUND)
        code = no_state(session, position, error);
    held_close(&held);
    return code;
}

banyan_code banyan_state_get_list(banyan_session *session, banyan_state_list *out, banyan_error *error)
{
    struct held held;
    banyan_state_list list = {0};
    if (!out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "out is NULL");
    banyan_code code = held_of(session, &held, error);
    if (code == BANYAN_OK && held.index.n) {
        list.states = calloc(held.index.n, sizeof *list.states);
        if (!list.states)
            code = client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        for (; list.states && list.n < held.index.n; list.n++)
            list.states[list.n] = described(&held.index.states[list.n]);
    }
    held_close(&held);
    if (code == BANYAN_NOT_FOUND)
        code = BANYAN_OK;
    if (code == BANYAN_OK)
        *out = list;
    return code;
}

banyan_code client_states_pin(banyan_session *session, uint64_t incarnation, uint64_t length, uint64_t ttl_ns,
                              const char *name, banyan_session **out, banyan_error *error)
{
    struct held held;
    struct looked now;
    *out = NULL;
    banyan_code code = held_of(session, &held, error);
    const struct client_state *last =
        code == BANYAN_OK ? client_state_last(&held.index, UINT32_MAX, length) : NULL;
    if (code == BANYAN_NOT_FOUND)
        code = BANYAN_OK;
    if (last)
        code = banyan_session_pin(held.session, client_state_end(last), ttl_ns, name, out, error);
    held_close(&held);
    if (*out && (look_at(session, &now, NULL) != BANYAN_OK || now.incarnation != incarnation)) {
        banyan_session_delete(*out, NULL);
        banyan_session_close(*out);
        *out = NULL;
    }
    return code;
}

banyan_code client_states_make(banyan_session *session, const banyan_spec *spec, banyan_session **out,
                               banyan_error *error)
{
    char name[NAME_BYTES];
    banyan_spec own = *spec;
    own.replicas = session->spec.replicas;
    own.idle_ttl_ns = 0;
    name_of(session->id, name);
    banyan_code code = banyan_session_create(session->client, &own, name, out, error);
    if (code == BANYAN_OK && (code = held_check(*out, error)) != BANYAN_OK) {
        banyan_session_delete(*out, NULL);
        banyan_session_close(*out);
    }
    return code;
}

banyan_code banyan_state_cut(banyan_session *session, uint64_t position, banyan_error *error)
{
    struct held held;
    return cut_opened(held_of(session, &held, error), &held, position, error);
}

void banyan_state_free(banyan_state *state)
{
    if (!state)
        return;
    free(state->data);
    *state = (banyan_state){0};
}

void banyan_state_list_free(banyan_state_list *list)
{
    if (!list)
        return;
    free(list->states);
    *list = (banyan_state_list){0};
}
