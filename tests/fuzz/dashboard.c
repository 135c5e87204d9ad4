// SPDX-License-Identifier: Apache-2.0
// The dashboard's answers (coordinator/dashboard) of a coordinator with a session and a worker that has come
// and gone. Input: requests, each: u8 what, path, query, then, as the bits of what say, Host, Authorization,
// If-None-Match, Sec-Fetch-Site, X-Banyan; each ended by 0.
#include <jansson.h>
#include <string.h>

#include "coordinator/dashboard/dashboard.h"
#include "tests/fuzz/fuzz.h"
#include "tests/sim/sim_cluster.h"

enum { REQUESTS_MAX = 16, HEADERS = 5 };

static void tune(struct coordinator_options *options)
{
    options->max_sessions = 8;
    options->max_workers = 4;
    options->events = 16;
    options->token = "a token of the tests";
}

static void ask(struct coordinator_dashboard *dashboard, struct fuzz_input *in)
{
    uint8_t what = fuzz_u8(in);
    char *path = fuzz_text(in, 256), *query = fuzz_text(in, 256), *headers[HEADERS] = {0};
    for (int i = 0; i < HEADERS; i++)
        if (what >> i & 1)
            headers[i] = fuzz_text(in, 256);
    const struct common_http_request request = {.path = path,
                                                .query = query,
                                                .host = what & 1 ? headers[0] : "127.0.0.1:80",
                                                .authorization = what & 2      ? headers[1]
                                                                 : what & 0x20 ? "Bearer a token of the tests"
                                                                               : NULL,
                                                .if_none_match = headers[2],
                                                .fetch_site = headers[3],
                                                .x_banyan = headers[4],
                                                .peer = "127.0.0.1"};
    struct common_http_answer answer = {.code = 404};
    coordinator_dashboard_answer(dashboard, &request, &answer);
    FUZZ_CHECK(answer.code == 200 || answer.code == 304 || answer.code == 400 || answer.code == 401 ||
               answer.code == 403 || answer.code == 404 || answer.code == 421 || answer.code == 429 ||
               answer.code == 503);
    FUZZ_CHECK(answer.n_headers <= COMMON_HTTP_HEADERS && (answer.len == 0 || answer.body));
    if (answer.code == 200 && strncmp(path, "/api/", 5) == 0) {
        FUZZ_CHECK(what & 0x22); // with a token
        json_t *json = json_loadb(answer.body, answer.len, 0, NULL);
        FUZZ_CHECK(json);
        json_decref(json);
    }
    if (answer.release)
        answer.release((void *)answer.body);
    for (int i = 0; i < HEADERS; i++)
        free(headers[i]);
    free(path);
    free(query);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.tune = tune});
    struct common_error err;
    FUZZ_CHECK(sim_coordinator_start(cluster, &err) == COMMON_OK);
    struct coordinator_dashboard *dashboard = coordinator_dashboard_new(cluster->coordinator, "127.0.0.1:80");
    FUZZ_CHECK(dashboard);
    for (int i = 0; i < REQUESTS_MAX && in.left > 0; i++) {
        ask(dashboard, &in);
        sim_advance(1000000);
    }
    coordinator_dashboard_free(dashboard);
    sim_cluster_free(cluster);
    return 0;
}
