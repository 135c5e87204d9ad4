// SPDX-License-Identifier: Apache-2.0
#include "tests/reduce/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "proto/rpc/rpc.h"

struct rank {
    struct ranks *ranks;
    uint32_t self;
    struct common_loop *loop;
    struct proto_server *server;
    struct reduce_env env;
    struct reduce_group *group;
    struct ranks_counts counts;
    uint64_t last_step;
    bool is_vanishing; // `vanish_mail` was posted, once
    struct common_mail vanish_mail;
};

struct ranks {
    struct ranks_options options;
    char dir[64];
    bool remote; // ranks but 0 are other processes
    struct common_secret secret;
    int32_t parents[RANKS_MAX];
    struct rank ranks[RANKS_MAX];
};

struct ranks_call {
    struct ranks *ranks;
    const struct proto_step *step;
    struct served *served; // on the root's loop; NULL when it has ended
    pthread_mutex_t lock;
    pthread_cond_t ended;
    struct common_mail mail; // to the root, its beginning
    bool is_over;
    struct reduce_outcome outcome;
};

// A step on one rank: of a parent (request) or of the test (call).
struct served {
    struct rank *rank;
    const struct proto_step *step;
    struct proto_step *decoded; // the same, owned; NULL on the root
    struct script script;
    struct proto_request *request;
    struct ranks_call *call;
    struct reduce_op *op;
    struct common_timer *timer;
    struct reduce_outcome outcome; // until the answer is sent
};

// ---- a step on one rank -------------------------------------------------------------------------

static void served_free(void *arg)
{
    struct served *served = arg;
    outcome_clear(&served->outcome);
    common_timer_free(served->timer);
    proto_step_free(served->decoded);
    free(served);
}

static void call_end(struct ranks_call *call, const struct reduce_outcome *outcome)
{
    pthread_mutex_lock(&call->lock);
    call->served = NULL;
    call->outcome = *outcome;
    call->is_over = true;
    pthread_cond_signal(&call->ended);
    pthread_mutex_unlock(&call->lock);
}

// The same partials with a line more behind them.
static struct common_blob *enlarge(struct common_blob *partials)
{
    struct common_blob *large = common_blob_new(partials->len + COMMON_BLOB_ALIGN);
    assert_non_null(large);
    memcpy(large->data, partials->data, partials->len);
    memset(large->data + partials->len, 0, COMMON_BLOB_ALIGN);
    common_blob_unref(partials);
    return large;
}

static void on_done(void *arg, struct reduce_outcome *outcome)
{
    struct served *served = arg;
    served->op = NULL;
    if (served->call) {
        call_end(served->call, outcome);
        served_free(served);
        return;
    }
    struct proto_request *request = served->request;
    served->outcome = *outcome;
    if (outcome->code != COMMON_OK) {
        served->rank->counts.cancelled += outcome->code == COMMON_CANCELLED;
        proto_request_fail(request, outcome->code, outcome->text, NULL, 0);
        served_free(served);
        return;
    }
    if (served->script.large == served->rank->self)
        outcome->partials = served->outcome.partials = enlarge(outcome->partials);
    struct proto_step_result *result = outcome->result;
    result->n_tensors = outcome->partials && !reduce_result_empty(result); // as a worker answers
    result->tensors[0] = outcome->partials ? outcome->partials->data : NULL;
    result->tensor_bytes[0] = outcome->partials ? outcome->partials->len : 0;
    if (served->script.wrong == served->rank->self)
        result->tensor_bytes[0] -= COMMON_BLOB_ALIGN;
    proto_step_reply(request, result, served_free, served);
}

static void on_cancel(void *arg)
{
    struct served *served = arg;
    served->rank->ranks->options.ops->cancel(served->op);
}

static void contribute(void *arg)
{
    struct served *served = arg;
    struct reduce_local local = {.ready_ns = common_clock_ns()};
    contribution_make(served->step, &served->script, served->rank->self, &local);
    if (served->step->want_trace) {
        local.result->n_traces = 1;
        local.result->traces[0].rank = served->rank->self + (served->script.alias == served->rank->self);
        local.result->traces[0].tokens = served->step->has_kv;
        snprintf(local.result->traces[0].worker, sizeof local.result->traces[0].worker, "%s",
                 ranks_name(served->rank->self));
    }
    served->rank->ranks->options.ops->contribute(served->op, &local);
}

