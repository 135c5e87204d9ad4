// SPDX-License-Identifier: Apache-2.0
// The audit log of a coordinator (--audit-log) over real daemons: who has changed what, from where, with
// which result; kills in the middle of changes, a full disk, rotation. What is acknowledged is in it, and the
// chain is whole.
#include "tests/e2e/support.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/trail/trail.h"
#include "tests/e2e/banyanctl.h"

#define TOKEN "e2e-trail-token"

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 2,
                                 .kv_heads = 1,
                                 .k_dim = 16,
                                 .v_dim = 16,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 16,
                                 .members = 1};

// ---- a cluster with an audit log ----------------------------------------------------------------

struct logged {
    struct harness_cluster *cluster;
    char dir[64], path[128], old[160];
    const char *args[4]; // kept: the coordinator may be started again
};

static void make_folder(struct logged *l)
{
    snprintf(l->dir, sizeof l->dir, "/tmp/banyan-trail-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    snprintf(l->path, sizeof l->path, "%s/audit.log", l->dir);
    snprintf(l->old, sizeof l->old, "%s.1", l->path);
}

static void start(struct logged *l, const char *path, const char *token, const char *more)
{
    l->args[0] = "--audit-log";
    l->args[1] = path;
    l->args[2] = more;
    l->args[3] = NULL;
    l->cluster =
        support_start(&(struct harness_options){.workers = 2, .token = token, .coordinator_args = l->args});
}

static void stop(struct logged *l)
{
    support_stop(l->cluster);
    support_remove_folder(l->dir);
}

// All records of a file; each line is one. Free with json_decref.
static json_t *read_log(const char *path)
{
    json_t *all = json_array();
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    for (ssize_t n; (n = getline(&line, &room, file)) > 0;) {
        json_t *record = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
        if (record) // else a part of one, which a kill has left: the chain speaks of it
            json_array_append_new(all, record);
    }
    fclose(file);
    free(line);
    return all;
}

// "who.name": of the object there. "" where there is nothing.
static const char *text_of(const json_t *record, const char *key)
{
    char first[32];
    const char *dot = strchr(key, '.');
    snprintf(first, sizeof first, "%.*s", (int)(dot ? dot - key : (ptrdiff_t)strlen(key)), key);
    const json_t *value = json_object_get(record, first);
    value = dot ? json_object_get(value, dot + 1) : value;
    return json_is_string(value) ? json_string_value(value) : "";
}

// The nth record with this; NULL: there is none.
static const json_t *find(const json_t *all, const char *what, size_t nth)
{
    for (size_t i = 0; i < json_array_size(all); i++)
        if (strcmp(text_of(json_array_get(all, i), "what"), what) == 0 && nth-- == 0)
            return json_array_get(all, i);
    return NULL;
}

static size_t count(const json_t *all, const char *what)
{
    size_t n = 0;
    while (find(all, what, n))
        n++;
    return n;
}

static const json_t *expect(const json_t *all, const char *what, size_t nth, const char *result)
{
    const json_t *record = find(all, what, nth);
    if (!record || strcmp(text_of(record, "result"), result) != 0)
        fail_msg("the audit log has no record %d of %s with %s, but %s", (int)nth, what, result,
                 record ? text_of(record, "result") : "none");
    return record;
}

static void expect_text(const json_t *record, const char *key, const char *text)
{
    if (strcmp(text_of(record, key), text) != 0)
        fail_msg("%s: %s is '%s', not '%s'", text_of(record, "what"), key, text_of(record, key), text);
}

static void expect_whole(const struct logged *l, const char *files)
{
    char line[512];
    snprintf(line, sizeof line, "audit-log verify %s", files);
    banyanctl_expect(l->cluster, 0, "the chain is whole", line, NULL);
}

// ---- who has done what --------------------------------------------------------------------------

static void id_text(const banyan_session *session, char out[32])
{
    snprintf(out, 32, "0x%016" PRIx64, banyan_session_id(session));
}

static void changes_are_recorded(void **state)
{
    (void)state;
    struct logged l;
    char id[32], other[32], line[256];
    make_folder(&l);
    start(&l, l.path, TOKEN, NULL);
    banyan_client *client = support_connect(l.cluster, "tcp"),
                  *unix_client = support_connect(l.cluster, "unix"),
                  *over_nng = support_connect(l.cluster, "nng+tcp");
    banyan_session *session, *fork;
    struct context context;
    context_init(&context, &spec, 100);
    context_random(&context, 0, 100, 4);
    OK(banyan_session_create(client, &spec, "first \"one\"", &session, ERR));
    id_text(session, id);
    support_fill(session, &context, 0, 40);
    OK(banyan_session_fork(session, 32, NULL, &fork, ERR));
    id_text(fork, other);
    OK(banyan_session_truncate(session, 16, ERR));
    FAILS(BANYAN_OUT_OF_RANGE, NULL, banyan_session_truncate(session, 1000, ERR));
    OK(banyan_worker_drain(unix_client, "w1", "new disks", NULL, ERR));
    OK(banyan_worker_resume(over_nng, "w1", NULL, ERR));
    OK(banyan_session_delete(fork, ERR));
    OK(banyan_ping(client, NULL, ERR));
    json_t *all = read_log(l.path); // each answer is there, so is each record

    const json_t *r = expect(all, "session.create", 0, "OK");
    expect_text(r, "session", id);
    expect_text(r, "args.name", "first \"one\"");
    expect_text(r, "who.access", "admin");
    expect_text(r, "who.tenant", "default");
    assert_int_equal(strncmp(text_of(r, "from"), "127.0.0.1:", 10), 0);
    expect_text(expect(all, "attach.open", 0, "OK"), "session", id);
    expect_text(expect(all, "attach.commit", 0, "OK"), "session", id);
    r = expect(all, "session.fork", 0, "OK");
    expect_text(r, "session", other);
    expect_text(r, "args.of", id);
    expect_text(expect(all, "session.truncate", 0, "OK"), "session", id);
    expect_text(expect(all, "session.truncate", 1, "OUT_OF_RANGE"), "session", id);
    r = expect(all, "worker.drain", 0, "OK");
    expect_text(r, "args.worker", "w1");
    expect_text(r, "args.reason", "new disks");
    assert_string_not_equal(text_of(r, "from"), "");
    r = expect(all, "worker.resume", 0, "OK");
    assert_int_equal(strncmp(text_of(r, "from"), "127.0.0.1:", 10), 0); // over nng, too
    expect_text(expect(all, "session.delete", 0, "OK"), "session", other);
    expect_text(expect(all, "session.deleted", 0, "OK"), "session", other);
    assert_int_equal(count(all, "worker.joined"), 2);
    assert_int_equal(count(all, "coordinator.started"), 1);
    json_decref(all);

    // Who lists and reads changes nothing.
    struct stat before, after;
    assert_int_equal(stat(l.path, &before), 0);
    assert_int_equal(before.st_mode & 07777, 0600);
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    banyan_cluster_info_free(&info);
    struct step step = {.session = session, .first = 15, .rows = 1, .seed = 1};
    OK(step_run(client, &step));
    step_free(&step);
    assert_int_equal(stat(l.path, &after), 0);
    assert_int_equal(before.st_size, after.st_size);

    // Neither a token nor keys and values are in it.
    int fd = open(l.path, O_RDONLY | O_CLOEXEC);
    char *text = malloc((size_t)after.st_size);
    assert_int_equal(read(fd, text, (size_t)after.st_size), after.st_size);
    assert_null(memmem(text, (size_t)after.st_size, TOKEN, strlen(TOKEN)));
    free(text);
    close(fd);

    expect_whole(&l, l.path);
    snprintf(line, sizeof line, "audit-log show --since 1h --who default %s", l.path);
    banyanctl_expect(l.cluster, 0, "session.fork", line, NULL);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    banyan_session_close(fork);
    context_free(&context);
    banyan_disconnect(client);
    banyan_disconnect(unix_client);
    banyan_disconnect(over_nng);
    stop(&l);
}

// ---- tenants ------------------------------------------------------------------------------------

// A client of its own token.
static banyan_client *connect_as(const struct logged *l, banyan_client *admin, const char *name,
                                 const char *access, const char *tenant)
{
    char token[65], path[160];
    banyan_client *client;
    OK(banyan_token_create(admin, name, access, tenant, 0, token, NULL, ERR));
    snprintf(path, sizeof path, "%s/%s.token", l->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, token, strlen(token)), strlen(token));
    assert_int_equal(write(fd, "\n", 1), 1);
    close(fd);
    const banyan_options options = {.token_file = path};
    OK(banyan_connect(harness_cluster_endpoint(l->cluster, "tcp"), &options, &client, ERR));
    return client;
}

