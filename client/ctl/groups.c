// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/groups.h"

#include <stdio.h>
#include <string.h>

// clang-format off
const struct ctl_command *const ctl_groups[] = {
    ctl_info_commands,
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
    ctl_backup_commands,
    ctl_watch_commands,
    ctl_tensor_commands,
    ctl_until_commands,
    ctl_context_commands,
    ctl_pki_commands,
    ctl_shell_commands,
    NULL};
// clang-format on

const struct ctl_command *ctl_find(const char *first, const char *second)
{
    char two[64];
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
