// SPDX-License-Identifier: Apache-2.0
// What must hold whenever a call of chaos_test ends.
#include "tests/sim/chaos.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool allowed(const struct op *op)
{
    enum common_code code = op->call->code;
    return code == COMMON_OK || (code == COMMON_ALREADY_EXISTS && op->name) || chaos_passes(code) ||
           code == COMMON_FAILED_PRECONDITION || code == COMMON_OUT_OF_RANGE || code == COMMON_DATA_LOSS ||
           code == COMMON_NOT_FOUND;
}

// Refused for want of what was given back: only where it may have been.
static bool forgotten(const struct op *op, bool may_be)
{
    // Of an append that was sent before, and is refused at its next attempt, the reason is another one.
    bool again = op->kind == APPEND && !strcmp(op->call->reason, "UNCONFIRMED") &&
                 strstr(op->call->text, "are forgotten");
    bool is =
        op->call->code == COMMON_FAILED_PRECONDITION && (again || !strcmp(op->call->reason, "FORGOTTEN"));
    if (is && !may_be)
        chaos_violated(op, "what nobody has forgotten is refused as forgotten");
    return is;
}

// Nothing was ever acknowledged of what is reported as lost, except what has been forgotten since: a chunk
// was placed at a worker that was killed before it received that, and a restarted coordinator cannot tell
// that it had no rows (docs/operating/store.md).
static bool nothing_is_lost(const struct op *op)
{
    const char *named = strstr(op->call->text, "holds tokens [");
    uint64_t from, to;
    if (!chaos.lives || !named || sscanf(named, "holds tokens [%" SCNu64 ", %" SCNu64 ")", &from, &to) != 2)
        return false;
    to = strstr(named, "and more") || to > TOKENS ? TOKENS : to;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint64_t i = from; i < to; i++)
            if (op->m->acked[l][i] && !chaos_row_may_be_forgotten(op->m, l, i))
                return false;
    op->m->lossy = true; // until it is truncated
    return true;
}

static void check_read(const struct op *op)
{
    const struct model *m = op->m;
    enum common_code code = op->call->code;
    if (m->deleted)
        return;
    bool cut = op->cuts != m->cuts; // what was lost is forgotten since
    if (code == COMMON_DATA_LOSS && !m->lossy && !cut && !chaos_kills_excuse() && !nothing_is_lost(op))
        chaos_violated(op, "rows are lost though no worker was killed");
    if (code == COMMON_DATA_LOSS && !op->call->n_missing)
        chaos_violated(op, "an error does not say what is lost");
    if (op->cuts != m->cuts)
        return;
    if (forgotten(op, chaos_may_be_forgotten(m, op->layer, op->first)))
        return;
    if (op->must && !m->lossy && code != COMMON_OK && !chaos_passes(code))
        chaos_violated(op, "acknowledged rows are refused");
    // Rows that steps have appended are in no store: after a restart there may be no record that they were
    // there.
    if (op->partial && op->whole && code == COMMON_DATA_LOSS && !chaos.lives)
        chaos_violated(op, "what is lost is an error where a partial answer is wanted");
    if (code != COMMON_OK)
        return;
    if (op->partial) {
        chaos_check_partial(op, op->first);
        return;
    }
    for (uint64_t i = 0; i <= op->first; i++)
        if (!m->maybe[op->layer][i])
            chaos_violated(op, "a row can be read that nobody wrote");
    float want = chaos_mean(m, op->layer, op->first);
    if (!(fabsf(op->call->o - want) <= 1e-4f * want) && !op->tainted) {
        fprintf(stderr, "wanted %g\n", (double)want);
        chaos_violated(op, "a wrong answer");
    }
}

// It found no end to append to, and the one that was sent before it has made one.
static void check_order(const struct op *op)
{
    const struct op *before = op->behind;
    if (before && op->call->done && op->call->code == COMMON_OUT_OF_RANGE && before->call->done &&
        before->call->code == COMMON_OK && before->cuts == op->m->cuts && !op->m->deleted && !op->m->lossy &&
        !chaos_kills_excuse())
        chaos_violated(op, "an append is refused for want of the one before it, which was done");
}

static void check_append(const struct op *op)
{
    struct model *m = op->m;
    enum common_code code = op->call->code;
    check_order(op);
    if (op + 1 < chaos.ops + chaos.n_ops && op[1].behind == op)
        check_order(op + 1);
    if (code == COMMON_OK)
        for (uint32_t i = 0; i < op->rows; i++)
            m->acked[op->layer][op->first + i] = true;
    if (sim_append_refused(op->call) && op->cuts == m->cuts)
        chaos_unmark(m, op->layer, op->first, op->rows);
    if (op->partial && code == COMMON_OK && op->cuts == m->cuts && !m->deleted)
        chaos_check_partial(op, op->first + op->rows - 1);
    if (m->deleted || m->lossy || chaos_kills_excuse() || code == COMMON_OK || chaos_passes(code))
        return;
    if (forgotten(op, op->cuts != m->cuts || chaos_may_be_forgotten(m, op->layer, op->first)))
        return;
    if (code == COMMON_DATA_LOSS &&
        nothing_is_lost(op)) // as for reads: no one can tell that its chunk was empty
        return;
    if (op->must &&
        // Damaged rows of a commit that hangs, or of a memory that the same bytes are compared with.
        (code != COMMON_FAILED_PRECONDITION || (!chaos.rotten && !op->tainted)))
        chaos_violated(op, "an append where the layer ends is refused");
}