static void who_is_a_token_of_a_tenant(void **state)
{
    (void)state;
    struct logged l;
    char id[32], text[65];
    banyan_session *session, *other;
    make_folder(&l);
    start(&l, l.path, TOKEN, NULL);
    banyan_client *admin = support_connect(l.cluster, "tcp");
    banyan_client *ann = connect_as(&l, admin, "ann", "user", "a"),
                  *bob = connect_as(&l, admin, "bob", "user", "b"),
                  *rob = connect_as(&l, admin, "rob", "read-only", "b");
    OK(banyan_session_create(ann, &spec, "hers", &session, ERR));
    id_text(session, id);
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_open(bob, banyan_session_id(session), NULL, &other, ERR));
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_session_create(rob, &spec, NULL, &other, ERR));
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_token_create(bob, "eve", "admin", NULL, 0, text, NULL, ERR));
    OK(banyan_token_revoke(admin, "bob", 0, ERR));
    json_t *all = read_log(l.path);
    const json_t *r = expect(all, "session.create", 0, "OK");
    expect_text(r, "who.name", "ann");
    expect_text(r, "who.tenant", "a");
    expect_text(r, "who.access", "user");
    assert_int_equal(strlen(text_of(r, "who.token")), 18);
    r = expect(all, "refused.tenant", 0, "NOT_FOUND");
    expect_text(r, "who.name", "bob");
    expect_text(r, "who.tenant", "b");
    expect_text(r, "session", id);
    r = expect(all, "session.create", 1, "PERMISSION_DENIED");
    expect_text(r, "who.name", "rob");
    r = expect(all, "token.create", 0, "OK");
    expect_text(r, "args.name", "ann");
    expect_text(r, "who.access", "admin");
    r = expect(all, "token.create", 3, "PERMISSION_DENIED");
    expect_text(r, "who.name", "bob");
    expect_text(expect(all, "token.revoke", 0, "OK"), "args.name", "bob");
    char *line = json_dumps(all, 0);
    assert_null(strstr(line, "bt_")); // of no token
    free(line);
    json_decref(all);
    expect_whole(&l, l.path);
    banyan_session_close(session);
    banyan_disconnect(ann);
    banyan_disconnect(bob);
    banyan_disconnect(rob);
    banyan_disconnect(admin);
    stop(&l);
}

