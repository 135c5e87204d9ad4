// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/cli/daemon.h"
#include "common/hash/hash.h"
#include "tests/chaos/net.h"
#include "tests/chaos/stores.h"
#include "tests/e2e/support.h"
#include "tests/harness/proxy.h"

#define BACK_NS (60 * COMMON_NS_PER_S) // a worker is back, a session has its copies

const char *const fault_names[FAULT_CLASSES] = {
    [FAULT_KILL_WORKER] = "kill_worker",
    [FAULT_RESTART_WORKER] = "restart_worker",
    [FAULT_STOP_WORKER] = "stop_worker",
    [FAULT_KILL_COORDINATOR] = "kill_coordinator",
    [FAULT_STOP_COORDINATOR] = "stop_coordinator",
    [FAULT_SUPERVISE] = "supervise",
    [FAULT_SLOW_DISK] = "slow_disk",
    [FAULT_RESET] = "reset",
    [FAULT_HALF_OPEN] = "half_open",
    [FAULT_FULL_DISK] = "full_disk",
    [FAULT_PARTITION] = "partition",
    [FAULT_RESTART_ALL] = "restart_all",
    [FAULT_FLIPPED_BIT] = "flipped_bit",
    [FAULT_CUT_FILE] = "cut_file",
    [FAULT_FULL_STORE] = "full_store",
};

struct faults {
    struct harness_cluster *cluster;
    struct harness_proxy *proxy;
    banyan_client *watcher; // asks how the cluster is, beside the proxy
    struct faults_options options;
    int up[FAULTS_WORKERS];   // routes: a worker's to the coordinator
    int edge[FAULTS_WORKERS]; // to a worker's edge endpoint; -1: not through the proxy
    int client;               // clients' to the coordinator
    char edges[FAULTS_WORKERS][128], publics[FAULTS_WORKERS][128], stores[FAULTS_WORKERS][320];
    const char *args[FAULTS_WORKERS][4];
    char slow
        [64]; // the file that says how slow the disk of the coordinator's store is; "": it cannot be made slow
};

uint64_t faults_draw(struct faults *f, uint64_t n)
{
    f->options.seed += UINT64_C(0x9e3779b97f4a7c15);
    return common_mix64(f->options.seed) % n;
}

static void sleep_draw(struct faults *f, unsigned from, unsigned to)
{
    support_sleep_ms(from + (unsigned)faults_draw(f, to - from));
}

// ---- the cluster ------------------------------------------------------------------------------------------

// The last NET_HOSTS workers live on hosts where there are any: TCP between them and all others. The others'
// edges are unix sockets with the proxy before them.
static void add_worker(struct faults *f, int i)
{
    int host = f->options.hosts ? i - (FAULTS_WORKERS - NET_HOSTS) : -1;
    size_t n = 0;
    struct harness_worker worker = {.args = f->args[i]};
    f->edge[i] = -1;
    if (!f->options.direct) {
        f->up[i] = harness_proxy_add(f->proxy, host >= 0 ? NET_HERE : NULL,
                                     harness_cluster_endpoint(f->cluster, "tcp"));
        assert_true(f->up[i] >= 0);
        worker.coordinator = harness_proxy_endpoint(f->proxy, f->up[i]);
    }
    if (f->options.stores) {
        snprintf(f->stores[i], sizeof(f->stores[i]), "%s/w%d.store", harness_cluster_dir(f->cluster), i);
        f->args[i][n++] = "--store";
        f->args[i][n++] = f->stores[i];
    }
    if (host >= 0) {
        snprintf(f->edges[i], sizeof(f->edges[i]), "tcp://%s:0", net_address(host));
        snprintf(f->publics[i], sizeof(f->publics[i]), "tcp://%s:0", net_address(host));
        worker.edge = f->edges[i];
        worker.public = f->publics[i];
        worker.before = net_enter(host);
        f->args[i][n++] = "--insecure";
    } else if (!f->options.direct) {
        char path[120];
        snprintf(path, sizeof(path), "%s/w%d.sock", harness_cluster_dir(f->cluster), i);
        f->edge[i] = harness_proxy_add_before(f->proxy, path, f->up[i]);
        assert_true(f->edge[i] >= 0);
    }
    assert_int_equal(harness_cluster_add(f->cluster, &worker), i);
}

