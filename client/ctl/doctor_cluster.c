// SPDX-License-Identifier: Apache-2.0
// What doctor finds at workers, and in what the coordinator says of sessions and limits.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/doctor.h"

// ---- workers ----------------------------------------------------------------------------------------------

static bool is_active(const banyan_worker_info *w)
{
    return strcmp(w->state, "active") == 0;
}

static void check_state(struct ctl_doctor *d, const banyan_worker_info *w)
{
    if (!is_active(w))
        ctl_doctor_find(d, CTL_DOCTOR_FAIL, "worker",
                        "start it again and see its log; run 'banyanctl worker forget' if it will not return",
                        "%s%s%s is %s", w->name, w->host[0] ? " of host " : "", w->host, w->state);
    else if (w->slow)
        ctl_doctor_find(d, CTL_DOCTOR_WARN, "worker", "check what else runs on its host, and its temperature",
                        "%s is much slower than it measured at its start", w->name);
    else if (w->draining)
        ctl_doctor_find(d, CTL_DOCTOR_WARN, "worker", "'banyanctl worker resume' puts it back into use",
                        "%s is out of use: %s", w->name,
                        w->drain_reason[0] ? w->drain_reason : "it is draining");
    else if (w->cordoned)
        ctl_doctor_find(d, CTL_DOCTOR_WARN, "worker", "'banyanctl worker uncordon' gives it new chunks again",
                        "%s gets no new chunks%s%s", w->name, w->drain_reason[0] ? ": " : "",
                        w->drain_reason);
    else
        ctl_doctor_find(d, CTL_DOCTOR_OK, "worker", "", "%s is active: the coordinator can reach it",
                        w->name);
    if (w->quarantined_sessions)
        ctl_doctor_find(
            d, CTL_DOCTOR_WARN, "quarantine",
            "'banyanctl quarantine list': start the coordinator on the store that has them, or drop them",
            "%s holds %" PRIu64 " sessions that are not in the store", w->name, w->quarantined_sessions);
}

// Bulk data goes to workers directly.
static void check_reach(struct ctl_doctor *d, const banyan_worker_info *w, const char *pass)
{
    banyan_options options = ctl_options(d->ctl);
    options.connect_timeout_ns = d->look_ns;
    if (pass[0]) {
        options.token = pass;
        options.token_file = NULL;
    }
    banyan_examined seen;
    banyan_error error;
    char who[80];
    snprintf(who, sizeof who, "worker %s", w->name);
    banyan_code code = banyan_examine(w->endpoint, &options, &seen, &error);
    if (code == BANYAN_UNAUTHENTICATED &&
        pass[0]) { // of an older build: it accepts only its token file's token
        options.token = NULL;
        options.token_file = d->ctl->token_file;
        code = banyan_examine(w->endpoint, &options, &seen, &error);
    }
    if (code != BANYAN_OK) {
        ctl_doctor_find(
            d, CTL_DOCTOR_WARN, "reach",
            "let clients reach its --listen port (firewall, --advertise): attach and snapshots need it",
            "worker %s at %s cannot be reached from here", w->name, w->endpoint);
        return;
    }
    ctl_doctor_process(d, who, &seen);
    banyan_examined_free(&seen);
}

static void check_kernels(struct ctl_doctor *d, const banyan_cluster_info *info)
{
    const banyan_worker_info *first = NULL, *other = NULL, *slow = NULL;
    for (uint32_t i = 0; i < info->n_workers; i++) {
        const banyan_worker_info *w = &info->workers[i];
        if (!is_active(w))
            continue;
        first = first ? first : w;
        other = strcmp(first->kernel, w->kernel) != 0 ? w : other;
        if (strcmp(w->kernel, "portable") == 0 || strcmp(w->kernel, "reference") == 0)
            slow = w;
    }
    if (slow)
        ctl_doctor_find(d, CTL_DOCTOR_WARN, "kernel",
                        "unset BANYAN_KERNEL there, or use a processor with AVX2 or better",
                        "worker %s computes with the kernel %s, which is slow", slow->name, slow->kernel);
    if (other)
        ctl_doctor_find(
            d, CTL_DOCTOR_WARN, "kernel",
            "use the same processors everywhere if answers must keep their bits after chunks move",
            "workers have different kernels: %s %s, %s %s", first->name, first->kernel, other->name,
            other->kernel);
    if (first && !slow && !other)
        ctl_doctor_find(d, CTL_DOCTOR_OK, "kernel", "", "all workers compute with %s", first->kernel);
}

static void check_devices(struct ctl_doctor *d, const banyan_cluster_info *info)
{
    for (uint32_t i = 0; i < info->n_workers; i++) {
        const banyan_worker_info *w = &info->workers[i];
        if (is_active(w) && w->no_device[0])
            ctl_doctor_find(d, CTL_DOCTOR_WARN, "device",
                            "install a newer driver there, or a banyan-cuda.so built with the driver's CUDA; "
                            "use --device cpu if the processor is intended",
                            "worker %s computes on its processor: %s", w->name, w->no_device);
    }
}

