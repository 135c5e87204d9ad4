// SPDX-License-Identifier: Apache-2.0
// The rows of a snapshot: pinned, read and compared with what clients know of the session; and put into a new
// one.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/internal.h"
#include "client/lib/rows/seals.h"
#include "common/base/clock.h"
#include "coordinator/session/layout.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "tests/sim/chaos_snapshot.h"

static struct snapshotter *const it = &chaos_snapshotter;

// ---- taking one -------------------------------------------------------------------------------------------

static struct model *model_of(const banyan_session *session)
{
    struct model *m = chaos_model_new(session->id, atomic_load(&session->incarnation));
    m->told = session->cuts.last;
    m->held = true;
    return m;
}

static void before_the_pin(void)
{
    it->cuts = it->of->cuts;
    it->unsure = it->of->cutting || it->of->must_cut;
    it->kills = chaos.kills;
    it->prefix = chaos_snapshot_shortest(it->of);
    it->used_ns = sim_clock();
}

static void note_seals(void)
{
    const struct coordinator_session *s =
        coordinator_session_any(&chaos.cluster->coordinator->sessions, it->pin->id);
    memset(it->sealed, 0, sizeof it->sealed);
    for (uint32_t i = 0; s && i < s->layout.n; i++)
        if (s->layout.chunks[i].index < sizeof it->sealed / sizeof *it->sealed)
            it->sealed[s->layout.chunks[i].index] = s->layout.chunks[i].seal != 0;
}

// It is as long as what was acknowledged before it began, and has nothing that no client wrote.
static void pinned(const banyan_session *session, uint64_t length, uint64_t floor)
{
    const struct model *m = it->of;
    struct model *p = it->pin =
        chaos_snapshot_excused() || !chaos.cluster->coordinator ? NULL : model_of(session);
    it->known = !chaos_snapshot_cut() && !m->deleted && !chaos_snapshot_excused();
    if (length > TOKENS || (it->known && length < it->prefix && !chaos_snapshot_lost(m)))
        chaos_violated(NULL, "a snapshot lacks rows that were acknowledged");
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint64_t i = 0; i < length; i++) {
            if (it->known && !m->maybe[l][i])
                chaos_violated(NULL, "a snapshot has a row that nobody wrote");
            it->want[l][i] = m->value[l][i];
        }
    if (!p)
        return;
    memcpy(p->value, m->value, sizeof p->value);
    p->lossy = m->lossy || it->kills != chaos.kills;
    p->floor_most = floor;
    memcpy(p->dead, m->dead, sizeof p->dead);
    memcpy(p->dark, m->dark, sizeof p->dark);
    memcpy(p->rotten, m->rotten, sizeof p->rotten);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint64_t i = 0; i < length; i++)
            p->acked[l][i] = p->maybe[l][i] = true;
    note_seals();
}

static banyan_code read_file(banyan_session *session, const struct snapshot_file *file, banyan_error *error)
{
    struct snapshot_names names;
    struct common_safetensor tensors[4];
    size_t n = snapshot_tensors(&it->form->shape, file, &names, tensors),
           row = tensors[0].bytes / file->tokens;
    float *data = malloc(file->tokens * 2 * row);
    if (!data || n != 2)
        abort();
    uint64_t start_ns = sim_clock();
    uint32_t lives = chaos.lives;
    banyan_code code = snapshot_read_rows(session, file, tensors, n, (uint8_t *)data, error);
    size_t dim = row / sizeof *data;
    const float *k = data, *v = data + file->tokens * dim;
    for (uint64_t i = 0; i < file->tokens * dim && code == BANYAN_OK; i++) {
        if (k[i] != 1 || v[i] != v[i / dim * dim])
            chaos_violated(NULL, "a snapshot has rows that nobody can have written");
        it->have[file->layer][file->first + i / dim] = v[i];
    }
    if (code == BANYAN_OK) {
        it->used_ns = start_ns;
        it->ticketed = true;
        it->lives = lives;
    }
    free(data);
    return code;
}

