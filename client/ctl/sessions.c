// SPDX-License-Identifier: Apache-2.0
// Command: sessions.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/again.h"

static struct {
    const char *sort;
    bool reverse;
    uint64_t limit;     // 0: all
    const char *tenant; // NULL: all
} given = {.sort = "id"};

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

// Names from a to z, ids as they are; numbers with the largest first. What is alike: by id.
static int compare_sessions(const void *a, const void *b)
{
    const banyan_session_info *x = a, *y = b;
    int order = 0;
    if (strcmp(given.sort, "name") == 0)
        order = strcmp(x->name, y->name);
    else if (strcmp(given.sort, "memory") == 0)
        order = compare_u64(y->bytes, x->bytes);
    else if (strcmp(given.sort, "tokens") == 0)
        order = compare_u64(y->length, x->length);
    else if (strcmp(given.sort, "steps") == 0)
        order = compare_u64(y->steps, x->steps);
    else if (strcmp(given.sort, "idle") == 0)
        order = compare_u64(y->idle_ns, x->idle_ns);
    if (order == 0)
        order = compare_u64(x->id, y->id);
    return given.reverse ? -order : order;
}

static enum ctl_exit show_list(struct ctl *ctl)
{
    banyan_session_list list;
    banyan_error error;
    if (banyan_session_get_list(ctl->client, &list, &error) != BANYAN_OK)
        return ctl_fail(&error);
    json_t *rows = json_array();
    uint32_t n = 0; // the first n are shown
    for (uint32_t i = 0; i < list.n; i++)
        if (!given.tenant || strcmp(list.sessions[i].tenant, given.tenant) == 0) {
            banyan_session_info one = list.sessions[n];
            list.sessions[n++] = list.sessions[i];
            list.sessions[i] = one;
        }
    uint64_t limit = given.limit && given.limit < n ? given.limit : n;
    if (n)
        qsort(list.sessions, n, sizeof *list.sessions, compare_sessions);
    bool tenants = false; // a column of one tenant is not needed
    for (uint32_t i = 0; i < n; i++)
        tenants = tenants || strcmp(list.sessions[i].tenant, list.sessions[0].tenant) != 0 ||
                  (*list.sessions[i].tenant && strcmp(list.sessions[i].tenant, "default") != 0);
    for (uint32_t i = 0; i < limit; i++)
        json_array_append_new(rows, ctl_session_json(&list.sessions[i]));
    banyan_session_list_free(&list);
    static const struct ctl_column columns[] = {
        {"id", "SESSION", CTL_TEXT},     {"name", "NAME", CTL_TEXT},    {"state", "STATE", CTL_TEXT},
        {"length", "TOKENS", CTL_COUNT}, {"bytes", "BYTES", CTL_BYTES}, {"chunks", "CHUNKS", CTL_COUNT},
        {"steps", "STEPS", CTL_COUNT},   {"idle_ns", "IDLE", CTL_TIME}, {0},
    };
    static const struct ctl_column owned[] = {
        {"id", "SESSION", CTL_TEXT},     {"name", "NAME", CTL_TEXT},
        {"tenant", "TENANT", CTL_TEXT},  {"state", "STATE", CTL_TEXT},
        {"length", "TOKENS", CTL_COUNT}, {"bytes", "BYTES", CTL_BYTES},
        {"chunks", "CHUNKS", CTL_COUNT}, {"steps", "STEPS", CTL_COUNT},
        {"idle_ns", "IDLE", CTL_TIME},   {0},
    };
    if (json_array_size(rows) == 0)
        fprintf(stderr, "no sessions\n");
    ctl_print_rows(ctl, rows, tenants ? owned : columns);
    return CTL_OK;
}

static enum ctl_exit run_list(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    return ctl_again(ctl, show_list);
}

static const struct common_option list_options[] = {
    {"sort", 's', COMMON_OPTION_STRING, &given.sort, "id|name|memory|tokens|steps|idle",
     "Sort key; memory, tokens, steps and idle time sort the largest first. Default: id.", 0, 0},
    {"reverse", 'r', COMMON_OPTION_FLAG, &given.reverse, NULL, "Reverse the order.", 0, 0},
    {"tenant", 0, COMMON_OPTION_STRING, &given.tenant, "TENANT",
     "Only this tenant's. Default: all that the token shows.", 0, 0},
    {"limit", 'n', COMMON_OPTION_U64, &given.limit, "N", "Only the first N. Default: all.", 1, UINT32_MAX},
    CTL_AGAIN_OPTION,
    {0},
};

const struct ctl_command ctl_sessions_commands[] = {
    {"sessions", "", "list sessions", "Lists sessions; 'session list' and 'session ls' do the same.",
     list_options, 0, 0, run_list, NULL},
    {0},
};