struct faults *faults_start(const struct faults_options *options)
{
    // A chunk gets no new copy while a client has a ticket for positions in it that are not committed
    static const char *args[] = {"--ticket-life", "3s", "--heartbeat", NULL, NULL};
    // Measured speeds would put all of a session on one worker; the tests want it on all of them
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    struct faults *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    signal(SIGXFSZ, SIG_IGN); // the daemons inherit it: a write past the limit fails with EFBIG
    args[2] = options->heartbeat ? "--heartbeat" : NULL;
    args[3] = options->heartbeat;
    f->options = *options;
    f->proxy = harness_proxy_start();
    assert_non_null(f->proxy);
#ifdef SLOW_DISK
    snprintf(f->slow, sizeof(f->slow), "/tmp/banyan-slow-%d", (int)getpid());
    unlink(f->slow);
    setenv("BANYAN_SLOW_DISK", f->slow, 1);
    setenv("LD_PRELOAD", SLOW_DISK, 1);
#endif
    f->cluster = support_start(
        &(struct harness_options){.coordinator_args = args, .worker_args = same_speed, .memory = "64M"});
    harness_cluster_allow_error(f->cluster, ""); // what daemons say of each other's deaths
    for (int i = 0; i < FAULTS_WORKERS; i++)
        add_worker(f, i);
    f->client = harness_proxy_add(f->proxy, NULL, harness_cluster_endpoint(f->cluster, "tcp"));
    assert_true(f->client >= 0);
    f->watcher = support_connect(f->cluster, "unix");
    return f;
}

struct harness_cluster *faults_cluster(struct faults *f)
{
    return f->cluster;
}

const char *faults_endpoint(struct faults *f, int client)
{
    static const char *const transports[] = {NULL, "unix", "nng+tcp", NULL};
    const char *transport = f->options.direct ? "tcp" : transports[client % 4];
    return transport ? harness_cluster_endpoint(f->cluster, transport)
                     : harness_proxy_endpoint(f->proxy, f->client);
}

bool faults_has(const struct faults *f, enum fault_class which)
{
    bool files = which == FAULT_FLIPPED_BIT || which == FAULT_CUT_FILE || which == FAULT_FULL_STORE;
    return (which != FAULT_PARTITION || f->options.hosts) && (!files || f->options.stores) &&
           (which != FAULT_SLOW_DISK || f->slow[0]);
}

static bool all_active(struct faults *f)
{
    banyan_cluster_info info;
    uint32_t active = 0;
    if (banyan_cluster_get_info(f->watcher, &info, ERR) != BANYAN_OK)
        return false;
    for (uint32_t i = 0; i < info.n_workers; i++)
        active += strcmp(info.workers[i].state, "active") == 0;
    banyan_cluster_info_free(&info);
    return active == FAULTS_WORKERS;
}

bool faults_over(struct faults *f)
{
    uint64_t until = common_clock_after(BACK_NS);
    while (!all_active(f)) {
        if (common_clock_left(until) == 0) {
            fprintf(stderr, "chaos: not all workers are back after a minute\n");
            return false;
        }
        support_sleep_ms(10);
    }
    return true;
}

bool faults_start_again(struct faults *f, uint32_t who)
{
    if (who != HARNESS_COORDINATOR && f->edge[who] >= 0)
        harness_proxy_vacate(f->proxy, f->edge[who]);
    return harness_cluster_restart(f->cluster, who);
}

// ---- the faults -------------------------------------------------------------------------------------------

// Before memory is lost: every session has all its copies, or none.
static bool all_whole(struct faults *f, struct load *load)
{
    if (!faults_over(f))
        return false;
    if (load_settle(load, 2 * BACK_NS))
        return true;
    fprintf(stderr, "chaos: sessions are not whole after two minutes\n");
    return false;
}

// With it, copies of chunks: where they are not in files as well.
static void memory_goes(struct faults *f, struct load *load, unsigned workers)
{
    if (!f->options.stores)
        load_lost(load, workers);
}

