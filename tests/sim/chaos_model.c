// SPDX-License-Identifier: Apache-2.0
// What the clients of chaos_test know, and what they do.
#include "tests/sim/chaos.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "coordinator/sync/repair.h"
#include "worker/core/state.h"

struct chaos chaos;

const char *const chaos_kind_names[] = {
    "read",   "append", "open", "put",   "commit", "truncate", "fork",
    "delete", "create", "find", "watch", "look",   "rows",     "rows past its ticket"};

void chaos_violated(const struct op *op, const char *what)
{
    fprintf(stderr, "seed %" PRIu64 ": %s", chaos.seed, what);
    if (op)
        fprintf(stderr,
                ": %s session=%016" PRIx64 " layer=%u first=%" PRIu64 " rows=%u: %s %s (%s) o=%g at=%" PRIu64,
                chaos_kind_names[op->kind], op->m ? op->m->id : 0, op->layer, op->first, op->rows,
                common_code_name(op->call->code), op->call->text, op->call->reason, (double)op->call->o,
                sim_clock());
    fprintf(stderr, "\n");
    exit(1);
}

uint32_t chaos_prefix(const struct model *m, uint32_t layer)
{
    uint32_t n = 0;
    while (n < TOKENS && m->acked[layer][n])
        n++;
    return n;
}

float chaos_mean(const struct model *m, uint32_t layer, uint64_t last)
{
    double sum = 0;
    uint64_t from = chaos_from(layer, last);
    for (uint64_t i = from; i <= last; i++)
        sum += m->value[layer][i];
    return (float)(sum / (double)(last + 1 - from));
}

uint64_t chaos_from(uint32_t layer, uint64_t at)
{
    const struct sim_mask *mask = &chaos.masks[layer];
    uint64_t from = mask->window && at >= mask->window ? at - mask->window + 1 : 0,
             start = mask->mask_chunk ? at - at % mask->mask_chunk : 0;
    return from > start ? from : start;
}

bool chaos_may_be_forgotten(const struct model *m, uint32_t layer, uint64_t at)
{
    return chaos.forget && chaos_from(layer, at) < chaos_from(layer, m->floor_most);
}

bool chaos_row_may_be_forgotten(const struct model *m, uint32_t layer, uint64_t row)
{
    return chaos.forget && row < chaos_from(layer, m->floor_most);
}

bool chaos_any_forgotten(const struct model *m, uint64_t at)
{
    bool any = false;
    for (uint32_t l = 0; l < LAYERS; l++)
        any = any || chaos_may_be_forgotten(m, l, at);
    return any;
}

static void writes_from(struct model *m, uint32_t layer, uint64_t first)
{
    uint64_t least = UINT64_MAX;
    m->starts[layer] = first > m->starts[layer] ? first : m->starts[layer];
    for (uint32_t l = 0; l < LAYERS; l++)
        least = m->starts[l] < least ? m->starts[l] : least;
    if (least > chaos.forget && least - chaos.forget > m->floor_most)
        m->floor_most = least - chaos.forget;
}

void chaos_draw_values(struct model *m, uint64_t from)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint64_t i = from; i < TOKENS; i++)
            m->value[l][i] = (float)(1 + sim_random(1000));
}

void chaos_forget_from(struct model *m, uint64_t from, bool written)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint64_t i = from; i < TOKENS; i++) {
            m->acked[l][i] = false;
            m->maybe[l][i] = m->maybe[l][i] && !written;
            m->writers[l][i] = written ? 0 : m->writers[l][i];
        }
}

struct model *chaos_model_new(uint64_t id, uint64_t incarnation)
{
    struct model *m = &chaos.models[chaos.n_models++];
    m->id = id;
    m->incarnation = incarnation;
    chaos_draw_values(m, 0);
    return m;
}

void chaos_model_born(struct model *m, uint64_t floor)
{
    m->floor_most = m->born = floor;
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint64_t whole = chaos_from(l, floor) / CHUNK_TOKENS * CHUNK_TOKENS;
        for (uint64_t i = 0; i < whole; i++)
            m->acked[l][i] = m->maybe[l][i] = true;
        m->ends[l][whole] = true;
    }
}

