// SPDX-License-Identifier: Apache-2.0
// The dashboard's answers of a coordinator on the test's own loop, without a socket: what cannot be had from
// outside, such as names that are no UTF-8, an address beyond loopback, and many sessions.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <jansson.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/coordinator.h"
#include "coordinator/dashboard/ask.h"
#include "coordinator/dashboard/dashboard.h"
#include "coordinator/events.h"
#include "coordinator/session/spec.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/watch.h"

struct fixture {
    struct common_loop *loop;
    struct common_secret secret;
    char dir[64], endpoint[128];
    struct coordinator *c;
    struct coordinator_dashboard *d;
};

static void begin(struct fixture *f, const char *address, const char *token)
{
    memset(f, 0, sizeof *f);
    strcpy(f->dir, "/tmp/banyan-dashboard-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->endpoint, sizeof f->endpoint, "unix://%s/c", f->dir);
    assert_int_equal(common_loop_new(&f->loop), COMMON_OK);
    struct coordinator_options options;
    coordinator_options_default(&options);
    options.endpoints = (const char *const[]){f->endpoint, NULL};
    options.secret = &f->secret;
    options.token = token;
    assert_int_equal(coordinator_new(f->loop, &options, &f->c, NULL), COMMON_OK);
    f->d = coordinator_dashboard_new(f->c, address);
    assert_non_null(f->d);
}

static void end(struct fixture *f)
{
    coordinator_dashboard_free(f->d);
    coordinator_stop(f->c);
    coordinator_free(f->c);
    common_loop_free(f->loop);
    char path[160];
    snprintf(path, sizeof path, "%s/c", f->dir);
    unlink(path);
    rmdir(f->dir);
}

static void add_session(struct fixture *f, const char *name)
{
    Banyan__Pb__Spec of = BANYAN__PB__SPEC__INIT, *spec;
    of.layers = of.q_heads = of.kv_heads = of.replicas = 1;
    of.k_dim = of.v_dim = 8;
    of.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec = coordinator_spec_copy(&of);
    struct proto_status status;
    struct coordinator_session *s;
    assert_int_equal(coordinator_spec_check(spec, &status), COMMON_OK);
    assert_int_equal(coordinator_session_new(&f->c->sessions, name, 0, spec, &s, &status), COMMON_OK);
    coordinator_session_enter(s);
}

// What is answered; *json (may be NULL): the caller's.
static int ask(struct fixture *f, const struct common_http_request *request, json_t **json)
{
    struct common_http_answer a = {.code = 404};
    coordinator_dashboard_answer(f->d, request, &a);
    assert_true(a.n_headers <= COMMON_HTTP_HEADERS);
    if (json) {
        *json = json_loadb(a.body, a.len, 0, NULL);
        assert_non_null(*json);
    }
    if (a.release)
        a.release((void *)a.body);
    return a.code;
}

// The coordinator's count.
static uint64_t wrong_tokens(const struct fixture *f)
{
    struct proto_server_counts counts;
    proto_server_counts(f->c->server, &counts);
    return counts.refused[PROTO_REFUSED_TOKEN];
}

static int ask_path(struct fixture *f, const char *path, const char *host, const char *authorization)
{
    return ask(
        f,
        &(struct common_http_request){
            .path = path, .query = "", .host = host, .authorization = authorization, .peer = "192.0.2.1"},
        NULL);
}

static int ask_from(struct fixture *f, const char *host, const char *authorization)
{
    return ask_path(f, "/api/v1/cluster", host, authorization);
}

static json_t *get(struct fixture *f, const char *path, const char *query)
{
    json_t *json;
    f->d->lists.next_ns = 0; // sessions may be sorted now
    assert_int_equal(
        ask(f,
            &(struct common_http_request){.path = path, .query = query, .host = "localhost", .x_banyan = "1"},
            &json),
        200);
    return json;
}

static void hosts_on_loopback(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "127.0.0.2:80", NULL);
    assert_int_equal(ask_from(&f, "localhost:80", NULL), 200);
    assert_int_equal(ask_from(&f, "127.0.0.1", NULL), 200);
    assert_int_equal(ask_from(&f, "127.0.0.2:80", NULL), 200);
    assert_int_equal(ask_from(&f, "[::1]:1", NULL), 200);
    assert_int_equal(ask_from(&f, "10.0.0.1", NULL), 421);
    assert_int_equal(ask_from(&f, "evil.example", NULL), 421);
    assert_int_equal(ask_from(&f, "localhost.evil.example", NULL), 421);
    assert_int_equal(ask_from(&f, NULL, NULL), 421);
    end(&f);
}

