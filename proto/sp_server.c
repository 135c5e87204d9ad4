// SPDX-License-Identifier: Apache-2.0
// The serving end for clients of nng: its wire on our loop, beside the stream transport. Here: who may be
// connected.
//
// A crowd of strangers makes room among itself: when there are as many as may be, the oldest goes, however
// many come. Who shows the token is not one of them any more, and needs one round trip for that.
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/sp_link.h"

static void crowd_out(struct proto_sp_link *link, const char *why)
{
    proto_server_refused(link->server, link->peer, why);
    proto_sp_link_close(link);
}

static bool crowd_out_stranger(struct proto_sp_server *sp)
{
    if (common_list_empty(&sp->strangers))
        return false;
    char why[PROTO_LIMIT_TEXT];
    proto_limit_reached(sp->server, PROTO_LIMIT_STRANGERS, why);
    crowd_out(common_list_entry(sp->strangers.next, struct proto_sp_link, link), why);
    return true;
}

// A client whose connection is closed while nothing is under way connects again when it needs it.
bool proto_sp_crowd_out_silent(struct proto_sp_server *sp)
{
    struct proto_sp_link *silent = NULL;
    uint64_t now_ns = common_clock_ns(), since_ns = UINT64_MAX;
    for (struct common_list *at = sp->known.next; at != &sp->known; at = at->next) {
        struct proto_sp_link *link = common_list_entry(at, struct proto_sp_link, link);
        uint64_t moved_ns = proto_sp_link_spare(link, now_ns);
        if (moved_ns < since_ns) {
            since_ns = moved_ns;
            silent = link;
        }
    }
    if (!silent)
        return false;
    char why[PROTO_LIMIT_TEXT];
    proto_limit_reached(sp->server, PROTO_LIMIT_NNG_CLIENTS, why);
    crowd_out(silent, why);
    return true;
}

static bool make_room(void *owner)
{
    return crowd_out_stranger(owner);
}

static void on_accepted(void *owner, int fd, const struct sockaddr *address)
{
    struct proto_sp_server *sp = owner;
    char peer[80];
    proto_address_format(address, peer);
    if (sp->n_strangers >= PROTO_STRANGERS_MAX)
        crowd_out_stranger(sp);
    if (!proto_sp_link_new(sp, fd, peer)) {
        proto_server_refused(sp->server, peer, "out of memory for a connection");
        close(fd);
    }
}

static const struct proto_acceptor_ops acceptor_ops = {.accepted = on_accepted, .make_room = make_room};

static void check_all(const struct common_list *list, uint64_t now_ns)
{
    for (struct common_list *at = list->next; at != list; at = at->next) // only marks: nothing runs here
        proto_sp_link_check(common_list_entry(at, struct proto_sp_link, link), now_ns);
}

static void on_tick(void *arg)
{
    struct proto_sp_server *sp = arg;
    uint64_t now_ns = common_clock_ns();
    check_all(&sp->strangers, now_ns);
    check_all(&sp->known, now_ns);
}

static enum common_code sp_listen(struct proto_server *server, struct proto_endpoint *endpoint,
                                  struct proto_listener *listener, struct common_error *err)
{
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    struct proto_sp_server *sp = calloc(1, sizeof *sp);
    if (!sp)
        return common_error_set(err, code, "out of memory for a listener");
    sp->server = server;
    sp->tls = endpoint->tls;
    common_list_init(&sp->strangers);
    common_list_init(&sp->known);
    if (common_timer_new(server->loop, on_tick, sp, &sp->tick) != COMMON_OK) {
        common_error_set(err, code, "out of memory for a listener");
        goto free_sp;
    }
    code = proto_acceptor_open(server->loop, server->name, endpoint, &acceptor_ops, sp, &sp->acceptor, err);
    if (code != COMMON_OK)
        goto free_timer;
    common_timer_start(sp->tick, COMMON_NS_PER_S, true);
    server->n_nng_endpoints++;
    listener->state = sp;
    return COMMON_OK;

free_timer:
    common_timer_free(sp->tick);
free_sp:
    free(sp);
    return code;
}

// What a cancelled request calls cannot bring new ones: nothing is accepted any more.
static void close_all(struct common_list *list)
{
    while (!common_list_empty(list))
        proto_sp_link_close(common_list_entry(list->next, struct proto_sp_link, link));
}

static void sp_close(struct proto_listener *listener)
{
    struct proto_sp_server *sp = listener->state;
    listener->state = NULL;
    common_timer_free(sp->tick);
    proto_acceptor_close(sp->acceptor);
    close_all(&sp->strangers);
    close_all(&sp->known);
    free(sp->head);
    free(sp);
}

// Behind a device of nng's callers with other tokens share the link: they ask again over the next one.
static void sp_evict(struct proto_listener *listener, uint64_t token)
{
    struct proto_sp_server *sp = listener->state;
    for (struct common_list *at = sp->known.next; at != &sp->known; at = at->next) {
        struct proto_sp_link *link = common_list_entry(at, struct proto_sp_link, link);
        bool its = link->caller.identity.token == token;
        for (struct common_list *r = link->requests.next; r != &link->requests && !its; r = r->next)
            its = common_list_entry(r, struct proto_request, link)->identity->token == token;
        if (its)
            proto_link_fail(link->io, COMMON_UNAVAILABLE,
                            "its token is no longer valid"); // in another turn
    }
}

const struct proto_server_ops proto_sp_server_ops = {
    .listen = sp_listen,
    .close = sp_close,
    .evict = sp_evict,
};