static bool kill_worker(struct faults *f, struct load *load, int sig)
{
    uint32_t who = (uint32_t)faults_draw(f, FAULTS_WORKERS), other = (who + 1) % FAULTS_WORKERS;
    bool two = sig == SIGKILL && faults_draw(f, 3) == 0, coordinator = faults_draw(f, 4) == 0;
    memory_goes(f, load, 1);
    if (two)
        load_beyond(load); // both holders of a chunk may be away at a time
    harness_cluster_signal(f->cluster, who, sig);
    if (two) {
        sleep_draw(f, 0, 400);
        memory_goes(f, load, 1); // of sessions that began meanwhile, too
        harness_cluster_signal(f->cluster, other, SIGKILL);
    }
    if (coordinator) { // before, while or after it removes what is lost
        sleep_draw(f, 0, 400);
        harness_cluster_signal(f->cluster, HARNESS_COORDINATOR, SIGKILL);
    }
    sleep_draw(f, 0, 700);
    return (!coordinator || faults_start_again(f, HARNESS_COORDINATOR)) && faults_start_again(f, who) &&
           (!two || faults_start_again(f, other));
}

static bool stop_daemon(struct faults *f, uint32_t who)
{
    harness_cluster_signal(f->cluster, who, SIGSTOP);
    sleep_draw(f, 20, faults_draw(f, 2) ? 600 : 3000);
    harness_cluster_signal(f->cluster, who, SIGCONT);
    return true;
}

// Long enough to be removed; then the coordinator restarts from its store while the worker is back, with what
// it had before.
static bool stop_and_forget(struct faults *f, uint32_t who)
{
    harness_cluster_signal(f->cluster, who, SIGSTOP);
    sleep_draw(f, 2000, 3000);
    harness_cluster_signal(f->cluster, HARNESS_COORDINATOR, SIGKILL);
    harness_cluster_signal(f->cluster, who, SIGCONT);
    return faults_start_again(f, HARNESS_COORDINATOR);
}

static bool kill_coordinator(struct faults *f)
{
    harness_cluster_signal(f->cluster, HARNESS_COORDINATOR, SIGKILL);
    sleep_draw(f, 0, 500);
    return faults_start_again(f, HARNESS_COORDINATOR);
}

// SIGTERM, and SIGSTOP so soon that it is still ending, or SIGSTOP first; a supervisor that does not wait for
// its end starts the next one at once, and again while it is refused. Then the old one goes on, or is killed.
// Or it is not stopped at all.
static bool supervise(struct faults *f)
{
    enum { NOT_STOPPED, STOPPED_FIRST, STOPPED_AFTER, KILLED_THEN, HOWS };
    uint64_t how = faults_draw(f, HOWS);
    int pid = harness_cluster_pid(f->cluster, HARNESS_COORDINATOR), code = 0, refused = 0;
    if (how == STOPPED_FIRST)
        kill(pid, SIGSTOP);
    kill(pid, SIGTERM);
    if (how == STOPPED_AFTER || how == KILLED_THEN) {
        nanosleep(&(struct timespec){.tv_nsec = (long)faults_draw(f, 20000) * 1000}, NULL);
        kill(pid, SIGSTOP);
    }
    harness_cluster_leave(f->cluster);
    uint64_t until = common_clock_after((20 + faults_draw(f, 2500)) * COMMON_NS_PER_MS);
    bool ready = false;
    while (how != NOT_STOPPED && !ready && common_clock_left(until) > 0) {
        if (!harness_cluster_pid(f->cluster, HARNESS_COORDINATOR) &&
            !harness_cluster_launch(f->cluster, HARNESS_COORDINATOR))
            return false;
        ready = harness_cluster_is_ready(f->cluster, HARNESS_COORDINATOR);
        if (harness_cluster_ended(f->cluster, HARNESS_COORDINATOR, &code) && code != COMMON_DAEMON_START) {
            fprintf(stderr, "chaos: the next coordinator has ended with %d\n", code);
            return false;
        }
        support_sleep_ms(5);
    }
    harness_cluster_signal(f->cluster, HARNESS_OLD, how == KILLED_THEN ? SIGKILL : SIGCONT);
    bool started = harness_cluster_supervise(f->cluster, &refused);
    until = common_clock_after(BACK_NS);
    while (harness_cluster_pid(f->cluster, HARNESS_OLD) &&
           !harness_cluster_ended(f->cluster, HARNESS_OLD, &code)) {
        if (common_clock_left(until) == 0) {
            fprintf(stderr, "chaos: the old coordinator does not end\n");
            return false;
        }
        support_sleep_ms(5);
    }
    return started;
}

// Syncs of the store take up to a second, and each write some ms.
static bool slow_disk(struct faults *f)
{
    FILE *file = fopen(f->slow, "we");
    if (!file)
        return false;
    fprintf(file, "%u %u\n", 100 + (unsigned)faults_draw(f, 900), (unsigned)faults_draw(f, 20));
    fclose(file);
    sleep_draw(f, 200, 2000);
    bool ends = faults_draw(f, 2), back = true;
    if (ends)
        back = supervise(f);
    unlink(f->slow);
    return back;
}