// ---- tries that are refused ---------------------------------------------------------------------

static void refused_tries_are_recorded(void **state)
{
    (void)state;
    enum { TRIES = 400 };
    struct logged l;
    char wrong[160];
    banyan_client *client;
    make_folder(&l);
    start(&l, l.path, TOKEN, NULL);
    snprintf(wrong, sizeof wrong, "%s/wrong-token", l.dir);
    int fd = open(wrong, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "another-token\n", 14), 14);
    close(fd);
    const banyan_options options = {.token_file = wrong, .timeout_ns = 5 * COMMON_NS_PER_S};
    static const char *const transports[] = {"nng+tcp", "tcp", "unix"};
    for (int t = 0; t < 3; t++)
        FAILS(BANYAN_UNAUTHENTICATED, NULL,
              banyan_connect(harness_cluster_endpoint(l.cluster, transports[t]), &options, &client, ERR));
    json_t *all = read_log(l.path);
    assert_true(count(all, "refused.token") + count(all, "refused.connection") >= 3);
    const json_t *r = expect(all, "refused.token", 0, "UNAUTHENTICATED");
    assert_int_equal(strncmp(text_of(r, "from"), "127.0.0.1:", 10), 0);
    json_decref(all);

    // A flood: a few of them, and a number. The file does not grow with it.
    struct stat before, after;
    assert_int_equal(stat(l.path, &before), 0);
    for (int i = 0; i < TRIES; i++)
        FAILS(BANYAN_UNAUTHENTICATED, NULL,
              banyan_connect(harness_cluster_endpoint(l.cluster, "tcp"), &options, &client, ERR));
    assert_int_equal(stat(l.path, &after), 0);
    assert_true(after.st_size - before.st_size < 120 * 500);
    client = support_connect(l.cluster, "tcp"); // who has the right one comes in
    banyan_disconnect(client);
    EVENTUALLY(90, (all = read_log(l.path), fd = find(all, "log.left-out", 0) != NULL, json_decref(all), fd));
    expect_whole(&l, l.path);
    assert_int_equal(access(wrong, R_OK), 0);
    unlink(wrong);
    stop(&l);
}

