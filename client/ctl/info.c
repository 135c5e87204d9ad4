// SPDX-License-Identifier: Apache-2.0
// Commands that look: status, workers, sessions, plan, ping.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/again.h"
#include "common/base/clock.h"

static void format_amount(uint64_t amount, bool bytes, char *out, size_t size)
{
    if (bytes)
        common_format_bytes(amount, out, size);
    else
        snprintf(out, size, "%" PRIu64, amount);
}

// A limit without an endpoint, which cannot be reached, is left out.
static json_t *limit_rows(const struct ctl *ctl, const banyan_cluster_info *info)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < info->n_limits; i++) {
        const banyan_limit *limit = &info->limits[i];
        bool bytes = strstr(limit->name, "bytes") != NULL;
        char used[32], max[32];
        if (limit->max == 0)
            continue;
        json_t *row = json_pack("{s:s, s:s, s:s, s:o}", "name", limit->name, "flag", limit->flag, "worker",
                                limit->worker, "refused", ctl_json_u64(limit->refused));
        if (ctl->json) {
            json_object_set_new(row, "used", ctl_json_u64(limit->used));
            json_object_set_new(row, "max", ctl_json_u64(limit->max));
        } else {
            format_amount(limit->used, bytes, used, sizeof used);
            format_amount(limit->max, bytes, max, sizeof max);
            json_object_set_new(row, "used", json_string(used));
            json_object_set_new(row, "max", json_string(max));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

// What this client's access does not show is not zero.
static void hide_cluster(json_t *record)
{
    static const char *const shown[] = {"version", "cluster", "readiness", "tenant",
                                        "access",  "term",    "uptime_ns", "sessions"};
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(record, next, key, value)
    {
        size_t i = 0;
        while (i < sizeof shown / sizeof *shown && strcmp(key, shown[i]) != 0)
            i++;
        if (i == sizeof shown / sizeof *shown)
            json_object_del(record, key);
    }
}

static enum ctl_exit show_status(struct ctl *ctl)
{
    banyan_cluster_info info;
    banyan_error error;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    uint64_t capacity = 0, used = 0, cold = 0, free_bytes = 0;
    uint32_t active = 0, draining = 0, slow = 0;
    for (uint32_t i = 0; i < info.n_workers; i++) {
        bool is_active = strcmp(info.workers[i].state, "active") == 0;
        active += is_active;
        draining += info.workers[i].draining;
        slow += is_active && info.workers[i].slow;
        capacity += info.workers[i].capacity_bytes; // of those that are there, as in /metrics
        used += info.workers[i].used_bytes;
        free_bytes += info.workers[i].free_bytes;
        cold += info.workers[i].cold_bytes;
    }
    json_t *record = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "version", info.version, "cluster", info.cluster, "readiness", info.readiness, "tenant", info.tenant,
        "access", info.access, "term", ctl_json_u64(info.term), "uptime_ns", ctl_json_u64(info.uptime_ns),
        "workers", (int)info.n_workers, "workers_active", (int)active, "workers_draining", (int)draining,
        "workers_slow", (int)slow, "capacity_bytes", ctl_json_u64(capacity), "used_bytes", ctl_json_u64(used),
        "reserved_bytes", ctl_json_u64(capacity - used > free_bytes ? capacity - used - free_bytes : 0),
        "free_bytes", ctl_json_u64(free_bytes), "cold_bytes", ctl_json_u64(cold), "sessions",
        ctl_json_u64(info.sessions), "chunks", ctl_json_u64(info.chunks), "steps", ctl_json_u64(info.steps),
        "frames", ctl_json_u64(info.frames), "clients", ctl_json_u64(info.clients), "thin_chunks",
        ctl_json_u64(info.thin_chunks), "moves", ctl_json_u64(info.moves), "moved_chunks",
        ctl_json_u64(info.moved_chunks), "moved_bytes", ctl_json_u64(info.moved_bytes), "audit_every",
        ctl_json_u64(info.audit_every), "audited", ctl_json_u64(info.audited), "audit_differences",
        ctl_json_u64(info.audit_differences), "audit_skipped", ctl_json_u64(info.audit_skipped), "kept_steps",
        ctl_json_u64(info.kept_steps), "kept_bytes", ctl_json_u64(info.kept_bytes));
    json_t *limits = limit_rows(ctl, &info);
    bool restricted = info.restricted;
    if (restricted)
        hide_cluster(record);
    uint64_t audit_every = info.audit_every;
    banyan_cluster_info_free(&info);
    static const struct ctl_column fields[] = {
        {"version", "version", CTL_TEXT},
        {"cluster", "cluster", CTL_TEXT},
        {"readiness", "readiness", CTL_TEXT},
        {"tenant", "tenant", CTL_TEXT},
        {"access", "access", CTL_TEXT},
        {"term", "term", CTL_COUNT},
        {"uptime_ns", "uptime", CTL_TIME},
        {"workers", "workers", CTL_COUNT},
        {"workers_active", "workers active", CTL_COUNT},
        {"workers_draining", "workers draining", CTL_COUNT},
        {"workers_slow", "workers slow", CTL_COUNT},
        {"capacity_bytes", "memory", CTL_BYTES},
        {"used_bytes", "memory used", CTL_BYTES},
        {"reserved_bytes", "memory reserved", CTL_BYTES},
        {"free_bytes", "memory free", CTL_BYTES},
        {"cold_bytes", "on disk only", CTL_BYTES},
        {"sessions", "sessions", CTL_COUNT},
        {"chunks", "chunks", CTL_COUNT},
        {"steps", "steps", CTL_COUNT},
        {"frames", "frames", CTL_COUNT},
        {"clients", "clients", CTL_COUNT},
        {"thin_chunks", "chunks with too few copies", CTL_COUNT},
        {"moves", "moves in progress", CTL_COUNT},
        {"moved_chunks", "chunks moved", CTL_COUNT},
        {"moved_bytes", "bytes moved", CTL_BYTES},
        {"audit_every", "audit rate", CTL_TEXT},
        {"audited", "steps audited", CTL_COUNT},
        {"audit_differences", "wrong answers found", CTL_COUNT},
        {"audit_skipped", "audits skipped", CTL_COUNT},
        {"kept_steps", "steps kept", CTL_COUNT},
        {"kept_bytes", "memory of kept steps", CTL_BYTES},
        {0},
    };
    if (ctl->json) {
        json_object_set_new(record, "limits", limits);
        ctl_print_json(record);
        return CTL_OK;
    }
    if (!restricted)
        json_object_set_new(record, "audit_every",
                            audit_every ? json_sprintf("1 in %" PRIu64, audit_every) : json_string("off"));
    static const struct ctl_column columns[] = {
        {"name", "LIMIT", CTL_TEXT},
        {"worker", "WORKER", CTL_TEXT},
        {"used", "USED", CTL_TEXT},
        {"max", "MOST", CTL_TEXT},
        {"refused", "REFUSED", CTL_COUNT},
        {"flag", "FLAG", CTL_TEXT},
        {0},
    };
    ctl_print_record(ctl, record, fields);
    if (!restricted)
        putchar('\n');
    ctl_print_rows(ctl, limits, columns);
    if (restricted)
        fputs("\nThis token's access does not show workers, limits and figures of the whole cluster.\n",
              stdout);
    return CTL_OK;
}

static enum ctl_exit run_version(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    banyan_cluster_info info;
    banyan_error error;
    banyan_code code = ctl_connect(ctl, &error);
    if (code == BANYAN_OK)
        code = banyan_cluster_get_info(ctl->client, &info, &error);
    json_t *record = json_pack("{s:s, s:s*}", "client", banyan_version(), "coordinator",
                               code == BANYAN_OK ? info.version : NULL);
    if (code == BANYAN_OK)
        banyan_cluster_info_free(&info);
    static const struct ctl_column fields[] = {
        {"client", "client", CTL_TEXT},
        {"coordinator", "coordinator", CTL_TEXT},
        {0},
    };
    ctl_print_record(ctl, record, fields);
    return code == BANYAN_OK ? CTL_OK : ctl_connect_fail(&error);
}

static enum ctl_exit run_status(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    return ctl_again(ctl, show_status);
}

static enum ctl_exit run_plan(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    banyan_plan_info plan;
    banyan_error error;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    banyan_code code = banyan_session_get_plan(session, &plan, &error);
    banyan_session_close(session);
    if (code != BANYAN_OK)
        return ctl_fail(&error);
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < plan.n_nodes; i++) {
        const banyan_plan_node *n = &plan.nodes[i];
        json_array_append_new(nodes,
                              json_pack("{s:s, s:s, s:i, s:i, s:o, s:o}", "worker", n->worker, "host",
                                        n->host, "rank", (int)n->rank, "parent", (int)n->parent, "chunks",
                                        ctl_json_u64(n->chunks), "tokens", ctl_json_u64(n->tokens)));
    }
    static const struct ctl_column columns[] = {
        {"worker", "WORKER", CTL_TEXT},  {"rank", "RANK", CTL_COUNT},     {"host", "HOST", CTL_TEXT},
        {"chunks", "CHUNKS", CTL_COUNT}, {"tokens", "TOKENS", CTL_COUNT}, {0},
    };
    if (ctl->json) {
        ctl_print_json(json_pack("{s:o, s:o, s:s, s:o, s:f, s:s, s:o}", "plan", ctl_json_id(plan.plan),
                                 "epoch", ctl_json_u64(plan.epoch), "engine", plan.engine, "digest",
                                 ctl_json_id(plan.digest), "predicted_us", plan.predicted_us, "why", plan.why,
                                 "nodes", nodes));
    } else {
        ctl_print_tree(ctl, nodes, columns);
        printf("\nengine %s, epoch %" PRIu64 ", predicted %.1f us per row, digest 0x%016" PRIx64 "\n%s\n",
               plan.engine, plan.epoch, plan.predicted_us, plan.digest, plan.why);
    }
    banyan_plan_info_free(&plan);
    return CTL_OK;
}

