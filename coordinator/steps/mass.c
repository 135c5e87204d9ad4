// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/mass.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/sync/missing.h"
#include "proto/model/mass.h"
#include "proto/model/spec.h"

struct part { // what one worker is asked for
    struct computation *x;
    struct coordinator_worker *w;
    uint32_t *bins; // [n_bins] in which it has keys, ascending
    uint32_t n_bins, room;
    uint64_t tokens;
    struct common_blob *blob; // of its answer
    const float *values;      // [rows][q_heads][n_bins]
};

struct computation {
    struct coordinator_mass_ask ask;
    struct proto_layer layer; // of it
    coordinator_mass_fn done;
    void *arg;
    struct coordinator_masses *masses;
    struct part *parts;
    uint32_t n_parts, pending;
    uint64_t bin_chunks, tokens, sum; // of coverage, so far
    size_t bytes;                     // counted for answers under way
    struct common_slice slices[2];
    struct coordinator_completion at_once;
};

void coordinator_masses_free(struct coordinator_masses *m)
{
    if (!m)
        return;
    m->steps->bytes -= m->bytes;
    free(m->names);
    free(m->tokens);
    free(m->values);
    free(m);
}

// Room for the values of m->rows, heads, bins and n_workers. False: too much of the coordinator's memory is
// in use.
static bool masses_alloc(struct coordinator_masses *m)
{
    struct coordinator_steps *steps = m->steps;
    uint64_t most = steps->core->options.max_bytes;
    size_t values = (size_t)m->rows * m->heads * coordinator_masses_columns(m);
    size_t bytes = values * sizeof(float) + m->n_workers * (sizeof(*m->names) + sizeof(*m->tokens));
    if (bytes > most || steps->bytes > most - bytes)
        return false;
    m->names = calloc(m->n_workers + 1, sizeof(*m->names));
    m->tokens = calloc(m->n_workers + 1, sizeof(*m->tokens));
    m->values = malloc(values * sizeof(float) + 1);
    if (!m->names || !m->tokens || !m->values)
        return false;
    m->bytes = bytes;
    steps->bytes += bytes;
    return true;
}

struct coordinator_masses *coordinator_masses_last_row(const struct coordinator_masses *from)
{
    if (from->failure.code != COMMON_OK || from->bins > PROTO_WATCH_BINS_MAX ||
        (uint64_t)from->heads * from->bins > PROTO_WATCH_VALUES_MAX)
        return NULL;
    struct coordinator_masses *m = coordinator_alloc(sizeof(*m));
    m->steps = from->steps;
    m->rows = 1;
    m->heads = from->heads;
    m->bins = from->bins;
    m->n_workers = from->n_workers;
    m->bin_tokens = from->bin_tokens;
    m->visible = from->visible;
    if (!masses_alloc(m)) {
        coordinator_masses_free(m);
        return NULL;
    }
    size_t row = m->heads * coordinator_masses_columns(m);
    memcpy(m->names, from->names, m->n_workers * sizeof(*m->names));
    memcpy(m->tokens, from->tokens, m->n_workers * sizeof(*m->tokens));
    memcpy(m->values, from->values + (from->rows - 1) * row, row * sizeof(float));
    return m;
}

// ---- putting together ---------------------------------------------------------------------------

// One row and head: what bins, workers and sink weigh, in double. False: it does not add up.
static bool add_up(const struct computation *x, size_t pair, uint32_t head, double *out)
{
    uint32_t bins = x->masses->bins;
    double lse = x->ask.lse[pair], total = 0;
    memset(out, 0, coordinator_masses_columns(x->masses) * sizeof(*out));
    for (uint32_t p = 0; p < x->n_parts; p++) {
        const struct part *part = &x->parts[p];
        const float *values = part->values + pair * part->n_bins;
        for (uint32_t b = 0; b < part->n_bins; b++) {
            out[part->bins[b]] += values[b];
            out[bins + p] += values[b];
        }
        total += out[bins + p];
    }
    if (x->layer.sinks && lse != -INFINITY)
        total += out[bins + x->n_parts] = exp(x->layer.sinks[head] - lse);
    if (total > 0) // lse was rounded to float32 on its way: its error is divided out
        for (size_t i = 0; i < coordinator_masses_columns(x->masses); i++)
            out[i] /= total;
    if (isnan(total) || lse == -INFINITY)
        return true;
    return fabs(total - 1) <= 0.01 + fabs(lse) * 1e-6;
}