bool chaos_passes(enum common_code code) // an error that the same call may not meet again
{
    return code == COMMON_UNAVAILABLE || code == COMMON_DEADLINE_EXCEEDED || code == COMMON_CANCELLED ||
           code == COMMON_RESOURCE_EXHAUSTED || code == COMMON_ABORTED;
}

bool chaos_kills_excuse(void)
{
    return chaos.kills && chaos.replicas == 1;
}

static bool is_written(const struct model *m, uint64_t first)
{
    bool any = false;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint64_t i = first; i < first + CHUNK_TOKENS && i < TOKENS; i++)
            any = any || m->maybe[l][i] || m->acked[l][i];
    return any;
}

bool chaos_is_lost(const struct lost *lost, uint64_t chunk)
{
    return lost->counted == chunk || lost->prepared == chunk;
}

void chaos_not_lost(struct lost *lost, uint64_t chunk)
{
    lost->counted *= lost->counted != chunk;
    lost->prepared *= lost->prepared != chunk;
}

// Whether the holder has said what is left of its files, and has all that counts, as far as the coordinator
// can tell.
static bool is_heard(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                     uint32_t copy)
{
    const struct coordinator_worker *w = coordinator_chunk_holder(chunk, copy);
    const struct sim_worker *worker = chaos.cluster->workers[w->name[1] - '0'];
    return worker->worker && coordinator_worker_active(w) &&
           w->instance == worker_membership_instance(worker->worker->membership) && chunk->known &&
           !chunk->lost && !(chunk->gone & 1u << copy) && !coordinator_session_in_doubt(s, w);
}

// Of a chunk that was empty its holder has a whole copy again once it has its layout.
static bool is_dead(struct model *m, const struct coordinator_session *s,
                    const struct coordinator_chunk *chunk, uint32_t copy)
{
    uint32_t w = (uint32_t)(coordinator_chunk_holder(chunk, copy)->name[1] - '0');
    uint64_t at = (uint64_t)chunk->index * CHUNK_TOKENS;
    if (chunk->index >= CHUNKS)
        return false;
    struct lost *dead = &m->dead[w][chunk->index], *dark = &m->dark[w][chunk->index];
    if (chaos_is_lost(dead, chunk->id) && !is_written(m, at) &&
        sim_worker_holds(chaos.cluster->workers[w], m->id, at))
        chaos_not_lost(dead, chunk->id);
    if (chaos_is_lost(dark, chunk->id) && is_heard(s, chunk, copy))
        chaos_not_lost(dark, chunk->id);
    return chaos_is_lost(dead, chunk->id) || chaos_is_lost(dark, chunk->id) ||
           chaos_is_lost(&m->rotten[w][chunk->index], chunk->id);
}

void chaos_look_for_struck(void)
{
    if (chaos.replicas == 1 || chaos.wrong || !chaos.cluster->coordinator)
        return;
    for (uint32_t i = 0; i < chaos.n_models; i++) {
        struct model *m = &chaos.models[i];
        const struct coordinator_session *s =
            coordinator_session_any(&chaos.cluster->coordinator->sessions, m->id);
        for (uint32_t k = 0; s && k < s->layout.n; k++) {
            const struct coordinator_chunk *chunk = &s->layout.chunks[k];
            bool holds[WORKERS] = {false};
            for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk); copy++)
                holds[coordinator_chunk_holder(chunk, copy)->name[1] - '0'] = true;
            for (uint32_t w = 0; w < chaos.n_workers && chunk->index < CHUNKS; w++)
                if (!holds[w]) {
                    chaos_not_lost(&m->dead[w][chunk->index], chunk->id);
                    chaos_not_lost(&m->dark[w][chunk->index], chunk->id);
                    chaos_not_lost(&m->rotten[w][chunk->index], chunk->id);
                }
        }
    }
}

