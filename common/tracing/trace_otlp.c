// SPDX-License-Identifier: Apache-2.0
#include <event2/buffer.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/util.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "common/loop/resolver.h"
#include "common/tracing/trace_export.h"

#define PORT_DEFAULT 4318
#define PATH_DEFAULT "/v1/traces"
#define REQUEST_S    10 // as OTLP's exporters have it
#define ANSWER_BYTES 65536
#define REST_FIRST   COMMON_NS_PER_S
#define REST_MOST    (30 * COMMON_NS_PER_S)
#define GIVE_UP_NS   (300 * COMMON_NS_PER_S) // of one batch; also the longest Retry-After
#define BATCHES_MAX  128                     // that wait

//            ┌────────────── nothing waits ──────────────┐
//            ▼                                           │
//          IDLE ──a batch──▶ LOOKUP ──▶ SENDING ──▶ ENDED: at the end of the turn ──another batch──▶ LOOKUP
//                              ▲  └──no address──────────▲│
//                              └────its time── RESTING ◀──┘ it is to be sent again
enum otlp_state { OTLP_IDLE, OTLP_LOOKUP, OTLP_SENDING, OTLP_ENDED, OTLP_RESTING, OTLP_STATES };

#define TO(state) (1u << OTLP_##state)
static const struct common_machine otlp_machine = {
    .name = "export",
    .n = OTLP_STATES,
    .states = {"idle", "lookup", "sending", "ended", "resting"},
    .next = {[OTLP_IDLE] = TO(LOOKUP),
             [OTLP_LOOKUP] = TO(SENDING) | TO(ENDED),
             [OTLP_SENDING] = TO(ENDED),
             [OTLP_ENDED] = TO(IDLE) | TO(LOOKUP) | TO(RESTING),
             [OTLP_RESTING] = TO(LOOKUP)},
};
#undef TO

enum verdict { VERDICT_TAKEN, VERDICT_AGAIN, VERDICT_REFUSED };

struct common_trace_otlp {
    struct common_loop *loop;
    char host[256], path[512];
    uint16_t port;
    enum otlp_state state;
    struct evdns_base *dns; // of the last look-up
    struct evdns_getaddrinfo_request *lookup;
    bool in_lookup;                       // it has not ended on the stack that began it
    struct evhttp_connection *connection; // SENDING, ENDED
    struct common_deferred *ended;
    struct common_timer *rest;
    enum verdict verdict; // ENDED
    char why[160];
    uint64_t after_ns; // Retry-After; 0: none
    uint64_t begun_ns; // when the batch at the head was sent first
    uint64_t rest_ns;  // the next one's length
    uint32_t n;        // batches that wait, the one under way included
    uint64_t bytes;
    struct common_trace_batch *batches[BATCHES_MAX]; // oldest first
    struct common_trace_counts counts;
    bool failing; // was said
    common_loop_fn finished;
    void *finished_arg;
};

static void otlp_set_state(struct common_trace_otlp *o, enum otlp_state state)
{
    common_machine_move(&otlp_machine, o->state, state);
    o->state = state;
}

struct common_trace_batch *common_trace_batch_ref(struct common_trace_batch *batch)
{
    __atomic_fetch_add(&batch->refs, 1, __ATOMIC_RELAXED);
    return batch;
}

