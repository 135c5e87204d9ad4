// SPDX-License-Identifier: Apache-2.0
#include "client/llama/cluster.h"

#include <errno.h>
#include <ggml-impl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The second is held while the process connects, which may take as long as a call may: who has settings alone
// to read does not wait for that.
static pthread_mutex_t settings_lock = PTHREAD_MUTEX_INITIALIZER, client_lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings settings;
static bool settings_read;
static banyan_client *client;
static const char *local_endpoint;

// A number of the environment; false: it is none, or is out of range.
static bool number(const char *name, double scale, double most, double otherwise, double *out, char *why,
                   size_t why_bytes)
{
    const char *text = getenv(name);
    char *end;
    *out = otherwise;
    if (!text || !*text)
        return true;
    errno = 0;
    double value = strtod(text, &end);
    bool parts = scale > 1; // seconds may have some
    if (errno || *end || !(value >= 0) || value * scale > most ||
        (!parts && value != (double)(uint64_t)value)) {
        if (why)
            snprintf(why, why_bytes, "%s=%s: a %snumber from 0 to %.0f is expected", name, text,
                     parts ? "" : "whole ", most / scale);
        return false;
    }
    *out = value * scale;
    return true;
}

// A time: seconds, or a number of m, h or d. false: it is none.
static bool duration(const char *name, uint64_t *out_ns, char *why, size_t why_bytes)
{
    const char *text = getenv(name);
    char *end;
    *out_ns = 0;
    if (!text || !*text)
        return true;
    errno = 0;
    double value = strtod(text, &end);
    double unit = *end == 'm' ? 60 : *end == 'h' ? 3600 : *end == 'd' ? 86400 : 1;
    end += *end == 's' || unit > 1;
    if (errno || *end || !(value >= 0) || value * unit > 1e8 || (value > 0 && value * unit < 60)) {
        if (why)
            snprintf(why, why_bytes, "%s=%s: 0, or a time from 60s to 1000d is expected, such as 12h", name,
                     text);
        return false;
    }
    *out_ns = (uint64_t)(value * unit * 1e9);
    return true;
}

static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

static bool read_settings(char *why, size_t why_bytes)
{
    double local, threads, ttl, timeout, replicas;
    uint64_t keep_ns;
    const char *q8 = text_of("BANYAN_Q8");
    if (!number("BANYAN_LOCAL", 1, 64, 0, &local, why, why_bytes) ||
        !number("BANYAN_LOCAL_THREADS", 1, 1024, 0, &threads, why, why_bytes) ||
        !number("BANYAN_TTL", 1e9, 1e17, 600e9, &ttl, why, why_bytes) ||
        !number("BANYAN_TIMEOUT", 1e9, 1e14, 120e9, &timeout, why, why_bytes) ||
        !number("BANYAN_REPLICAS", 1, 3, 0, &replicas, why, why_bytes) ||
        !duration("BANYAN_KEEP", &keep_ns, why, why_bytes))
        return false;
    if (ttl < 60e9) {
        if (why)
            snprintf(why, why_bytes, "BANYAN_TTL=%s: at least 60 seconds are expected", getenv("BANYAN_TTL"));
        return false;
    }
    if (q8 && strcmp(q8, "int8") != 0 && strcmp(q8, "f32") != 0) {
        if (why)
            snprintf(why, why_bytes, "BANYAN_Q8=%s: f32 or int8 is expected", q8);
        return false;
    }
    settings =
        (struct settings){.endpoint = text_of("BANYAN_ENDPOINT"),
                          .local = local > 0 ? (unsigned)local : 1,
                          .local_threads = (unsigned)threads,
                          .local_memory = text_of("BANYAN_LOCAL_MEMORY"),
                          .session = text_of("BANYAN_SESSION") ? text_of("BANYAN_SESSION") : "llama.cpp",
                          .ttl_ns = (uint64_t)ttl,
                          .timeout_ns = timeout > 0 ? (uint64_t)timeout : 1,
                          .replicas = (unsigned)replicas,
                          .keep_ns = keep_ns,
                          .q8_as_int8 = q8 && strcmp(q8, "int8") == 0};
    if (settings.endpoint && local > 0) {
        if (why)
            snprintf(why, why_bytes, "BANYAN_ENDPOINT and BANYAN_LOCAL are both set: give one of them");
        return false;
    }
    return true;
}