void chaos_look_for_losses(void)
{
    if (chaos.replicas == 1 || chaos.wrong || !chaos.cluster->coordinator)
        return;
    for (uint32_t i = 0; i < chaos.n_models; i++) {
        struct model *m = &chaos.models[i];
        const struct coordinator_session *s =
            coordinator_session_any(&chaos.cluster->coordinator->sessions, m->id);
        for (uint32_t k = 0; s && k < s->layout.n; k++) {
            bool alive = false;
            for (uint32_t copy = 0; copy < coordinator_chunk_copies(&s->layout.chunks[k]); copy++)
                alive = !is_dead(m, s, &s->layout.chunks[k], copy) || alive;
            m->lossy = m->lossy || !alive;
        }
    }
}

// ---- operations -----------------------------------------------------------------------------------------

struct sim_client *chaos_a_client(void)
{
    return chaos.clients[sim_random(chaos.n_clients)];
}

struct op *chaos_op_new(enum kind kind, struct model *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    struct op *op = &chaos.ops[chaos.n_ops++];
    *op = (struct op){.kind = kind,
                      .m = m,
                      .layer = layer,
                      .first = first,
                      .rows = rows,
                      .cuts = m ? m->cuts : 0,
                      .redrawn = m ? m->redrawn : 0,
                      .kills = chaos.kills,
                      .start_ns = sim_clock(),
                      .tainted = m && chaos_is_tainted(m)};
    if (m && (kind == APPEND || kind == OPEN || kind == PUT || kind == COMMIT || kind == FORK))
        m->writes++;
    return op;
}

void chaos_mark_maybe(struct model *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++) {
        m->maybe[layer][first + i] = true;
        m->writers[layer][first + i]++;
    }
    m->ends[layer][first + rows] = true;
}

// Nothing of it is there, or ever will be: other values may come.
void chaos_unmark(struct model *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    for (uint64_t i = first; i < first + rows; i++) {
        if (m->writers[layer][i] && --m->writers[layer][i] == 0 && !m->acked[layer][i]) {
            m->maybe[layer][i] = false;
            m->value[layer][i] = (float)(1 + sim_random(1000));
            m->redrawn++;
        }
    }
}

struct op *chaos_start_read(struct model *m, uint32_t layer, uint64_t at)
{
    struct op *op = chaos_op_new(READ, m, layer, at, 1);
    op->must = chaos_prefix(m, layer) > at && !m->lossy && !m->cutting;
    op->whole = chaos_prefix(m, layer) > at && !m->cutting;
    struct sim_client *client = chaos_a_client();
    sim_client_partial(client, chaos.partial);
    op->call = sim_read(client, m->id, layer, at, 1);
    sim_client_partial(client, false);
    if (chaos.partial)
        chaos_partial_begins(op);
    return op;
}

static struct op *start_append(struct model *m, uint32_t layer, uint64_t first, uint32_t rows,
                               struct sim_client *client)
{
    struct op *op = chaos_op_new(APPEND, m, layer, first, rows);
    op->must = chaos_prefix(m, layer) >= first && !m->lossy;
    chaos_mark_maybe(m, layer, first, rows);
    writes_from(m, layer, first);
    sim_client_partial(client, chaos.partial);
    op->call = sim_append_rows(client, m->id, m->incarnation, layer, first, rows, &m->value[layer][first]);
    sim_client_partial(client, false);
    if (chaos.partial)
        chaos_partial_begins(op);
    return op;
}

struct op *chaos_start_append(struct model *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    return start_append(m, layer, first, rows, chaos_a_client());
}

// Several, each behind the one before it, by a client that waits for no answer.
static void start_appends(struct model *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    const struct op *before = chaos_start_append(m, layer, first, rows);
    struct sim_client *client = before->call->client;
    for (uint32_t more = (uint32_t)sim_random(4); more > 0 && chaos.n_ops + 4 < OPS; more--) {
        first += rows;
        if (first + rows > TOKENS)
            return;
        struct op *op = start_append(m, layer, first, rows, client);
        op->behind = before;
        before = op;
    }
}

static void start_open(struct model *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    chaos_op_new(OPEN, m, layer, first, rows)->call = sim_open(chaos_a_client(), m->id, first, rows);
}

