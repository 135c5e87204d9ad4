// SPDX-License-Identifier: Apache-2.0
// W3C trace context and spans as OTLP/JSON. What a collector makes of them: tests/deploy/tracing_test.py.
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "common/loop/loop.h"
#include "common/metrics/metrics.h"
#include "common/tracing/span.h"
#include "common/tracing/trace_export.h"
#include "common/tracing/tracer.h"

#define GOOD "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text, *written; // written NULL: it is refused
    } cases[] = {
        {GOOD, GOOD},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
         "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", // unknown flags go
         "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03"},
        {"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", GOOD}, // a later version
        {"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more of it", GOOD},
        {"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.", NULL},
        {GOOD "-", NULL},
        {GOOD " ", NULL},
        {"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", NULL},
        {"0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", NULL},
        {"0x-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", NULL},
        {"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-B7AD6B7169203331-01", NULL},
        {"00-00000000000000000000000000000000-b7ad6b7169203331-01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1", NULL},
        {"00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01", NULL},
        {"", NULL},
        {"00", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct common_trace trace, before;
        struct common_error err = {0};
        char text[COMMON_TRACEPARENT];
        memset(&trace, 0x5a, sizeof trace);
        before = trace;
        enum common_code code = common_trace_parse(cases[i].text, &trace, &err);
        if (cases[i].written) {
            assert_int_equal(code, COMMON_OK);
            common_trace_write(&trace, text);
            assert_string_equal(text, cases[i].written);
        } else {
            assert_int_equal(code, COMMON_INVALID_ARGUMENT);
            assert_true(strlen(err.message) > strlen("traceparent '': "));
            assert_memory_equal(&trace, &before, sizeof trace);
        }
    }
}

static void test_take(void **state)
{
    (void)state;
    struct common_trace trace, taken;
    uint8_t bytes[COMMON_TRACE_BYTES + 1] = {0};
    assert_int_equal(common_trace_parse(GOOD, &trace, NULL), COMMON_OK);
    memcpy(bytes, &trace, sizeof trace);
    assert_true(common_trace_take(bytes, COMMON_TRACE_BYTES, &taken));
    assert_memory_equal(&taken, &trace, sizeof trace);
    bytes[24] = 0xff;
    assert_true(common_trace_take(bytes, COMMON_TRACE_BYTES, &taken));
    assert_int_equal(taken.flags, COMMON_TRACE_SAMPLED | COMMON_TRACE_RANDOM);
    for (size_t len = 0; len <= COMMON_TRACE_BYTES + 1; len++)
        assert_int_equal(common_trace_take(bytes, len, &taken), len == COMMON_TRACE_BYTES);
    memset(bytes, 0, 16);
    assert_false(common_trace_take(bytes, COMMON_TRACE_BYTES, &taken));
    memcpy(bytes, &trace, sizeof trace);
    memset(bytes + 16, 0, 8);
    assert_false(common_trace_take(bytes, COMMON_TRACE_BYTES, &taken));
}

static struct common_span span_of(const struct common_trace *trace)
{
    struct common_span span = {.trace_id = trace->trace_id,
                               .id = {0, 0, 0, 0, 0, 0, 0, 0x1f},
                               .remote = true,
                               .name = "worker.step",
                               .kind = COMMON_SPAN_SERVER,
                               .start_ns = 5,
                               .end_ns = 4}; // an end before the start counts as the start
    memcpy(span.parent_id, trace->span_id, sizeof span.parent_id);
    return span;
}