static void serve(struct served *served)
{
    struct rank *rank = served->rank;
    const struct reduce_engine_ops *ops = rank->ranks->options.ops;
    struct common_error err;
    enum common_code code = COMMON_CANCELLED;
    common_error_set(&err, code, "the group is closed");
    if (rank->group)
        code = ops->begin(rank->group, served->step, on_done, served, &served->op, &err);
    if (code != COMMON_OK) {
        struct reduce_outcome outcome = {.code = code};
        snprintf(outcome.text, sizeof outcome.text, "%.200s", err.message);
        on_done(served, &outcome);
        return;
    }
    if (served->request)
        proto_request_on_cancel(served->request, on_cancel, served);
    if (served->script.hang == rank->self)
        return;
    uint64_t drawn =
        common_mix64(served->script.seed ^ common_mix64(served->step->step * RANKS_MAX + rank->self));
    if (served->script.delay_us > 0 &&
        common_timer_new(rank->loop, contribute, served, &served->timer) == COMMON_OK)
        common_timer_start(served->timer, drawn % served->script.delay_us * COMMON_NS_PER_US, false);
    else
        contribute(served);
}

static void vanish(void *arg)
{
    struct rank *rank = arg;
    proto_server_close(rank->server);
    rank->server = NULL;
    rank->ranks->options.ops->close(rank->group);
    rank->group = NULL;
}

static void handle_step(void *arg, struct proto_request *request)
{
    struct rank *rank = arg;
    struct common_error err;
    struct served *served = calloc(1, sizeof *served);
    if (!served || proto_step_decode(proto_request_message(request), proto_request_deadline(request),
                                     &served->decoded, &err)) {
        free(served);
        proto_request_fail(request, COMMON_INTERNAL, served ? err.message : "out of memory", NULL, 0);
        return;
    }
    served->rank = rank;
    served->request = request;
    served->step = served->decoded;
    memcpy(&served->script, served->step->q, sizeof served->script);
    rank->counts.steps++;
    rank->counts.with_kv += served->step->has_kv;
    rank->counts.out_of_order |= served->step->step < rank->last_step;
    rank->last_step = served->step->step;
    if (served->script.refuse == rank->self) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "this rank has no memory", NULL, 0);
        served_free(served);
        return;
    }
    if (served->script.vanish == rank->self) {
        if (!rank->is_vanishing)
            common_loop_mail(rank->loop, &rank->vanish_mail, vanish,
                             rank); // not on the stack of its own link
        rank->is_vanishing = true;
        served->script.hang = rank->self;
    }
    serve(served);
}

static const struct proto_method methods[] = {
    {BANYAN__PB__METHOD__METHOD_STEP, 1 << BANYAN__PB__ROLE__ROLE_WORKER, handle_step},
    {0, 0, NULL},
};

// ---- the test's side ----------------------------------------------------------------------------

static void begin_on_root(void *arg)
{
    struct ranks_call *call = arg;
    struct served *served = calloc(1, sizeof *served);
    if (!served)
        abort();
    served->rank = &call->ranks->ranks[0];
    served->call = call;
    served->step = call->step;
    memcpy(&served->script, served->step->q, sizeof served->script);
    call->served = served;
    serve(served);
}

static struct ranks_call *call_new(struct ranks *ranks, const struct proto_step *step)
{
    struct ranks_call *call = calloc(1, sizeof *call);
    assert_non_null(call);
    call->ranks = ranks;
    call->step = step;
    pthread_mutex_init(&call->lock, NULL);
    pthread_cond_init(&call->ended, NULL);
    return call;
}

struct ranks_call *ranks_begin(struct ranks *ranks, const struct proto_step *step)
{
    struct ranks_call *call = call_new(ranks, step);
    common_loop_mail(ranks->ranks[0].loop, &call->mail, begin_on_root, call);
    return call;
}

static void cancel_on_root(void *arg)
{
    struct ranks_call *call = arg;
    if (call->served)
        call->ranks->options.ops->cancel(call->served->op);
}

void ranks_cancel(struct ranks_call *call)
{
    common_loop_call(call->ranks->ranks[0].loop, cancel_on_root, call);
}

static void cancel_and_begin_on_root(void *arg)
{
    struct ranks_call **calls = arg;
    cancel_on_root(calls[0]);
    begin_on_root(calls[1]);
}