void chaos_start_put(const struct op *open)
{
    struct op *op = chaos_op_new(PUT, open->m, open->layer, open->first, open->rows);
    op->ticket_until_ns = open->start_ns + sim_opened_life(open->call);
    chaos_mark_maybe(op->m, op->layer, op->first, op->rows);
    op->call = sim_put_rows(chaos_a_client(), open->call, op->layer, op->first, op->rows,
                            &op->m->value[op->layer][op->first]);
}

static void start_commit(struct model *m, uint32_t layer, uint64_t first, uint32_t rows)
{
    struct op *op = chaos_op_new(COMMIT, m, layer, first, rows);
    m->ends[layer][first + rows] = true;
    writes_from(m, layer, first);
    op->call =
        sim_commit_rows(chaos_a_client(), m->id, layer, first, rows, &m->value[layer][first], CHUNK_TOKENS);
}

// What was put is committed; now and then another commit of more than that is under way at the same time,
// which finds a hole, or not.
void chaos_start_commits(const struct op *put)
{
    struct model *m = put->m;
    bool wider = !sim_random(3), sooner = sim_random(2);
    uint64_t before = sim_random(9), after = sim_random(9), end = put->first + put->rows;
    before = before < put->first ? before : put->first;
    after = after < TOKENS - end ? after : TOKENS - end;
    uint32_t rows = (uint32_t)(before + put->rows + after);
    if (wider && sooner)
        start_commit(m, put->layer, put->first - before, rows);
    start_commit(m, put->layer, put->first, put->rows);
    if (wider && !sooner)
        start_commit(m, put->layer, put->first - before, rows);
}