static void test_json(void **state)
{
    (void)state;
    struct common_trace trace;
    char json[COMMON_SPAN_JSON_MAX + 1];
    assert_int_equal(common_trace_parse(GOOD, &trace, NULL), COMMON_OK);
    struct common_span span = span_of(&trace);
    common_span_number(&span, "banyan.rows", 4);
    common_span_hex(&span, "banyan.session", 0xabc);
    common_span_text(&span, "banyan.worker", "a\"b\\c\x01\xff\xc3\xa9");
    size_t len = common_span_json(&span, UINT64_C(1700000000000000000), json, sizeof json - 1);
    json[len] = '\0';
    assert_string_equal(
        json,
        "{\"traceId\":\"0af7651916cd43dd8448eb211c80319c\",\"spanId\":\"000000000000001f\","
        "\"parentSpanId\":\"b7ad6b7169203331\",\"flags\":769,\"name\":\"worker.step\",\"kind\":2,"
        "\"startTimeUnixNano\":\"1700000000000000005\",\"endTimeUnixNano\":\"1700000000000000005\","
        "\"attributes\":[{\"key\":\"banyan.rows\",\"value\":{\"intValue\":\"4\"}},"
        "{\"key\":\"banyan.session\",\"value\":{\"stringValue\":\"0000000000000abc\"}},"
        "{\"key\":\"banyan.worker\",\"value\":{\"stringValue\":\"a\\\"b\\\\c\\u0001\\ufffd\xc3\xa9\"}}],"
        "\"status\":{}}");
    memset(span.parent_id, 0, sizeof span.parent_id);
    span.n = 0;
    span.remote = false;
    span.code = COMMON_UNAVAILABLE;
    span.message = "gone";
    len = common_span_json(&span, 0, json, sizeof json - 1);
    json[len] = '\0';
    assert_null(strstr(json, "parentSpanId"));
    assert_non_null(strstr(json, "\"flags\":257,"));
    assert_non_null(strstr(json, "\"status\":{\"code\":2,\"message\":\"UNAVAILABLE: gone\"}}"));
    for (size_t cap = 0; cap < len; cap++) // all of it or nothing
        assert_int_equal(common_span_json(&span, 0, json, cap), 0);
    assert_int_equal(common_span_json(&span, 0, json, len), len);
}

static void test_request(void **state)
{
    (void)state;
    char text[COMMON_SPAN_HEAD_MAX + 1];
    const struct common_span_attribute service = {.key = "service.name",
                                                  .type = COMMON_SPAN_TEXT,
                                                  .text = "x"};
    size_t len = common_span_head(&service, 1, text, sizeof text - 1);
    text[len] = '\0';
    assert_string_equal(
        text, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service.name\",\"value\":"
              "{\"stringValue\":\"x\"}}]},\"scopeSpans\":[{\"scope\":{\"name\":\"banyan\","
              "\"version\":\"" BANYAN_VERSION "\"},\"spans\":[");
    assert_int_equal(common_span_head(&service, 1, text, len - 1), 0);
}

