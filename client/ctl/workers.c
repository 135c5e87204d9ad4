// SPDX-License-Identifier: Apache-2.0
// Commands: workers, worker show.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/ctl/again.h"

#define NAMES_SHOWN 4u // of workers with the same reason

static const char *no_device(const json_t *rows, size_t i)
{
    const json_t *row = json_array_get(rows, i);
    bool lost = strcmp(json_string_value(json_object_get(row, "state")), "lost") == 0;
    return lost ? "" : json_string_value(json_object_get(row, "no_device"));
}

static const char *text_of(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

static const char *out_of_use(const json_t *rows, size_t i, const char *how)
{
    const json_t *row = json_array_get(rows, i);
    return json_is_true(json_object_get(row, how)) ? text_of(row, "drain_about") : "";
}

static const char *why_draining(const json_t *rows, size_t i)
{
    return out_of_use(rows, i, "draining");
}

static const char *why_cordoned(const json_t *rows, size_t i)
{
    return json_is_true(json_object_get(json_array_get(rows, i), "draining"))
               ? ""
               : out_of_use(rows, i, "cordoned");
}

// "new memory (ops, 2026-11-29 07:00Z)": why, who said so, and when.
static json_t *drain_about(const banyan_worker_info *w)
{
    char at[32] = "";
    time_t s = (time_t)w->drain_at_s;
    struct tm tm;
    if (s && gmtime_r(&s, &tm))
        strftime(at, sizeof at, "%Y-%m-%d %H:%MZ", &tm);
    bool more = w->drain_by[0] || at[0];
    const char *reason = w->drain_reason[0] ? w->drain_reason : more ? "no reason given" : "";
    return json_sprintf("%s%s%s%s%s%s", reason, more ? " (" : "", w->drain_by,
                        w->drain_by[0] && at[0] ? ", " : "", at, more ? ")" : "");
}

// Below the table, where it takes no column: a line for each reason, with the workers that have it.
static void print_reasons(const json_t *rows, const char *(*reason)(const json_t *rows, size_t i),
                          const char *one, const char *many)
{
    size_t n = json_array_size(rows), lines = 0;
    for (size_t i = 0; i < n; i++) {
        const char *why = reason(rows, i);
        size_t same = 0;
        bool said = !why[0];
        for (size_t k = 0; k < i && !said; k++)
            said = strcmp(why, reason(rows, k)) == 0;
        if (said)
            continue;
        fputs(lines++ ? "" : "\n", stdout);
        for (size_t k = i; k < n; k++)
            if (strcmp(why, reason(rows, k)) == 0 && same++ < NAMES_SHOWN)
                printf("%s%s", same == 1 ? "" : ", ",
                       json_string_value(json_object_get(json_array_get(rows, k), "name")));
        if (same > NAMES_SHOWN)
            printf(" and %zu more", same - NAMES_SHOWN);
        printf("%s%s\n", same == 1 ? one : many, why);
    }
}

// A worker that has not computed yet has no last step.
static void blank_times(json_t *rows)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) if (json_integer_value(json_object_get(row, "last_compute_ns")) == 0)
        json_object_set_new(row, "last_compute_ns", json_null());
}

static json_t *worker_row(const banyan_worker_info *w, bool is_json)
{
    uint64_t taken = w->used_bytes + w->free_bytes;
    char state[48]; // a table says both in one word; JSON has a field of its own
    const char *use = w->draining ? ", draining" : w->cordoned ? ", cordoned" : "";
    snprintf(state, sizeof state, "%s%s%s", w->state, is_json ? "" : use,
             w->slow && !is_json ? ", slow" : "");
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:b, s:s, s:b, s:s, s:o, s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, "
        "s:s, s:s, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:s, s:s}",
        "name", w->name, "host", w->host, "state", state, "draining", w->draining, "drain_reason",
        w->drain_reason, "cordoned", w->cordoned, "drain_by", w->drain_by, "drain_at_s",
        ctl_json_u64(w->drain_at_s), "moves", (int)w->moves, "endpoint", w->endpoint, "capacity_bytes",
        ctl_json_u64(w->capacity_bytes), "used_bytes", ctl_json_u64(w->used_bytes), "reserved_bytes",
        ctl_json_u64(taken < w->capacity_bytes ? w->capacity_bytes - taken : 0), "free_bytes",
        ctl_json_u64(w->free_bytes), "bandwidth", ctl_json_u64(w->bandwidth), "chunks",
        ctl_json_u64(w->chunks), "tokens", ctl_json_u64(w->tokens), "steps", ctl_json_u64(w->steps),
        "threads", (int)w->threads, "kernel", w->kernel, "engine", w->engine, "heartbeat_age_ns",
        ctl_json_u64(w->heartbeat_age_ns), "last_compute_ns", ctl_json_u64(w->last_compute_ns),
        "quarantined_bytes", ctl_json_u64(w->quarantined_bytes), "quarantined_sessions",
        ctl_json_u64(w->quarantined_sessions), "slow", w->slow, "seen_bandwidth",
        w->seen_bandwidth ? ctl_json_u64(w->seen_bandwidth) : json_null(), "cold_bytes",
        ctl_json_u64(w->cold_bytes), "version", w->version, "no_device", w->no_device);
    if (!is_json)
        json_object_set_new(row, "drain_about", drain_about(w));
    return row;
}

