// SPDX-License-Identifier: Apache-2.0
// Texts from outside: endpoints and lists of them, traceparents and the bytes of messages, queries of URLs,
// Host and Accept headers, numbers, sizes and durations. Input: u8 which, then the text.
#include <ctype.h>
#include <string.h>

#include "common/base/trace.h"
#include "common/base/utf8.h"
#include "common/cli/options.h"
#include "common/http/http.h"
#include "proto/rpc/endpoint.h"
#include "tests/fuzz/fuzz.h"

static void endpoint(const char *text)
{
    struct proto_endpoint one, again;
    struct proto_endpoint_list list;
    struct common_error err;
    char buf[PROTO_ENDPOINT_MAX], second[PROTO_ENDPOINT_MAX];
    if (proto_endpoint_parse(text, &one, &err) == COMMON_OK) {
        struct sockaddr_storage address;
        socklen_t len;
        proto_endpoint_format(&one, buf);
        FUZZ_CHECK(proto_endpoint_parse(buf, &again, &err) == COMMON_OK);
        FUZZ_CHECK(strcmp(proto_endpoint_format(&again, second), buf) == 0);
        FUZZ_CHECK(one.kind == again.kind && one.port == again.port);
        if (proto_endpoint_address(&one, &address, &len))
            FUZZ_CHECK(len > 0 && len <= sizeof address);
        FUZZ_CHECK(!proto_endpoint_is_any(&one) || !proto_endpoint_is_loopback(&one));
    } else {
        FUZZ_CHECK(err.message[0]);
    }
    if (proto_endpoint_list_parse(text, &list, &err) == COMMON_OK) {
        FUZZ_CHECK(list.n >= 1 && list.n <= PROTO_ENDPOINTS_MAX);
        for (uint32_t i = 0; i < list.n; i++)
            FUZZ_CHECK(proto_endpoint_parse(list.endpoints[i], &one, &err) == COMMON_OK);
    }
}

static void trace(const char *text, size_t len)
{
    struct common_trace one, again;
    struct common_error err;
    char buf[COMMON_TRACEPARENT];
    if (common_trace_parse(text, &one, &err) == COMMON_OK) {
        common_trace_write(&one, buf);
        FUZZ_CHECK(common_trace_parse(buf, &again, &err) == COMMON_OK);
        FUZZ_CHECK(memcmp(&one, &again, sizeof one) == 0);
    }
    if (common_trace_take((const uint8_t *)text, len, &one)) {
        FUZZ_CHECK(len == COMMON_TRACE_BYTES);
        common_trace_write(&one, buf);
        FUZZ_CHECK(common_trace_parse(buf, &again, &err) == COMMON_OK);
    }
}

static void query(const char *text)
{
    static const char *const words[] = {"exclude", "verbose", "after", "q", "a"};
    char out[24];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        memset(out, 'x', sizeof out);
        enum common_http_value value = common_http_query(text, words[i], out, sizeof out);
        if (value != COMMON_HTTP_GIVEN)
            continue;
        FUZZ_CHECK(memchr(out, 0, sizeof out));
        for (const char *c = out; *c; c++)
            FUZZ_CHECK(!iscntrl((unsigned char)*c));
    }
}

static void numbers(const char *text)
{
    uint64_t value, again;
    char buf[64];
    if (common_parse_size(text, &value) == COMMON_OK) {
        common_write_size(value, buf, sizeof buf);
        FUZZ_CHECK(common_parse_size(buf, &again) == COMMON_OK && again == value);
    }
    if (common_parse_duration(text, &value) == COMMON_OK) {
        common_write_duration(value, buf, sizeof buf);
        FUZZ_CHECK(common_parse_duration(buf, &again) == COMMON_OK && again == value);
    }
    if (common_parse_u64(text, &value) == COMMON_OK) {
        snprintf(buf, sizeof buf, "%llu", (unsigned long long)value);
        FUZZ_CHECK(common_parse_u64(buf, &again) == COMMON_OK && again == value);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t which = fuzz_u8(&in);
    const uint8_t *bytes = in.at;
    size_t len = in.left;
    char *text = fuzz_text(&in, in.left);
    switch (which % 5) {
    case 0:
        endpoint(text);
        break;
    case 1:
        trace((const char *)text, strlen(text));
        if (len == COMMON_TRACE_BYTES) {
            struct common_trace one;
            (void)common_trace_take(bytes, len, &one);
        }
        break;
    case 2:
        query(text);
        break;
    case 3:
        (void)common_http_wants_openmetrics(text);
        (void)common_http_host_is_address(text);
        (void)common_http_host_is(text, "localhost");
        (void)common_http_host_is(text, "[::1]");
        break;
    case 4:
        numbers(text);
        break;
    }
    free(text);
    return 0;
}
