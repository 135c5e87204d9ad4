// SPDX-License-Identifier: Apache-2.0
// Command: doctor. Looks at all parts of a cluster from here, and says of each whether it is as it should be,
// and what to do where it is not. It changes nothing.
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/doctor.h"
#include "common/base/clock.h"
#include "proto/rpc/endpoint.h"

// Certificates and tokens expire by wall clocks, and logs are read side by side. Tickets do not
// (docs/reference/wire.md, "Lives").
#define SKEW_WARN_NS   (2 * (int64_t)COMMON_NS_PER_S)
#define SKEW_FAIL_NS   (30 * (int64_t)COMMON_NS_PER_S)
#define CERT_WARN_DAYS 30
#define DAY_S          86400
#define FILES_LEAST    1024
#define DISK_LEAST     (UINT64_C(1) << 30)

// ---- findings ---------------------------------------------------------------------------------------------

void ctl_doctor_find(struct ctl_doctor *d, enum ctl_doctor_level level, const char *what, const char *advice,
                     const char *fmt, ...)
{
    static const char *const names[] = {"ok", "warn", "fail"};
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    d->counts[level]++;
    json_array_append_new(d->findings, json_pack("{s:s, s:s, s:s, s:s}", "level", names[level], "what", what,
                                                 "found", text, "do", level == CTL_DOCTOR_OK ? "" : advice));
}

static void print_findings(const struct ctl_doctor *d, bool color)
{
    size_t i;
    json_t *finding;
    json_array_foreach(d->findings, i, finding)
    {
        const char *level = json_string_value(json_object_get(finding, "level"));
        const char *todo = json_string_value(json_object_get(finding, "do"));
        const char *sgr = *level == 'o' ? "\033[32m" : *level == 'w' ? "\033[33m" : "\033[31m";
        printf("%s%-4s%s  %-12s %s\n", color ? sgr : "", level, color ? "\033[m" : "",
               json_string_value(json_object_get(finding, "what")),
               json_string_value(json_object_get(finding, "found")));
        if (*todo)
            printf("      %-12s do: %s\n", "", todo);
    }
    printf("\n%u ok, %u warn, %u fail\n", d->counts[CTL_DOCTOR_OK], d->counts[CTL_DOCTOR_WARN],
           d->counts[CTL_DOCTOR_FAIL]);
}

// ---- a process and its machine ----------------------------------------------------------------------------

static void check_clock(struct ctl_doctor *d, const char *who, int64_t skew_ns, uint64_t rtt_ns,
                        const char *than)
{
    char text[32];
    uint64_t size = (uint64_t)(skew_ns < 0 ? -skew_ns : skew_ns);
    int64_t sure = (int64_t)size - (int64_t)rtt_ns;
    ctl_doctor_find(d,
                    sure > SKEW_FAIL_NS   ? CTL_DOCTOR_FAIL
                    : sure > SKEW_WARN_NS ? CTL_DOCTOR_WARN
                                          : CTL_DOCTOR_OK,
                    "clock", "run an NTP client (chrony, systemd-timesyncd) on all hosts",
                    "%s: its clock is %s %s %s", who, common_format_ns(size, text, sizeof text),
                    skew_ns < 0 ? "behind" : "ahead of", than);
}

static void check_version(struct ctl_doctor *d, const char *who, const char *version)
{
    bool same = strcmp(version, banyan_version()) == 0;
    ctl_doctor_find(d, same ? CTL_DOCTOR_OK : CTL_DOCTOR_WARN, "version", "install one version everywhere",
                    same ? "%s: %s" : "%s: %s, and this banyanctl is %s", who, version, banyan_version());
}

// Free of all, in bytes, with a least share in percent and a least amount.
static enum ctl_doctor_level room_level(uint64_t free_bytes, uint64_t all_bytes, uint64_t least)
{
    double share = all_bytes ? (double)free_bytes / (double)all_bytes : 1;
    return share < 0.02 || free_bytes < least / 16 ? CTL_DOCTOR_FAIL
           : share < 0.1 || free_bytes < least     ? CTL_DOCTOR_WARN
                                                   : CTL_DOCTOR_OK;
}