const struct settings *cluster_settings(char *why, size_t why_bytes)
{
    pthread_mutex_lock(&settings_lock);
    settings_read = settings_read || read_settings(why, why_bytes);
    const struct settings *out = settings_read ? &settings : NULL;
    pthread_mutex_unlock(&settings_lock);
    return out;
}

static banyan_client *connect_locked(char *why, size_t why_bytes)
{
    const struct settings *all = cluster_settings(why, why_bytes);
    if (!all)
        return NULL;
    if (!all->endpoint && !local_endpoint)
        local_endpoint = local_start(all, why, why_bytes);
    const char *endpoint = all->endpoint ? all->endpoint : local_endpoint;
    if (!endpoint)
        return NULL;
    banyan_options options = {.token_file = text_of("BANYAN_TOKEN_FILE"),
                              .timeout_ns = all->timeout_ns,
                              .tls_ca = text_of("BANYAN_TLS_CA"),
                              .tls_cert = text_of("BANYAN_TLS_CERT"),
                              .tls_key = text_of("BANYAN_TLS_KEY")};
    banyan_error error;
    static bool waited;
    const uint64_t soon_ns = 3000000000;
    bool waits = !waited && all->timeout_ns > soon_ns;
    options.connect_timeout_ns = all->timeout_ns < soon_ns ? all->timeout_ns : soon_ns;
    banyan_code code = banyan_connect(endpoint, &options, &client, &error);
    if (waits && (code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED)) {
        waited = true;
        options.connect_timeout_ns = all->timeout_ns - soon_ns;
        GGML_LOG_WARN("banyan: no coordinator answers at %s: %s. Is BANYAN_ENDPOINT right? Waiting for "
                      "%.0f s more (BANYAN_TIMEOUT)\n",
                      endpoint, error.message, (double)options.connect_timeout_ns / 1e9);
        code = banyan_connect(endpoint, &options, &client, &error);
    }
    if (code != BANYAN_OK) {
        snprintf(why, why_bytes, "%s: %s", endpoint, error.message);
        client = NULL;
    }
    return client;
}

banyan_client *cluster_client(char *why, size_t why_bytes)
{
    pthread_mutex_lock(&client_lock);
    banyan_client *out = client ? client : connect_locked(why, why_bytes);
    pthread_mutex_unlock(&client_lock);
    return out;
}

void cluster_memory(size_t *available, size_t *total)
{
    char why[512];
    banyan_cluster_info info;
    *available = *total = 0;
    banyan_client *to = cluster_client(why, sizeof why);
    if (!to || banyan_cluster_get_info(to, &info, NULL) != BANYAN_OK)
        return;
    for (uint32_t i = 0; i < info.n_workers; i++) {
        const banyan_worker_info *worker = &info.workers[i];
        *total += worker->capacity_bytes;
        *available +=
            worker->capacity_bytes > worker->used_bytes ? worker->capacity_bytes - worker->used_bytes : 0;
    }
    banyan_cluster_info_free(&info);
}

void cluster_where(char *out, size_t bytes)
{
    char why[512];
    banyan_cluster_info info;
    const struct settings *all = cluster_settings(NULL, 0);
    banyan_client *to = cluster_client(why, sizeof why);
    if (!to || banyan_cluster_get_info(to, &info, NULL) != BANYAN_OK) {
        snprintf(out, bytes, "a cluster that does not answer");
        return;
    }
    const char *plural = info.n_workers == 1 ? "" : "s";
    if (all->endpoint)
        snprintf(out, bytes, "the cluster at %s, %u worker%s", all->endpoint, info.n_workers, plural);
    else
        snprintf(out, bytes,
                 "%u worker%s on this machine, which end%s with this process (no BANYAN_ENDPOINT is set)",
                 info.n_workers, plural, info.n_workers == 1 ? "s" : "");
    banyan_cluster_info_free(&info);
}