static void hosts_beyond_loopback(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "0.0.0.0:80", NULL);
    assert_int_equal(ask_from(&f, "10.0.0.1:80", NULL), 200); // no DNS has sent that here
    assert_int_equal(ask_from(&f, "evil.example", NULL), 421);
    end(&f);
    begin(&f, "head.example:80", NULL);
    assert_int_equal(ask_from(&f, "head.example:80", NULL), 200);
    assert_int_equal(ask_from(&f, "evil.example", NULL), 421);
    end(&f);
    begin(&f, "0.0.0.0:80", "a-token-of-clients");
    assert_int_equal(ask_from(&f, "head.example", "Bearer a-token-of-clients"), 200);
    assert_int_equal(ask_from(&f, "evil.example", NULL), 401); // it has no token to present
    assert_int_equal(ask_from(&f, "evil.example", "Bearer a-token-of-client"), 401);
    end(&f);
}

static void wrong_tokens_are_reported(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "127.0.0.1:80", "a-token-of-clients");
    assert_int_equal(ask_from(&f, "localhost", NULL), 401); // as the page begins: nothing has been tried
    assert_int_equal(ask_from(&f, "localhost", ""), 401);
    assert_int_equal(wrong_tokens(&f), 0);
    uint64_t last = coordinator_events_last(f.c->core.events);
    assert_int_equal(ask_from(&f, "localhost", "Bearer a-token-of-others"), 401);
    assert_int_equal(wrong_tokens(&f), 1);
    const struct coordinator_event *e = coordinator_events_next(f.c->core.events, last);
    assert_non_null(e);
    assert_int_equal(e->kind, PROTO_EVENT_REFUSED_CLIENT);
    assert_non_null(strstr(e->text, "192.0.2.1 over HTTP is refused"));
    end(&f);
}

// Of the table's tokens those of operators and admins may look; others are in the table, and refused; one
// that has expired counts for nothing.
static void tokens_of_operators_look(void **state)
{
    (void)state;
    static const struct {
        enum proto_access access;
        uint64_t expires_s;
        int code;
    } cases[] = {{PROTO_ACCESS_READ_ONLY, 0, 403},
                 {PROTO_ACCESS_USER, 0, 403},
                 {PROTO_ACCESS_OPERATOR, 0, 200},
                 {PROTO_ACCESS_ADMIN, 0, 200},
                 {PROTO_ACCESS_ADMIN, 1, 401}};
    static const char *const paths[] = {"/api/v1/cluster", "/api/v1/workers", "/api/v1/plans",
                                        "/api/v1/events",  "/api/v1/history", "/api/v1/tenants"};
    struct fixture f;
    begin(&f, "127.0.0.1:80", NULL);
    assert_int_equal(ask_from(&f, "localhost", NULL), 200); // no token at all yet
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct coordinator_token_row row = {.access = cases[i].access, .expires_s = cases[i].expires_s};
        char bearer[64] = "Bearer ";
        assert_true(coordinator_token_make(bearer + strlen("Bearer "), &row));
        assert_non_null(coordinator_tokens_add(&f.c->tenants.tokens, &row));
        for (size_t p = 0; p < sizeof paths / sizeof *paths; p++)
            assert_int_equal(ask_path(&f, paths[p], "localhost", bearer), cases[i].code);
        assert_int_equal(ask_from(&f, "localhost", NULL), 401); // and now one is wanted
    }
    end(&f);
}

