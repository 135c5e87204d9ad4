// SPDX-License-Identifier: Apache-2.0
// A coordinator starts on a store that was made of a backup, then on the old one again, then on the first
// one:
//
//   backup ──▶ a third session is made, the second is cut ──▶ stop ──▶ restore, start, accept
//     the first session is read; the third and the second are quarantine
//   ──▶ stop, the old store, start:       all of them are read
//   ──▶ stop, the restored store, start:  quarantine drop at each worker; the first session is read
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/e2e/support.h"
#include "tests/failpoints/act.h"

enum { KILLED = 137, CANNOT_START = 3, STATE = 9 };

static bool said(struct act *act, const char *what, int code)
{
    return act_wrong(act, "%s: exit code %d", what, code);
}

static void shell(const struct act *act, const char *command)
{
    char line[1200];
    snprintf(line, sizeof(line), "cd %s && %s", harness_cluster_dir(act->cluster), command);
    assert_int_equal(system(line), 0);
}

// ---- the backup -------------------------------------------------------------------------------------------

// A file of a banyanctl that was killed: all of the backup, or refused.
static bool leftover_is_harmless(struct act *act, const char *path)
{
    const char *store = act_path(act, "probe.db");
    int code = act_restore_store(act, path, store);
    bool made = act_is_there(store);
    if (code != 0 && code != CANNOT_START)
        return said(act, "a restore of what is left of a backup", code);
    if (made != (code == 0))
        return act_wrong(act, "exit code %d, and a store is %sthere", code, made ? "" : "not ");
    shell(act, "rm -f probe.db*");
    remove(path);
    return true;
}

static bool take_backup(struct act *act, const char *file)
{
    for (uint64_t until = act_until(); !act_out_of_time(until);) {
        int code = act_ctl(act, "backup %s", file);
        const char *left;
        while (act_count(act, "backup.", &left) > 0) {
            if (code != KILLED)
                return act_wrong(act, "exit code %d, and %s is left", code, left);
            if (!leftover_is_harmless(act, left))
                return false;
        }
        if (code == 0 && act_is_there(act_path(act, "store.db-backup")))
            return act_wrong(act, "a copy of the store is left beside it");
        if (code == 0 || (code == KILLED && act_is_there(file)))
            return true;
        if (act_is_there(file))
            return act_wrong(act, "exit code %d, and the backup is there", code);
        if (!act_again(act, code))
            return said(act, "backup", code);
    }
    return act_wrong(act, "no backup can be taken");
}

static bool make_store(struct act *act, const char *file)
{
    const char *store = act_path(act, "store.db");
    for (uint64_t until = act_until(); !act_out_of_time(until);) {
        int code = act_restore_store(act, file, store);
        if (code == 0 || (code == KILLED && act_is_there(store)))
            return true;
        if (act_is_there(store))
            return act_wrong(act, "exit code %d, and a store is there", code);
        if (code == CANNOT_START && act_is_there(act_path(act, "store.db-restoring")))
            return act_wrong(act, "no store was made, and a part of one is left");
        if (code != KILLED && !(code == CANNOT_START && act->was_hit()))
            return said(act, "a restore of the backup", code);
    }
    return act_wrong(act, "no store can be made of the backup");
}

// ---- two stores -------------------------------------------------------------------------------------------

// The coordinator is stopped, its store goes to one folder, and another one comes from a second, if there is
// one.
static void swap_stores(struct act *act, const char *to, const char *from)
{
    char command[256];
    act->coordinator_off = true;
    if (harness_cluster_pid(act->cluster, HARNESS_COORDINATOR))
        harness_cluster_signal(act->cluster, HARNESS_COORDINATOR, SIGTERM);
    snprintf(command, sizeof(command), "mkdir -p %s && mv store.db* %s/ && %s%s%s", to, to,
             from ? "mv " : "true", from ? from : "", from ? "/* ." : "");
    shell(act, command);
}

static bool start(struct act *act)
{
    act->coordinator_off = false;
    return (act->mend() || act_wrong(act, "the coordinator does not start")) && act_wait_workers(act);
}

static bool accept(struct act *act)
{
    for (uint64_t until = act_until(); !act_out_of_time(until);) {
        int code = act_ctl(act, "accept");
        if (code == 0 || (code == STATE && act_ctl(act, "wait workers 3 --timeout 1s") == 0 &&
                          act_ctl(act, "accept") == STATE))
            return true; // it was stored, and the answer did not come
        if (!act_again(act, code) && code != STATE)
            return said(act, "accept", code);
    }
    return act_wrong(act, "the restored store is not accepted");
}