struct ranks_call *ranks_cancel_and_begin(struct ranks_call *cancel, const struct proto_step *step)
{
    struct ranks_call *calls[2] = {cancel, call_new(cancel->ranks, step)};
    common_loop_call(cancel->ranks->ranks[0].loop, cancel_and_begin_on_root, calls);
    return calls[1];
}

void ranks_wait(struct ranks_call *call, struct reduce_outcome *out)
{
    pthread_mutex_lock(&call->lock);
    while (!call->is_over)
        pthread_cond_wait(&call->ended, &call->lock);
    *out = call->outcome;
    pthread_mutex_unlock(&call->lock);
    pthread_mutex_destroy(&call->lock);
    pthread_cond_destroy(&call->ended);
    free(call);
}

void ranks_run(struct ranks *ranks, const struct proto_step *step, struct reduce_outcome *out)
{
    ranks_wait(ranks_begin(ranks, step), out);
}

void outcome_clear(struct reduce_outcome *outcome)
{
    proto_step_result_free(outcome->result);
    common_blob_unref(outcome->partials);
    outcome->result = NULL;
    outcome->partials = NULL;
}

enum ask { ASK_LISTEN, ASK_OPEN, ASK_COUNTS, ASK_STATS, ASK_CLOSE, ASK_VANISH, ASK_STOP };

struct question { // asked of a rank on its loop
    struct rank *rank;
    uint32_t child;
    struct ranks_counts counts;
    struct reduce_edge_stats stats;
    bool failed;
};

static void put_question(struct ranks *ranks, uint32_t rank, enum ask what, struct question *question);

static void edge_endpoint(const struct ranks *ranks, uint32_t rank, char *out, size_t len)
{
    snprintf(out, len, "unix://%s/%u", ranks->dir, rank);
}

static void answer_counts(void *arg)
{
    struct question *question = arg;
    question->counts = question->rank->counts;
}

void ranks_counts_get(struct ranks *ranks, uint32_t rank, struct ranks_counts *out)
{
    struct question question = {0};
    put_question(ranks, rank, ASK_COUNTS, &question);
    *out = question.counts;
}

void ranks_await_cancelled(struct ranks *ranks, uint32_t rank, uint64_t count)
{
    struct ranks_counts counts;
    for (ranks_counts_get(ranks, rank, &counts); counts.cancelled < count;
         ranks_counts_get(ranks, rank, &counts))
        usleep(1000);
}

static void answer_stats(void *arg)
{
    struct question *question = arg;
    char endpoint[128];
    edge_endpoint(question->rank->ranks, question->child, endpoint, sizeof endpoint);
    const struct reduce_edge *edge = reduce_edge_find(question->rank->env.edges, endpoint);
    if (edge)
        reduce_edge_stats_get(edge, &question->stats);
}

void ranks_edge_stats(struct ranks *ranks, uint32_t rank, uint32_t child, struct reduce_edge_stats *out)
{
    struct question question = {.child = child};
    put_question(ranks, rank, ASK_STATS, &question);
    *out = question.stats;
}

void ranks_await_idle(struct ranks *ranks, uint32_t rank, uint32_t child)
{
    struct reduce_edge_stats stats;
    for (ranks_edge_stats(ranks, rank, child, &stats); stats.outstanding + stats.waiting > 0;
         ranks_edge_stats(ranks, rank, child, &stats))
        usleep(1000);
}

// ---- start and stop -----------------------------------------------------------------------------

static void listen_on_loop(void *arg)
{
    struct question *question = arg;
    struct rank *rank = question->rank;
    char endpoint[128];
    const struct proto_server_options options = {
        .name = ranks_name(rank->self),
        .role = BANYAN__PB__ROLE__ROLE_WORKER,
        .secret = &rank->ranks->secret,
        .methods = methods,
        .arg = rank,
    };
    edge_endpoint(rank->ranks, rank->self, endpoint, sizeof endpoint);
    question->failed = proto_server_new(rank->loop, &options, &rank->server, NULL) != COMMON_OK ||
                       proto_server_listen(rank->server, endpoint, NULL) != COMMON_OK;
}