void common_trace_batch_unref(struct common_trace_batch *batch)
{
    if (batch && __atomic_sub_fetch(&batch->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(batch);
}

// ---- the queue ----------------------------------------------------------------------------------

static void drop_first(struct common_trace_otlp *o)
{
    struct common_trace_batch *batch = o->batches[0];
    o->counts.queued -= batch->spans;
    o->bytes -= batch->len;
    o->n--;
    memmove(o->batches, o->batches + 1, o->n * sizeof(struct common_trace_batch *));
    common_trace_batch_unref(batch);
    o->rest_ns = REST_FIRST;
}

// ---- what became of a request -------------------------------------------------------------------

static void otlp_end(struct common_trace_otlp *o, enum verdict verdict, const char *why)
{
    otlp_set_state(o, OTLP_ENDED);
    o->verdict = verdict;
    snprintf(o->why, sizeof o->why, "%s", why);
    common_deferred_mark(o->ended);
}

// Seconds, or a date; 0: none that can be read.
static uint64_t retry_after(struct evhttp_request *request)
{
    const char *text = evhttp_find_header(evhttp_request_get_input_headers(request), "Retry-After");
    struct tm date = {0};
    char *end;
    if (!text)
        return 0;
    unsigned long seconds = strtoul(text, &end, 10);
    if (end == text || *end) { // no number
        end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &date);
        if (!end || *end)
            return 0;
        time_t at = timegm(&date), now = time(NULL);
        seconds = at > now ? (unsigned long)(at - now) : 0;
    }
    uint64_t most = GIVE_UP_NS / COMMON_NS_PER_S;
    return (seconds < most ? seconds : most) * COMMON_NS_PER_S;
}

// The number of a JSON member of the answer; 0: it has none. `{"partialSuccess":{"rejectedSpans":"3", …}}`
static uint64_t rejected_spans(struct evhttp_request *request)
{
    char text[1024];
    ev_ssize_t len = evbuffer_copyout(evhttp_request_get_input_buffer(request), text, sizeof text - 1);
    text[len > 0 ? len : 0] = '\0';
    const char *at = strstr(text, "\"rejectedSpans\"");
    if (!at)
        return 0;
    at += strlen("\"rejectedSpans\"");
    at += strspn(at, " \t\r\n:\"");
    return strtoull(at, NULL, 10);
}

static void on_answer(struct evhttp_request *request, void *arg)
{
    struct common_trace_otlp *o = arg;
    int code = request ? evhttp_request_get_response_code(request) : 0;
    char why[160];
    o->after_ns = 0;
    if (code >= 200 && code < 300) {
        uint64_t rejected = rejected_spans(request), spans = o->batches[0]->spans;
        rejected = rejected < spans ? rejected : spans;
        o->counts.dropped += rejected;
        o->counts.sent += spans - rejected;
        snprintf(why, sizeof why, "the collector has refused %" PRIu64 " of %" PRIu64 " spans", rejected,
                 spans);
        otlp_end(o, VERDICT_TAKEN, rejected ? why : "");
    } else if (code == 429 || code == 502 || code == 503 || code == 504) {
        o->after_ns = retry_after(request);
        snprintf(why, sizeof why, "the collector answers %d", code);
        otlp_end(o, VERDICT_AGAIN, why);
    } else if (code == 0) {
        otlp_end(o, VERDICT_AGAIN, "no answer from the collector");
    } else {
        snprintf(why, sizeof why, "the collector answers %d", code);
        otlp_end(o, VERDICT_REFUSED, why);
    }
}

// ---- a request ----------------------------------------------------------------------------------

static void batch_sent(const void *data, size_t len, void *batch)
{
    (void)data;
    (void)len;
    common_trace_batch_unref(batch);
}

static void otlp_request(struct common_trace_otlp *o, const char *address)
{
    struct common_trace_batch *batch = o->batches[0];
    char host[300];
    bool six = strchr(o->host, ':') != NULL;
    otlp_set_state(o, OTLP_SENDING);
    // One connection a request: at one batch a second it costs nothing, and none is found closed.
    o->connection = evhttp_connection_base_new(common_loop_base(o->loop), NULL, address, o->port);
    struct evhttp_request *request = o->connection ? evhttp_request_new(on_answer, o) : NULL;
    if (!request) {
        otlp_end(o, VERDICT_AGAIN, "no memory for a request");
        return;
    }
    evhttp_connection_set_timeout(o->connection, REQUEST_S);
    evhttp_connection_set_max_body_size(o->connection, ANSWER_BYTES);
    evhttp_connection_set_max_headers_size(o->connection, ANSWER_BYTES);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    snprintf(host, sizeof host, "%s%s%s:%u", six ? "[" : "", o->host, six ? "]" : "", o->port);
    common_trace_batch_ref(batch);
    bool ready = evhttp_add_header(headers, "Host", host) == 0 &&
                 evhttp_add_header(headers, "Content-Type", "application/json") == 0 &&
                 evhttp_add_header(headers, "User-Agent", "banyan/" BANYAN_VERSION) == 0 &&
                 evhttp_add_header(headers, "Connection", "close") == 0;
    if (!ready || evbuffer_add_reference(evhttp_request_get_output_buffer(request), batch->text, batch->len,
                                         batch_sent, batch) != 0) {
        common_trace_batch_unref(batch);
        evhttp_request_free(request);
        otlp_end(o, VERDICT_AGAIN, "no memory for a request");
    } else if (evhttp_make_request(o->connection, request, EVHTTP_REQ_POST, o->path) != 0 &&
               o->state == OTLP_SENDING) { // which has freed it
        otlp_end(o, VERDICT_AGAIN, "no connection to the collector");
    }
}

static void on_lookup(int result, struct evutil_addrinfo *found, void *arg)
{
    struct common_trace_otlp *o = arg;
    char address[64], why[160];
    if (result == EVUTIL_EAI_CANCEL) // it is being freed
        return;
    o->lookup = NULL;
    o->in_lookup = false;
    if (result != 0 || !found ||
        getnameinfo(found->ai_addr, (socklen_t)found->ai_addrlen, address, sizeof address, NULL, 0,
                    NI_NUMERICHOST) != 0) {
        snprintf(why, sizeof why, "cannot find the address of '%.80s': %s", o->host,
                 evutil_gai_strerror(result));
        otlp_end(o, VERDICT_AGAIN, why);
    } else {
        otlp_request(o, address);
    }
    if (found)
        evutil_freeaddrinfo(found);
}

static void otlp_send(struct common_trace_otlp *o)
{
    struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    unsigned char numeric[16];
    otlp_set_state(o, OTLP_LOOKUP);
    if (!o->begun_ns)
        o->begun_ns = common_clock_ns();
    if (evutil_inet_pton(AF_INET, o->host, numeric) == 1 ||
        evutil_inet_pton(AF_INET6, o->host, numeric) == 1) {
        otlp_request(o, o->host);
        return;
    }
    if (!common_resolver_renew(o->loop, &o->dns)) {
        otlp_end(o, VERDICT_AGAIN, "no memory to look up names");
        return;
    }
    o->in_lookup = true;
    struct evdns_getaddrinfo_request *lookup = evdns_getaddrinfo(o->dns, o->host, NULL, &hints, on_lookup, o);
    if (o->in_lookup)
        o->lookup = lookup;
}

// ---- from one to the next -----------------------------------------------------------------------

static void say_failing(struct common_trace_otlp *o, const char *what)
{
    if (!o->failing)
        common_log_warn("spans are %s collector=http://%s:%u%s: %s", what, o->host, o->port, o->path, o->why);
    o->failing = true;
}

static void otlp_rest(struct common_trace_otlp *o)
{
    uint64_t delay = o->after_ns;
    if (!delay) { // ± a fifth, so that those who failed together do not come back together
        uint64_t spread = common_mix64(common_clock_ns() ^ (uintptr_t)o) % (o->rest_ns / 5 * 2);
        delay = o->rest_ns - o->rest_ns / 5 + spread;
        o->rest_ns = o->rest_ns * 2 < REST_MOST ? o->rest_ns * 2 : REST_MOST;
    }
    otlp_set_state(o, OTLP_RESTING);
    common_timer_start(o->rest, delay, false);
}

static void on_ended(void *arg)
{
    struct common_trace_otlp *o = arg;
    if (o->connection)
        evhttp_connection_free(o->connection);
    o->connection = NULL;
    bool taken = o->verdict == VERDICT_TAKEN, again = o->verdict == VERDICT_AGAIN && !o->finished;
    if (again && common_clock_ns() - o->begun_ns < GIVE_UP_NS) {
        say_failing(o, "waiting");
        otlp_rest(o);
        return;
    }
    if (taken && !o->why[0] && o->failing) {
        common_log_info("the collector accepts spans again collector=http://%s:%u%s dropped=%" PRIu64,
                        o->host, o->port, o->path, o->counts.dropped);
        o->failing = false;
    }
    if (!taken)
        o->counts.dropped += o->batches[0]->spans;
    if (!taken || o->why[0])
        say_failing(o, "dropped");
    o->begun_ns = 0;
    drop_first(o);
    if (o->n) {
        otlp_send(o);
        return;
    }
    otlp_set_state(o, OTLP_IDLE);
    if (o->finished)
        o->finished(o->finished_arg); // may free it
}

static void on_rested(void *arg)
{
    otlp_send(arg);
}

void common_trace_otlp_give(struct common_trace_otlp *o, struct common_trace_batch *batch)
{
    if (o->n == BATCHES_MAX || o->counts.queued + batch->spans > COMMON_TRACE_QUEUE_SPANS ||
        o->bytes + batch->len > COMMON_TRACE_QUEUE_BYTES) {
        o->counts.dropped += batch->spans;
        return;
    }
    common_trace_batch_ref(batch);
    o->batches[o->n++] = batch;
    o->counts.queued += batch->spans;
    o->bytes += batch->len;
    if (o->state == OTLP_IDLE)
        otlp_send(o);
}

void common_trace_otlp_finish(struct common_trace_otlp *o, common_loop_fn done, void *arg)
{
    if (o->state == OTLP_IDLE) {
        done(arg);
        return;
    }
    o->finished = done;
    o->finished_arg = arg;
    if (o->state != OTLP_RESTING)
        return;
    common_timer_stop(o->rest);
    otlp_send(o);
}

const struct common_trace_counts *common_trace_otlp_counts(const struct common_trace_otlp *o)
{
    return &o->counts;
}

// ---- life ---------------------------------------------------------------------------------------

static enum common_code read_url(struct common_trace_otlp *o, const char *url, struct common_error *err)
{
    struct evhttp_uri *uri = evhttp_uri_parse(url);
    const char *scheme = uri ? evhttp_uri_get_scheme(uri) : NULL,
               *host = uri ? evhttp_uri_get_host(uri) : NULL;
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL, *query = uri ? evhttp_uri_get_query(uri) : NULL;
    int port = uri ? evhttp_uri_get_port(uri) : 0;
    size_t len = host ? strlen(host) : 0;
    bool brackets = len > 2 && host[0] == '[' && host[len - 1] == ']';
    bool good = scheme && strcasecmp(scheme, "http") == 0 && len > 0 && len < sizeof o->host &&
                !evhttp_uri_get_userinfo(uri) && !evhttp_uri_get_fragment(uri) && port != 0;
    if (good) {
        bool bare = !path || !*path || strcmp(path, "/") == 0;
        snprintf(o->host, sizeof o->host, "%.*s", (int)(len - 2 * brackets), host + brackets);
        int n = snprintf(o->path, sizeof o->path, "%s%s%s", bare ? PATH_DEFAULT : path, query ? "?" : "",
                         query ? query : "");
        o->port = port < 0 ? PORT_DEFAULT : (uint16_t)port;
        good = n > 0 && (size_t)n < sizeof o->path && port <= 65535;
    }
    if (uri)
        evhttp_uri_free(uri);
    return good ? COMMON_OK
                : common_error_set(err, COMMON_INVALID_ARGUMENT,
                                   "spans go to http://HOST:PORT/PATH, for example "
                                   "http://127.0.0.1:4318/v1/traces, not to '%.200s'",
                                   url);
}

enum common_code common_trace_otlp_new(struct common_loop *loop, const char *url,
                                       struct common_trace_otlp **out, struct common_error *err)
{
    struct common_trace_otlp *o = calloc(1, sizeof *o);
    if (!o)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for spans");
    o->loop = loop;
    o->rest_ns = REST_FIRST;
    enum common_code code = read_url(o, url, err);
    if (code == COMMON_OK && (common_timer_new(loop, on_rested, o, &o->rest) != COMMON_OK ||
                              common_deferred_new(loop, on_ended, o, &o->ended) != COMMON_OK))
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for spans");
    if (code == COMMON_OK)
        *out = o;
    else
        common_trace_otlp_free(o);
    return code;
}

void common_trace_otlp_free(struct common_trace_otlp *o)
{
    if (!o)
        return;
    if (o->counts.queued)
        common_log_warn("spans are dropped at the end: the collector did not accept them spans=%" PRIu64,
                        o->counts.queued);
    if (o->lookup)
        evdns_getaddrinfo_cancel(o->lookup);
    common_resolver_free(o->loop, o->dns);
    if (o->connection)
        evhttp_connection_free(o->connection); // and its request, without an answer
    common_deferred_free(o->ended);
    common_timer_free(o->rest);
    for (uint32_t i = 0; i < o->n; i++)
        common_trace_batch_unref(o->batches[i]);
    free(o);
}