// Ids never come twice, the draw is about as asked, and a tracer that goes nowhere takes nothing.
static void test_tracer(void **state)
{
    (void)state;
    enum { N = 4000 };
    struct common_loop *loop;
    struct common_tracer *tracer;
    struct common_trace trace;
    struct common_error err;
    char path[] = "/tmp/banyan_traceXXXXXX";
    uint64_t ids[2], drawn = 0;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    assert_int_equal(common_tracer_new(loop, NULL, 0, &tracer, &err), COMMON_OK);
    assert_false(common_tracer_on(NULL));
    assert_false(common_tracer_on(tracer));
    assert_false(common_tracer_draw(tracer, &trace));
    assert_int_equal(common_tracer_set(tracer, &(struct common_tracer_options){.file = path, .sample = 0.25},
                                       &err),
                     COMMON_OK);
    assert_true(common_tracer_on(tracer));
    for (int i = 0; i < 2; i++)
        common_tracer_id(tracer, (uint8_t *)&ids[i]);
    assert_true(ids[0] && ids[1] && ids[0] != ids[1]);
    for (int i = 0; i < N; i++) {
        static const uint8_t none[8];
        if (!common_tracer_draw(tracer, &trace))
            continue;
        drawn++;
        assert_true(common_trace_sampled(&trace));
        assert_memory_equal(trace.span_id, none, sizeof none);
        assert_memory_not_equal(trace.trace_id, none, sizeof none);
    }
    assert_in_range(drawn, N / 4 - 200, N / 4 + 200); // 7 standard deviations
    static const char *const wrong[] = {"https://a/",  "a:1",         "http://",
                                        "http://a:0/", "http://u@a/", "http://a:99999/"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct common_tracer_options options = {.otlp = wrong[i]};
        assert_int_equal(common_tracer_set(tracer, &options, &err), COMMON_INVALID_ARGUMENT);
        assert_true(common_tracer_on(tracer)); // as it was
    }
    static const char *const right[] = {"http://a", "HTTP://[::1]:4318/v1/traces", "http://a:1/x?y=z"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        assert_int_equal(common_tracer_set(tracer, &(struct common_tracer_options){.otlp = right[i]}, &err),
                         COMMON_OK);
    assert_int_equal(common_tracer_set(tracer, &(struct common_tracer_options){0}, &err), COMMON_OK);
    assert_false(common_tracer_on(tracer));
    common_tracer_free(tracer);
    common_tracer_free(NULL);
    common_loop_free(loop);
    close(fd);
    unlink(path);
}

struct collector { // which answers nothing
    struct common_loop *loop;
    struct event *event;
    int fd;
    bool called;
};

static void on_call(evutil_socket_t fd, short what, void *arg)
{
    struct collector *c = arg;
    (void)what;
    int call = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    assert_true(call >= 0);
    close(call);
    c->called = true;
    common_loop_stop(c->loop);
}

static void add_span(struct common_tracer *tracer)
{
    struct common_trace trace;
    assert_int_equal(common_trace_parse(GOOD, &trace, NULL), COMMON_OK);
    const struct common_span span = span_of(&trace);
    common_tracer_add(tracer, &span);
}

// The collector's name stands in /etc/hosts alone, no name server is known, and the address changes.
static void test_names_of_hosts(void **state)
{
    (void)state;
    char hosts[] = "/tmp/banyan_hostsXXXXXX", url[64];
    int fd = mkstemp(hosts);
    assert_true(fd >= 0);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("/dev/null", "/etc/resolv.conf", NULL, MS_BIND, NULL) != 0 ||
        mount(hosts, "/etc/hosts", NULL, MS_BIND, NULL) != 0) {
        close(fd);
        unlink(hosts);
        skip(); // not root
    }
    struct collector c = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    struct common_tracer *tracer;
    struct common_error err;
    assert_int_equal(bind(c.fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(c.fd, 4), 0);
    assert_int_equal(getsockname(c.fd, (struct sockaddr *)&address, &len), 0);
    assert_int_equal(common_loop_new(&c.loop), COMMON_OK);
    c.event = event_new(common_loop_base(c.loop), c.fd, EV_READ, on_call, &c);
    assert_int_equal(event_add(c.event, NULL), 0);
    snprintf(url, sizeof url, "http://a-host-of-this-test:%u", ntohs(address.sin_port));
    assert_int_equal(common_tracer_new(c.loop, NULL, 0, &tracer, &err), COMMON_OK);
    assert_int_equal(common_tracer_set(tracer, &(struct common_tracer_options){.otlp = url}, &err),
                     COMMON_OK);
    assert_true(dprintf(fd, "127.0.0.2 a-host-of-this-test\n") > 0); // where no process listens
    add_span(tracer);
    assert_int_equal(common_tracer_set(tracer, &(struct common_tracer_options){.otlp = url}, &err),
                     COMMON_OK); // which sends it, to there
    assert_int_equal(pwrite(fd, "127.0.0.1", 9, 0), 9);
    common_loop_run(c.loop);
    assert_true(c.called);
    common_tracer_free(tracer);
    event_free(c.event);
    common_loop_free(c.loop);
    close(c.fd);
    close(fd);
    assert_int_equal(umount2("/etc/hosts", MNT_DETACH), 0);
    assert_int_equal(umount2("/etc/resolv.conf", MNT_DETACH), 0);
    unlink(hosts);
}

static enum common_code set_file(struct common_tracer *tracer, const char *path)
{
    struct common_error err = {0};
    enum common_code code = common_tracer_set(tracer, &(struct common_tracer_options){.file = path}, &err);
    if (code != COMMON_OK)
        assert_non_null(strstr(err.message, path));
    return code;
}

// ---- a disk that hangs ----------------------------------------------------------------------------

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool hangs, waits; // writes to `file` stand still; one does
    ino_t file;
} disk = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, 0};

// In place of libc's.
ssize_t write(int fd, const void *bytes, size_t n)
{
    struct stat st;
    pthread_mutex_lock(&disk.mutex);
    while (disk.hangs && fstat(fd, &st) == 0 && st.st_ino == disk.file) {
        disk.waits = true;
        pthread_cond_broadcast(&disk.changed);
        pthread_cond_wait(&disk.changed, &disk.mutex);
    }
    disk.waits = false;
    pthread_mutex_unlock(&disk.mutex);
    return syscall(SYS_write, fd, bytes, n);
}

static void disk_hangs(bool hangs)
{
    pthread_mutex_lock(&disk.mutex);
    disk.hangs = hangs;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.mutex);
}