static uint64_t ping_count = 4;

static enum ctl_exit run_ping(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    uint64_t least = UINT64_MAX, most = 0, sum = 0;
    char buf[3][32];
    for (uint64_t i = 0; i < ping_count; i++) {
        banyan_error error;
        uint64_t rtt_ns;
        if (banyan_ping(ctl->client, &rtt_ns, &error) != BANYAN_OK)
            return ctl_fail(&error);
        least = rtt_ns < least ? rtt_ns : least;
        most = rtt_ns > most ? rtt_ns : most;
        sum += rtt_ns;
        if (!ctl->json)
            printf("answer %" PRIu64 ": %s\n", i + 1, common_format_ns(rtt_ns, buf[0], sizeof buf[0]));
    }
    if (ctl->json)
        ctl_print_json(json_pack("{s:o, s:f, s:f, s:f}", "count", ctl_json_u64(ping_count), "min_us",
                                 (double)least / 1e3, "mean_us", (double)sum / (double)ping_count / 1e3,
                                 "max_us", (double)most / 1e3));
    else
        printf("min %s, mean %s, max %s\n", common_format_ns(least, buf[0], sizeof buf[0]),
               common_format_ns(sum / ping_count, buf[1], sizeof buf[1]),
               common_format_ns(most, buf[2], sizeof buf[2]));
    return CTL_OK;
}