static bool put_together(struct computation *x)
{
    struct coordinator_masses *m = x->masses;
    uint32_t q_heads = x->layer.q_heads;
    size_t columns = coordinator_masses_columns(m);
    double *one = coordinator_alloc(2 * columns * sizeof(*one)), *mean = one + columns;
    float *to = m->values;
    bool right = true;
    for (uint32_t r = 0; r < m->rows; r++) {
        memset(mean, 0, columns * sizeof(*mean));
        for (uint32_t h = 0; h < q_heads; h++) {
            right = add_up(x, (size_t)r * q_heads + h, h, one) && right;
            for (size_t i = 0; i < columns; i++) {
                if (x->ask.heads)
                    *to++ = (float)one[i];
                else
                    mean[i] += one[i] / q_heads;
            }
        }
        for (size_t i = 0; i < columns && !x->ask.heads; i++)
            *to++ = (float)mean[i];
    }
    free(one);
    for (uint32_t p = 0; p < x->n_parts; p++) {
        memcpy(m->names[p], x->parts[p].w->name, sizeof(m->names[p]));
        m->tokens[p] = x->parts[p].tokens;
    }
    return right;
}

static void computation_fail(struct computation *x, enum common_code code, const char *reason,
                             const char *text)
{
    if (x->masses->failure.code == COMMON_OK)
        proto_status_set(&x->masses->failure, code, reason, "%s", text);
}

static void computation_end(void *arg)
{
    struct computation *x = arg;
    struct coordinator_session *s = x->ask.s;
    struct coordinator_masses *m = x->masses;
    uint64_t tokens, sum;
    if (m->failure.code == COMMON_OK) {
        if (!coordinator_missing_cover(x->ask.missing, &s->layout, x->ask.visible, &tokens, &sum) ||
            tokens != x->tokens || sum != x->sum) {
            computation_fail(x, COMMON_DATA_LOSS, "COVERAGE", "the masses do not cover all tokens");
        } else if (!put_together(x)) {
            computation_fail(x, COMMON_INTERNAL, "", "the masses do not add up to the step's lse");
            common_log_error("masses do not add up session=%016" PRIx64 " layer=%u first=%" PRIu64
                             " trace=%s",
                             s->id, x->ask.layer, x->ask.first, x->ask.trace);
        }
    }
    for (uint32_t p = 0; p < x->n_parts; p++) {
        common_blob_unref(x->parts[p].blob);
        free(x->parts[p].bins);
    }
    m->failure.session = s->id;
    m->failure.layer = x->ask.layer;
    m->steps->bytes -= x->bytes;
    coordinator_mass_fn done = x->done;
    void *done_arg = x->arg;
    free(x->parts);
    free(x);
    done(done_arg, m);
}

// ---- asking -------------------------------------------------------------------------------------

static void answered(void *arg, const struct proto_reply *reply)
{
    struct part *part = arg;
    struct computation *x = part->x;
    size_t want = (size_t)x->ask.rows * x->layer.q_heads * part->n_bins * sizeof(float);
    if (reply->code != COMMON_OK) {
        struct proto_status status = {0};
        proto_status_from_pb(reply->status, &status);
        // A worker that lost its layout is not a session that does not exist.
        computation_fail(x, reply->code == COMMON_NOT_FOUND ? COMMON_UNAVAILABLE : reply->code, status.reason,
                         reply->text);
        if (x->masses->failure.n_workers == 0)
            proto_status_add_worker(&x->masses->failure, part->w->name);
    } else if (reply->message->n_tensors != 1 || reply->message->tensors[0].bytes != want) {
        computation_fail(x, COMMON_INTERNAL, "", "a worker answered with masses of another size");
    } else {
        const Banyan__Pb__MassReply *m = (const void *)reply->message->body;
        part->blob = common_blob_ref(reply->message->blob);
        part->values = reply->message->tensors[0].data;
        x->tokens += m->cover_tokens;
        x->sum += m->cover_sum;
    }
    if (!--x->pending)
        computation_end(x);
}

static void ask_worker(struct part *part)
{
    struct computation *x = part->x;
    const struct coordinator_mass_ask *ask = &x->ask;
    const struct coordinator_core *core = x->masses->steps->core;
    struct proto_tensor_out tensors[2];
    for (int i = 0; i < 2; i++)
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {x->slices[i].len},
                                               .pieces = &x->slices[i],
                                               .n_pieces = 1};
    Banyan__Pb__MassRequest m = BANYAN__PB__MASS_REQUEST__INIT;
    m.term = core->term;
    m.session = ask->s->id;
    m.incarnation = ask->s->incarnation;
    m.epoch = ask->s->layout.epoch;
    m.layer = ask->layer;
    m.first = ask->first;
    m.rows = ask->rows;
    m.visible = ask->visible;
    m.block_first = ask->block_first;
    m.block_count = ask->block_count;
    m.bin_chunks = (uint32_t)x->bin_chunks;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_MASS,
                              .body = &m.base,
                              .tensors = tensors,
                              .n_tensors = 2,
                              .deadline_ns = ask->deadline_ns,
                              .done = answered,
                              .arg = part};
    struct common_error err = {.message = "no connection to the worker"};
    struct proto_channel *channel = core->stopping ? NULL : part->w->channel;
    enum common_code code = channel ? proto_channel_call(channel, &call, NULL, &err) : COMMON_UNAVAILABLE;
    if (code != COMMON_OK)
        answered(part, &(struct proto_reply){.code = code, .text = err.message});
}