struct op *chaos_start_truncate(struct model *m, uint64_t length)
{
    m->cuts++;
    struct op *op = chaos_op_new(TRUNCATE, m, 0, length, 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        op->must = op->must || (chaos_prefix(m, l) >= length && !m->must_cut && !m->lossy);
    chaos_forget_from(m, length, false);
    for (uint32_t l = 0; l < LAYERS; l++)
        m->ends[l][length] = true;
    bool same = m->must_cut && m->cut == length && m->number;
    op->resent = same && m->told;
    if (!same) // not from the dice
        m->number = common_mix64(chaos.seed << 20 ^ chaos.n_ops ^ sim_clock()) | 1;
    m->cutting = true;
    m->cut = length;
    op->call = m->told ? sim_truncate_after(chaos_a_client(), m->id, length, m->told, m->number)
                       : sim_truncate(chaos_a_client(), m->id, length);
    return op;
}

struct op *chaos_start_delete(struct model *m)
{
    struct op *op = chaos_op_new(DELETE, m, 0, 0, 0);
    m->deleted = true;
    op->call = sim_delete(chaos_a_client(), m->id);
    return op;
}

void chaos_start_look(struct model *m)
{
    uint32_t layer = (uint32_t)sim_random(LAYERS), end = chaos_prefix(m, 0);
    for (uint32_t l = 1; l < LAYERS; l++)
        end = chaos_prefix(m, l) < end ? chaos_prefix(m, l) : end;
    uint64_t first = sim_random(4) && end ? sim_random(end) : sim_random(TOKENS);
    uint32_t most = first < end ? (uint32_t)(end - first) : (uint32_t)(TOKENS - first);
    uint32_t rows = 1 + (uint32_t)sim_random(most);
    if (chaos.snapshots.on && first < end && chaos.n_ops % 4 == 0) // over the end
        rows = most + 1 + rows % 8 < TOKENS - first ? most + 1 + rows % 8 : (uint32_t)(TOKENS - first);
    struct op *op = chaos_op_new(LOOK, m, layer, first, rows);
    op->must = op->first + op->rows <= end && !m->lossy && !m->cutting;
    op->call = sim_read_open(chaos_a_client(), m->id, op->first, op->rows);
}

void chaos_start_rows(const struct op *look)
{
    struct op *op = chaos_op_new(ROWS, look->m, look->layer, look->first, look->rows);
    op->ticket_until_ns = look->start_ns + sim_opened_life(look->call);
    op->cuts = look->cuts;
    op->tainted = op->tainted || look->tainted; // a holder keeps what is removed until it receives that
    op->call = sim_read_rows(chaos_a_client(), look->call, op->layer, op->first, op->rows,
                             (uint32_t)sim_random(chaos.n_workers));
}

void chaos_start_greedy(const struct op *look)
{
    struct op *op = chaos_op_new(GREEDY, look->m, look->layer, look->first, look->rows);
    op->call = sim_read_rows(chaos_a_client(), look->call, op->layer, op->first,
                             op->rows + 1 + sim_random(CHUNK_TOKENS), (uint32_t)sim_random(chaos.n_workers));
}

// ---- what the client does -------------------------------------------------------------------------------

// To truncate to, or fork at: where sessions forget, mostly what is left.
static uint64_t a_length(uint32_t end)
{
    uint64_t back = chaos.forget && sim_random(3) ? chaos.forget + sim_random(8) : end;
    return end - sim_random((back < end ? back : end) + 1);
}

static void act(void)
{
    if ((!chaos.n_models && chaos.making < SESSIONS) ||
        (chaos.n_models + chaos.making < SESSIONS && !sim_random(24))) {
        chaos_start_creates();
        return;
    }
    if (!sim_random(16)) {
        chaos_start_find(1 + (uint32_t)sim_random(NAMES));
        return;
    }
    if (!chaos.n_models)
        return;
    struct model *m = &chaos.models[sim_random(chaos.n_models)];
    uint32_t layer = (uint32_t)sim_random(LAYERS), end = chaos_prefix(m, layer);
    sim_client_deadline(chaos_a_client(), sim_random(4)
                                              ? 10 * COMMON_NS_PER_S
                                              : 100 * COMMON_NS_PER_MS + sim_random(COMMON_NS_PER_S));
    if (m->deleted || m->held)
        return;
    if (sim_random(3) == 0) {
        uint64_t at = sim_random(4) || !end ? sim_random(TOKENS) : end - 1;
        chaos_start_read(m, layer, end && sim_random(2) ? sim_random(end) : at);
        return;
    }
    if (!sim_random(40)) {
        chaos_start_create_again(m);
        return;
    }
    if (!sim_random(12)) {
        chaos_start_watch(m);
        return;
    }
    if (!sim_random(10)) {
        chaos_start_look(m);
        return;
    }
    if (m->cutting)
        return;
    if (m->must_cut) {
        if (!m->writes)
            chaos_start_truncate(m, m->cut);
        return;
    }
    uint64_t first = end && !sim_random(4) ? sim_random(end) : end;
    uint32_t rows = 1 + (uint32_t)sim_random(MOST_ROWS);
    rows = first + rows > TOKENS ? (uint32_t)(TOKENS - first) : rows;
    switch (sim_random(10)) {
    case 0:
        if (!m->writes)
            chaos_start_truncate(m, m->lossy && sim_random(2) ? 0 : a_length(end));
        break;
    case 1:
        if (chaos.n_models + chaos.making < SESSIONS) {
            uint32_t other = chaos_prefix(m, 1 - layer);
            chaos_start_fork(m, a_length(end < other ? end : other));
        }
        break;
    case 2:
    case 3:
        first = sim_random(3) ? first : sim_random(TOKENS - MOST_ROWS);
        rows = 1 + (uint32_t)sim_random(MOST_ROWS);
        if (first + rows <= TOKENS)
            start_open(m, layer, first, rows);
        break;
    case 4:
        if (chaos.n_models > 2 && !m->writes && !sim_random(4))
            chaos_start_delete(m);
        break;
    default:
        if (rows)
            start_appends(m, layer, first, rows);
    }
}

void chaos_act_cuts(void)
{
    for (uint32_t i = 0; i < chaos.n_models && chaos.n_ops < OPS / 2; i++) {
        struct model *m = &chaos.models[i];
        uint32_t end = chaos_prefix(m, (uint32_t)sim_random(LAYERS));
        bool busy = m->deleted || m->held || m->lossy || m->cutting || m->must_cut || m->writes;
        if (!busy && end && sim_random(2))
            chaos_start_truncate(m, 1 + sim_random(end));
    }
}

void chaos_act(void)
{
    chaos.partial = chaos_takes_partial();
    act();
    chaos.partial = false;
}