// ---- kills --------------------------------------------------------------------------------------

struct maker { // of sessions, one after the other
    pthread_t thread;
    banyan_client *client;
    atomic_bool stop;
    uint64_t made[4096], gone[4096]; // ids that were acknowledged
    unsigned n_made, n_gone;
};

static void *make_sessions(void *arg)
{
    struct maker *m = arg;
    while (!atomic_load(&m->stop) && m->n_made < 4096) {
        banyan_session *session;
        banyan_error error;
        if (banyan_session_create(m->client, &spec, NULL, &session, &error) != BANYAN_OK)
            continue;
        uint64_t id = m->made[m->n_made++] = banyan_session_id(session);
        if (banyan_session_delete(session, &error) == BANYAN_OK)
            m->gone[m->n_gone++] = id;
        banyan_session_close(session);
    }
    return NULL;
}

static void expect_all(const json_t *all, const char *what, const uint64_t *ids, unsigned n)
{
    json_t *there = json_object(); // id -> true
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *record = json_array_get(all, i);
        if (strcmp(text_of(record, "what"), what) == 0)
            json_object_set_new(there, text_of(record, "session"), json_true());
    }
    for (unsigned i = 0; i < n; i++) {
        char id[32];
        snprintf(id, sizeof id, "0x%016" PRIx64, ids[i]);
        if (!json_object_get(there, id))
            fail_msg("%s of %s was acknowledged, and is not in the audit log", what, id);
    }
    json_decref(there);
}

static void what_is_acknowledged_is_there(void **state)
{
    (void)state;
    enum { LIVES = 4 };
    struct logged l;
    static struct maker makers[3];
    make_folder(&l);
    start(&l, l.path, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        makers[i] = (struct maker){.client = support_connect(l.cluster, i == 0 ? "unix" : "tcp")};
        assert_int_equal(pthread_create(&makers[i].thread, NULL, make_sessions, &makers[i]), 0);
    }
    for (int life = 1; life < LIVES; life++) {
        support_sleep_ms(300);
        harness_cluster_signal(l.cluster, HARNESS_COORDINATOR, SIGKILL);
        expect_whole(&l, l.path); // it ends behind a record: a write is not torn by a kill
        assert_true(harness_cluster_restart(l.cluster, HARNESS_COORDINATOR));
    }
    support_sleep_ms(300);
    for (int i = 0; i < 3; i++) {
        atomic_store(&makers[i].stop, true);
        pthread_join(makers[i].thread, NULL);
        assert_true(makers[i].n_made > 10);
    }
    expect_whole(&l, l.path);
    json_t *all = read_log(l.path);
    for (int i = 0; i < 3; i++) {
        expect_all(all, "session.create", makers[i].made, makers[i].n_made);
        expect_all(all, "session.delete", makers[i].gone, makers[i].n_gone);
        banyan_disconnect(makers[i].client);
    }
    assert_int_equal(count(all, "log.opened"), LIVES - 1);
    json_decref(all);
    stop(&l);
}

// ---- a disk that is full ------------------------------------------------------------------------

static bool has_event(banyan_client *client, const char *kind)
{
    const char *kinds[] = {kind};
    banyan_events_options asks = {.kinds = kinds, .n_kinds = 1};
    banyan_events page;
    OK(banyan_events_read(client, &asks, &page, ERR));
    bool has = page.n > 0;
    banyan_events_free(&page);
    return has;
}