// Of one worker, or the clients': what happens to several workers at a time, replicas need not survive.
static unsigned some_routes(struct faults *f, int routes[2])
{
    uint64_t i = faults_draw(f, FAULTS_WORKERS + 1), which = faults_draw(f, 3);
    unsigned n = 0;
    if (i == FAULTS_WORKERS) {
        routes[n++] = f->client;
        return n;
    }
    if (which != 1 || f->edge[i] < 0)
        routes[n++] = f->up[i];
    if (which != 0 && f->edge[i] >= 0)
        routes[n++] = f->edge[i];
    return n;
}

static bool reset_links(struct faults *f)
{
    int routes[2];
    unsigned n = some_routes(f, routes);
    bool refuse = faults_draw(f, 2);
    for (unsigned i = 0; i < n; i++) {
        if (refuse)
            harness_proxy_set(f->proxy, routes[i], HARNESS_REFUSE);
        harness_proxy_reset(f->proxy, routes[i]);
    }
    sleep_draw(f, 10, faults_draw(f, 2) ? 200 : 1500);
    for (unsigned i = 0; i < n; i++)
        harness_proxy_set(f->proxy, routes[i], HARNESS_PASS);
    return true;
}

// One end is reset and the other swallowed for a while, as by a firewall that has forgotten a link; or both
// stay and nothing goes through. Shorter than a silent process is waited for (docs/reference/wire.md,
// keep-alive), and than it takes to miss three heartbeats.
static bool half_open(struct faults *f)
{
    int routes[2];
    unsigned n = some_routes(f, routes);
    uint64_t how = faults_draw(f, 3);
    for (unsigned i = 0; i < n; i++)
        if (how == 2)
            harness_proxy_set(f->proxy, routes[i], HARNESS_HOLD);
        else
            harness_proxy_halve(f->proxy, routes[i], (enum harness_proxy_side)how);
    sleep_draw(f, 100, 2500);
    for (unsigned i = 0; i < n; i++)
        if (how == 2)
            harness_proxy_set(f->proxy, routes[i], HARNESS_PASS);
        else
            harness_proxy_reset_halves(f->proxy, routes[i]);
    return true;
}

