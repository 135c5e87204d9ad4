// SPDX-License-Identifier: Apache-2.0
// What is between workers and passes nothing on, with real daemons.
//
// A black hole: the sockets of their edges get a filter that drops every packet, so that neither host
// acknowledges anything and no process sees an error. Workers that dial again have sockets without it: what
// is shown is that they do, and that a step goes on with the right numbers.
//
// A relay that acknowledges: a proxy before each worker's edge (tests/harness/proxy.h), which swallows what
// comes over the connections of one worker.
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/e2e/support.h"
#include "tests/harness/proxy.h"

enum { WORKERS = 3, SOCKETS_MAX = 256 };

struct ends { // of a TCP connection, as one process has it
    int fd;   // ours, a duplicate
    struct sockaddr_in self, peer;
};

struct sockets {
    struct ends all[SOCKETS_MAX];
    uint32_t n;
};

// Duplicates the sockets of a process. False: this system does not allow it.
static bool take_sockets(int pid, struct sockets *out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    bool allowed = dir && process >= 0;
    out->n = 0;
    for (struct dirent *entry; allowed && (entry = readdir(dir)) && out->n < SOCKETS_MAX;) {
        struct ends *e = &out->all[out->n];
        socklen_t self_len = sizeof e->self, peer_len = sizeof e->peer;
        if (entry->d_name[0] == '.')
            continue;
        e->fd = (int)syscall(SYS_pidfd_getfd, process, atoi(entry->d_name), 0);
        allowed = e->fd >= 0 || errno == EBADF; // it has just been closed
        if (e->fd < 0)
            continue;
        if (getsockname(e->fd, (struct sockaddr *)&e->self, &self_len) == 0 &&
            getpeername(e->fd, (struct sockaddr *)&e->peer, &peer_len) == 0 && e->self.sin_family == AF_INET)
            out->n++;
        else
            close(e->fd);
    }
    if (dir)
        closedir(dir);
    if (process >= 0)
        close(process);
    return allowed;
}

static bool same(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
    return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
}