static void check_room(struct ctl_doctor *d, const char *who, const banyan_examined *e)
{
    char part[32], all[32];
    bool few = e->files_max < FILES_LEAST || e->files > e->files_max / 5 * 4;
    ctl_doctor_find(d, few ? CTL_DOCTOR_WARN : CTL_DOCTOR_OK, "files",
                    "raise the limit of open files (LimitNOFILE= of the unit, ulimit -Hn)",
                    "%s: %" PRIu64 " of %" PRIu64 " descriptors are open", who, e->files, e->files_max);
    if (e->memory_bytes)
        ctl_doctor_find(d, room_level(e->memory_available_bytes, e->memory_bytes, 0), "memory",
                        "end other processes there, or start its worker with less --memory",
                        "%s: %s of %s of its machine are available", who,
                        common_format_bytes(e->memory_available_bytes, part, sizeof part),
                        common_format_bytes(e->memory_bytes, all, sizeof all));
    if (e->disk_bytes)
        ctl_doctor_find(d, room_level(e->disk_free_bytes, e->disk_bytes, DISK_LEAST), "disk",
                        "make room on the disk of its store, or move the store",
                        "%s: %s of %s are free on the disk of its store", who,
                        common_format_bytes(e->disk_free_bytes, part, sizeof part),
                        common_format_bytes(e->disk_bytes, all, sizeof all));
}

static void check_certificate(struct ctl_doctor *d, const char *who, const char *whose, int64_t till_s,
                              const char *todo)
{
    int64_t left_s = till_s - (int64_t)(common_clock_wall_ns() / COMMON_NS_PER_S);
    if (!till_s)
        return; // it has none
    if (left_s <= 0)
        ctl_doctor_find(d, CTL_DOCTOR_FAIL, "certificate", todo, "%s: %s has expired", who, whose);
    else
        ctl_doctor_find(d, left_s < CERT_WARN_DAYS * DAY_S ? CTL_DOCTOR_WARN : CTL_DOCTOR_OK, "certificate",
                        todo, "%s: %s expires in %" PRId64 " days", who, whose, left_s / DAY_S);
}

void ctl_doctor_process(struct ctl_doctor *d, const char *who, const banyan_examined *e)
{
    check_version(d, who, e->version);
    if (!e->wall_ns && !e->serving && strncmp(who, "coordinator", 11) == 0)
        ctl_doctor_find(d, CTL_DOCTOR_OK, "machine", "",
                        "%s: no information about its machine: it accepts only the token of its --token-file",
                        who);
    if (!e->wall_ns)
        return; // or of an older build
    if (strncmp(who, "coordinator", 11) == 0)
        check_clock(d, who, e->skew_ns, e->rtt_ns, "this machine's");
    else
        check_clock(d, who, e->skew_ns - d->skew_ns, e->rtt_ns, "the coordinator's");
    check_room(d, who, e);
    check_certificate(d, who, "its certificate", e->tls_expires_s,
                      "replace it (banyanctl pki issue --replace), and send SIGHUP");
    check_certificate(d, who, "the CA of its certificate", e->tls_ca_expires_s,
                      "create a new CA, and trust both while certificates change (--tls-ca)");
}

// ---- coordinators -----------------------------------------------------------------------------------------

static void check_edges(struct ctl_doctor *d, const banyan_examined *e)
{
    for (uint32_t i = 0; i < e->n_edges_down; i++)
        ctl_doctor_find(d, CTL_DOCTOR_FAIL, "edge",
                        "let workers reach each other's --edge-listen ports: firewall, --advertise",
                        "%s cannot reach %s", e->edges_down[i].from, e->edges_down[i].to);
    if (!e->n_edges_down)
        ctl_doctor_find(d, CTL_DOCTOR_OK, "edges", "", "all workers reach each other");
}

// True: it serves.
static bool check_coordinator(struct ctl_doctor *d, const char *endpoint)
{
    banyan_options options = ctl_options(d->ctl);
    options.connect_timeout_ns = d->look_ns;
    banyan_examined seen;
    banyan_error error;
    char rtt[32], who[32];
    banyan_code code = banyan_examine(endpoint, &options, &seen, &error);
    if (code != BANYAN_OK) {
        bool refused = code == BANYAN_UNAUTHENTICATED || code == BANYAN_PERMISSION_DENIED;
        bool tls = strstr(error.message, "certificate") || strstr(error.message, "--tls-");
        bool token =
            !tls &&
            (refused || code == BANYAN_NOT_FOUND); // of all that this needs, only its file can be missing
        d->refused = d->refused || refused;
        ctl_doctor_find(d, CTL_DOCTOR_FAIL,
                        tls     ? "certificate"
                        : token ? "token"
                                : "coordinator",
                        tls     ? "give --tls-ca, and --tls-cert and --tls-key if they are required"
                        : token ? "give --token-file, BANYAN_TOKEN_FILE or a context with the client token"
                                : "start it or correct --endpoint; see its log",
                        "%s", error.message);
        return false;
    }
    ctl_doctor_find(d, CTL_DOCTOR_OK, "coordinator", "", "%s %s and answers in %s", endpoint,
                    seen.serving ? "serves" : "does not serve",
                    common_format_ns(seen.rtt_ns, rtt, sizeof rtt));
    snprintf(who, sizeof who, seen.serving ? "coordinator" : "coordinator not serving");
    if (seen.serving)
        d->skew_ns = seen.skew_ns;
    ctl_doctor_process(d, who, &seen);
    if (seen.serving)
        check_edges(d, &seen);
    banyan_examined_free(&seen);
    return seen.serving;
}