// All of its rows are read, and it had a seal from the start: what was read is what was sealed.
static bool is_compared(uint64_t at)
{
    uint64_t chunk = at / CHUNK_TOKENS;
    bool all = (chunk + 1) * CHUNK_TOKENS <= it->snapshot.length && it->pin && it->sealed[chunk];
    for (uint32_t l = 0; l < LAYERS; l++)
        all = all && it->form->layers[l].from <= chunk * CHUNK_TOKENS;
    return all;
}

static void compare(void)
{
    for (uint32_t l = 0; l < LAYERS && it->known; l++)
        for (uint64_t i = it->form->layers[l].from; i < it->snapshot.length; i++)
            if (it->have[l][i] != it->want[l][i] && (!chaos.flipped || is_compared(i))) {
                fprintf(stderr,
                        "session=%016" PRIx64 " layer %u row %" PRIu64 " of %" PRIu64 ": %g, wanted %g\n",
                        it->of->id, l, i, it->snapshot.length, (double)it->have[l][i],
                        (double)it->want[l][i]);
                chaos_violated(NULL, "a snapshot has a wrong row");
            }
}

static banyan_code take_files(banyan_session *session, uint32_t chunk_tokens, banyan_error *error)
{
    struct common_error err;
    if (snapshot_form_of(banyan_session_spec(session), it->snapshot.floor, &it->form, &err) != COMMON_OK ||
        !snapshot_plan(&it->snapshot, &it->form->shape, (1 + sim_random(40)) * 32, chunk_tokens))
        abort();
    banyan_code code = client_seals_begin(session, it->snapshot.length, error);
    for (size_t i = 0; i < it->snapshot.n_files && code == BANYAN_OK; i++) {
        chaos_snapshot_think();
        code = read_file(session, &it->snapshot.files[i], error);
    }
    return code == BANYAN_OK ? client_seals_check(session, error) : code;
}

static banyan_code take_pinned(const banyan_session *of, banyan_session *session,
                               const banyan_session_info *info, banyan_error *error)
{
    it->stage = READING;
    it->snapshot = (struct snapshot){.length = info->length, .floor = info->forgotten};
    pinned(session, info->length, info->forgotten);
    banyan_code code = take_files(session, CHUNK_TOKENS, error);
    if (code == BANYAN_OK)
        compare();
    if (chaos.verbose && code == BANYAN_OK)
        printf("  %" PRIu64 " a snapshot is taken: %" PRIu64 " rows of session=%016" PRIx64 ", %s\n",
               sim_clock(), it->snapshot.length, it->of->id,
               it->known ? "compared" : "which was truncated meanwhile");
    if (code == BANYAN_DATA_LOSS)
        (void)banyan_scrub_begin(it->client, banyan_session_id(of), NULL, NULL);
    return code;
}

bool chaos_snapshot_take(banyan_session **out)
{
    banyan_session *of, *session;
    banyan_session_info info;
    banyan_error error;
    it->stage = OPENING;
    banyan_code code = banyan_session_open(it->client, it->of->id, NULL, &of, &error);
    if (code != BANYAN_OK) {
        chaos_snapshot_refused(&error);
        return false;
    }
    it->stage = PINNING;
    before_the_pin();
    code = snapshot_pin(of, it->ttl_ns, it->n, &session, &info, &error);
    if (code == BANYAN_OK) {
        code = take_pinned(of, session, &info, &error);
        if (code != BANYAN_OK)
            chaos_snapshot_refused(&error);
        (void)banyan_session_delete(session, NULL); // else it goes by itself
        if (it->pin)
            it->pin->deleted = true;
        it->pin = NULL;
        banyan_session_close(session);
        banyan_session_info_free(&info);
    } else {
        chaos_snapshot_refused(&error);
    }
    chaos.snapshots.taken += code == BANYAN_OK;
    if (code == BANYAN_OK)
        *out = of;
    else
        banyan_session_close(of);
    return code == BANYAN_OK;
}

// ---- restoring it -----------------------------------------------------------------------------------------