static void check_hosts(struct ctl_doctor *d, const banyan_cluster_info *info)
{
    const banyan_worker_info *first = NULL;
    uint32_t active = 0;
    bool several = false;
    for (uint32_t i = 0; i < info->n_workers; i++) {
        const banyan_worker_info *w = &info->workers[i];
        if (!is_active(w))
            continue;
        first = first ? first : w;
        several = several || strcmp(first->host, w->host) != 0;
        active++;
    }
    if (!active)
        ctl_doctor_find(d, CTL_DOCTOR_FAIL, "workers", "start banyan-worker --coordinator ENDPOINT",
                        "no worker is active: nothing can be computed");
    else
        ctl_doctor_find(d, several ? CTL_DOCTOR_OK : CTL_DOCTOR_WARN, "hosts",
                        "start workers on a second host: copies then go to different hosts",
                        several
                            ? "workers are on different hosts"
                            : "all workers are on one host: if it fails, all copies of a session are lost");
}

// ---- sessions and limits ----------------------------------------------------------------------------------

static void check_sessions(struct ctl_doctor *d, const banyan_cluster_info *info)
{
    banyan_session_list list;
    banyan_error error;
    uint32_t degraded = 0, unavailable = 0;
    if (banyan_session_get_list(d->ctl->client, &list, &error) != BANYAN_OK) {
        ctl_doctor_find(d, CTL_DOCTOR_FAIL, "sessions", "try again", "%s", error.message);
        return;
    }
    for (uint32_t i = 0; i < list.n; i++) {
        degraded += strcmp(list.sessions[i].state, "degraded") == 0;
        unavailable += strcmp(list.sessions[i].state, "unavailable") == 0;
    }
    uint32_t n = list.n;
    banyan_session_list_free(&list);
    if (unavailable)
        ctl_doctor_find(d, CTL_DOCTOR_FAIL, "sessions",
                        "'banyanctl sessions' names them: restart the workers that hold their parts",
                        "%u of %u sessions are unavailable", unavailable, n);
    if (degraded || info->thin_chunks)
        ctl_doctor_find(
            d, CTL_DOCTOR_WARN, "copies",
            "'banyanctl wait whole' waits until they are copied; add workers or memory if it does not return",
            "%u of %u sessions are degraded, %" PRIu64 " chunks have too few copies", degraded, n,
            info->thin_chunks);
    if (!unavailable && !degraded && !info->thin_chunks)
        ctl_doctor_find(d, CTL_DOCTOR_OK, "sessions", "", "%u sessions, all copies present", n);
}

static void check_limits(struct ctl_doctor *d, const banyan_cluster_info *info)
{
    bool all_right = true;
    for (uint32_t i = 0; i < info->n_limits; i++) {
        const banyan_limit *l = &info->limits[i];
        char advice[160];
        bool near = l->max && (double)l->used > 0.9 * (double)l->max;
        if (!near && !l->refused)
            continue;
        all_right = false;
        snprintf(advice, sizeof advice, "raise %s, or see what uses it: 'banyanctl status'",
                 l->flag[0] ? l->flag : "the limit that it is a share of");
        ctl_doctor_find(d, CTL_DOCTOR_WARN, "limit", advice,
                        "%s%s%s: %.0f%% in use, reached %" PRIu64 " times", l->name,
                        l->worker[0] ? " of worker " : "", l->worker,
                        l->max ? 100.0 * (double)l->used / (double)l->max : 0.0, l->refused);
    }
    if (all_right)
        ctl_doctor_find(d, CTL_DOCTOR_OK, "limits", "",
                        "no limit is close or has been hit since the coordinator's start");
}

// A tenant's client: what it may see, and no verdict about what it may not.
static void check_restricted(struct ctl_doctor *d, const banyan_cluster_info *info)
{
    bool ready = strcmp(info->readiness, "ready") == 0;
    ctl_doctor_find(d, ready ? CTL_DOCTOR_OK : CTL_DOCTOR_FAIL, "cluster",
                    "ask an operator of the cluster, or wait: banyanctl wait ready",
                    ready ? "ready: the coordinator serves, and a worker is active" : "not ready: %s",
                    info->readiness);
    ctl_doctor_find(
        d, CTL_DOCTOR_OK, "access", "",
        "'%s' of the tenant %s: workers, limits and other tenants' sessions are not shown, and were "
        "not checked",
        info->access, info->tenant);
}

void ctl_doctor_cluster(struct ctl_doctor *d)
{
    banyan_cluster_info info;
    banyan_error error;
    if (banyan_cluster_get_info(d->ctl->client, &info, &error) != BANYAN_OK) {
        ctl_doctor_find(d, CTL_DOCTOR_FAIL, "cluster", "try again", "%s", error.message);
        return;
    }
    if (info.restricted) {
        check_restricted(d, &info);
        check_sessions(d, &info);
        banyan_cluster_info_free(&info);
        return;
    }
    for (uint32_t i = 0; i < info.n_workers; i++) {
        check_state(d, &info.workers[i]);
        if (is_active(&info.workers[i]))
            check_reach(d, &info.workers[i], info.pass);
    }
    check_hosts(d, &info);
    check_kernels(d, &info);
    check_devices(d, &info);
    check_sessions(d, &info);
    check_limits(d, &info);
    banyan_cluster_info_free(&info);
}