static bool check_coordinators(struct ctl_doctor *d)
{
    struct proto_endpoint_list list;
    bool serves = false;
    if (proto_endpoint_list_parse(d->ctl->endpoint, &list, NULL) != COMMON_OK)
        return false; // was checked
    for (uint32_t i = 0; i < list.n; i++)
        serves = check_coordinator(d, list.endpoints[i]) || serves;
    return serves;
}

static void check_token(struct ctl_doctor *d)
{
    struct proto_endpoint_list list;
    struct proto_endpoint endpoint;
    bool far = false;
    if (proto_endpoint_list_parse(d->ctl->endpoint, &list, NULL) == COMMON_OK)
        for (uint32_t i = 0; i < list.n; i++)
            far = far || (proto_endpoint_parse(list.endpoints[i], &endpoint, NULL) == COMMON_OK &&
                          !proto_endpoint_is_loopback(&endpoint));
    bool open = far && !d->ctl->token_file;
    ctl_doctor_find(
        d, open ? CTL_DOCTOR_WARN : CTL_DOCTOR_OK, "token",
        "start the coordinator with --token-file: anyone who can reach it can do all that banyanctl can",
        open                 ? "other hosts can reach the coordinator, and it accepts clients without a token"
        : d->ctl->token_file ? "accepted by the coordinator"
                             : "none is given; the coordinator is on this machine");
}

// ---- the command ------------------------------------------------------------------------------------------

static enum ctl_exit run_doctor(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    struct ctl_doctor d = {.ctl = ctl, .findings = json_array()};
    banyan_error error;
    d.look_ns = ctl->timeout_ns < 2 * COMMON_NS_PER_S ? ctl->timeout_ns : 2 * COMMON_NS_PER_S;
    bool serves = check_coordinators(&d);
    if (serves && ctl_connect(ctl, &error) != BANYAN_OK) {
        ctl_doctor_find(&d, CTL_DOCTOR_FAIL, "connection", "see its log", "%s", error.message);
        serves = false;
    }
    if (serves) {
        check_token(&d);
        ctl_doctor_cluster(&d);
    }
    if (ctl->json)
        ctl_print_json(json_pack("{s:i, s:i, s:i, s:O}", "ok", (int)d.counts[CTL_DOCTOR_OK], "warn",
                                 (int)d.counts[CTL_DOCTOR_WARN], "fail", (int)d.counts[CTL_DOCTOR_FAIL],
                                 "findings", d.findings));
    else
        print_findings(&d, ctl_want_color());
    json_decref(d.findings);
    if (!serves && d.refused)
        return ctl_say(CTL_PERMISSION, "no coordinator has answered this client");
    if (!serves)
        return ctl_say(CTL_UNAVAILABLE, "no coordinator is serving: workers and sessions were not checked");
    if (d.counts[CTL_DOCTOR_FAIL])
        return ctl_say(CTL_STATE, "%u check%s failed", d.counts[CTL_DOCTOR_FAIL],
                       d.counts[CTL_DOCTOR_FAIL] == 1 ? "" : "s");
    return CTL_OK;
}

const struct ctl_command ctl_doctor_commands[] = {
    {"doctor", "", "check all parts of the cluster",
     "Checks coordinators, workers and their machines from here: versions, clocks, connections, limits of "
     "memory and\n"
     "files, disk space, kernels, copies and hosts. Prints ok, warn or fail for each, and what to do. "
     "Changes nothing.\n"
     "Exit code 0: no check failed; 9: a check failed; 5: no coordinator is serving; 7: the token is wrong.",
     NULL, 0, 0, run_doctor, NULL},
    {0},
};