// A tenant in pages, with what it has of its quotas; one that has used nothing has nothing but zeros.
static void tenants_in_pages(void **state)
{
    (void)state;
    struct fixture f;
    enum { N = 300 };
    struct common_error err;
    begin(&f, "127.0.0.1:80", NULL);
    struct coordinator_batch *batch = coordinator_batch_new();
    uint32_t id = 0;
    for (int i = 1; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "tenant-%03d", i);
        assert_int_equal(coordinator_tenant_make(&f.c->tenants, name, batch, &id, &err), COMMON_OK);
    }
    coordinator_batch_free(batch);
    struct coordinator_use *use = coordinator_use_of(&f.c->quotas, id);
    coordinator_quota_set(use, COORDINATOR_QUOTA_SESSIONS, 7, 0);
    coordinator_quota_add(use, COORDINATOR_QUOTA_SESSIONS, 5);
    use->refused[COORDINATOR_QUOTA_SESSIONS] = 2;
    json_t *json = get(&f, "/api/v1/tenants", "");
    assert_int_equal(json_integer_value(json_object_get(json, "total")), N);
    assert_int_equal(json_array_size(json_object_get(json, "tenants")), 256);
    const json_t *row = json_array_get(json_object_get(json, "tenants"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "name")), "default");
    assert_int_equal(json_object_size(json_object_get(row, "quotas")), COORDINATOR_QUOTAS);
    json_decref(json);
    json = get(&f, "/api/v1/tenants", "offset=256");
    assert_int_equal(json_array_size(json_object_get(json, "tenants")), N - 256);
    json_decref(json);
    json = get(&f, "/api/v1/tenants", "q=NT-299&limit=1");
    assert_int_equal(json_integer_value(json_object_get(json, "matching")), 1);
    const json_t *sessions =
        json_object_get(json_object_get(json_array_get(json_object_get(json, "tenants"), 0), "quotas"),
                        "sessions");
    assert_int_equal(json_integer_value(json_object_get(sessions, "used")), 5);
    assert_int_equal(json_integer_value(json_object_get(sessions, "max")), 7);
    assert_int_equal(json_integer_value(json_object_get(sessions, "refused")), 2);
    json_decref(json);
    end(&f);
}

// The ring keeps the newest samples; a sample has what was done since the one before.
static void the_last_hour_is_bounded(void **state)
{
    (void)state;
    struct fixture f;
    enum { MOST = COORDINATOR_HISTORY_MOST, N = 3 * MOST / 2 };
    begin(&f, "127.0.0.1:80", NULL);
    add_session(&f, "s");
    f.d->history.begun_ns = 0;
    for (uint64_t i = 1; i <= N; i++) {
        f.c->steps.count_steps += i;
        f.c->steps.failures[COMMON_UNAVAILABLE] += i % 2;
        for (uint64_t n = 0; n < i % 3; n++)
            common_buckets_add(&f.c->steps.took, 1500);
        coordinator_history_take(&f.d->history, f.c, i * 1000);
    }
    json_t *json = get(&f, "/api/v1/history", "");
    const json_t *series = json_object_get(json, "series");
    assert_int_equal(json_array_size(json_object_get(series, "at_ns")), MOST);
    for (uint64_t i = 0; i < MOST; i++) {
        uint64_t n = N - MOST + 1 + i;
        assert_int_equal(json_integer_value(json_array_get(json_object_get(series, "at_ns"), i)), n * 1000);
        assert_int_equal(json_integer_value(json_array_get(json_object_get(series, "span_ns"), i)), 1000);
        assert_int_equal(json_integer_value(json_array_get(json_object_get(series, "steps"), i)), n);
        assert_int_equal(json_integer_value(json_array_get(json_object_get(series, "failures"), i)), n % 2);
        assert_int_equal(json_integer_value(json_array_get(json_object_get(series, "sessions"), i)), 1);
        const json_t *median = json_array_get(json_object_get(series, "p50_ns"), i);
        assert_true(n % 3 ? json_integer_value(median) == 1024 + 512 : json_is_null(median));
    }
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "counters"), "failures")),
                     N / 2);
    json_decref(json);
    end(&f);
}