static void check_commit(const struct op *op)
{
    struct model *m = op->m;
    enum common_code code = op->call->code;
    if (code == COMMON_OK)
        for (uint32_t i = 0; i < op->rows; i++)
            m->acked[op->layer][op->first + i] = true;
    // A commit that comes late may have sums of rows beside those that were put, which were refused since and
    // are others.
    bool rotten = (chaos.rotten || op->redrawn != m->redrawn || op->tainted) &&
                  strcmp(op->call->reason, "HASH_MISMATCH") == 0;
    if (!m->deleted && code == COMMON_DATA_LOSS && !m->lossy && op->cuts == m->cuts &&
        !chaos_kills_excuse() && !rotten)
        chaos_violated(op, "rows of a commit are lost though no worker was killed");
}

static void check_truncate(const struct op *op)
{
    struct model *m = op->m;
    enum common_code code = op->call->code;
    m->cutting = false;
    m->must_cut = true;
    if (m->deleted)
        return;
    if (code == COMMON_OUT_OF_RANGE && op->must && !m->lossy && !chaos_kills_excuse())
        chaos_violated(op, "acknowledged rows are past the end");
    if (forgotten(op, chaos_any_forgotten(m, op->first)))
        m->cut = 0;
    if (code == COMMON_ABORTED) // an earlier one was done after all: by which number is not known
        m->told = 0;
    if (code == COMMON_OUT_OF_RANGE) // a truncation before it may have raised the incarnation
        m->cut = 0;
    if (code != COMMON_OK)
        return;
    m->must_cut = false;
    m->told = op->call->cut;
    m->cuts++;
    for (uint32_t l = 0; l < LAYERS; l++)
        m->starts[l] = m->starts[l] < op->first ? m->starts[l] : op->first;
    m->floor_most = op->first ? m->floor_most : 0;
    if (m->incarnation != op->call->incarnation) { // else there was nothing to forget
        chaos_forget_from(m, op->first, true);
        chaos_draw_values(m, op->first);
    }
    m->incarnation = op->call->incarnation;
    // A number that was sent before may have been done before the loss: then its answer changes nothing.
    m->lossy = m->lossy && (op->first || op->kills != chaos.kills || op->resent);
}

static void check_create(const struct op *op)
{
    struct model *m = chaos_made(op);
    if (m && chaos.floor)
        chaos_model_born(m, chaos.floor);
}

static void check_fork(const struct op *op)
{
    const struct model *m = op->m;
    enum common_code code = op->call->code;
    struct model *f = chaos_made(op);
    if (f) {
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint64_t i = 0; i < op->first; i++) {
                f->value[l][i] = m->value[l][i];
                f->acked[l][i] = f->maybe[l][i] = true;
                f->ends[l][op->first] = true;
            }
        f->lossy = m->lossy || op->kills != chaos.kills;
        f->floor_most = m->floor_most;
        f->born = m->born;
        memcpy(f->dead, m->dead, sizeof f->dead);
        memcpy(f->dark, m->dark, sizeof f->dark);
        memcpy(f->rotten, m->rotten, sizeof f->rotten);
    } else if (!m->deleted && op->must && !m->lossy && !chaos_kills_excuse() && code != COMMON_OK &&
               !chaos_passes(code) && code != COMMON_ALREADY_EXISTS &&
               !(code == COMMON_DATA_LOSS && nothing_is_lost(op)) &&
               !forgotten(op,
                          op->cuts != m->cuts || chaos_any_forgotten(m, op->first))) { // names: chaos_names.c
        chaos_violated(op, "a fork of acknowledged rows is refused");
    }
}

static void check_look(const struct op *op)
{
    const struct model *m = op->m;
    enum common_code code = op->call->code;
    if (m->deleted || op->cuts != m->cuts)
        return;
    if (code == COMMON_DATA_LOSS && !m->lossy && !chaos_kills_excuse() && !nothing_is_lost(op))
        chaos_violated(op, "rows are lost though no worker was killed");
    bool nobody_has =
        op->first < m->born && strcmp(op->call->reason, "HOLE") == 0; // below what it began with
    if (op->must && !m->lossy && !chaos_kills_excuse() && code != COMMON_OK && !chaos_passes(code) &&
        !nobody_has)
        chaos_violated(op, "a ticket for acknowledged rows is refused");
    for (uint32_t l = 0; l < LAYERS && code == COMMON_OK; l++)
        for (uint64_t i = op->first; i < op->first + op->rows; i++)
            if (!m->maybe[l][i])
                chaos_violated(op, "a ticket is given for rows that nobody wrote");
}