static enum ctl_exit show_workers(struct ctl *ctl)
{
    banyan_cluster_info info;
    banyan_error error;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    if (info.restricted)
        return ctl_fail_restricted(&info, "workers");
    json_t *rows = json_array();
    for (uint32_t i = 0; i < info.n_workers; i++)
        json_array_append_new(rows, worker_row(&info.workers[i], ctl->json));
    banyan_cluster_info_free(&info);
    static const struct ctl_column columns[] = {
        {"name", "NAME", CTL_TEXT},
        {"host", "HOST", CTL_TEXT},
        {"state", "STATE", CTL_TEXT},
        {"used_bytes", "USED", CTL_BYTES},
        {"reserved_bytes", "RESERVED", CTL_BYTES},
        {"free_bytes", "FREE", CTL_BYTES},
        {"capacity_bytes", "MEMORY", CTL_BYTES | CTL_WIDE},
        {"cold_bytes", "COLD", CTL_BYTES | CTL_WIDE},
        {"quarantined_bytes", "QUARANTINE", CTL_BYTES | CTL_WIDE},
        {"bandwidth", "SPEED", CTL_RATE},
        {"seen_bandwidth", "SEEN", CTL_RATE | CTL_WIDE},
        {"chunks", "CHUNKS", CTL_COUNT},
        {"moves", "MOVES", CTL_COUNT},
        {"tokens", "TOKENS", CTL_COUNT | CTL_WIDE},
        {"steps", "STEPS", CTL_COUNT},
        {"last_compute_ns", "LAST STEP", CTL_TIME},
        {"threads", "THREADS", CTL_COUNT | CTL_WIDE},
        {"kernel", "KERNEL", CTL_TEXT | CTL_WIDE},
        {"engine", "ENGINE", CTL_TEXT | CTL_WIDE},
        {"version", "VERSION", CTL_TEXT | CTL_WIDE},
        {"endpoint", "ENDPOINT", CTL_TEXT | CTL_WIDE},
        {0},
    };
    if (json_array_size(rows) == 0)
        fprintf(stderr, "no workers: start some with banyan-worker --coordinator ENDPOINT\n");
    if (!ctl->json)
        blank_times(rows);
    ctl_print_rows(ctl, json_incref(rows), columns);
    if (!ctl->json && !ctl->names) {
        print_reasons(rows, why_draining, " is draining: ", " are draining: ");
        print_reasons(rows, why_cordoned, " gets no new chunks: ", " get no new chunks: ");
        print_reasons(rows, no_device, " uses its processor: ", " use their processors: ");
    }
    json_decref(rows);
    return CTL_OK;
}

static enum ctl_exit run_worker_show(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_cluster_info info;
    banyan_error error;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    if (info.restricted)
        return ctl_fail_restricted(&info, "worker show");
    json_t *rows = json_array();
    for (uint32_t i = 0; i < info.n_workers; i++)
        if (strcmp(info.workers[i].name, args[0]) == 0)
            json_array_append_new(rows, worker_row(&info.workers[i], ctl->json));
    banyan_cluster_info_free(&info);
    if (!json_array_size(rows)) {
        json_decref(rows);
        return ctl_say(CTL_NOT_FOUND, "there is no worker '%.64s': 'banyanctl workers' lists them", args[0]);
    }
    if (!ctl->json)
        blank_times(rows);
    json_t *record = json_incref(json_array_get(rows, 0));
    json_decref(rows);
    static const struct ctl_column fields[] = {
        {"name", "name", CTL_TEXT},
        {"host", "host", CTL_TEXT},
        {"state", "state", CTL_TEXT},
        {"drain_about", "out of use because", CTL_TEXT},
        {"endpoint", "endpoint", CTL_TEXT},
        {"version", "version", CTL_TEXT},
        {"kernel", "kernel", CTL_TEXT},
        {"engine", "engine", CTL_TEXT},
        {"no_device", "no device because", CTL_TEXT},
        {"threads", "threads", CTL_COUNT},
        {"capacity_bytes", "memory", CTL_BYTES},
        {"used_bytes", "memory used", CTL_BYTES},
        {"reserved_bytes", "memory reserved", CTL_BYTES},
        {"free_bytes", "memory free", CTL_BYTES},
        {"cold_bytes", "on disk only", CTL_BYTES},
        {"quarantined_bytes", "in quarantine", CTL_BYTES},
        {"quarantined_sessions", "sessions in quarantine", CTL_COUNT},
        {"bandwidth", "speed measured at start", CTL_RATE},
        {"seen_bandwidth", "speed seen lately", CTL_RATE},
        {"chunks", "chunks", CTL_COUNT},
        {"tokens", "tokens", CTL_COUNT},
        {"moves", "moves to it", CTL_COUNT},
        {"steps", "steps", CTL_COUNT},
        {"last_compute_ns", "last step", CTL_TIME},
        {"heartbeat_age_ns", "last heartbeat ago", CTL_TIME},
        {0},
    };
    ctl_print_record(ctl, record, fields);
    return CTL_OK;
}

static enum ctl_exit run_workers(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    return ctl_again(ctl, show_workers);
}

static const struct common_option watch_options[] = {
    CTL_AGAIN_OPTION,
    {0},
};

const struct ctl_command ctl_workers_commands[] = {
    {"workers", "", "list workers, their memory, speed and work",
     "Lists all workers. USED is what keys and values take; RESERVED is kept for chunks that were placed "
     "and\n"
     "are not full yet; new chunks go into what is FREE. The three add up to MEMORY (--output=wide): a "
     "worker's\n"
     "--memory without the part for messages, partial results and workspaces (of 256M: 128 MiB). A lost "
     "worker\n"
     "shows none. Below the table: why workers are draining or cordoned, and why workers with --device auto "
     "use their\n"
     "processors although their machines have hardware for a device.",
     watch_options, 0, 0, run_workers, NULL},
    {"worker show", "WORKER", "show one worker",
     "Shows all that 'workers --output=wide' shows of one worker.", NULL, 1, 1, run_worker_show, NULL},
    {0},
};