static void quantiles_of_buckets(void **state)
{
    (void)state;
    struct common_buckets buckets = {0};
    assert_int_equal(coordinator_history_quantile(&buckets, 0.5), 0);
    for (int i = 0; i < 99; i++)
        common_buckets_add(&buckets, 3000); // of (2048, 4096]
    common_buckets_add(&buckets, UINT64_C(1) << 40);
    assert_in_range(coordinator_history_quantile(&buckets, 0.5), 3000, 3100);
    assert_in_range(coordinator_history_quantile(&buckets, 0.99), 4000, 4096);
    assert_int_equal(coordinator_history_quantile(&buckets, 1), UINT64_C(1) << 36); // the last bound
}

static void wrong_tokens_are_slowed_down(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "127.0.0.1:80", "a-token-of-clients");
    int code = 401, wrong = 0;
    for (; code == 401 && wrong < 10000; wrong++)
        code = ask_from(&f, "localhost", "Bearer a-token-of-others");
    assert_int_equal(code, 429);
    assert_int_equal(wrong_tokens(&f), wrong); // that one, too
    assert_int_equal(ask_from(&f, "localhost", NULL), 401);
    assert_int_equal(ask_from(&f, "localhost", "Bearer a-token-of-clients"), 200);
    end(&f);
}

static void names_that_are_no_text(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "127.0.0.1:80", NULL);
    add_session(&f, "\xff\"\\<b>");
    json_t *json = get(&f, "/api/v1/sessions", "");
    const json_t *row = json_array_get(json_object_get(json, "sessions"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "name")), "?\"\\<b>");
    json_decref(json);
    end(&f);
}

static void many_sessions_in_pages(void **state)
{
    (void)state;
    struct fixture f;
    enum { N = 3000 };
    begin(&f, "127.0.0.1:80", NULL);
    add_session(&f, ""); // without a name: behind the others
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%05d", i * 7 % N);
        add_session(&f, name);
    }
    int seen = 0;
    for (int offset = 0; offset <= N; offset += 200) {
        char query[64];
        snprintf(query, sizeof query, "limit=200&offset=%d", offset);
        json_t *json = get(&f, "/api/v1/sessions", query);
        assert_int_equal(json_integer_value(json_object_get(json, "matching")), N + 1);
        const json_t *rows = json_object_get(json, "sessions");
        for (size_t i = 0; i < json_array_size(rows); i++, seen++) {
            char name[16];
            snprintf(name, sizeof name, "s%05d", seen);
            assert_string_equal(json_string_value(json_object_get(json_array_get(rows, i), "name")),
                                seen < N ? name : "");
        }
        json_decref(json);
    }
    assert_int_equal(seen, N + 1);
    json_t *json = get(&f, "/api/v1/sessions", "q=S0123&order=down&sort=name");
    assert_int_equal(json_integer_value(json_object_get(json, "matching")), 10);
    const json_t *first = json_array_get(json_object_get(json, "sessions"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "s01239");
    json_decref(json);
    json = get(&f, "/api/v1/sessions", "offset=262144"); // past the end
    assert_int_equal(json_array_size(json_object_get(json, "sessions")), 0);
    json_decref(json);
    end(&f);
}

static int sorted(struct fixture *f, const char *query, json_t **json)
{
    return ask(f,
               &(struct common_http_request){.path = "/api/v1/sessions", .query = query, .host = "localhost"},
               json);
}

static json_int_t matching(struct fixture *f, const char *query)
{
    json_t *json;
    assert_int_equal(sorted(f, query, &json), 200);
    json_int_t n = json_integer_value(json_object_get(json, "matching"));
    json_decref(json);
    return n;
}