static struct model *made(const banyan_session *session, uint32_t kills)
{
    struct model *m = model_of(session);
    chaos_model_born(m, it->snapshot.floor);
    m->lossy = kills != chaos.kills; // of what it was filled with
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint64_t from = it->form->layers[l].from;
        m->starts[l] = from / CHUNK_TOKENS * CHUNK_TOKENS;
        for (uint64_t i = 0; i < it->snapshot.length; i++) {
            m->value[l][i] = i < from ? 0 : it->have[l][i];
            m->acked[l][i] = m->maybe[l][i] = i < from;
        }
        m->ends[l][from] = m->ends[l][it->snapshot.length] = true;
    }
    return m;
}

static banyan_code put_file(banyan_session *session, const struct snapshot_file *file, banyan_error *error)
{
    struct snapshot_names names;
    struct common_safetensor tensors[4];
    (void)snapshot_tensors(&it->form->shape, file, &names, tensors);
    size_t dim = tensors[0].bytes / file->tokens / sizeof(float), n = file->tokens * dim;
    float *k = malloc(2 * n * sizeof *k), *v = k + n;
    if (!k)
        abort();
    for (size_t i = 0; i < n; i++) {
        k[i] = 1;
        v[i] = it->have[file->layer][file->first + i / dim];
    }
    if (it->made) {
        chaos_mark_maybe(it->made, file->layer, file->first, (uint32_t)file->tokens);
        if (file->first > it->made->starts[file->layer])
            it->made->starts[file->layer] = file->first;
    }
    banyan_code code = snapshot_put_rows(session, file, &(struct snapshot_rows){.k = k, .v = v}, error);
    for (uint64_t i = 0; i < file->tokens && it->made && code == BANYAN_OK; i++)
        it->made->acked[file->layer][file->first + i] = true;
    free(k);
    return code;
}

// Until all is there it has no token that all layers have, but those that it has forgotten.
static void look_at_half(void)
{
    const struct coordinator *c = chaos.cluster->coordinator;
    const struct coordinator_session *s = c && it->made && !chaos_snapshot_excused()
                                              ? coordinator_session_any(&c->sessions, it->made->id)
                                              : NULL;
    if (s && coordinator_session_length(s) > it->form->layers[LAYERS - 1].from)
        chaos_violated(NULL, "a session that is not restored as a whole has tokens");
}

static banyan_code fill(banyan_session *session, banyan_error *error)
{
    banyan_session_info info;
    banyan_code code = BANYAN_OK;
    for (size_t i = 0; i < it->snapshot.n_files && code == BANYAN_OK; i++) {
        chaos_snapshot_think();
        look_at_half();
        code = put_file(session, snapshot_nth(&it->snapshot, i), error);
    }
    if (code == BANYAN_OK)
        code = banyan_session_get_info(session, &info, error);
    if (code != BANYAN_OK)
        return code;
    uint64_t length = info.length, floor = info.forgotten;
    banyan_session_info_free(&info);
    if ((length != it->snapshot.length && !chaos_snapshot_lost(it->made)) || floor != it->snapshot.floor) {
        fprintf(stderr, "length %" PRIu64 " of %" PRIu64 ", floor %" PRIu64 " of %" PRIu64 "\n", length,
                it->snapshot.length, floor, it->snapshot.floor);
        if (!chaos_snapshot_excused())
            chaos_violated(NULL, "what was restored is not what the snapshot is");
    }
    return code;
}

void chaos_snapshot_restore(const banyan_spec *spec)
{
    banyan_session *session;
    banyan_error error;
    uint32_t kills = chaos.kills;
    it->stage = MAKING;
    if (banyan_session_create_at(it->client, spec, NULL, it->snapshot.floor, &session, &error) != BANYAN_OK) {
        chaos_snapshot_refused(&error);
        return;
    }
    it->stage = FILLING;
    it->made = chaos_snapshot_excused() ? NULL : made(session, kills);
    bool whole = fill(session, &error) == BANYAN_OK;
    if (!whole)
        chaos_snapshot_refused(&error);
    whole = whole && !chaos_snapshot_excused() && it->made;
    if (!whole)
        (void)banyan_session_delete(session, NULL);
    if (it->made && !whole)
        it->made->deleted = true;
    else if (whole)
        it->made->held = false;
    it->fresh = whole ? it->made : NULL;
    it->made = NULL;
    banyan_session_close(session);
    chaos.snapshots.restored += whole;
}