// Whatever the holder is by now: what it gives are the rows that were there when the ticket was given.
static void check_rows(const struct op *op)
{
    const struct model *m = op->m;
    if (m->deleted || op->cuts != m->cuts || op->call->code != COMMON_OK)
        return;
    for (uint32_t i = 0; i < op->rows; i++) {
        uint64_t at = op->first + i;
        if (!m->maybe[op->layer][at])
            chaos_violated(op, "a row is given that nobody wrote");
        if (op->call->rows[i] != m->value[op->layer][at] && !op->tainted) {
            fprintf(stderr, "row %" PRIu64 ": %g, wanted %g\n", at, (double)op->call->rows[i],
                    (double)m->value[op->layer][at]);
            chaos_violated(op, "a wrong row");
        }
    }
}

static bool writes(const struct op *op)
{
    return op->m && (op->kind == APPEND || op->kind == OPEN || op->kind == PUT || op->kind == COMMIT ||
                     op->kind == FORK);
}

// A coordinator that does not know the session has answered, or none: its outcome is unknown.
static void unheard(const struct op *op)
{
    if (writes(op))
        op->m->writes--;
    if (op->kind == TRUNCATE) {
        op->m->cutting = false;
        op->m->must_cut = true;
    }
}

// Rows are at some of their holders, and at others not.
static bool commits_all_the_same(const struct op *op)
{
    return chaos.replicas > 1 && op->m && !op->m->deleted && chaos.n_ops + 1 < OPS && sim_random(2);
}

static void check(struct op *op)
{
    if (chaos.cluster->coordinator && !sim_tokens_counted(chaos.cluster))
        chaos_violated(op, "the workers' tokens are not those of the layouts");
    if (chaos.cluster->coordinator && !sim_quotas_counted(chaos.cluster))
        chaos_violated(op, "what tenants have in use is not what there is");
    if (!chaos_old_builds_are_out())
        chaos_violated(op, "a worker of an older build takes part");
    op->checked = true;
    if (chaos.verbose)
        printf("  %" PRIu64 " ended: %s session=%016" PRIx64 " layer=%u first=%" PRIu64
               " rows=%u: %s %s (%s)\n",
               sim_clock(), chaos_kind_names[op->kind], op->m ? op->m->id : 0, op->layer, op->first, op->rows,
               common_code_name(op->call->code), op->call->text, op->call->reason);
    if (op->kind == GREEDY ? op->call->code == COMMON_OK : !allowed(op))
        chaos_violated(op, "a code that the contract does not allow");
    if (chaos.wrong) {
        unheard(op);
        chaos_name_ended(op, false);
        return;
    }
    if (op->call->code == COMMON_NOT_FOUND && op->m && !op->m->deleted && op->kind != PUT &&
        op->kind != ROWS && op->kind != GREEDY)
        chaos_violated(op, "a session is gone");
    chaos_name_ended(op, true);
    if (strstr(op->call->text, "the ticket has expired") && op->call->done_ns < op->ticket_until_ns)
        chaos_violated(op, "a ticket is refused before its life is over");
    if (writes(op))
        op->m->writes--;
    bool goes_on = op->call->code == COMMON_OK && op->m && !op->m->deleted && chaos.n_ops + 1 < OPS;
    switch (op->kind) {
    case READ:
        check_read(op);
        break;
    case APPEND:
        check_append(op);
        break;
    case OPEN:
        if (goes_on)
            chaos_start_put(op);
        break;
    case PUT:
        if (goes_on || commits_all_the_same(op))
            chaos_start_commits(op);
        break;
    case COMMIT:
        check_commit(op);
        break;
    case TRUNCATE:
        check_truncate(op);
        break;
    case FORK:
        check_fork(op);
        break;
    case DELETE:
        if (op->call->code == COMMON_OK || op->call->code == COMMON_NOT_FOUND)
            op->m->gone_ns = sim_clock();
        break;
    case CREATE:
        check_create(op);
        break;
    case FIND:
        break;
    case LOOK:
        check_look(op);
        if (goes_on)
            chaos_start_rows(op);
        if (goes_on && chaos.snapshots.on && chaos.n_ops + 1 < OPS)
            chaos_start_greedy(op);
        break;
    case ROWS:
        check_rows(op);
        break;
    case GREEDY: // it is refused
        break;
    case WATCH:
        chaos_check_watch(op);
        break;
    }
}

bool chaos_check_all(void) // true: all have ended
{
    bool all = true;
    chaos_look_for_losses();
    chaos_look_for_flips();
    for (uint32_t i = 0; i < chaos.n_ops; i++) {
        struct op *op = &chaos.ops[i];
        if (!op->checked && op->call->done)
            check(op);
        all = all && op->checked;
    }
    return all;
}