// As many orders as are kept serve their viewers beside each other; one more takes the place of the one
// longest unused. While none may be made, what is kept is shown, and anything else is refused.
static void orders_are_kept_and_made_seldom(void **state)
{
    (void)state;
    struct fixture f;
    json_t *json;
    char query[COORDINATOR_LISTS][16];
    begin(&f, "127.0.0.1:80", NULL);
    add_session(&f, "s");
    for (int i = 0; i < COORDINATOR_LISTS; i++) {
        snprintf(query[i], sizeof query[i], "q=%.*s", i, "ghijklmnop"); // in no id
        json_decref(get(&f, "/api/v1/sessions", query[i]));
    }
    add_session(&f, "ghijklmnop");
    assert_true(f.d->lists.next_ns > 0); // the next one has to wait
    f.d->lists.next_ns = COMMON_NO_DEADLINE;
    for (int i = 0; i < COORDINATOR_LISTS; i++)
        assert_int_equal(matching(&f, query[i]), i == 0); // as it was
    assert_int_equal(sorted(&f, "q=ghijklmnop", &json), 429);
    assert_non_null(strstr(json_string_value(json_object_get(json, "error")), "try again"));
    json_decref(json);
    for (int i = 0; i < COORDINATOR_LISTS; i++)
        f.d->lists.kept[i].made_ns = 1;          // long ago
    assert_int_equal(matching(&f, query[2]), 0); // rather that than nothing
    f.d->lists.next_ns = 0;
    assert_int_equal(matching(&f, query[2]), 1); // made again
    json_decref(get(&f, "/api/v1/sessions", "q=ghijklmnop"));
    f.d->lists.next_ns = COMMON_NO_DEADLINE;
    assert_int_equal(matching(&f, "q=ghijklmnop"), 1);
    assert_int_equal(sorted(&f, query[0], NULL), 429); // its place
    assert_int_equal(matching(&f, query[1]), 0);
    end(&f);
}

static void a_session_that_is_gone_is_null(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "127.0.0.1:80", NULL);
    add_session(&f, "a");
    add_session(&f, "b");
    json_decref(get(&f, "/api/v1/sessions", "sort=name")); // the order is kept for some seconds
    coordinator_session_destroy(coordinator_session_named(&f.c->sessions, 0, "a"));
    json_t *json = get(&f, "/api/v1/sessions", "sort=name");
    const json_t *rows = json_object_get(json, "sessions");
    assert_int_equal(json_array_size(rows), 2);
    assert_true(json_is_null(json_array_get(rows, 0)));
    assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 1), "name")), "b");
    json_decref(json);
    end(&f);
}

// All places are kept, and all looks are under way: one more is refused, and takes nothing from anybody.
static void a_look_that_is_refused_forgets_nothing(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "127.0.0.1:80", NULL);
    for (int i = 0; i <= COORDINATOR_WATCHES_MAX; i++) {
        char name[16], path[64];
        snprintf(name, sizeof name, "s%02d", i);
        add_session(&f, name);
        struct coordinator_session *s = coordinator_session_named(&f.c->sessions, 0, name);
        bool look = i < COORDINATOR_LOOKS_MAX || i == COORDINATOR_WATCHES_MAX;
        if (!look) {
            assert_non_null(coordinator_watch_of(&f.c->steps, s)); // something of it is kept
            continue;
        }
        snprintf(path, sizeof path, "/api/v1/sessions/%016llx/trace", (unsigned long long)s->id);
        json_t *json = get(&f, path, "watch=1");
        assert_int_equal(json_is_true(json_object_get(json, "full")), i == COORDINATOR_WATCHES_MAX);
        json_decref(json);
    }
    for (int i = 0; i <= COORDINATOR_WATCHES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%02d", i);
        const struct coordinator_session *s = coordinator_session_named(&f.c->sessions, 0, name);
        assert_int_equal(s->lane && s->lane->watch, i < COORDINATOR_WATCHES_MAX);
    }
    end(&f);
}