static void add_bin(struct part *part, uint32_t bin, uint64_t tokens)
{
    part->tokens += tokens;
    if (part->n_bins && part->bins[part->n_bins - 1] == bin)
        return;
    if (part->n_bins == part->room) { // at most PROTO_MASS_BINS_MAX
        part->room = part->room ? part->room * 2 : 16;
        part->bins = realloc(part->bins, part->room * sizeof(*part->bins));
        if (!part->bins)
            abort();
    }
    part->bins[part->n_bins++] = bin;
}

// Who has which bins, by their first chunk.
static void find_parts(struct computation *x)
{
    const struct coordinator_session *s = x->ask.s;
    const struct coordinator_missing *missing = x->ask.missing;
    uint64_t ct = s->layout.chunk_tokens;
    uint32_t out = 0; // of the missing ranges: the first that ends behind this chunk's first token
    uint32_t *of =
        coordinator_alloc((x->masses->steps->cluster->n_workers + 1) * sizeof(*of)); // by slot: part + 1
    x->parts = coordinator_alloc((s->n_members + 1) * sizeof(*x->parts));
    for (uint32_t i = 0; i < s->layout.n && s->layout.chunks[i].index * ct < x->ask.visible; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint64_t first = chunk->index * ct, left = x->ask.visible - first;
        while (out < missing->n && missing->ranges[out].first + missing->ranges[out].count <= first)
            out++;
        if (out < missing->n && missing->ranges[out].first <= first)
            continue;
        uint32_t *at = &of[chunk->holder->slot];
        if (!*at && x->n_parts == s->n_members) // a holder is a member
            continue;                           // coverage says that it is missing
        if (!*at) {
            *at = ++x->n_parts;
            x->parts[*at - 1] = (struct part){.x = x, .w = chunk->holder};
        }
        add_bin(&x->parts[*at - 1], (uint32_t)(chunk->index / x->bin_chunks), left < ct ? left : ct);
    }
    free(of);
}

static const char *refuse_room(struct coordinator_steps *steps)
{
    steps->core->reached[COORDINATOR_LIMIT_ANSWERS]++;
    return "the limit of bytes of answers at once is reached: try again, or raise --max-bytes";
}

static const char *no_room(struct computation *x)
{
    struct coordinator_masses *m = x->masses;
    uint64_t pairs = (uint64_t)m->rows * x->layer.q_heads, bytes = 0;
    if ((uint64_t)m->rows * m->heads * coordinator_masses_columns(m) > PROTO_MASS_VALUES_MAX)
        return "too many masses for so many workers: ask for fewer rows at a time";
    for (uint32_t p = 0; p < x->n_parts; p++)
        bytes += pairs * x->parts[p].n_bins * sizeof(float);
    if (!masses_alloc(m) || bytes > m->steps->core->options.max_bytes - m->steps->bytes)
        return refuse_room(m->steps);
    x->bytes = bytes;
    m->steps->bytes += bytes;
    return NULL;
}

void coordinator_mass_start(struct coordinator_steps *steps, const struct coordinator_mass_ask *ask,
                            coordinator_mass_fn done, void *arg)
{
    const struct coordinator_session *s = ask->s;
    const struct proto_layer layer = proto_spec_layer(s->spec, ask->layer);
    struct computation *x = coordinator_alloc(sizeof(*x));
    struct coordinator_masses *m = coordinator_alloc(sizeof(*m));
    uint64_t chunks = (ask->visible + s->layout.chunk_tokens - 1) / s->layout.chunk_tokens;
    size_t pairs = (size_t)ask->rows * layer.q_heads;
    *x = (struct computation){.ask = *ask, .layer = layer, .done = done, .arg = arg, .masses = m};
    x->bin_chunks = proto_mass_bin_chunks(chunks, ask->bins);
    x->slices[0] = (struct common_slice){ask->q, pairs * layer.k_dim * sizeof(float)};
    x->slices[1] = (struct common_slice){ask->lse, pairs * sizeof(float)};
    m->steps = steps;
    find_parts(x);
    m->rows = ask->rows;
    m->heads = ask->heads ? layer.q_heads : 1;
    m->bins = proto_mass_bins(chunks, x->bin_chunks);
    m->n_workers = x->n_parts;
    m->bin_tokens = x->bin_chunks * s->layout.chunk_tokens;
    m->visible = ask->visible;
    const char *problem = no_room(x);
    x->pending = 1; // until all are asked
    if (problem)
        computation_fail(x, COMMON_RESOURCE_EXHAUSTED, "LIMIT", problem);
    for (uint32_t p = 0; p < x->n_parts && !problem; p++) {
        x->pending++;
        ask_worker(&x->parts[p]);
    }
    if (!--x->pending) { // no worker could be asked
        x->at_once = (struct coordinator_completion){.fn = computation_end, .arg = x};
        coordinator_turn_complete(&steps->core->turn, &x->at_once);
    }
}
