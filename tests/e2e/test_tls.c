// SPDX-License-Identifier: Apache-2.0
// A cluster over TLS alone: the bits of a plain one; certificates and authority that change under steps;
// wrong certificates: expired, of another authority, a worker's for a coordinator, a client's for a worker.
#include "tests/e2e/support.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/pki.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/secure/secret.h"
#include "common/secure/tls.h"
#include "proto/rpc/rpc.h"
#include "tests/harness/process.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S)
#define DAY_S   86400

enum { WORKERS = 3, RUNNERS = 4, START = 70, ROOM = 100000, FIXED = 41 };

static const banyan_spec spec = {.layers = 2,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 16,
                                 .v_dim = 16,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 32,
                                 .members = WORKERS};

// ---- certificates -----------------------------------------------------------------------------------------

static char folder[] = "/tmp/banyan-tls-XXXXXX";

struct names { // of the files of one certificate
    char cert[96], key[96], ca[96];
};

static struct names names_of(const char *dir, const char *name)
{
    struct names n;
    snprintf(n.cert, sizeof n.cert, "%s/%s/%s.pem", folder, dir, name);
    snprintf(n.key, sizeof n.key, "%s/%s/%s.key", folder, dir, name);
    snprintf(n.ca, sizeof n.ca, "%s/%s/ca.pem", folder, dir);
    return n;
}

static void dir_of(const char *dir, char out[96])
{
    snprintf(out, 96, "%s/%s", folder, dir);
}

