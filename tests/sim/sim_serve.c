// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_serve.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/rpc/status.h"
#include "proto/rpc/transport.h"
#include "proto/wire/codec.h"
#include "tests/sim/sim_event.h"
#include "tests/sim/sim_link.h"

struct held {
    struct held *next;
    struct proto_request *request;
    bool authentic;
};

struct serving { // of a loop
    struct serving *next;
    const struct common_loop *loop;
    struct sim_rule rules[PROTO_METHOD_LIMIT];
    uint64_t seen[PROTO_METHOD_LIMIT];
    struct held *held, **held_tail;
    uint32_t n_held;
};

static struct serving *servings;

static struct serving *serving_of(const struct common_loop *loop)
{
    struct serving *s = servings;
    while (s && s->loop != loop)
        s = s->next;
    if (s)
        return s;
    s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->loop = loop;
    s->held_tail = &s->held;
    s->next = servings;
    servings = s;
    return s;
}

void sim_serve_forget(const struct common_loop *loop)
{
    struct serving **at = &servings, *s;
    while (*at && (*at)->loop != loop)
        at = &(*at)->next;
    s = *at;
    if (!s)
        return;
    assert(!s->n_held); // its server was closed
    *at = s->next;
    free(s);
}

static struct held *held_pop(struct serving *s)
{
    struct held *held = s->held;
    s->held = held->next;
    if (!s->held)
        s->held_tail = &s->held;
    s->n_held--;
    return held;
}

void sim_serve(struct proto_request *request, bool authentic)
{
    struct serving *s = serving_of(request->server->loop);
    uint32_t method = request->method;
    if (method >= PROTO_METHOD_LIMIT) {
        proto_request_dispatch(request, authentic);
        return;
    }
    struct sim_rule *rule = &s->rules[method], now = *rule;
    s->seen[method]++;
    if (rule->verdict != SIM_DO && rule->times && --rule->times == 0)
        rule->verdict = SIM_DO;
    if (now.verdict == SIM_FAIL) {
        struct proto_status status;
        proto_status_set(&status, now.code, now.reason ? now.reason : "", "as the test orders");
        proto_request_fail_status(request, &status);
    } else if (now.verdict == SIM_TELL) {
        struct common_error err;
        if (proto_message_fill(request->message, proto_codec_method(method)->request, &err) != COMMON_OK)
            abort();
        now.tell(now.arg, request);
    } else if (now.verdict == SIM_HOLD) {
        struct held *held = malloc(sizeof *held);
        if (!held)
            abort();
        *held = (struct held){.request = request, .authentic = authentic};
        *s->held_tail = held;
        s->held_tail = &held->next;
        s->n_held++;
    } else {
        proto_request_dispatch(request, authentic);
    }
}

void sim_serve_closed(const struct proto_server *server)
{
    struct serving *s = serving_of(server->loop);
    for (uint32_t n = s->n_held; n > 0; n--) { // others go round
        struct held *held = held_pop(s);
        if (held->request->server == server) {
            proto_request_fail(held->request, COMMON_UNAVAILABLE, "the server is closed", NULL, 0);
            free(held);
            continue;
        }
        held->next = NULL;
        *s->held_tail = held;
        s->held_tail = &held->next;
        s->n_held++;
    }
}

void sim_serve_rule(const struct common_loop *server, uint32_t method, struct sim_rule rule)
{
    assert(server && method < PROTO_METHOD_LIMIT);
    serving_of(server)->rules[method] = rule;
}

uint32_t sim_serve_let_go(const struct common_loop *server)
{
    struct serving *s = serving_of(server);
    uint32_t n = s->n_held;
    for (uint32_t i = 0; i < n; i++) {
        struct held held = *s->held;
        free(held_pop(s));
        proto_request_dispatch(held.request, held.authentic);
    }
    return n;
}

void sim_serve_fail_held(const struct common_loop *server, enum common_code code, const char *text)
{
    struct serving *s = serving_of(server);
    for (uint32_t n = s->n_held; n > 0; n--) {
        struct held held = *s->held;
        free(held_pop(s));
        proto_request_fail(held.request, code, text, NULL, 0);
    }
}

uint32_t sim_serve_held(const struct common_loop *server)
{
    return serving_of(server)->n_held;
}

uint64_t sim_serve_seen(const struct common_loop *server, uint32_t method)
{
    assert(method < PROTO_METHOD_LIMIT);
    return serving_of(server)->seen[method];
}
