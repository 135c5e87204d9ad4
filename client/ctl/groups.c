// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/groups.h"

#include <stdio.h>
#include <string.h>

// clang-format off
const struct ctl_command *const ctl_groups[] = {
    ctl_info_commands,
    ctl_version_commands,
    ctl_workers_commands,
    ctl_top_commands,
    ctl_doctor_commands,
    ctl_events_commands,
    ctl_trail_commands,
    ctl_bench_commands,
    ctl_sessions_commands,
    ctl_create_commands,
    ctl_session_commands,
    ctl_destroy_commands,
    ctl_snapshot_commands,
    ctl_worker_commands,
    ctl_join_commands,
    ctl_token_commands,
    ctl_probe_commands,
    ctl_scrub_commands,
    ctl_quarantine_commands,
    ctl_quota_commands,
    ctl_prefix_commands,
    ctl_backup_verify_commands, // before 'backup', whose FILE 'verify' would be
    ctl_backup_commands,
    ctl_config_commands,
    ctl_bundle_commands,
    ctl_watch_commands,
    ctl_tensor_commands,
    ctl_until_commands,
    ctl_context_commands,
    ctl_pki_commands,
    ctl_shell_commands,
    NULL};
// clang-format on

// What other programs call them.
static const struct {
    const char *first, *second, *name;
} aliases[] = {
    {"session", "list", "sessions"},         {"session", "ls", "sessions"},
    {"worker", "list", "workers"},           {"worker", "ls", "workers"},
    {"token", "ls", "token list"},           {"context", "ls", "context list"},
    {"quarantine", "ls", "quarantine list"}, {"tenant", "ls", "tenant list"},
};

int ctl_words(const struct ctl_command *command, const char *first)
{
    return strcmp(command->name, first) == 0 ? 1 : 2;
}

const struct ctl_command *ctl_find(const char *first, const char *second)
{
    char two[64];
    for (size_t i = 0; second && i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].first, first) == 0 && strcmp(aliases[i].second, second) == 0) {
            first = aliases[i].name;
            second = NULL;
        }
    snprintf(two, sizeof two, "%s %s", first, second ? second : "");
    for (size_t g = 0; ctl_groups[g]; g++)
        for (const struct ctl_command *c = ctl_groups[g]; c->name; c++)
            if (strcmp(c->name, first) == 0 || (second && strcmp(c->name, two) == 0))
                return c;
    return NULL;
}

bool ctl_is_group(const char *word)
{
    size_t len = strlen(word);
    for (size_t g = 0; ctl_groups[g]; g++)
        for (const struct ctl_command *c = ctl_groups[g]; c->name; c++)
            if (strncmp(c->name, word, len) == 0 && c->name[len] == ' ')
                return true;
    return false;
}