static void a_full_disk_without_required(void **state)
{
    (void)state;
    struct logged l;
    banyan_session *session;
    make_folder(&l);
    start(&l, "/dev/full", NULL, NULL);
    harness_cluster_allow_error(l.cluster, "the audit log cannot be written");
    banyan_client *client = support_connect(l.cluster, "tcp");
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    OK(banyan_session_delete(session, ERR));
    assert_true(has_event(client, "trail-failed"));
    banyan_session_close(session);
    banyan_disconnect(client);
    stop(&l);
}

// So long that no other file of the coordinator's is as long: a limit on its files is this one's.
static void make_long(const char *path, size_t bytes)
{
    struct common_trail *trail;
    struct common_trail_body body = {.len = 0};
    struct stat st = {0};
    assert_int_equal(common_trail_open(path, "test", &trail, NULL), COMMON_OK);
    common_trail_put_text(&body, "what", "filling");
    char text[400];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    common_trail_put_text(&body, "text", text);
    while ((size_t)st.st_size < bytes) {
        assert_true(common_trail_write(trail, &body));
        assert_int_equal(stat(path, &st), 0);
    }
    common_trail_close(trail);
}

static void disk_is_full(const struct logged *l, bool full)
{
    struct stat info;
    struct rlimit limit;
    int pid = harness_cluster_pid(l->cluster, HARNESS_COORDINATOR);
    assert_int_equal(stat(l->path, &info), 0);
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
    limit.rlim_cur = full ? (rlim_t)info.st_size + 100 : limit.rlim_max; // a record is torn
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

static void a_full_disk_with_required(void **state)
{
    (void)state;
    struct logged l;
    banyan_session *session, *other;
    struct context context;
    make_folder(&l);
    make_long(l.path, 16 << 20);
    start(&l, l.path, NULL, "--audit-required");
    harness_cluster_allow_error(l.cluster, "the audit log cannot be written");
    banyan_client *client = support_connect(l.cluster, "tcp");
    context_init(&context, &spec, 100);
    context_random(&context, 0, 100, 4);
    OK(banyan_session_create(client, &spec, "kept", &session, ERR));
    support_fill(session, &context, 0, 40);
    disk_is_full(&l, true);
    FAILS(BANYAN_UNKNOWN, "AUDIT_LOG", // it finds out: it was made, and its record is lost
          banyan_session_create(client, &spec, "the one", &other, ERR));
    OK(banyan_session_open(client, 0, "the one", &other, ERR));
    banyan_session_close(other);
    assert_true(has_event(client, "trail-failed"));
    FAILS(BANYAN_FAILED_PRECONDITION, "AUDIT_LOG",
          banyan_session_create(client, &spec, "not made", &other, ERR));
    if (!strstr(ERR->message, "--audit-required") || !strstr(ERR->message, l.path))
        fail_msg("it does not say why, and of what: %s", ERR->message);
    FAILS(BANYAN_FAILED_PRECONDITION, "AUDIT_LOG", banyan_session_delete(session, ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, "AUDIT_LOG", banyan_worker_drain(client, "w1", NULL, NULL, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_open(client, 0, "not made", &other, ERR));
    support_check_step(client, session, &context, 0, 39, 1, 0, NULL, "full"); // steps go on
    disk_is_full(&l, false);
    EVENTUALLY(20, has_event(client, "trail-written")); // by itself
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    json_t *all = read_log(l.path);
    const json_t *lost = expect(all, "log.lost", 0, "OK"), *torn = expect(all, "log.torn", 0, "OK");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(torn, "args"), "bytes")), 101);
    assert_true(json_integer_value(json_object_get(json_object_get(lost, "args"), "records")) >= 1);
    expect(all, "session.delete", 0, "OK");
    assert_null(find(all, "worker.drain", 0));
    json_decref(all);
    expect_whole(&l, l.path);
    context_free(&context);
    banyan_disconnect(client);
    stop(&l);
}

// ---- rotation, and others' files ----------------------------------------------------------------