// A session whose chunks go round two workers; its answer. Ranges that are served: how many, and up to where.
static json_t *alternating(struct fixture *f, struct coordinator_worker workers[2], uint32_t chunks,
                           size_t *ranges, json_int_t *until)
{
    add_session(f, "s");
    struct coordinator_session *s = coordinator_session_named(&f->c->sessions, 0, "s");
    f->c->cluster.n_workers = 2;
    for (uint32_t i = 0; i < 2; i++) {
        workers[i].cluster = &f->c->cluster;
        workers[i].slot = i;
        snprintf(workers[i].name, sizeof workers[i].name, "w%u", i);
        coordinator_session_add_member(s, &workers[i]);
    }
    for (uint32_t i = 0; i < chunks; i++) {
        struct coordinator_chunk chunk = {.id = i + 1, .index = i, .ready = true, .known = true};
        coordinator_chunk_add(&chunk, &workers[i % 2], COORDINATOR_REPORT_HEARD);
        assert_non_null(coordinator_session_put_chunk(s, &chunk));
    }
    assert_true(coordinator_rangeset_add(&s->layers[0], 0, chunks * UINT64_C(256) - 7, NULL));
    coordinator_session_count_tokens(s);
    char path[64];
    snprintf(path, sizeof path, "/api/v1/sessions/%016llx", (unsigned long long)s->id);
    json_t *json = get(f, path, "");
    const json_t *holders = json_object_get(json, "holders");
    assert_int_equal(json_array_size(holders), 2);
    *ranges = 0;
    *until = 0;
    for (size_t i = 0; i < 2; i++) {
        const json_t *serves = json_object_get(json_array_get(holders, i), "serves");
        *ranges += json_array_size(serves);
        const json_t *last = json_array_get(serves, json_array_size(serves) - 1);
        json_int_t end =
            json_integer_value(json_array_get(last, 0)) + json_integer_value(json_array_get(last, 1));
        *until = end > *until ? end : *until;
    }
    coordinator_session_destroy(s);
    return json;
}

static void ranges_are_exact_while_they_are_few(void **state)
{
    (void)state;
    struct fixture f;
    static struct coordinator_worker workers[2];
    size_t ranges;
    json_int_t until;
    begin(&f, "127.0.0.1:80", NULL);
    json_t *json = alternating(&f, workers, 1000, &ranges, &until);
    assert_int_equal(json_integer_value(json_object_get(json, "grain")), 0);
    assert_int_equal(ranges, 1000);
    assert_int_equal(until, 1000 * 256 - 7);
    json_decref(json);
    end(&f);
}

static void many_ranges_are_joined(void **state)
{
    (void)state;
    struct fixture f;
    static struct coordinator_worker workers[2];
    size_t ranges;
    json_int_t until;
    begin(&f, "127.0.0.1:80", NULL);
    json_t *json = alternating(&f, workers, 100000, &ranges, &until);
    assert_true(json_integer_value(json_object_get(json, "grain")) > 0);
    assert_true(ranges <= 4096);
    assert_int_equal(until, 100000 * 256 - 7);
    json_decref(json);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_on_loopback),
        cmocka_unit_test(hosts_beyond_loopback),
        cmocka_unit_test(wrong_tokens_are_reported),
        cmocka_unit_test(tokens_of_operators_look),
        cmocka_unit_test(tenants_in_pages),
        cmocka_unit_test(the_last_hour_is_bounded),
        cmocka_unit_test(quantiles_of_buckets),
        cmocka_unit_test(wrong_tokens_are_slowed_down),
        cmocka_unit_test(names_that_are_no_text),
        cmocka_unit_test(many_sessions_in_pages),
        cmocka_unit_test(orders_are_kept_and_made_seldom),
        cmocka_unit_test(a_session_that_is_gone_is_null),
        cmocka_unit_test(a_look_that_is_refused_forgets_nothing),
        cmocka_unit_test(ranges_are_exact_while_they_are_few),
        cmocka_unit_test(many_ranges_are_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