static struct ctl_pki_pair make(const char *name, unsigned roles, int64_t till_s,
                                const struct ctl_pki_pair *by)
{
    struct ctl_pki_wish wish = {.name = name,
                                .roles = roles,
                                .hosts = roles ? "localhost,127.0.0.1" : NULL,
                                .from_s = (int64_t)time(NULL) - 600,
                                .till_s = till_s};
    struct ctl_pki_pair pair;
    struct common_error err;
    if (ctl_pki_make(&wish, by, &pair, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    return pair;
}

static void issue_till(const char *dir, const char *name, unsigned roles, int64_t till_s,
                       const struct ctl_pki_pair *by)
{
    char path[96];
    struct common_error err;
    struct ctl_pki_pair pair = make(name, roles, till_s, by);
    dir_of(dir, path);
    if (ctl_pki_write(path, name, &pair, true, &err) != COMMON_OK ||
        ctl_pki_write_authority(path, by->cert, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    ctl_pki_free(&pair);
}

static void issue(const char *dir, const char *name, unsigned roles, const struct ctl_pki_pair *by)
{
    issue_till(dir, name, roles, (int64_t)time(NULL) + 10 * DAY_S, by);
}

static struct ctl_pki_pair make_authority(const char *name)
{
    return make(name, 0, (int64_t)time(NULL) + 100 * DAY_S, NULL);
}

// A folder as harness_options.tls takes it, and a client's certificate in it.
static void issue_all(const char *dir, const struct ctl_pki_pair *by)
{
    issue(dir, "coordinator", CTL_PKI_COORDINATOR, by);
    issue(dir, "worker", CTL_PKI_WORKER, by);
    issue(dir, "client", CTL_PKI_CLIENT, by);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    support_remove_folder(folder);
    return 0;
}

// ---- clients ----------------------------------------------------------------------------------------------

// ca NULL: without; name NULL: without a certificate of its own.
static banyan_code connect_to(const char *endpoint, const char *ca_dir, const char *name, banyan_client **out)
{
    struct names own = names_of(ca_dir ? ca_dir : "", name ? name : "");
    banyan_options options = {.tls_ca = ca_dir ? own.ca : NULL,
                              .tls_cert = name ? own.cert : NULL,
                              .tls_key = name ? own.key : NULL,
                              .timeout_ns = LONG_NS};
    return banyan_connect(endpoint, &options, out, ERR);
}

static banyan_client *tls_client(const struct harness_cluster *cluster, const char *transport,
                                 const char *dir)
{
    banyan_client *client = NULL;
    OK(connect_to(harness_cluster_endpoint(cluster, transport), dir, NULL, &client));
    return client;
}

// That no client is let in, soon, and a sentence with this in it.
static void expect_refused(const char *endpoint, const char *ca_dir, const char *name, const char *says)
{
    banyan_client *client = NULL;
    struct names own = names_of(ca_dir ? ca_dir : "", name ? name : "");
    banyan_options options = {.tls_ca = ca_dir ? own.ca : NULL,
                              .tls_cert = name ? own.cert : NULL,
                              .tls_key = name ? own.key : NULL,
                              .connect_timeout_ns = 3 * COMMON_NS_PER_S};
    banyan_code code = banyan_connect(endpoint, &options, &client, ERR);
    if (code == BANYAN_OK || !strstr(ERR->message, says))
        fail_msg("%s: code %d, and should be refused with '%s': %s", endpoint, code, says,
                 code == BANYAN_OK ? "" : ERR->message);
}

// ---- the bits of a plain cluster --------------------------------------------------------------------------

#define STEPS 6

struct answers {
    float o[STEPS][4 * 16], lse[STEPS][4];
    uint64_t digests[STEPS];
};

// A session over `client`, attached, stepped and read.
static void run_session(banyan_client *client, struct answers *out)
{
    struct context context;
    banyan_session *session;
    context_init(&context, &spec, START + STEPS);
    context_random(&context, 0, START + STEPS, 5);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &context, 0, START);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct step step = {.session = session,
                            .layer = i % 2,
                            .first = START + i / 2,
                            .rows = 1,
                            .seed = 40 + i,
                            .timeout_ns = LONG_NS};
        step_append(&step, &context);
        OK(step_run(client, &step));
        context_check(&context, i % 2, step.first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
        memcpy(out->o[i], step.o, sizeof out->o[i]);
        memcpy(out->lse[i], step.lse, sizeof out->lse[i]);
        out->digests[i] = step.digest;
        step_free(&step);
    }
    size_t row = (size_t)spec.kv_heads * spec.k_dim;
    float *k = calloc(START * row, sizeof *k), *v = calloc(START * row, sizeof *v);
    OK(banyan_read_rows(session, 1, 0, START, k, NULL, v, NULL, ERR));
    assert_memory_equal(k, context_k(&context, 1, 0), START * row * sizeof *k);
    assert_memory_equal(v, context_v(&context, 1, 0), START * row * sizeof *v);
    free(k);
    free(v);
    support_drop(session, &context);
}

static const char *const same_speed[] = {"--bandwidth", "8G", NULL};

// One worker after another, so that chunks are placed alike in each such cluster.
static struct harness_cluster *start_in_order(const char *tls)
{
    struct harness_cluster *cluster = support_start(
        &(struct harness_options){.workers = 1, .tls = tls, .edges_tcp = true, .worker_args = same_speed});
    while (harness_cluster_workers(cluster) < WORKERS)
        assert_int_not_equal(harness_cluster_add_worker(cluster, NULL), UINT32_MAX);
    return cluster;
}

#define PLAIN 6 // sessions, of which each may have its chunks elsewhere

// Over each transport, in one cluster, as far as its digests are those of a plain one: other digests may have
// other bits.
static void compare(struct harness_cluster *cluster, const struct answers plain[PLAIN], bool compared[3])
{
    static const char *const transports[] = {"tls", "nng+tls", "unix"};
    static struct answers guarded;
    for (int t = 0; t < 3; t++) {
        banyan_client *client = tls_client(cluster, transports[t], "one");
        for (int tries = 0; tries < PLAIN && !compared[t]; tries++) {
            run_session(client, &guarded);
            for (int i = 0; i < PLAIN && !compared[t]; i++) {
                if (memcmp(plain[i].digests, guarded.digests, sizeof guarded.digests) != 0)
                    continue;
                compared[t] = true;
                if (memcmp(plain[i].o, guarded.o, sizeof guarded.o) != 0 ||
                    memcmp(plain[i].lse, guarded.lse, sizeof guarded.lse) != 0)
                    fail_msg("over %s there are other bits than without TLS", transports[t]);
            }
        }
        banyan_disconnect(client);
    }
}

static void same_bits(void **state)
{
    (void)state;
    struct ctl_pki_pair authority = make_authority("one");
    issue_all("one", &authority);
    char dir[96];
    dir_of("one", dir);
    static struct answers plain[PLAIN];
    bool compared[3] = {false};
    for (int round = 0; round < 5 && !(compared[0] && compared[1] && compared[2]); round++) {
        struct harness_cluster *cluster = start_in_order(NULL);
        banyan_client *client = support_connect(cluster, "tcp");
        for (int i = 0; i < PLAIN; i++)
            run_session(client, &plain[i]);
        banyan_disconnect(client);
        support_stop(cluster);
        cluster = start_in_order(dir);
        compare(cluster, plain, compared);
        support_stop(cluster);
    }
    assert_true(compared[0] && compared[1] && compared[2]);
    ctl_pki_free(&authority);
}

// ---- certificates that change under steps -----------------------------------------------------------------

struct runner { // appends and reads, one step after another, until it is stopped, or one fails
    pthread_t thread;
    banyan_client *client;
    banyan_session *session;
    struct context context;
    uint64_t length;
    unsigned done;
    bool stop, failed;
    char why[420];
};

static bool run_one(struct runner *r, struct step *step)
{
    banyan_code code = step_run(r->client, step);
    if (code != BANYAN_OK)
        snprintf(r->why, sizeof r->why, "code %d: %.380s", code, ERR->message);
    return code == BANYAN_OK && context_agrees(&r->context, step->layer, step->first, 1, 0, step->made_q,
                                               step->o, step->lse, r->why, sizeof r->why);
}

static void *run_steps(void *arg)
{
    struct runner *r = arg;
    bool ok = true;
    while (ok && r->length < ROOM && !__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
        context_random(&r->context, r->length, 1, r->length);
        for (uint32_t layer = 0; layer < spec.layers && ok; layer++) {
            struct step append = {.session = r->session,
                                  .layer = layer,
                                  .first = r->length,
                                  .rows = 1,
                                  .seed = r->length,
                                  .timeout_ns = LONG_NS};
            step_append(&append, &r->context);
            ok = run_one(r, &append);
            step_free(&append);
        }
        r->length += ok;
        __atomic_fetch_add(&r->done, 1, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&r->failed, !ok, __ATOMIC_RELAXED);
    return NULL;
}

static void wait_for_steps(struct runner *runners, unsigned more)
{
    unsigned from[RUNNERS];
    for (int i = 0; i < RUNNERS; i++)
        from[i] = __atomic_load_n(&runners[i].done, __ATOMIC_RELAXED);
    for (int i = 0; i < RUNNERS; i++) {
        EVENTUALLY(100, __atomic_load_n(&runners[i].done, __ATOMIC_RELAXED) >= from[i] + more ||
                            __atomic_load_n(&runners[i].failed, __ATOMIC_RELAXED));
        if (__atomic_load_n(&runners[i].failed, __ATOMIC_RELAXED))
            fail_msg("runner %d: %s", i, runners[i].why);
    }
}

static unsigned times_said(const struct harness_cluster *cluster, uint32_t who, const char *text)
{
    char *log = harness_cluster_log(cluster, who);
    unsigned n = 0;
    assert_non_null(log);
    for (const char *at = log; (at = strstr(at, text)); at++)
        n++;
    free(log);
    return n;
}

// All chunks have all their copies again: the loss of another worker loses nothing.
static void wait_whole(banyan_client *client)
{
    banyan_cluster_info info = {.thin_chunks = 1};
    for (int i = 0; i < 600 && (info.thin_chunks || info.moves); i++) {
        OK(banyan_cluster_get_info(client, &info, ERR));
        bool whole = !info.thin_chunks && !info.moves;
        banyan_cluster_info_free(&info);
        if (whole)
            return;
        support_sleep_ms(100);
    }
    fail_msg("there are still chunks with too few copies");
}

// All daemons read their certificates again.
static void reload_all(struct harness_cluster *cluster)
{
    static const char said[] = "certificates reloaded";
    for (uint32_t i = 0; i < WORKERS + 1; i++) {
        uint32_t who = i < WORKERS ? i : HARNESS_COORDINATOR;
        unsigned before = times_said(cluster, who, said);
        harness_cluster_signal(cluster, who, SIGHUP);
        EVENTUALLY(30, times_said(cluster, who, said) > before);
    }
}

// What a file of authorities has: one, or two.
static void believe(const char *dir, const struct ctl_pki_pair *first, const struct ctl_pki_pair *second)
{
    char from[96], path[96], command[700];
    const struct ctl_pki_pair *both[] = {first, second};
    dir_of("bundle", from);
    dir_of(dir, path);
    for (int i = 0; i < 2 && both[i]; i++)
        assert_int_equal(ctl_pki_write(from, i ? "b" : "a", both[i], true, NULL), COMMON_OK);
    snprintf(command, sizeof command, "cat %s/a.pem %s%s >%s/new.pem && mv %s/new.pem %s/ca.pem", from,
             second ? from : "", second ? "/b.pem" : "", path, path, path);
    assert_int_equal(system(command), 0);
}

static void start_runners(struct runner *runners, const struct harness_cluster *cluster, const char *dir)
{
    static const char *const transports[] = {"tls", "nng+tls"};
    for (int i = 0; i < RUNNERS; i++) {
        struct runner *r = &runners[i];
        banyan_spec twice = spec;
        twice.members = 0;
        twice.replicas = 2;
        r->client = tls_client(cluster, transports[i % 2], dir);
        context_init(&r->context, &twice, ROOM);
        context_random(&r->context, 0, START, 7 + (uint64_t)i);
        OK(banyan_session_create(r->client, &twice, NULL, &r->session, ERR));
        support_fill(r->session, &r->context, 0, START);
        r->length = START;
        assert_int_equal(pthread_create(&r->thread, NULL, run_steps, r), 0);
    }
}

static void stop_runners(struct runner *runners)
{
    for (int i = 0; i < RUNNERS; i++) {
        __atomic_store_n(&runners[i].stop, true, __ATOMIC_RELAXED);
        pthread_join(runners[i].thread, NULL);
        if (runners[i].failed)
            fail_msg("runner %d: %s", i, runners[i].why);
        support_drop(runners[i].session, &runners[i].context);
        banyan_disconnect(runners[i].client);
    }
}

// When a daemon's certificate ends, as it says itself.
static int64_t expiry_of(const struct harness_cluster *cluster, const char *dir, int64_t *ca)
{
    banyan_examined seen;
    struct names own = names_of(dir, "");
    banyan_options options = {.tls_ca = own.ca, .timeout_ns = LONG_NS};
    char first[300];
    snprintf(first, sizeof first, "%s", harness_cluster_endpoint(cluster, "tls"));
    first[strcspn(first, ",")] = '\0';
    OK(banyan_examine(first, &options, &seen, ERR));
    if (ca)
        *ca = seen.tls_ca_expires_s;
    banyan_examined_free(&seen);
    return seen.tls_expires_s;
}

static void certificates_change(void **state)
{
    (void)state;
    static struct runner runners[RUNNERS];
    struct ctl_pki_pair before = make_authority("before"), after = make_authority("after");
    issue_all("now", &before);
    issue_all("old", &before); // what a client has that got no notice
    char dir[96];
    dir_of("now", dir);
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = WORKERS, .tls = dir, .worker_args = same_speed});
    start_runners(runners, cluster, "now");
    wait_for_steps(runners, 20);

    // Other certificates of the same authority.
    int64_t till_s = (int64_t)time(NULL) + 20 * DAY_S, ca_s;
    issue_till("now", "coordinator", CTL_PKI_COORDINATOR, till_s, &before);
    issue_till("now", "worker", CTL_PKI_WORKER, till_s, &before);
    assert_int_not_equal(expiry_of(cluster, "now", NULL), till_s);
    reload_all(cluster);
    assert_int_equal(expiry_of(cluster, "now", &ca_s), till_s);
    assert_in_range(ca_s - (int64_t)time(NULL), 99 * DAY_S, 100 * DAY_S);
    wait_for_steps(runners, 20);

    // Another authority: both are trusted, then all certificates change, then the first one is not trusted
    // any more.
    believe("now", &after, &before);
    reload_all(cluster);
    wait_for_steps(runners, 10);
    issue_all("now", &after);
    reload_all(cluster);
    wait_for_steps(runners, 10);
    harness_cluster_signal(cluster, 1, SIGKILL); // so that links are made again, with the certificates of now
    wait_for_steps(runners, 10);
    assert_true(harness_cluster_restart(cluster, 1));
    wait_whole(runners[0].client);
    believe("now", &after, NULL);
    reload_all(cluster);
    wait_for_steps(runners, 10);
    harness_cluster_signal(cluster, 2, SIGKILL);
    wait_for_steps(runners, 10);
    assert_true(harness_cluster_restart(cluster, 2));
    wait_for_steps(runners, 10);
    banyan_disconnect(tls_client(cluster, "tls", "now"));
    banyan_disconnect(tls_client(cluster, "nng+tls", "now"));
    expect_refused(harness_cluster_endpoint(cluster, "tls"), "old", NULL, "certificate");

    // What cannot be used changes nothing: a certificate of another role, and none.
    int64_t was = expiry_of(cluster, "now", NULL);
    struct names coordinator = names_of("now", "coordinator");
    issue_till("now", "coordinator", CTL_PKI_WORKER, till_s + DAY_S, &after);
    harness_cluster_allow_error(cluster, "certificates are unchanged");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(30, times_said(cluster, HARNESS_COORDINATOR, "certificates are unchanged") == 1);
    assert_int_equal(expiry_of(cluster, "now", NULL), was);
    assert_int_equal(unlink(coordinator.cert), 0);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(30, times_said(cluster, HARNESS_COORDINATOR, "certificates are unchanged") == 2);
    assert_int_equal(expiry_of(cluster, "now", NULL), was);
    wait_for_steps(runners, 10);
    stop_runners(runners);
    support_stop(cluster);
    ctl_pki_free(&before);
    ctl_pki_free(&after);
}

// ---- who is not what they say -----------------------------------------------------------------------------

// A daemon that does not start, with a sentence that has this in it.
static void expect_no_start(const char *program, const char *const *args, const char *says)
{
    char path[4096];
    char *argv[32] = {path};
    struct harness_output out;
    assert_true(harness_program_path(program, path, sizeof path));
    for (size_t n = 1; *args; args++)
        argv[n++] = (char *)*args;
    assert_true(harness_run(argv, NULL, 60 * COMMON_NS_PER_S, &out));
    if (out.exit_code != 3 || !strstr(out.err, says))
        fail_msg("%s: exit code %d, not 3 with '%s': %s", program, out.exit_code, says, out.err);
    harness_output_free(&out);
}

static void daemons_know_their_role(void **state)
{
    (void)state;
    struct ctl_pki_pair authority = make_authority("roles");
    issue_all("roles", &authority);
    issue_till("roles", "expired", CTL_PKI_WORKER, (int64_t)time(NULL) - 60, &authority);
    char secret[96];
    snprintf(secret, sizeof secret, "%s/roles.secret", folder);
    struct names worker = names_of("roles", "worker"), client = names_of("roles", "client"),
                 expired = names_of("roles", "expired");
    expect_no_start("banyan-coordinator",
                    (const char *[]){"--secret-file", secret, "--store", ":memory:", "--listen",
                                     "tls://127.0.0.1:0", "--tls-cert", worker.cert, "--tls-key", worker.key,
                                     "--tls-ca", worker.ca, NULL},
                    "banyan:coordinator");
    const struct {
        const struct names *files;
        const char *says;
    } tries[] = {{&client, "banyan:worker"}, {&expired, "expired"}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        expect_no_start("banyan-worker",
                        (const char *[]){"--secret-file", secret, "--coordinator", "tls://127.0.0.1:1",
                                         "--memory", "64M", "--tls-cert", tries[i].files->cert, "--tls-key",
                                         tries[i].files->key, "--tls-ca", tries[i].files->ca, NULL},
                        tries[i].says);
    expect_no_start("banyan-worker",
                    (const char *[]){"--secret-file", secret, "--coordinator", "tls://127.0.0.1:1",
                                     "--memory", "64M", "--bandwidth", "1G", NULL},
                    "--tls-cert");
    assert_int_equal(chmod(worker.key, 0644), 0);
    expect_no_start("banyan-worker",
                    (const char *[]){"--secret-file", secret, "--coordinator", "tls://127.0.0.1:1",
                                     "--memory", "64M", "--tls-cert", worker.cert, "--tls-key", worker.key,
                                     "--tls-ca", worker.ca, NULL},
                    "chmod 600");
    ctl_pki_free(&authority);
}

// A thief has the cluster's secret, a certificate of the cluster's authority that says another role, and a
// program that does not look at itself: its TLS is made with one certificate, and has another when it speaks.
static struct common_tls *thief_tls(const char *dir, const char *role, const char *stolen)
{
    char command[700];
    struct names as = names_of(dir, "thief"), own = names_of(dir, stolen), right = names_of(dir, role);
    struct common_tls *tls;
    struct common_error err;
    snprintf(command, sizeof command, "cp %s %s && cp %s %s", right.cert, as.cert, right.key, as.key);
    assert_int_equal(system(command), 0);
    if (common_tls_new(&(struct common_tls_files){as.cert, as.key, as.ca}, &tls, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    snprintf(command, sizeof command, "cp %s %s && cp %s %s", own.cert, as.cert, own.key, as.key);
    assert_int_equal(system(command), 0);
    return tls;
}

static void become(struct common_tls *tls)
{
    struct common_error err;
    if (common_tls_reload(tls, &err) != COMMON_OK)
        fail_msg("%s", err.message);
}

struct caller { // dials as a worker
    struct common_loop *loop;
    struct proto_channel *channel;
    const char *endpoint;
    const struct common_secret *secret;
    struct common_tls *tls;
    bool failed, connected; // atomic
    char why[400];
};

static void caller_failed(void *arg, const char *why)
{
    struct caller *c = arg;
    snprintf(c->why, sizeof c->why, "%s", why);
    __atomic_store_n(&c->failed, true, __ATOMIC_RELEASE);
}

static void caller_state(void *arg, bool connected)
{
    struct caller *c = arg;
    if (connected)
        __atomic_store_n(&c->connected, true, __ATOMIC_RELEASE);
}

static void caller_open(void *arg)
{
    struct caller *c = arg;
    struct common_error err;
    const struct proto_channel_options options = {.name = "thief",
                                                  .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                  .secret = c->secret,
                                                  .tls = c->tls,
                                                  .state = caller_state,
                                                  .failed = caller_failed,
                                                  .state_arg = c};
    if (proto_channel_open(c->loop, c->endpoint, &options, &c->channel, &err) != COMMON_OK)
        caller_failed(c, err.message);
    become(c->tls); // before a connection is made: that happens in a later turn of the loop
}

static void caller_close(void *arg)
{
    proto_channel_close(((struct caller *)arg)->channel);
}

// Whether it comes in, as a worker, with this certificate.
static bool comes_in(const char *endpoint, const struct common_secret *secret, const char *dir,
                     const char *stolen)
{
    struct caller c = {.endpoint = endpoint, .secret = secret, .tls = thief_tls(dir, "worker", stolen)};
    assert_int_equal(common_loop_new(&c.loop), COMMON_OK);
    assert_int_equal(common_loop_start_thread(c.loop, "thief"), COMMON_OK);
    common_loop_call(c.loop, caller_open, &c);
    EVENTUALLY(30, __atomic_load_n(&c.failed, __ATOMIC_ACQUIRE) ||
                       __atomic_load_n(&c.connected, __ATOMIC_ACQUIRE));
    common_loop_call(c.loop, caller_close, &c);
    common_loop_stop(c.loop);
    common_loop_join(c.loop);
    common_loop_free(c.loop);
    common_tls_unref(c.tls);
    print_message("as a worker with the certificate of %s: %s\n", stolen, c.connected ? "comes in" : c.why);
    return c.connected;
}

static void health(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.serving = true;
    reply.version = (char *)BANYAN_VERSION;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static const struct proto_method only_health[] = {
    {.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
     .roles = 1u << BANYAN__PB__ROLE__ROLE_CLIENT,
     .handle = health},
    {0},
};

struct impostor { // a coordinator's server
    struct common_loop *loop;
    struct proto_server *server;
    const struct common_secret *secret;
    struct common_tls *tls;
};

static void impostor_open(void *arg)
{
    struct impostor *i = arg;
    struct common_error err;
    const struct proto_server_options options = {.name = "impostor",
                                                 .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                                 .secret = i->secret,
                                                 .methods = only_health,
                                                 .tls = i->tls};
    if (proto_server_new(i->loop, &options, &i->server, &err) != COMMON_OK ||
        proto_server_listen(i->server, "tls://127.0.0.1:0", &err) != COMMON_OK)
        fail_msg("%s", err.message);
    become(i->tls);
}

static void impostor_close(void *arg)
{
    proto_server_close(((struct impostor *)arg)->server);
}

static void others_certificates(void **state)
{
    (void)state;
    struct ctl_pki_pair authority = make_authority("stolen"), other = make_authority("other");
    issue_all("stolen", &authority);
    issue_all("other", &other);
    char dir[96];
    dir_of("stolen", dir);
    struct common_secret secret;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .tls = dir, .worker_args = same_speed});
    assert_int_equal(common_secret_load(harness_cluster_secret_file(cluster), &secret, NULL), COMMON_OK);
    const char *endpoint = harness_cluster_endpoint(cluster, "tls");

    // To the coordinator, as a worker.
    assert_true(comes_in(endpoint, &secret, "stolen", "worker"));
    assert_false(comes_in(endpoint, &secret, "stolen", "client"));
    assert_false(comes_in(endpoint, &secret, "stolen", "coordinator"));
    assert_false(comes_in(endpoint, &secret, "other", "worker"));

    // As a coordinator, to a client, which sends its token to a server that it trusts.
    static const struct {
        const char *stolen;
        bool believed;
    } tries[] = {{"coordinator", true}, {"worker", false}, {"client", false}};
    for (size_t t = 0; t < sizeof tries / sizeof *tries; t++) {
        struct impostor i = {.secret = &secret, .tls = thief_tls("stolen", "coordinator", tries[t].stolen)};
        banyan_client *client = NULL;
        assert_int_equal(common_loop_new(&i.loop), COMMON_OK);
        assert_int_equal(common_loop_start_thread(i.loop, "impostor"), COMMON_OK);
        common_loop_call(i.loop, impostor_open, &i);
        const char *at = proto_server_endpoint(i.server, 0);
        if (tries[t].believed) {
            OK(connect_to(at, "stolen", NULL, &client));
            banyan_disconnect(client);
        } else {
            expect_refused(at, "stolen", NULL, "certificate");
            print_message("as a coordinator with the certificate of %s: %s\n", tries[t].stolen, ERR->message);
        }
        common_loop_call(i.loop, impostor_close, &i);
        common_loop_stop(i.loop);
        common_loop_join(i.loop);
        common_loop_free(i.loop);
        common_tls_unref(i.tls);
    }

    // There is no fallback: neither from TLS to plain, nor the other way.
    char plain[300];
    snprintf(plain, sizeof plain, "tcp://%s", endpoint + strlen("tls://"));
    expect_refused(plain, NULL, NULL, "");
    expect_refused(endpoint, NULL, NULL, "--tls-ca");
    expect_refused(endpoint, "other", NULL, "certificate");
    expect_refused(harness_cluster_endpoint(cluster, "nng+tls"), "other", NULL, "");
    support_stop(cluster);
    ctl_pki_free(&authority);
    ctl_pki_free(&other);
}

static void clients_with_certificates(void **state)
{
    (void)state;
    static const char *const args[] = {"--tls-client-cert", "require", "--heartbeat", SUPPORT_BEAT, NULL};
    static const char *const worker_args[] = {"--tls-client-cert", "require", "--bandwidth", "8G", NULL};
    struct ctl_pki_pair authority = make_authority("asked"), other = make_authority("another");
    issue_all("asked", &authority);
    issue_all("another", &other);
    char dir[96];
    dir_of("asked", dir);
    struct harness_cluster *cluster = support_start(&(struct harness_options){
        .workers = 2, .tls = dir, .coordinator_args = args, .worker_args = worker_args});
    static const char *const transports[] = {"tls", "nng+tls"};
    for (int t = 0; t < 2; t++) {
        static struct answers answers;
        banyan_client *client = NULL;
        const char *endpoint = harness_cluster_endpoint(cluster, transports[t]);
        OK(connect_to(endpoint, "asked", "client", &client));
        run_session(client, &answers);
        banyan_disconnect(client);
        expect_refused(endpoint, "asked", NULL, "");
    }
    // A certificate of another authority, from a peer that trusts ours.
    struct names mixed = names_of("another", "client"), right = names_of("asked", "client");
    banyan_options options = {.tls_ca = right.ca,
                              .tls_cert = mixed.cert,
                              .tls_key = mixed.key,
                              .connect_timeout_ns = 3 * COMMON_NS_PER_S};
    banyan_client *client = NULL;
    assert_int_not_equal(banyan_connect(harness_cluster_endpoint(cluster, "tls"), &options, &client, ERR),
                         BANYAN_OK);
    support_stop(cluster);
    ctl_pki_free(&authority);
    ctl_pki_free(&other);
}

// A certificate that ends while the cluster runs: what is connected goes on, no new link comes in.
static void expiry(void **state)
{
    (void)state;
    struct ctl_pki_pair authority = make_authority("ends");
    issue_all("ends", &authority);
    char dir[96];
    dir_of("ends", dir);
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .tls = dir, .worker_args = same_speed});
    int64_t till_s = (int64_t)time(NULL) + 20; // it has to be read before it ends
    issue_till("ends", "coordinator", CTL_PKI_COORDINATOR, till_s, &authority);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(15, times_said(cluster, HARNESS_COORDINATOR, "certificates reloaded") == 1);
    banyan_client *client = tls_client(cluster, "tls", "ends");
    EVENTUALLY(60, (int64_t)time(NULL) > till_s + 1);
    expect_refused(harness_cluster_endpoint(cluster, "tls"), "ends", NULL, "expired");
    static struct answers answers;
    run_session(client, &answers);
    issue("ends", "coordinator", CTL_PKI_COORDINATOR, &authority);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(30, times_said(cluster, HARNESS_COORDINATOR, "certificates reloaded") == 2);
    banyan_disconnect(tls_client(cluster, "tls", "ends"));
    banyan_disconnect(client);
    support_stop(cluster);
    ctl_pki_free(&authority);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(certificates_change),
        cmocka_unit_test(daemons_know_their_role),
        cmocka_unit_test(others_certificates),
        cmocka_unit_test(clients_with_certificates),
        cmocka_unit_test(expiry),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