static uint32_t swallow(const struct sockets *a, const struct sockets *b)
{
    struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {1, &nothing};
    uint32_t links = 0;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t j = 0; j < b->n; j++)
            if (same(&a->all[i].self, &b->all[j].peer) && same(&a->all[i].peer, &b->all[j].self)) {
                assert_int_equal(
                    setsockopt(a->all[i].fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
                assert_int_equal(
                    setsockopt(b->all[j].fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
                links++;
            }
    return links;
}

// Returns how many edges there are; 0: this system does not let a test near them.
static uint32_t swallow_edges(const struct harness_cluster *cluster)
{
    static struct sockets sockets[WORKERS];
    uint32_t links = 0;
    bool allowed = true;
    for (uint32_t w = 0; w < WORKERS; w++)
        allowed = take_sockets(harness_cluster_pid(cluster, w), &sockets[w]) && allowed;
    for (uint32_t a = 0; allowed && a < WORKERS; a++)
        for (uint32_t b = a + 1; b < WORKERS; b++)
            links += swallow(&sockets[a], &sockets[b]);
    for (uint32_t w = 0; w < WORKERS; w++)
        for (uint32_t i = 0; i < sockets[w].n; i++)
            close(sockets[w].all[i].fd);
    return links;
}

static void steps_outlive_a_black_hole(void **state)
{
    (void)state;
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    static const banyan_spec spec = {.layers = 1,
                                     .q_heads = 4,
                                     .kv_heads = 2,
                                     .k_dim = 32,
                                     .v_dim = 32,
                                     .kv_type = BANYAN_F32,
                                     .chunk_tokens = 32,
                                     .members = WORKERS};
    struct harness_cluster *cluster = support_start(
        &(struct harness_options){.workers = WORKERS, .worker_args = same_speed, .edges_tcp = true});
    banyan_client *client = support_connect(cluster, "tcp");
    banyan_session *session;
    struct context context;
    context_init(&context, &spec, 320);
    context_random(&context, 0, 320, 7);
    OK(banyan_session_create(client, &spec, "wide", &session, ERR));
    support_fill(session, &context, 0, 320);
    struct step before = {.session = session, .first = 319, .rows = 1, .seed = 3},
                after = {.session = session,
                         .first = 319,
                         .rows = 1,
                         .seed = 3,
                         .timeout_ns = UINT64_C(100) * 1000000000};
    OK(step_run(client, &before));
    uint32_t links = swallow_edges(cluster);
    if (links) {
        assert_int_equal(links, WORKERS - 1); // a tree
        uint64_t start = support_now_ns();
        OK(step_run(client, &after));
        uint64_t took_ns = support_now_ns() - start;
        assert_true(took_ns > UINT64_C(1000000000)); // no process saw an error
        assert_true(took_ns < UINT64_C(50) * 1000000000);
        context_check(&context, 0, 319, 1, 0, after.made_q, after.o, after.lse, NULL, "step");
        assert_true(step_same_bits(&before, &after) || before.digest != after.digest);
        step_free(&after);
    }
    step_free(&before);
    support_drop(session, &context);
    banyan_disconnect(client);
    support_stop(cluster);
    if (!links)
        skip();
}

struct relays { // before the edges of all workers
    struct harness_proxy *proxy;
    int up[WORKERS], edge[WORKERS];
};

static void relay_workers(struct harness_cluster *cluster, struct relays *r)
{
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    r->proxy = harness_proxy_start();
    assert_non_null(r->proxy);
    for (int w = 0; w < WORKERS; w++) {
        char path[120];
        r->up[w] = harness_proxy_add(r->proxy, NULL, harness_cluster_endpoint(cluster, "tcp"));
        assert_true(r->up[w] >= 0);
        snprintf(path, sizeof path, "%s/w%d.sock", harness_cluster_dir(cluster), w);
        r->edge[w] = harness_proxy_add_before(r->proxy, path, r->up[w]);
        assert_true(r->edge[w] >= 0);
        const struct harness_worker worker = {.coordinator = harness_proxy_endpoint(r->proxy, r->up[w]),
                                              .args = same_speed};
        assert_int_equal(harness_cluster_add(cluster, &worker), w);
    }
}

// An edge of the tree: a worker that has dialled another.
static bool find_edge(const struct harness_cluster *cluster, const struct relays *r, uint32_t *parent,
                      uint32_t *child)
{
    for (uint32_t c = 0; c < WORKERS; c++)
        for (uint32_t p = 0; p < WORKERS; p++)
            if (p != c && harness_proxy_connections(r->proxy, r->edge[c], harness_cluster_pid(cluster, p))) {
                *parent = p;
                *child = c;
                return true;
            }
    return false;
}

// Events that say that `parent` does not reach `child`.
static uint32_t count_events(banyan_client *client, uint32_t parent, uint32_t child)
{
    static const char *const kinds[] = {"worker-edge"};
    const banyan_events_options only = {.kinds = kinds, .n_kinds = 1};
    banyan_events events;
    char from[16], to[16];
    uint32_t n = 0;
    snprintf(from, sizeof from, "from=w%u", parent);
    snprintf(to, sizeof to, "to=w%u", child);
    OK(banyan_events_read(client, &only, &events, ERR));
    for (uint32_t i = 0; i < events.n; i++)
        n += strstr(events.events[i].text, from) && strstr(events.events[i].text, to);
    banyan_events_free(&events);
    return n;
}

static void steps_go_round_a_relay_that_swallows(void **state)
{
    (void)state;
    static const banyan_spec spec = {.layers = 1,
                                     .q_heads = 4,
                                     .kv_heads = 2,
                                     .k_dim = 32,
                                     .v_dim = 32,
                                     .kv_type = BANYAN_F32,
                                     .chunk_tokens = 32,
                                     .members = WORKERS};
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 0});
    struct relays relays;
    relay_workers(cluster, &relays);
    banyan_client *client = support_connect(cluster, "unix");
    banyan_session *session;
    struct context context;
    context_init(&context, &spec, 320);
    context_random(&context, 0, 320, 7);
    OK(banyan_session_create(client, &spec, "wide", &session, ERR));
    support_fill(session, &context, 0, 320);
    support_sleep_ms(2500);                // a worker that is new is not judged by others
    for (int side = 0; side < 2; side++) { // what the parent says, and then what the child says
        uint32_t parent = 0, child = 0;
        struct step step = {.session = session, .first = 319, .rows = 1, .seed = 3};
        OK(step_run(client, &step));
        step_free(&step);
        assert_true(find_edge(cluster, &relays, &parent, &child));
        uint32_t told = count_events(client, parent, child);
        harness_proxy_swallow(relays.proxy, relays.edge[child], (enum harness_proxy_side)side,
                              harness_cluster_pid(cluster, parent), true);
        struct step after = {
            .session = session, .first = 319, .rows = 1, .seed = 3, .timeout_ns = UINT64_C(100) * 1000000000};
        uint64_t start = support_now_ns();
        OK(step_run(client, &after));
        assert_true(support_now_ns() - start > UINT64_C(1000000000)); // no process saw an error
        context_check(&context, 0, 319, 1, 0, after.made_q, after.o, after.lse, NULL, "step");
        step_free(&after);
        EVENTUALLY(30, count_events(client, parent, child) > told);
        char *log = harness_cluster_log(cluster, parent), endpoint[32];
        snprintf(endpoint, sizeof endpoint, "w%u.sock is silent", child);
        assert_non_null(log);
        assert_non_null(strstr(log, endpoint));
        free(log);
        harness_proxy_swallow(relays.proxy, relays.edge[child], (enum harness_proxy_side)side, 0, false);
    }
    support_drop(session, &context);
    banyan_disconnect(client);
    support_stop(cluster);
    harness_proxy_stop(relays.proxy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_outlive_a_black_hole),
                                       cmocka_unit_test(steps_go_round_a_relay_that_swallows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
