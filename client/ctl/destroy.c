// SPDX-License-Identifier: Apache-2.0
// Commands that take something away from a session: session truncate, session delete.
#include <inttypes.h>
#include <stdio.h>

#include "client/ctl/careful.h"

#define WORDS 1024

static struct ctl_careful careful;
static uint64_t keep; // LENGTH of truncate, from check_truncate

// "chat-17 (0x0123456789abcdef)", or the id alone.
static const char *name_of(const banyan_session_info *info, char out[192])
{
    snprintf(out, 192, info->name[0] ? "%s (0x%016" PRIx64 ")" : "%.0s0x%016" PRIx64, info->name, info->id);
    return out;
}

static uint64_t longest(const banyan_session_info *info)
{
    uint64_t length = 0;
    for (uint32_t i = 0; i < info->n_layers; i++)
        length = info->layer_lengths[i] > length ? info->layer_lengths[i] : length;
    return length;
}

static json_t *members_of(const banyan_session_info *info)
{
    json_t *members = json_array();
    for (uint32_t i = 0; i < info->n_members; i++)
        json_array_append_new(members, json_string(info->members[i]));
    return members;
}

// ---- session truncate -------------------------------------------------------------------------------------

// What the coordinator would refuse, a dry run reports with the same exit code.
static enum ctl_exit truncate_refused(const banyan_session_info *info)
{
    if (keep > longest(info))
        return ctl_say(CTL_REFUSED,
                       "a truncate to %" PRIu64 " is past the end: the longest layer has %" PRIu64 " tokens",
                       keep, longest(info));
    if (keep && keep < info->forgotten)
        return ctl_say(CTL_STATE,
                       "a truncate to %" PRIu64 " goes further back than %" PRIu64
                       ", and what a row there sees is forgotten; a truncate to 0 is possible",
                       keep, info->forgotten);
    return CTL_OK;
}

static bool truncate_may(struct ctl *ctl, banyan_session *session, enum ctl_exit *exit_code)
{
    banyan_session_info info;
    banyan_error error;
    char words[WORDS], name[192];
    if (banyan_session_get_info(session, &info, &error) != BANYAN_OK) {
        *exit_code = ctl_fail(&error);
        return false;
    }
    uint64_t length = longest(&info), lost = length > keep ? length - keep : 0;
    *exit_code = truncate_refused(&info);
    bool may = false;
    if (*exit_code == CTL_OK) {
        int n =
            snprintf(words, sizeof words, "keep the first %" PRIu64 " of %" PRIu64 " tokens of session %s",
                     keep, length, name_of(&info, name));
        snprintf(words + n, sizeof words - (size_t)n, lost ? ", and destroy the %" PRIu64 " after them" : "",
                 lost);
        may =
            ctl_careful_may(ctl, &careful, words,
                            json_pack("{s:s, s:o, s:s, s:o, s:o, s:o}", "action", "session truncate", "id",
                                      ctl_json_id(info.id), "name", info.name, "length", ctl_json_u64(length),
                                      "keep", ctl_json_u64(keep), "destroy", ctl_json_u64(lost)),
                            exit_code);
    }
    banyan_session_info_free(&info);
    return may;
}

static enum ctl_exit run_truncate(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    banyan_error error;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    if (ctl_careful_speaks(&careful) && !truncate_may(ctl, session, &exit_code)) {
        banyan_session_close(session);
        return exit_code;
    }
    if (banyan_session_truncate(session, keep, &error) == BANYAN_OK)
        return ctl_session_show(ctl, session);
    banyan_session_close(session);
    return ctl_fail(&error);
}

// ---- session delete ---------------------------------------------------------------------------------------

static bool delete_may(struct ctl *ctl, banyan_session *session, enum ctl_exit *exit_code)
{
    banyan_session_info info;
    banyan_error error;
    char words[WORDS], name[192], bytes[32];
    if (banyan_session_get_info(session, &info, &error) != BANYAN_OK) {
        *exit_code = ctl_fail(&error);
        return false;
    }
    int n = snprintf(words, sizeof words,
                     "delete session %s with %" PRIu64 " tokens: %" PRIu64 " chunks, %s, at %u workers",
                     name_of(&info, name), longest(&info), info.chunks,
                     common_format_bytes(info.bytes, bytes, sizeof bytes), info.n_members);
    for (uint32_t i = 0; i < info.n_members && i < 8; i++)
        n += snprintf(words + n, sizeof words - (size_t)n, "%s%s", i ? ", " : " (", info.members[i]);
    if (info.n_members)
        snprintf(words + n, sizeof words - (size_t)n, info.n_members > 8 ? ", …)" : ")");
    bool may = ctl_careful_may(ctl, &careful, words,
                               json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:o}", "action", "session delete",
                                         "id", ctl_json_id(info.id), "name", info.name, "length",
                                         ctl_json_u64(longest(&info)), "chunks", ctl_json_u64(info.chunks),
                                         "bytes", ctl_json_u64(info.bytes), "members", members_of(&info)),
                               exit_code);
    banyan_session_info_free(&info);
    return may;
}

static enum ctl_exit run_delete(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    banyan_error error;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    uint64_t id = banyan_session_id(session);
    bool may = !ctl_careful_speaks(&careful) || delete_may(ctl, session, &exit_code);
    banyan_code code = may ? banyan_session_delete(session, &error) : BANYAN_OK;
    banyan_session_close(session);
    if (!may)
        return exit_code;
    if (code != BANYAN_OK)
        return ctl_fail(&error);
    if (ctl->json)
        ctl_print_json(json_pack("{s:o}", "deleted", ctl_json_id(id)));
    else
        printf("deleted 0x%016" PRIx64 "\n", id);
    return CTL_OK;
}

// ---- the table --------------------------------------------------------------------------------------------

static enum ctl_exit check_truncate(int n_args, char **args)
{
    (void)n_args;
    return ctl_length_parse(args[1], &keep);
}

static const struct common_option careful_options[] = {
    CTL_CAREFUL_OPTIONS(careful),
    {0},
};

const struct ctl_command ctl_destroy_commands[] = {
    {"session truncate", "SESSION LENGTH", "keep the first LENGTH tokens",
     "Keeps the first LENGTH tokens of a session and destroys those after them, including rows that are "
     "attached but not\n"
     "committed. --dry-run shows how many.",
     careful_options, 2, 2, run_truncate, check_truncate},
    {"session delete", "SESSION", "delete a session and its data",
     "Deletes a session and all copies of its data. --dry-run shows what that is.", careful_options, 1, 1,
     run_delete, NULL},
    {0},
};
