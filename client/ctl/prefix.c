// SPDX-License-Identifier: Apache-2.0
// Sessions that have ended and stay as cache: prefix list, prefix drop.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/careful.h"

static enum ctl_exit run_list(struct ctl *ctl, int n_args, char **args)
{
    banyan_prefix_list list;
    banyan_error error;
    char id[24], size[32], limit[32];
    (void)n_args;
    (void)args;
    if (banyan_prefix_get_list(ctl->client, &list, &error) != BANYAN_OK)
        return ctl_fail(&error);
    json_t *rows = json_array();
    for (uint32_t i = 0; i < list.n; i++) {
        const banyan_prefix_info *p = &list.prefixes[i];
        snprintf(id, sizeof id, "%016" PRIx64, p->hash);
        json_t *row =
            json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:b}", "session", ctl_json_id(p->session), "hash",
                      id, "length", ctl_json_u64(p->length), "bytes", ctl_json_u64(p->bytes), "hits",
                      ctl_json_u64(p->hits), "idle_ns", ctl_json_u64(p->idle_ns), "ttl_ns",
                      ctl_json_u64(p->ttl_ns), "pinned", p->pinned);
        if (!ctl->json)
            json_object_set_new(row, "life", json_string(p->pinned ? "pinned" : ""));
        if (*p->tenant)
            json_object_set_new(row, "tenant", json_string(p->tenant));
        json_array_append_new(rows, row);
    }
    static const struct ctl_column columns[] = {
        {"session", "SESSION", CTL_TEXT}, {"hash", "TEXT", CTL_TEXT},
        {"length", "TOKENS", CTL_COUNT},  {"bytes", "MEMORY", CTL_BYTES},
        {"hits", "HITS", CTL_COUNT},      {"idle_ns", "IDLE", CTL_TIME},
        {"ttl_ns", "TTL", CTL_TIME},      {"life", "LIFE", CTL_TEXT},
        {"tenant", "TENANT", CTL_TEXT},   {0},
    };
    if (list.n == 0)
        fprintf(stderr, "nothing is kept\n");
    ctl_print_rows(ctl, rows, columns);
    if (!ctl->json && list.n && list.limit_bytes)
        printf("%" PRIu64 " sessions with %s of at most %s\n", list.kept,
               common_format_bytes(list.bytes, size, sizeof size),
               common_format_bytes(list.limit_bytes, limit, sizeof limit));
    banyan_prefix_list_free(&list);
    return CTL_OK;
}

static struct {
    struct ctl_careful careful;
    bool all;
    uint64_t session; // 0: all
} drop;

static const struct common_option drop_options[] = {
    {"all", 0, COMMON_OPTION_FLAG, &drop.all, NULL, "Drop all of the token's tenant, pinned ones included.",
     0, 0},
    CTL_CAREFUL_OPTIONS(drop.careful),
    {0},
};

static enum ctl_exit check_drop(int n_args, char **args)
{
    drop.session = 0;
    if (drop.all == (n_args > 0))
        return ctl_say(CTL_USAGE, "give a session's id or --all");
    if (n_args > 0) {
        char *end;
        drop.session = strtoull(args[0], &end, 0);
        if (!drop.session || *end)
            return ctl_say(CTL_USAGE, "'%.40s' is not a session's id: take it from 'banyanctl prefix list'",
                           args[0]);
    }
    return CTL_OK;
}

static bool drop_may(struct ctl *ctl, enum ctl_exit *exit_code)
{
    char words[128];
    if (drop.session)
        snprintf(words, sizeof words, "drop the kept session 0x%016" PRIx64, drop.session);
    else
        snprintf(words, sizeof words, "drop all kept sessions of the tenant");
    return ctl_careful_may(ctl, &drop.careful, words,
                           json_pack("{s:s, s:o}", "action", "prefix drop", "session",
                                     drop.session ? ctl_json_id(drop.session) : json_null()),
                           exit_code);
}

static enum ctl_exit run_drop(struct ctl *ctl, int n_args, char **args)
{
    uint64_t sessions, bytes;
    banyan_error error;
    enum ctl_exit exit_code;
    char size[32];
    (void)n_args;
    (void)args;
    if (ctl_careful_speaks(&drop.careful) && !drop_may(ctl, &exit_code))
        return exit_code;
    if (banyan_prefix_drop(ctl->client, drop.session, &sessions, &bytes, &error) != BANYAN_OK)
        return ctl_fail(&error);
    if (ctl->json)
        ctl_print_json(
            json_pack("{s:o, s:o}", "sessions", ctl_json_u64(sessions), "bytes", ctl_json_u64(bytes)));
    else
        printf("dropped %" PRIu64 " sessions with %s\n", sessions,
               common_format_bytes(bytes, size, sizeof size));
    return CTL_OK;
}

const struct ctl_command ctl_prefix_commands[] = {
    {"prefix list", "", "list ended sessions that are kept as cache",
     "Lists sessions that have ended and stay as cache, to be found by their tokens: how many tokens,\n"
     "how much memory they count in their tenant's quota, and how many sessions were created from them.\n"
     "TEXT is the start of the last hash. Operators and admins see all tenants, others their own.",
     NULL, 0, 0, run_list, NULL},
    {"prefix drop", "[SESSION]", "delete a kept session, or all of them",
     "Deletes a kept session, or all of the token's tenant (--all). Sessions that were created from them\n"
     "keep what they have; the next session with such a text is computed from its start.",
     drop_options, 0, 1, run_drop, check_drop},
    {0},
};
