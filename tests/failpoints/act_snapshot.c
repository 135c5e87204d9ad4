// SPDX-License-Identifier: Apache-2.0
// A session is written to a folder, and made again from it. Where either is killed, fails or is interrupted:
// the folder is whole or not there, what else is left is refused or as good as whole, and the next try
// succeeds.
#include <stdio.h>
#include <string.h>

#include "tests/e2e/support.h"
#include "tests/failpoints/act.h"

enum { KILLED = 137, EXISTS = 9, LOSS = 10 };

static const char *const session = "first"; // of the script: SCRIPT_FIRST

static bool said(struct act *act, const char *what, int code)
{
    return act_wrong(act, "%s: exit code %d", what, code);
}

// Rows went with the workers that were killed: the script has them.
static bool loss_passes(struct act *act, int code)
{
    return code == LOSS && !script_covered(act->script) && script_refill(act->script, SCRIPT_FIRST);
}

// A folder under another name, that was not renamed: a restore from it gets no rows, or all.
static bool leftover_is_harmless(struct act *act, const char *path)
{
    int code = act_ctl(act, "session restore --name probe %s", path);
    if (code == 0 && !script_same(act->script, SCRIPT_FIRST, "probe"))
        return act_wrong(act, "%s is taken for a snapshot: %s", path, script_wrong(act->script));
    if (!script_drop(act->script, "probe"))
        return act_wrong(act, "%s", script_wrong(act->script));
    support_remove_folder(path);
    return true;
}

static bool look_at_leftovers(struct act *act, int code)
{
    const char *path;
    while (act_count(act, "snap.", &path) > 0) {
        if (code != KILLED)
            return act_wrong(act, "exit code %d, and %s is left", code, path);
        if (!leftover_is_harmless(act, path))
            return false;
    }
    return true;
}

// A banyanctl that was killed leaves the fork that held the rows: it goes by itself after five minutes.
static bool drop_pins(struct act *act)
{
    banyan_session_list list;
    bool ok = banyan_session_get_list(script_client(act->script), &list, ERR) == BANYAN_OK;
    for (uint32_t i = 0; ok && i < list.n; i++)
        if (strncmp(list.sessions[i].name, "snapshot-of-", 12) == 0)
            ok = act->was_hit() && script_drop(act->script, list.sessions[i].name);
    if (ok)
        banyan_session_list_free(&list);
    return ok || act_wrong(act, "a fork of a snapshot is left, or cannot be deleted");
}

static bool take(struct act *act, const char *path)
{
    for (uint64_t until = act_until(); !act_out_of_time(until);) {
        int code = act_ctl(act, "session snapshot --file-size 4K %s %s", session, path);
        if (!look_at_leftovers(act, code))
            return false;
        if (code == 0 || (code == KILLED && act_is_there(path)))
            return true;
        if (act_is_there(path) && code != 5 && code != 6)
            return act_wrong(act, "exit code %d, and %s is there", code, path);
        if (!act_again(act, code) && !loss_passes(act, code))
            return said(act, "session snapshot", code);
    }
    return act_wrong(act, "no snapshot can be taken");
}

// What a restore that came to nothing has left: no session, or one that has no token, or all.
static bool look_at_restored(struct act *act, int code)
{
    banyan_session *left = NULL;
    banyan_session_info info = {0};
    if (banyan_session_open(script_client(act->script), 0, "restored", &left, ERR) != BANYAN_OK)
        return true;
    bool ok = banyan_session_get_info(left, &info, ERR) != BANYAN_OK || info.length == 0 ||
              info.length == script_tokens(act->script, SCRIPT_FIRST);
    banyan_session_close(left);
    if (!ok)
        act_wrong(act, "exit code %d of a restore, and %d tokens can be attended", code, (int)info.length);
    banyan_session_info_free(&info);
    return ok && (script_drop(act->script, "restored") || act_wrong(act, "%s", script_wrong(act->script)));
}

static bool restore(struct act *act, const char *path)
{
    for (uint64_t until = act_until(); !act_out_of_time(until);) {
        int code = act_ctl(act, "session restore --name restored %s", path);
        if (code == 0)
            return script_same(act->script, SCRIPT_FIRST, "restored") ||
                   act_wrong(act, "%s", script_wrong(act->script));
        bool lost = (code == LOSS || code == EXISTS) && !script_covered(act->script);
        if (!act_again(act, code) && !lost)
            return said(act, "session restore", code);
        if (!look_at_restored(act, code))
            return false;
    }
    return act_wrong(act, "the snapshot cannot be restored");
}

bool act_snapshot(struct act *act)
{
    const char *path = act_path(act, "snap");
    act->arm();
    if (!take(act, path))
        return false;
    int code = act_ctl(act, "session snapshot %s %s", session, path);
    if (code != EXISTS)
        return said(act, "a second snapshot into the same folder", code);
    return restore(act, path) && script_drop(act->script, "restored") && drop_pins(act);
}
