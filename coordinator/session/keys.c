// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/keys.h"

#include "common/hash/hash.h"
#include "coordinator/session/session.h"

struct coordinator_again { // a call that came once more; at most as many as the server serves requests
    struct coordinator_again *next;
    struct proto_request *request;
};

static struct coordinator_session **bucket_of(struct coordinator_sessions *sessions, uint32_t tenant,
                                              uint64_t key)
{
    return &sessions->keys[common_mix64(key + tenant) % (sizeof(sessions->keys) / sizeof(*sessions->keys))];
}

static struct coordinator_session *find_key(struct coordinator_sessions *sessions, uint32_t tenant,
                                            uint64_t key)
{
    struct coordinator_session *s = key ? *bucket_of(sessions, tenant, key) : NULL;
    while (s && (s->key != key || s->tenant != tenant))
        s = s->key_next;
    return s;
}

void coordinator_key_enter(struct coordinator_session *s, uint64_t key)
{
    if (!key)
        return;
    struct coordinator_session **bucket = bucket_of(s->sessions, s->tenant, key);
    s->key = key;
    s->key_next = *bucket;
    *bucket = s;
}

void coordinator_key_leave(struct coordinator_session *s)
{
    if (!s->key)
        return;
    struct coordinator_session **at = bucket_of(s->sessions, s->tenant, s->key);
    while (*at != s)
        at = &(*at)->key_next;
    *at = s->key_next;
    s->key = 0;
}

void coordinator_key_answer(struct proto_request *request, const struct coordinator_session *s)
{
    if (proto_request_message(request)->header->method == BANYAN__PB__METHOD__METHOD_SESSION_CREATE) {
        Banyan__Pb__SessionCreateReply m = BANYAN__PB__SESSION_CREATE_REPLY__INIT;
        m.session = s->id;
        m.incarnation = s->incarnation;
        m.cut = s->cut;
        m.floor = s->floor;
        m.replicas = s->spec->replicas;
        m.idle_ttl_ns = s->spec->idle_ttl_ns;
        m.length = coordinator_session_length(s); // that it was made with: who asks has not heard of it yet
        m.states = s->states;
        proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
    } else {
        Banyan__Pb__SessionForkReply m = BANYAN__PB__SESSION_FORK_REPLY__INIT;
        m.session = s->id;
        m.incarnation = s->incarnation;
        m.cut = s->cut;
        m.states = s->states;
        proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
    }
}

bool coordinator_key_known(struct coordinator_sessions *sessions, uint32_t tenant, uint64_t key,
                           struct proto_request *request)
{
    struct coordinator_session *s = find_key(sessions, tenant, key);
    if (!s)
        return false;
    if (s->state != COORDINATOR_SESSION_CREATING && s->state != COORDINATOR_SESSION_DELETING) {
        coordinator_key_answer(request, s);
        return true;
    }
    struct coordinator_again *again = coordinator_alloc(sizeof(*again));
    *again = (struct coordinator_again){.next = s->again, .request = request};
    s->again = again;
    return true;
}

void coordinator_key_settle(struct coordinator_session *s, enum common_code code, const char *text)
{
    while (s->again) {
        struct coordinator_again *again = s->again;
        s->again = again->next;
        if (code == COMMON_OK)
            coordinator_key_answer(again->request, s);
        else
            proto_request_fail(again->request, code, text, NULL, 0);
        free(again);
    }
}