// Of the file.
static uint64_t metric_of(const struct common_tracer *tracer, const char *name)
{
    char *text, wanted[80];
    size_t len;
    struct common_metrics *table = common_metrics_new();
    assert_non_null(table);
    assert_true(common_tracer_put(tracer, table));
    assert_int_equal(common_metrics_render(table, COMMON_METRICS_TEXT, &text, &len), COMMON_OK);
    snprintf(wanted, sizeof wanted, "\n%s{to=\"file\"} ", name);
    const char *at = strstr(text, wanted);
    assert_non_null(at);
    uint64_t value = strtoull(at + strlen(wanted), NULL, 10);
    free(text);
    common_metrics_free(table);
    return value;
}

static void count_call(void *arg)
{
    ++*(int *)arg;
}

// A caller that adds spans waits for no disk. What does not fit is dropped and counted, and the end waits
// only so long.
static void test_a_disk_that_hangs(void **state)
{
    (void)state;
    enum { BATCH = 512, BATCHES = COMMON_TRACE_FILE_BATCHES + 20 };
    char path[] = "/tmp/banyan_traceXXXXXX";
    struct common_loop *loop;
    struct common_tracer *tracer;
    struct common_error err;
    struct stat st;
    int fd = mkstemp(path), ended = 0;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    assert_int_equal(common_tracer_new(loop, NULL, 0, &tracer, &err), COMMON_OK);
    disk.file = st.st_ino;
    disk_hangs(true);
    assert_int_equal(common_tracer_set(tracer, &(struct common_tracer_options){.file = path}, &err),
                     COMMON_OK);
    for (int i = 0; i < BATCHES * BATCH; i++)
        add_span(tracer);
    common_tracer_reopen(tracer);
    pthread_mutex_lock(&disk.mutex);
    while (!disk.waits)
        pthread_cond_wait(&disk.changed, &disk.mutex);
    pthread_mutex_unlock(&disk.mutex);
    assert_true(fstat(fd, &st) == 0 && st.st_size == 0);
    assert_true(metric_of(tracer, "banyan_trace_dropped_spans_total") >= 18 * BATCH); // one is being written
    common_tracer_finish(tracer, 50 * COMMON_NS_PER_MS, count_call, &ended);
    assert_int_equal(ended, 1);
    disk_hangs(false);
    uint64_t all = BATCHES * BATCH;
    while (metric_of(tracer, "banyan_trace_exported_spans_total") +
               metric_of(tracer, "banyan_trace_dropped_spans_total") <
           all)
        usleep(1000);
    common_tracer_free(tracer);
    assert_true(fstat(fd, &st) == 0 && st.st_size > 0);
    close(fd);
    unlink(path);
    common_loop_free(loop);
}

// Spans go to a file of one's own, or a device; not to a pipe, whose reader may leave, a folder, a link, or a
// file that another user has put there.
static void test_files(void **state)
{
    (void)state;
    struct common_loop *loop;
    struct common_tracer *tracer;
    struct common_error err;
    char folder[] = "/tmp/banyan_traceXXXXXX", pipe[64], file[64], link[64];
    assert_non_null(mkdtemp(folder));
    snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(symlink(file, link), 0);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    assert_int_equal(common_tracer_new(loop, NULL, 0, &tracer, &err), COMMON_OK);
    assert_int_equal(set_file(tracer, pipe), COMMON_FAILED_PRECONDITION);
    int reader = open(pipe, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    assert_int_equal(set_file(tracer, pipe), COMMON_FAILED_PRECONDITION);
    close(reader);
    assert_int_equal(set_file(tracer, folder), COMMON_FAILED_PRECONDITION);
    assert_int_equal(set_file(tracer, "/dev/null"), COMMON_OK);
    assert_int_equal(set_file(tracer, link), COMMON_FAILED_PRECONDITION);
    assert_int_not_equal(access(file, F_OK), 0); // nothing was made where it leads
    assert_int_equal(set_file(tracer, file), COMMON_OK);
    assert_int_equal(set_file(tracer, link), COMMON_FAILED_PRECONDITION);
    if (chown(file, geteuid() + 1, (gid_t)-1) == 0) { // as root
        assert_int_equal(set_file(tracer, "/dev/null"), COMMON_OK);
        assert_int_equal(set_file(tracer, file), COMMON_FAILED_PRECONDITION);
    }
    common_tracer_free(tracer);
    common_loop_free(loop);
    unlink(link);
    unlink(file);
    unlink(pipe);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_request),
        cmocka_unit_test(test_tracer),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_a_disk_that_hangs),
        cmocka_unit_test(test_names_of_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