// Files of a process may not become longer than that; UINT64_MAX: as long as they like.
static void limit_files(struct faults *f, uint32_t who, uint64_t bytes)
{
    struct rlimit limit;
    int pid = harness_cluster_pid(f->cluster, who);
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? (rlim_t)bytes : limit.rlim_max;
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

// The coordinator's files may not become longer than the store's log is now.
static void store_is_full(struct faults *f, bool full)
{
    char path[512];
    struct stat info;
    snprintf(path, sizeof(path), "%s/store.db-wal", harness_cluster_dir(f->cluster));
    if (stat(path, &info) != 0)
        info.st_size = 0;
    limit_files(f, HARNESS_COORDINATOR, full ? (uint64_t)info.st_size : UINT64_MAX);
}

static bool full_disk(struct faults *f, struct load *load)
{
    load_store_full(load, true);
    store_is_full(f, true);
    sleep_draw(f, 100, 1500);
    if (faults_draw(f, 3) == 0) // what was refused does not come back, what was acknowledged does
        harness_cluster_signal(f->cluster, HARNESS_COORDINATOR, SIGKILL);
    bool back =
        harness_cluster_pid(f->cluster, HARNESS_COORDINATOR) || faults_start_again(f, HARNESS_COORDINATOR);
    store_is_full(f, false);
    support_sleep_ms(100); // what was refused then is answered
    load_store_full(load, false);
    return back;
}

// Chunks and sessions that are small still get bytes, others and their logs that are rewritten do not. What
// is refused is not there, what was acknowledged is, whether there is room again or the worker dies.
static bool full_store(struct faults *f, struct load *load, uint32_t who)
{
    load_store_full(load, true);
    limit_files(f, who, faults_draw(f, 3) ? faults_draw(f, 65536) : 0);
    sleep_draw(f, 100, 3000);
    bool back = true;
    if (faults_draw(f, 3) == 0) {
        harness_cluster_signal(f->cluster, who, SIGKILL);
        back = faults_start_again(f, who);
    } else {
        limit_files(f, who, UINT64_MAX);
    }
    // What could be sent again is written within a second. Until then the files lack chunks that were placed
    // there and are empty, and a restarted coordinator cannot tell that they were (docs/operating/store.md).
    support_sleep_ms(2500);
    load_store_full(load, false);
    return back;
}

static bool partition(struct faults *f)
{
    net_cut(faults_draw(f, 2) ? NET_FROM_ALL : NET_FROM_EACH_OTHER, (int)faults_draw(f, NET_HOSTS));
    sleep_draw(f, 200, 4000);
    net_heal();
    return true;
}

// What one worker has in its store is not what it has written: the copies there may be gone.
static bool damage(struct faults *f, struct load *load, uint32_t who, enum stores_damage how)
{
    char path[320] = "";
    load_lost(load, 1);
    harness_cluster_signal(f->cluster, who, faults_draw(f, 2) ? SIGKILL : SIGTERM);
    if (!stores_damage(f->stores[who], how, faults_draw(f, UINT64_MAX), path, sizeof(path)))
        fprintf(stderr, "chaos: there was nothing to damage in %s\n", f->stores[who]);
    return faults_start_again(f, who);
}

// Whatever was in memory alone is gone.
static bool restart_all(struct faults *f, struct load *load)
{
    memory_goes(f, load, FAULTS_WORKERS);
    for (uint32_t i = 0; i < FAULTS_WORKERS; i++)
        harness_cluster_signal(f->cluster, i, faults_draw(f, 2) ? SIGKILL : SIGTERM);
    harness_cluster_signal(f->cluster, HARNESS_COORDINATOR, faults_draw(f, 2) ? SIGKILL : SIGTERM);
    bool back = faults_start_again(f, HARNESS_COORDINATOR);
    for (uint32_t i = 0; back && i < FAULTS_WORKERS; i++)
        back = faults_start_again(f, i);
    return back;
}

bool faults_make(struct faults *f, struct load *load, enum fault_class which)
{
    uint32_t worker = (uint32_t)faults_draw(f, FAULTS_WORKERS);
    bool memory = which == FAULT_KILL_WORKER || which == FAULT_RESTART_WORKER || which == FAULT_FLIPPED_BIT ||
                  which == FAULT_CUT_FILE;
    if (!memory && (which == FAULT_RESTART_ALL || faults_draw(f, 2)))
        load_beyond(load);
    else if (!all_whole(f, load))
        return false;
    switch (which) {
    case FAULT_KILL_WORKER:
        return kill_worker(f, load, SIGKILL);
    case FAULT_RESTART_WORKER:
        return kill_worker(f, load, SIGTERM);
    case FAULT_STOP_WORKER:
        return faults_draw(f, 3) ? stop_daemon(f, worker) : stop_and_forget(f, worker);
    case FAULT_KILL_COORDINATOR:
        return kill_coordinator(f);
    case FAULT_STOP_COORDINATOR:
        return stop_daemon(f, HARNESS_COORDINATOR);
    case FAULT_SUPERVISE:
        return supervise(f);
    case FAULT_SLOW_DISK:
        return slow_disk(f);
    case FAULT_RESET:
        return reset_links(f);
    case FAULT_HALF_OPEN:
        return half_open(f);
    case FAULT_FULL_DISK:
        return full_disk(f, load);
    case FAULT_PARTITION:
        return partition(f);
    case FAULT_RESTART_ALL:
        return restart_all(f, load);
    case FAULT_FLIPPED_BIT:
        return damage(f, load, worker, STORES_FLIP);
    case FAULT_CUT_FILE:
        return damage(f, load, worker, STORES_CUT);
    case FAULT_FULL_STORE:
        return full_store(f, load, worker);
    case FAULT_CLASSES:
        break;
    }
    return false;
}

int faults_stop(struct faults *f, bool keep)
{
    char dir[128];
    snprintf(dir, sizeof(dir), "%s", harness_cluster_dir(f->cluster));
    banyan_disconnect(f->watcher);
    if (keep)
        fprintf(stderr, "chaos: logs and store are in %s\n", dir);
    else
        for (int i = 0; i < FAULTS_WORKERS; i++)
            if (f->edge[i] >= 0)
                harness_proxy_vacate(f->proxy, f->edge[i]);
    int problems = keep ? 1 : harness_cluster_stop(f->cluster); // else they are killed when the program ends
    harness_proxy_stop(f->proxy);
    free(f);
    return problems;
}