static const struct common_option watch_options[] = {
    CTL_AGAIN_OPTION,
    {0},
};

static const struct common_option ping_options[] = {
    {"count", 'c', COMMON_OPTION_U64, &ping_count, "N", "Number of round trips. Default: 4.", 1, 1000000},
    {0},
};

const struct ctl_command ctl_version_commands[] = {
    {"version", "", "show the versions of this program and of the coordinator",
     "Shows the version of this program, and of the coordinator if it can be reached; else it exits with 5.",
     NULL, 0, 0, run_version, NULL},
    {0},
};

const struct ctl_command ctl_info_commands[] = {
    {"status", "", "show the cluster and its limits",
     "Shows a summary of the cluster, then each limit of the coordinator: what is in use, the\n"
     "maximum, how often it was reached since the start, and the flag that raises it. For limits\n"
     "of workers it shows the worker closest to its limit.",
     watch_options, 0, 0, run_status, NULL},
    {"plan", "SESSION", "show the tree that answers a session's steps",
     "Draws the tree of workers that answers the steps of a session (id or name), with the part of each and\n"
     "the reason for its shape.",
     NULL, 1, 1, run_plan, NULL},
    {"ping", "", "measure round trips to the coordinator", NULL, ping_options, 0, 0, run_ping, NULL},
    {0},
};