static void open_on_loop(void *arg)
{
    struct question *question = arg;
    struct rank *rank = question->rank;
    struct ranks *ranks = rank->ranks;
    struct reduce_group_member members[RANKS_MAX] = {0};
    for (uint32_t r = 0; r < ranks->options.n; r++) {
        snprintf(members[r].name, sizeof members[r].name, "%s", ranks_name(r));
        edge_endpoint(ranks, r, members[r].edge_endpoint, sizeof members[r].edge_endpoint);
        members[r].parent = ranks->parents[r];
    }
    rank->env = (struct reduce_env){
        .loop = rank->loop,
        .name = ranks_name(rank->self),
        .secret = &ranks->secret,
        .edge_frames_max = ranks->options.edge_frames_max,
        .edge_queue_max = ranks->options.edge_queue_max,
    };
    const struct reduce_group_spec spec = {
        .plan = 7, .epoch = 1, .self = rank->self, .n = ranks->options.n, .members = members};
    question->failed = reduce_edges_new(&rank->env, &rank->env.edges) != COMMON_OK ||
                       ranks->options.ops->open(&rank->env, &spec, &rank->group, NULL) != COMMON_OK;
}

static void close_on_loop(void *arg)
{
    struct question *question = arg;
    struct rank *rank = question->rank;
    rank->ranks->options.ops->close(rank->group);
    rank->group = NULL;
}

static void vanish_on_loop(void *arg)
{
    struct question *question = arg;
    vanish(question->rank);
}

static void stop_on_loop(void *arg)
{
    struct question *question = arg;
    struct rank *rank = question->rank;
    rank->ranks->options.ops->close(rank->group);
    rank->group = NULL;
    proto_server_close(rank->server);
    rank->server = NULL;
    reduce_edges_free(rank->env.edges);
}

static void answer_here(struct rank *rank, enum ask what, struct question *question)
{
    static const common_loop_fn answers[] = {
        [ASK_LISTEN] = listen_on_loop, [ASK_OPEN] = open_on_loop,   [ASK_COUNTS] = answer_counts,
        [ASK_STATS] = answer_stats,    [ASK_CLOSE] = close_on_loop, [ASK_VANISH] = vanish_on_loop,
        [ASK_STOP] = stop_on_loop,
    };
    question->rank = rank;
    common_loop_call(rank->loop, answers[what], question);
}

static void start_loop(struct ranks *ranks, uint32_t r)
{
    struct rank *rank = &ranks->ranks[r];
    *rank = (struct rank){.ranks = ranks, .self = r};
    assert_int_equal(common_loop_new(&rank->loop), COMMON_OK);
    assert_int_equal(common_loop_start_thread(rank->loop, ranks_name(r)), COMMON_OK);
}

static void end_loop(struct rank *rank)
{
    common_loop_stop(rank->loop);
    common_loop_join(rank->loop);
    common_loop_free(rank->loop);
}

// ---- ranks that are processes -------------------------------------------------------------------

struct order { // to a process; its answer is a struct question
    enum ask what;
    uint32_t child, n, edge_frames_max, edge_queue_max;
    int32_t parents[RANKS_MAX];
    char dir[64];
    bool begins; // a new tree: start a loop first
};

static int processes[RANKS_MAX]; // sockets by rank; 0: there is none

static bool transfer(int fd, void *data, size_t len, bool out)
{
    uint8_t *at = data;
    while (len > 0) {
        ssize_t n = out ? write(fd, at, len) : read(fd, at, len);
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static bool address_of(const char *path, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    return snprintf(out->sun_path, sizeof out->sun_path, "%s", path) < (int)sizeof out->sun_path;
}

void ranks_processes_lead(const char *path, uint32_t n)
{
    struct sockaddr_un address;
    uint32_t rank;
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || n > RANKS_MAX || !address_of(path, &address) ||
        bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, RANKS_MAX) != 0)
        abort();
    for (uint32_t i = 1; i < n; i++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0 || !transfer(fd, &rank, sizeof rank, false) || rank == 0 || rank >= n)
            abort();
        processes[rank] = fd;
    }
    close(listener);
    unlink(path);
}

void ranks_processes_dismiss(void)
{
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        if (processes[r] > 0)
            close(processes[r]);
        processes[r] = 0;
    }
}