// Whether some worker says that it has a later state of this session than the store, or one the store does
// not know.
static bool is_withheld(struct act *act, int session)
{
    banyan_quarantine_list list;
    bool any = false;
    if (banyan_quarantine_get_list(script_client(act->script), "", &list, ERR) != BANYAN_OK)
        return false;
    for (uint32_t i = 0; i < list.n; i++)
        any = any || list.sessions[i].session == banyan_session_id(script_session(act->script, session));
    banyan_quarantine_list_free(&list);
    return any;
}

// A worker that was killed, stood still or was slow has lost its copies, or serves less: the session went on
// in one store, so that for the other one its state is newer. Only then may it be withheld.
static bool has_gone_on(struct act *act)
{
    static const char *const changes[] = {"copies on lost workers removed", "chunk copies added",
                                          "moved copies removed from source",
                                          "serving holders re-weighted by speed"};
    char *log = harness_cluster_log(act->cluster, HARNESS_COORDINATOR);
    bool changed = false;
    for (size_t i = 0; log && i < sizeof changes / sizeof *changes; i++)
        changed = changed || strstr(log, changes[i]);
    free(log);
    return changed;
}

static bool reads(struct act *act, int session)
{
    if (is_withheld(act, session))
        return has_gone_on(act) || act_wrong(act, "session '%s' is withheld", script_name(session));
    return script_check_one(act->script, session) || act_wrong(act, "%s", script_wrong(act->script));
}

static bool is_not_served(struct act *act, int session)
{
    struct step step = {.session = script_session(act->script, session),
                        .rows = 1,
                        .timeout_ns = COMMON_NS_PER_S};
    banyan_code code = step_run(script_client(act->script), &step);
    step_free(&step);
    return code != BANYAN_OK ||
           act_wrong(act, "session '%s' is served by a store that does not know its state",
                     script_name(session));
}

// ---- giving up --------------------------------------------------------------------------------------------

static bool drop_quarantine(struct act *act)
{
    static const char *const workers[] = {"w0", "w1", "w2"};
    for (int i = 0; i < 3; i++) {
        int code = -1;
        for (uint64_t until = act_until(); code != 0 && !act_out_of_time(until);) {
            code = act_ctl(act, "quarantine drop %s --yes", workers[i]);
            if (code != 0 && !act_again(act, code))
                return said(act, "quarantine drop", code);
        }
        if (code != 0)
            return act_wrong(act, "%s does not drop its quarantine", workers[i]);
    }
    banyan_quarantine_list list;
    if (banyan_quarantine_get_list(script_client(act->script), "", &list, ERR) != BANYAN_OK)
        return act_wrong(act, "what is in quarantine cannot be asked for: %s", ERR->message);
    uint32_t left = list.n;
    banyan_quarantine_list_free(&list);
    return left == 0 || act_wrong(act, "%u sessions are still in quarantine", left);
}

bool act_swap(struct act *act)
{
    const char *file = act_path(act, "backup");
    act->arm();
    if (!take_backup(act, file))
        return false;
    if (!script_do_more(act->script))
        return act_wrong(act, "%s", script_wrong(act->script));
    swap_stores(act, "old", NULL);
    if (!make_store(act, file) || !start(act) || !is_not_served(act, SCRIPT_FIRST) || !accept(act) ||
        !reads(act, SCRIPT_FIRST) || !is_not_served(act, SCRIPT_SECOND) || !is_not_served(act, SCRIPT_LATER))
        return false;
    swap_stores(act, "restored", "old");
    if (!start(act) || !reads(act, SCRIPT_FIRST) || !reads(act, SCRIPT_SECOND) || !reads(act, SCRIPT_LATER))
        return false;
    swap_stores(act, "old", "restored");
    if (!start(act))
        return false;
    if (is_withheld(act, SCRIPT_FIRST)) // an operator gives up what only the old store has
        *act->lost += (int)act->replicas;
    if (!drop_quarantine(act) || !reads(act, SCRIPT_FIRST) || !script_delete(act->script, SCRIPT_SECOND))
        return act_wrong(act, "%s", script_wrong(act->script));
    script_forget(act->script, SCRIPT_LATER);
    return true;
}