static void a_file_that_is_moved_away(void **state)
{
    (void)state;
    struct logged l;
    char both[400], head[128], line[640];
    banyan_session *session;
    make_folder(&l);
    start(&l, l.path, NULL, NULL);
    banyan_client *client = support_connect(l.cluster, "tcp");
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    assert_int_equal(rename(l.path, l.old), 0);
    harness_cluster_signal(l.cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(20, access(l.path, R_OK) == 0);
    struct harness_output out = banyanctl_run(l.cluster, "audit-log verify --head %s", l.old);
    assert_int_equal(out.exit_code, 0);
    snprintf(head, sizeof head, "%.64s", strchr(out.out, ' ') + 1);
    harness_output_free(&out);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    snprintf(both, sizeof both, "%s %s", l.old, l.path);
    expect_whole(&l, both);
    json_t *all = read_log(l.path);
    const json_t *first = json_array_get(all, 0);
    expect_text(first, "what", "log.rotated");
    expect_text(first, "prev", head);
    expect(all, "session.delete", 0, "OK");
    json_decref(all);
    // What was noted of the old one is in the chain; what never was is not.
    snprintf(line, sizeof line, "audit-log verify --contains %s %s", head, both);
    banyanctl_expect(l.cluster, 0, "the chain is whole", line, NULL);
    head[0] = head[0] == '0' ? '1' : '0';
    snprintf(line, sizeof line, "audit-log verify --contains %s %s", head, both);
    banyanctl_expect(l.cluster, 10, "no record has this hash", line, NULL);
    banyan_disconnect(client);
    stop(&l);
}

// banyanctl audit-log show --follow of this file; what it says is in `out`.
static pid_t start_follower(const struct logged *l, const char *file, const char *name, char *out, size_t len)
{
    char program[4096];
    assert_true(harness_program_path("banyanctl", program, sizeof program));
    snprintf(out, len, "%s/%s", l->dir, name);
    char *argv[] = {program, "audit-log", "show", "--follow", "--json", (char *)file, NULL};
    pid_t pid = harness_process_start(argv, out);
    assert_true(pid > 0);
    return pid;
}

static void stop_follower(pid_t pid)
{
    int status;
    assert_int_equal(kill(pid, SIGINT), 0); // as Ctrl-C does
    assert_true(harness_process_wait(pid, UINT64_C(30000000000), &status));
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGINT : WEXITSTATUS(status) != 0);
}

static size_t count_in(const char *path, const char *what)
{
    json_t *all = read_log(path);
    size_t n = count(all, what);
    json_decref(all);
    return n;
}

// Both have the same lines, in the same order.
static void expect_same(const char *path, const char *shown)
{
    json_t *a = read_log(path), *b = read_log(shown);
    assert_true(json_array_size(a) > 0);
    assert_true(json_equal(a, b));
    json_decref(a);
    json_decref(b);
}