static void obey(struct ranks *ranks, uint32_t rank, const struct order *order, struct question *question)
{
    if (order->begins) {
        const struct reduce_engine_ops *ops = ranks->options.ops;
        ranks->options = (struct ranks_options){.ops = ops,
                                                .n = order->n,
                                                .edge_frames_max = order->edge_frames_max,
                                                .edge_queue_max = order->edge_queue_max};
        memcpy(ranks->parents, order->parents, sizeof ranks->parents);
        memcpy(ranks->dir, order->dir, sizeof ranks->dir);
        memset(ranks->secret.bytes, 0x5a, sizeof ranks->secret.bytes);
        start_loop(ranks, rank);
    }
    question->child = order->child;
    answer_here(&ranks->ranks[rank], order->what, question);
    if (order->what == ASK_STOP)
        end_loop(&ranks->ranks[rank]);
}

int ranks_processes_serve(const char *path, uint32_t rank, const struct reduce_engine_ops *ops)
{
    struct sockaddr_un address;
    struct order order;
    struct ranks *ranks = calloc(1, sizeof *ranks);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !ranks || rank >= RANKS_MAX || !address_of(path, &address))
        return 1;
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        usleep(1000); // rank 0 makes it
    ranks->options.ops = ops;
    if (!transfer(fd, &rank, sizeof rank, true))
        return 1;
    while (transfer(fd, &order, sizeof order, false)) {
        struct question question = {0};
        obey(ranks, rank, &order, &question);
        if (!transfer(fd, &question, sizeof question, true))
            return 1;
    }
    close(fd);
    free(ranks);
    return 0;
}

static void put_question(struct ranks *ranks, uint32_t rank, enum ask what, struct question *question)
{
    if (!ranks->remote || rank == 0) {
        answer_here(&ranks->ranks[rank], what, question);
        return;
    }
    struct order order = {.what = what,
                          .child = question->child,
                          .n = ranks->options.n,
                          .edge_frames_max = ranks->options.edge_frames_max,
                          .edge_queue_max = ranks->options.edge_queue_max,
                          .begins = what == ASK_LISTEN};
    memcpy(order.parents, ranks->parents, sizeof order.parents);
    memcpy(order.dir, ranks->dir, sizeof order.dir);
    assert_true(processes[rank] > 0);
    assert_true(transfer(processes[rank], &order, sizeof order, true));
    assert_true(transfer(processes[rank], question, sizeof *question, false));
}

// ---- a tree -------------------------------------------------------------------------------------

static void ask(struct ranks *ranks, uint32_t rank, enum ask what)
{
    struct question question = {0};
    put_question(ranks, rank, what, &question);
    assert_false(question.failed);
}

struct ranks *ranks_start(const struct ranks_options *options)
{
    struct ranks *ranks = calloc(1, sizeof *ranks);
    assert_non_null(ranks);
    ranks->options = *options;
    ranks->remote = processes[1] > 0;
    memcpy(ranks->parents, options->parents, options->n * sizeof *options->parents);
    memset(ranks->secret.bytes, 0x5a, sizeof ranks->secret.bytes);
    snprintf(ranks->dir, sizeof ranks->dir, "/tmp/reduce.XXXXXX");
    assert_non_null(mkdtemp(ranks->dir));
    expected_term++;
    for (uint32_t r = 0; r < options->n; r++) {
        if (r == 0 || !ranks->remote)
            start_loop(ranks, r);
        if (r != options->absent)
            ask(ranks, r, ASK_LISTEN);
    }
    for (uint32_t r = 0; r < options->n; r++)
        ask(ranks, r, ASK_OPEN);
    return ranks;
}

void ranks_close_root(struct ranks *ranks)
{
    ask(ranks, 0, ASK_CLOSE);
}

void ranks_vanish(struct ranks *ranks, uint32_t rank)
{
    ask(ranks, rank, ASK_VANISH);
}

void ranks_stop(struct ranks *ranks)
{
    char endpoint[128];
    for (uint32_t r = 0; r < ranks->options.n; r++)
        ask(ranks, r, ASK_STOP); // the root first: children see their links go
    for (uint32_t r = 0; r < ranks->options.n; r++) {
        if (r == 0 || !ranks->remote)
            end_loop(&ranks->ranks[r]);
        edge_endpoint(ranks, r, endpoint, sizeof endpoint);
        unlink(endpoint + strlen("unix://"));
    }
    if (rmdir(ranks->dir) != 0)
        fail_msg("%s is not empty", ranks->dir);
    free(ranks);
}
