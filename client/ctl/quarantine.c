// SPDX-License-Identifier: Apache-2.0
// What workers keep and the store does not know: quarantine list, quarantine drop.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/careful.h"

static enum ctl_exit run_list(struct ctl *ctl, int n_args, char **args)
{
    banyan_quarantine_list list;
    banyan_error error;
    if (banyan_quarantine_get_list(ctl->client, n_args > 0 ? args[0] : NULL, &list, &error) != BANYAN_OK)
        return ctl_fail(&error);
    json_t *rows = json_array();
    for (uint32_t i = 0; i < list.n; i++) {
        const banyan_quarantined *q = &list.sessions[i];
        json_array_append_new(rows, json_pack("{s:s, s:o, s:o, s:s, s:o}", "worker", q->worker, "session",
                                              ctl_json_id(q->session), "bytes", ctl_json_u64(q->bytes), "why",
                                              q->newer ? "newer than the store" : "not in the store", "life",
                                              ctl_json_id(q->life)));
    }
    static const struct ctl_column columns[] = {
        {"worker", "WORKER", CTL_TEXT}, {"session", "SESSION", CTL_TEXT}, {"bytes", "MEMORY", CTL_BYTES},
        {"why", "WHY", CTL_TEXT},       {"life", "LIFE", CTL_TEXT},       {0},
    };
    if (list.n == 0)
        fprintf(stderr, "nothing is in quarantine\n");
    banyan_quarantine_list_free(&list);
    ctl_print_rows(ctl, rows, columns);
    return CTL_OK;
}

static struct {
    struct ctl_careful careful;
    uint64_t session; // 0: all
} drop;

// Scripts have to say --yes here: nothing else holds this data, and the store that has the session will miss
// it.
static const struct common_option drop_options[] = {
    CTL_CAREFUL_OPTIONS(drop.careful),
    {0},
};

static enum ctl_exit check_drop(int n_args, char **args)
{
    drop.session = 0;
    if (n_args > 1) {
        char *end;
        drop.session = strtoull(args[1], &end, 0);
        if (!drop.session || *end)
            return ctl_say(CTL_USAGE,
                           "'%.40s' is not a session's id: take it from 'banyanctl quarantine list'",
                           args[1]);
    }
    if (!drop.careful.yes && !ctl_careful_speaks(&drop.careful))
        return ctl_say(CTL_USAGE, "this cannot be undone: give --yes to drop %s",
                       n_args > 1 ? "it" : "all of it");
    return CTL_OK;
}

static bool drop_may(struct ctl *ctl, const char *worker, enum ctl_exit *exit_code)
{
    banyan_quarantine_list list;
    banyan_error error;
    uint64_t sessions = 0, bytes = 0;
    char words[256], size[32];
    if (banyan_quarantine_get_list(ctl->client, worker, &list, &error) != BANYAN_OK) {
        *exit_code = ctl_fail(&error);
        return false;
    }
    for (uint32_t i = 0; i < list.n; i++)
        if (!drop.session || list.sessions[i].session == drop.session) {
            sessions++;
            bytes += list.sessions[i].bytes;
        }
    banyan_quarantine_list_free(&list);
    if (drop.session && !sessions) {
        *exit_code =
            ctl_say(CTL_NOT_FOUND,
                    "%s has no such session in quarantine: 'banyanctl quarantine list' lists them", worker);
        return false;
    }
    snprintf(words, sizeof words, "drop %" PRIu64 " sessions, %s, that %s holds in quarantine", sessions,
             common_format_bytes(bytes, size, sizeof size), worker);
    return ctl_careful_may(ctl, &drop.careful, words,
                           json_pack("{s:s, s:s, s:o, s:o}", "action", "quarantine drop", "worker", worker,
                                     "sessions", ctl_json_u64(sessions), "bytes", ctl_json_u64(bytes)),
                           exit_code);
}

static enum ctl_exit run_drop(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    uint64_t sessions, bytes;
    banyan_error error;
    enum ctl_exit exit_code;
    if (ctl_careful_speaks(&drop.careful) && !drop_may(ctl, args[0], &exit_code))
        return exit_code;
    if (banyan_quarantine_drop(ctl->client, args[0], drop.session, &sessions, &bytes, &error) != BANYAN_OK)
        return ctl_fail(&error);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:o, s:o}", "worker", args[0], "sessions", ctl_json_u64(sessions),
                                 "bytes", ctl_json_u64(bytes)));
    else
        printf("dropped %" PRIu64 " sessions with %" PRIu64 " bytes\n", sessions, bytes);
    return CTL_OK;
}

const struct ctl_command ctl_quarantine_commands[] = {
    {"quarantine list", "[WORKER]", "list sessions that workers hold and the store lacks",
     "Lists sessions that workers hold for another store, or for a later state of this one. They are neither "
     "served nor\n"
     "dropped. They return by themselves when the coordinator is started on the store that has them.",
     NULL, 0, 1, run_list, NULL},
    {"quarantine drop", "WORKER [SESSION]", "drop sessions that a worker holds in quarantine",
     "Drops one session, or all, that a worker holds in quarantine, and frees the memory. This cannot be "
     "undone.\n"
     "If it cannot ask, because there is no terminal, it needs --yes.",
     drop_options, 1, 2, run_drop, check_drop},
    {0},
};