// What comes is shown as it comes, once, over a rotation too.
static void what_comes_is_followed(void **state)
{
    (void)state;
    struct logged l;
    char shown[128], both[160], command[700];
    banyan_session *session;
    make_folder(&l);
    start(&l, l.path, NULL, NULL);
    banyan_client *client = support_connect(l.cluster, "tcp");
    pid_t follower = start_follower(&l, l.path, "shown", shown, sizeof shown);
    EVENTUALLY(30, count_in(shown, "coordinator.started") == 1); // what was there
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    EVENTUALLY(30, count_in(shown, "session.create") == 1);
    assert_int_equal(count_in(shown, "session.delete"), 0);
    assert_int_equal(rename(l.path, l.old), 0);
    harness_cluster_signal(l.cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(30, count_in(shown, "log.rotated") > 0);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    EVENTUALLY(30, count_in(shown, "session.delete") == 1 && count_in(shown, "session.deleted") == 1);
    stop_follower(follower);
    banyan_disconnect(client);
    support_stop(l.cluster);
    snprintf(both, sizeof both, "%s/both", l.dir); // as far as it has been shown
    snprintf(command, sizeof command, "cat '%s' '%s' | head -n $(wc -l <'%s') >'%s'", l.old, l.path, shown,
             both);
    assert_int_equal(system(command), 0);
    expect_same(both, shown);
    support_remove_folder(l.dir);
}

static unsigned lines_of(const char *path)
{
    unsigned n = 0;
    FILE *file = fopen(path, "re");
    for (int c; file && (c = fgetc(file)) != EOF;)
        n += c == '\n';
    if (file)
        fclose(file);
    return n;
}

static void append_text(const char *path, const char *text, size_t len)
{
    FILE *file = fopen(path, "ae");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

// A line is shown when it has been written to its end; and of one that has been changed, the next one says
// so.
static void what_is_followed_is_checked(void **state)
{
    (void)state;
    struct logged l;
    char shown[128], copy[160], *line[4] = {NULL};
    banyan_session *session;
    size_t room[4] = {0};
    ssize_t len[4];
    make_folder(&l);
    start(&l, l.path, NULL, NULL);
    banyan_client *client = support_connect(l.cluster, "tcp");
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    banyan_session_close(session);
    banyan_disconnect(client);
    support_stop(l.cluster);
    FILE *file = fopen(l.path, "re");
    assert_non_null(file);
    for (int i = 0; i < 4; i++)
        assert_true((len[i] = getline(&line[i], &room[i], file)) > 10);
    fclose(file);
    snprintf(copy, sizeof copy, "%s/copy", l.dir);
    append_text(copy, line[0], (size_t)len[0]);
    pid_t follower = start_follower(&l, copy, "shown", shown, sizeof shown);
    EVENTUALLY(30, lines_of(shown) == 1);
    append_text(copy, line[1], (size_t)len[1] / 2);
    usleep(700000); // it looks four times a second
    assert_int_equal(lines_of(shown), 1);
    append_text(copy, line[1] + len[1] / 2, (size_t)(len[1] - len[1] / 2));
    EVENTUALLY(30, lines_of(shown) == 2);
    expect_same(copy, shown);
    char *at = strstr(line[2], "\"time\":\"2");
    assert_non_null(at);
    at[8] = '3';
    append_text(copy, line[2], (size_t)len[2]);
    append_text(copy, line[3], (size_t)len[3]);
    EVENTUALLY(30,
               lines_of(shown) == 4); // the next one, and on stderr that the third is not as it was written
    file = fopen(shown, "re");
    assert_non_null(file);
    bool told = false;
    while (getline(&line[0], &room[0], file) > 0)
        told = told || (strstr(line[0], "banyanctl: ") && strstr(line[0], ": line 3: "));
    assert_true(told);
    fclose(file);
    stop_follower(follower);
    for (int i = 0; i < 4; i++)
        free(line[i]);
    support_remove_folder(l.dir);
}

// What a coordinator has in its audit log, no other one writes to, whatever store it has.
static void another_coordinator_is_refused_the_file(void **state)
{
    (void)state;
    struct logged l;
    char program[4096], listen[300], store[300], log[200];
    int status;
    make_folder(&l);
    start(&l, l.path, NULL, NULL);
    assert_true(harness_program_path("banyan-coordinator", program, sizeof program));
    snprintf(listen, sizeof listen, "unix://%s/other.sock", l.dir);
    snprintf(store, sizeof store, "%s/other.db", l.dir);
    snprintf(log, sizeof log, "%s/other.log", l.dir);
    char *argv[] = {program,
                    "--listen",
                    listen,
                    "--store",
                    store,
                    "--secret-file",
                    (char *)harness_cluster_secret_file(l.cluster),
                    "--audit-log",
                    l.path,
                    NULL};
    pid_t pid = harness_process_start(argv, log);
    assert_true(pid > 0);
    assert_true(harness_process_wait(pid, 20 * COMMON_NS_PER_S, &status));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    expect_whole(&l, l.path);
    stop(&l);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN); // the daemons inherit it: a write past the limit fails with EFBIG
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_are_recorded),
        cmocka_unit_test(who_is_a_token_of_a_tenant),
        cmocka_unit_test(refused_tries_are_recorded),
        cmocka_unit_test(what_is_acknowledged_is_there),
        cmocka_unit_test(a_full_disk_without_required),
        cmocka_unit_test(a_full_disk_with_required),
        cmocka_unit_test(a_file_that_is_moved_away),
        cmocka_unit_test(what_comes_is_followed),
        cmocka_unit_test(what_is_followed_is_checked),
        cmocka_unit_test(another_coordinator_is_refused_the_file),
    };
    return cmocka_run_group_tests_name("trail", tests, NULL, NULL);
}
