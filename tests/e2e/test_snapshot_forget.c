// SPDX-License-Identifier: Apache-2.0
// Snapshots of sessions that have forgotten rows, on real processes: what is restored, in another cluster of
// another number of workers, has the same floor, answers every step at or past it as the float64 reference
// says and with the same bits as the first session, and refuses what that one refuses; also after restarts of
// the coordinator and of the workers.
#include "tests/e2e/banyanctl.h"
#include "tests/e2e/support.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/snapshot/snapshot.h"
#include "common/base/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed
#define LOCAL   BANYAN_LAYER_LOCAL
#define NONE    BANYAN_SHARES_NONE

enum { CHUNK = 64, MARGIN = 40, BLOCK = 300, LENGTH = 900, DECODED = 37, ROOM = 6000, LAYERS_MAX = 6 };

static char scratch[64];                     // a folder, for all
static struct harness_cluster *here, *there; // of 3 workers; of 2, with stores
static banyan_client *at_here, *at_there;

static const char *path_of(const char *name)
{
    static _Thread_local char path[256];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

// ---- sessions, and what they should hold ------------------------------------------------------------------

struct subject {
    banyan_spec spec;
    struct context held[3]; // of layers alike
    uint32_t n_held;
    struct layer {
        const struct context *rows; // NULL: the layer holds nothing
        banyan_spec spec;           // of it alone
        bool stores, windowed;
    } layers[LAYERS_MAX];
};

static struct context view_of(const struct subject *s, uint32_t layer)
{
    struct context view = *s->layers[layer].rows;
    view.spec = s->layers[layer].spec;
    return view;
}

static void subject_free(struct subject *s)
{
    for (uint32_t i = 0; i < s->n_held; i++)
        context_free(&s->held[i]);
}

// Windows, pieces, a layer that sees all, one that holds nothing and one that reads another's with a wider
// window.
enum { NEAR, PIECES, FAR, WIDE, KINDS };
static const banyan_kind kinds[KINDS] = {
    [NEAR] = {.q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .window = 100},
    [PIECES] = {.q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .mask_chunk = 96},
    [FAR] = {.q_heads = 2, .kv_heads = 1, .k_dim = 16, .v_dim = 16},
    [WIDE] = {.q_heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .window = 150},
};
static const uint32_t layer_kind[6] = {NEAR, FAR, PIECES, NEAR, LOCAL, WIDE},
                      shares[6] = {NONE, NONE, NONE, NONE, NONE, 3};

static void subject_of_kinds(struct subject *s, uint32_t members)
{
    *s = (struct subject){.n_held = 3};
    s->spec = (banyan_spec){.layers = 6,
                            .kv_type = BANYAN_F16,
                            .chunk_tokens = CHUNK,
                            .members = members,
                            .n_kinds = KINDS,
                            .kinds = kinds,
                            .layer_kind = layer_kind,
                            .shares = shares,
                            .forget = MARGIN};
    for (uint32_t l = 0; l < 6; l++) {
        if (layer_kind[l] == LOCAL)
            continue;
        const banyan_kind *kind = &kinds[layer_kind[l]];
        s->layers[l] = (struct layer){.rows = &s->held[shares[l] == NONE ? layer_kind[l] : NEAR],
                                      .spec = {.layers = 1,
                                               .q_heads = kind->q_heads,
                                               .kv_heads = kind->kv_heads,
                                               .k_dim = kind->k_dim,
                                               .v_dim = kind->v_dim,
                                               .kv_type = BANYAN_F16,
                                               .window = kind->window,
                                               .mask_chunk = kind->mask_chunk,
                                               .chunk_tokens = CHUNK},
                                      .stores = shares[l] == NONE,
                                      .windowed = layer_kind[l] != FAR};
    }
    for (uint32_t l = 0; l < 3; l++) { // layers 0, 1 and 2 are of the kinds that are held
        context_init(&s->held[layer_kind[l]], &s->layers[l].spec, ROOM);
        context_random(&s->held[layer_kind[l]], 0, ROOM, 70 + l);
    }
}

// All layers have windows: such a session has a length before anything of it is there.
static void subject_of_windows(struct subject *s, banyan_kv_type type, bool v_in_k)
{
    banyan_spec one = {.layers = 1,
                       .q_heads = 4,
                       .kv_heads = v_in_k ? 1 : 2,
                       .k_dim = 32,
                       .v_dim = v_in_k ? 24 : 32,
                       .kv_type = type,
                       .v_in_k = v_in_k,
                       .window = 50,
                       .chunk_tokens = CHUNK};
    *s = (struct subject){.n_held = 2, .spec = one};
    s->spec.layers = 2;
    s->spec.members = 1;
    s->spec.forget = MARGIN;
    for (uint32_t l = 0; l < 2; l++) {
        context_init(&s->held[l], &one, ROOM);
        context_random(&s->held[l], 0, ROOM, 30 + l);
        s->layers[l] = (struct layer){.rows = &s->held[l], .spec = one, .stores = true, .windowed = true};
    }
}

static void attach(banyan_session *session, const struct subject *s, uint32_t layer, uint64_t first,
                   uint64_t count)
{
    const struct context *c = s->layers[layer].rows;
    if (banyan_kv_scaled(c->spec.kv_type))
        OK(banyan_attach_scaled(session, layer, first, count, context_k(c, 0, first),
                                context_k_scale(c, 0, first), context_v(c, 0, first),
                                context_v_scale(c, 0, first), ERR));
    else
        OK(banyan_attach(session, layer, first, count, context_k(c, 0, first), context_v(c, 0, first), ERR));
    OK(banyan_commit(session, layer, first, count, ERR));
}

// One token, appended and attended in each layer.
static void decode(banyan_client *client, banyan_session *session, const struct subject *s, uint64_t position)
{
    for (uint32_t l = 0; l < s->spec.layers; l++) {
        if (!s->layers[l].rows)
            continue;
        const struct context view = view_of(s, l);
        struct step step = {.session = session,
                            .layer = l,
                            .first = position,
                            .rows = 1,
                            .seed = position + l,
                            .timeout_ns = LONG_NS};
        if (s->layers[l].stores) {
            step.k = context_k(&view, 0, position);
            step.v = context_v(&view, 0, position);
            step.k_scale = context_k_scale(&view, 0, position);
            step.v_scale = context_v_scale(&view, 0, position);
        }
        OK(step_run(client, &step));
        context_check(&view, 0, position, 1, 0, step.made_q, step.o, step.lse, NULL, "decode");
        step_free(&step);
    }
}

// A prompt in blocks: it has forgotten the most of it, but the last two.
static banyan_session *prefilled(banyan_client *client, const struct subject *s)
{
    banyan_session *session;
    OK(banyan_session_create(client, &s->spec, NULL, &session, ERR));
    for (uint64_t at = 0; at < LENGTH; at += BLOCK)
        for (uint32_t l = 0; l < s->spec.layers; l++)
            if (s->layers[l].stores)
                attach(session, s, l, at, BLOCK);
    return session;
}

// Then some tokens: of layers with windows it holds little more than these.
static banyan_session *filled(banyan_client *client, const struct subject *s)
{
    banyan_session *session = prefilled(client, s);
    for (uint64_t at = LENGTH; at < LENGTH + DECODED; at++)
        decode(client, session, s, at);
    return session;
}

static banyan_session_info info_of(banyan_session *session)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, ERR));
    return info;
}

static uint64_t floor_of(banyan_session *session)
{
    banyan_session_info info = info_of(session);
    banyan_session_info_free(&info);
    return info.forgotten;
}

static void drop(banyan_session *session)
{
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
}

// ---- snapshots --------------------------------------------------------------------------------------------

static bool has_file(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", path_of(folder), name);
    return access(path, F_OK) == 0;
}

// ---- judging ----------------------------------------------------------------------------------------------

// The same state, as they say it.
static void same_info(banyan_session *one, banyan_session *other, bool bytes)
{
    banyan_session_info a = info_of(one), b = info_of(other);
    assert_true(a.forgotten > 0 && a.forgotten == b.forgotten);
    assert_int_equal(a.length, b.length);
    assert_int_equal(a.n_layers, b.n_layers);
    for (uint32_t l = 0; l < a.n_layers; l++)
        assert_int_equal(a.layer_forgotten[l], b.layer_forgotten[l]);
    if (bytes)
        assert_int_equal(a.bytes, b.bytes);
    banyan_session_info_free(&a);
    banyan_session_info_free(&b);
}

// Rows [floor, length), each layer. old: NULL, or a session here with the same rows, of as many workers.
static void answers(banyan_session *session, banyan_session *old, const struct subject *s, const char *what)
{
    banyan_session_info info = info_of(session);
    for (uint32_t l = 0; l < s->spec.layers; l++) {
        if (!s->layers[l].rows)
            continue;
        const struct context view = view_of(s, l);
        for (uint64_t at = info.forgotten; at < info.length; at++) {
            struct step step = {.session = session,
                                .layer = l,
                                .first = at,
                                .rows = 1,
                                .seed = at + l,
                                .timeout_ns = LONG_NS},
                        first = step;
            first.session = old;
            OK(step_run(at_there, &step));
            context_check(&view, 0, at, 1, 0, step.made_q, step.o, step.lse, NULL, what);
            if (old) {
                OK(step_run(at_here, &first));
                if (!step_same_bits(&first, &step))
                    fail_msg("%s: layer %u, position %" PRIu64 ": other bits", what, l, at);
                step_free(&first);
            }
            step_free(&step);
        }
    }
    banyan_session_info_free(&info);
}

static banyan_code ask(banyan_client *client, banyan_session *session, uint32_t layer, uint64_t first,
                       uint64_t visible)
{
    struct step step = {
        .session = session, .layer = layer, .first = first, .rows = 1, .visible = visible, .seed = 1};
    banyan_code code = step_run(client, &step);
    step_free(&step);
    return code;
}

// What lies behind the floor is refused, as usual.
static void refusals(banyan_client *client, banyan_session *session, const struct subject *s)
{
    static uint8_t k[4096], v[4096];
    static float ks[16], vs[16];
    banyan_session_info info = info_of(session);
    banyan_session *fork;
    for (uint32_t l = 0; l < s->spec.layers; l++) {
        if (!s->layers[l].windowed)
            continue;
        FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN",
              ask(client, session, l, info.layer_forgotten[l] - 1, 0));
        FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(client, session, l, 0, 0));
        if (s->layers[l].spec.window && (l != 3 || s->spec.n_kinds == 0)) // 5 sees more of what 3 holds
            FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(client, session, l, info.forgotten - 1, 0));
        if (!s->layers[l].stores)
            continue;
        bool scaled = banyan_kv_scaled(s->spec.kv_type);
        uint64_t from = info.layer_forgotten[l];
        void *rows_v = s->spec.v_in_k ? NULL : v;
        FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN",
              banyan_read_rows(session, l, from - 1, 2, k, scaled ? ks : NULL, rows_v, scaled ? vs : NULL,
                               ERR));
        OK(banyan_read_rows(session, l, from, 2, k, scaled ? ks : NULL, rows_v, scaled ? vs : NULL, ERR));
        assert_memory_equal(k, context_k(s->layers[l].rows, 0, from), 2 * s->layers[l].rows->k_row);
    }
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", banyan_session_truncate(session, info.forgotten - 1, ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", banyan_session_fork(session, 1, NULL, &fork, ERR));
    banyan_session_info_free(&info);
}

// ---- the same session again -------------------------------------------------------------------------------

static void every_type(void **state)
{
    (void)state;
    static const struct {
        bool kinds, v_in_k;
        banyan_kv_type type;
        const char *options, *others;
    } cases[] = {{true, false, 0, "--file-size 8K", "--chunk-tokens 16 --members 2 --replicas 2"},
                 {true, false, 0, "--zstd", "--chunk-tokens 256 --members 2"},
                 {false, false, BANYAN_F32, "--file-size 8K --threads 4", "--chunk-tokens 48"},
                 {false, false, BANYAN_INT8, "--zstd --file-size 4K", "--chunk-tokens 128 --replicas 2"},
                 {false, true, BANYAN_BF16, "", "--chunk-tokens 16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct subject s;
        if (cases[i].kinds)
            subject_of_kinds(&s, 1);
        else
            subject_of_windows(&s, cases[i].type, cases[i].v_in_k);
        banyan_session *old = filled(at_here, &s);
        banyanctl_snapshot(here, old, cases[i].options, path_of("case"));
        banyan_session *again = banyanctl_restore(there, at_there, "again", "", path_of("case")),
                       *other = banyanctl_restore(there, at_there, "other", cases[i].others, path_of("case"));
        same_info(old, again, true);
        same_info(old, other, false);
        answers(again, old, &s, "restored");
        answers(other, NULL, &s, "restored with other chunks");
        refusals(at_here, old, &s);
        refusals(at_there, again, &s);
        refusals(at_there, other, &s);
        // A snapshot of what was restored, back to where it came from: the third has the first one's bits.
        banyanctl_snapshot(there, again, "", path_of("second"));
        banyan_session *third = banyanctl_restore(here, at_here, "third", "", path_of("second"));
        same_info(old, third, true);
        for (uint32_t l = 0; l < s.spec.layers; l++) {
            struct step a = {.session = old, .layer = l, .first = LENGTH + DECODED - 3, .rows = 3, .seed = l},
                        b = a;
            b.session = third;
            if (!s.layers[l].rows)
                continue;
            OK(step_run(at_here, &a));
            OK(step_run(at_here, &b));
            assert_true(step_same_bits(&a, &b));
            step_free(&a);
            step_free(&b);
        }
        // It goes on, as the first one does.
        for (uint64_t at = LENGTH + DECODED; at < LENGTH + DECODED + 70; at++) {
            decode(at_here, old, &s, at);
            decode(at_there, again, &s, at);
        }
        EVENTUALLY(60, floor_of(old) > LENGTH - MARGIN && floor_of(again) > LENGTH - MARGIN);
        answers(again, NULL, &s, "restored, and gone on");
        drop(third);
        drop(other);
        drop(again);
        drop(old);
        subject_free(&s);
        support_remove_folder(path_of("case"));
        support_remove_folder(path_of("second"));
    }
}

// A floor of which the layers see all: nothing is forgotten yet, and it is kept all the same.
static void a_floor_without_forgotten_rows(void **state)
{
    (void)state;
    struct subject s;
    banyan_session *old;
    subject_of_windows(&s, BANYAN_F16, false);
    s.spec.window = 5000;
    s.spec.forget = 16;
    for (uint32_t l = 0; l < 2; l++)
        s.layers[l].spec.window = 5000;
    OK(banyan_session_create(at_here, &s.spec, NULL, &old, ERR));
    for (uint32_t l = 0; l < 2; l++) {
        attach(old, &s, l, 0, 200);
        attach(old, &s, l, 200, 10);
    }
    EVENTUALLY(60, floor_of(old) == 200 - 16);
    banyanctl_snapshot(here, old, "", path_of("flat"));
    banyan_session *again = banyanctl_restore(there, at_there, "flat", "", path_of("flat"));
    same_info(old, again, true);
    OK(ask(at_there, again, 0, 0, 0));
    drop(again);
    drop(old);
    subject_free(&s);
    support_remove_folder(path_of("flat"));
}

// The rows of many files are written one after the other, and far past the floor: it is not to rise for that.
static void the_floor_stays_where_it_was(void **state)
{
    (void)state;
    struct subject s;
    subject_of_kinds(&s, 1);
    banyan_session *old = prefilled(at_here, &s);
    EVENTUALLY(60, floor_of(old) == LENGTH - BLOCK - MARGIN);
    banyanctl_snapshot(here, old, "--file-size 8K", path_of("many"));
    banyan_session *again = banyanctl_restore(there, at_there, "many", "--threads 4", path_of("many"));
    same_info(old, again, true);
    answers(again, old, &s, "restored from many files");
    drop(again);
    drop(old);
    subject_free(&s);
    support_remove_folder(path_of("many"));
}

// ---- while it is stepped ----------------------------------------------------------------------------------

struct stepper { // a client of its own, that appends until it is stopped
    banyan_client *client;
    banyan_session *session;
    const struct subject *subject;
    atomic_uint_least64_t length;
    atomic_bool stop;
};

static void *step_on(void *arg)
{
    struct stepper *s = arg;
    while (!atomic_load(&s->stop) && atomic_load(&s->length) < ROOM) {
        decode(s->client, s->session, s->subject, atomic_load(&s->length));
        atomic_fetch_add(&s->length, 1);
    }
    return NULL;
}

static void while_it_is_stepped(void **state)
{
    (void)state;
    struct subject s;
    subject_of_kinds(&s, 3);
    struct stepper stepper = {.client = support_connect(here, "tcp"), .subject = &s};
    pthread_t thread;
    stepper.session = filled(stepper.client, &s);
    atomic_init(&stepper.length, LENGTH + DECODED);
    atomic_init(&stepper.stop, false);
    assert_int_equal(pthread_create(&thread, NULL, step_on, &stepper), 0);
    for (int i = 0; i < 3; i++) {
        uint64_t before = atomic_load(&stepper.length);
        EVENTUALLY(60, atomic_load(&stepper.length) > before + 70);
        before = atomic_load(&stepper.length);
        banyanctl_snapshot(here, stepper.session, i ? "--file-size 16K --threads 3" : "--zstd",
                           path_of("moving"));
        banyan_session *again =
            banyanctl_restore(there, at_there, "moving", i == 1 ? "--members 2" : "", path_of("moving"));
        banyan_session_info info = info_of(again);
        assert_true(info.length >= before && info.forgotten > before - 2 * CHUNK - MARGIN);
        banyan_session_info_free(&info);
        answers(again, NULL, &s, "of a session that goes on");
        refusals(at_there, again, &s);
        drop(again);
        support_remove_folder(path_of("moving"));
    }
    atomic_store(&stepper.stop, true);
    pthread_join(thread, NULL);
    drop(stepper.session);
    banyan_disconnect(stepper.client);
    subject_free(&s);
}

// ---- restarts ---------------------------------------------------------------------------------------------

static void restarts(void **state)
{
    (void)state;
    for (int all_windows = 0; all_windows < 2; all_windows++) {
        struct subject s;
        if (all_windows)
            subject_of_windows(&s, BANYAN_F16, false);
        else
            subject_of_kinds(&s, 2);
        banyan_session *old = filled(at_here, &s);
        banyanctl_snapshot(here, old, "", path_of("lasting"));
        banyan_session *again = banyanctl_restore(there, at_there, "lasting", "", path_of("lasting"));
        harness_cluster_signal(there, HARNESS_COORDINATOR, SIGKILL);
        assert_true(harness_cluster_restart(there, HARNESS_COORDINATOR));
        answers(again, NULL, &s, "after a restart of the coordinator");
        refusals(at_there, again, &s);
        for (uint32_t w = 0; w < 2; w++) {
            harness_cluster_signal(there, w, SIGKILL);
            assert_true(harness_cluster_restart(there, w));
        }
        answers(again, NULL, &s, "after restarts of the workers");
        for (uint32_t w = 0; w < 2; w++)
            harness_cluster_signal(there, w, SIGKILL);
        harness_cluster_signal(there, HARNESS_COORDINATOR, SIGKILL);
        assert_true(harness_cluster_restart(there, HARNESS_COORDINATOR));
        for (uint32_t w = 0; w < 2; w++)
            assert_true(harness_cluster_restart(there, w));
        answers(again, NULL, &s, "after a restart of all");
        refusals(at_there, again, &s);
        same_info(old, again, true);
        for (uint64_t at = LENGTH + DECODED; at < LENGTH + DECODED + 5; at++)
            decode(at_there, again, &s, at);
        drop(again);
        drop(old);
        subject_free(&s);
        support_remove_folder(path_of("lasting"));
    }
}

// ---- the C API --------------------------------------------------------------------------------------------

static void made_by_hand(void **state)
{
    (void)state;
    struct subject s;
    banyan_session *session;
    enum { FLOOR = 700, FROM = FLOOR - 50 + 1, END = FLOOR + 90 };
    subject_of_windows(&s, BANYAN_INT8, false);
    OK(banyan_session_create_at(at_there, &s.spec, NULL, FLOOR, &session, ERR));
    banyan_session_info info = info_of(session);
    assert_int_equal(info.forgotten, FLOOR);
    for (uint32_t l = 0; l < 2; l++) {
        assert_int_equal(info.layer_forgotten[l], FROM);
        assert_int_equal(info.layer_lengths[l], FROM);
    }
    banyan_session_info_free(&info);
    // With nothing attached, no step has an answer that is not there.
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(at_there, session, 0, FROM - 1, 0));
    FAILS(BANYAN_OUT_OF_RANGE, "", ask(at_there, session, 0, FLOOR, 0));
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(at_there, session, 0, FLOOR - 1, FROM));
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", banyan_session_truncate(session, FROM - 1, ERR));
    for (uint32_t l = 0; l < 2; l++) { // from the end to the start
        attach(session, &s, l, FLOOR, END - FLOOR);
        FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", ask(at_there, session, l, FLOOR, 0));
        attach(session, &s, l, FROM, FLOOR - FROM);
    }
    answers(session, NULL, &s, "made by hand");
    refusals(at_there, session, &s);
    drop(session);
    // Far more chunks than are placed at a time.
    OK(banyan_session_create_at(at_there, &s.spec, NULL, UINT64_C(1500) * CHUNK, &session, ERR));
    info = info_of(session);
    assert_int_equal(info.chunks, 1500);
    assert_int_equal(info.layer_lengths[0], 1500 * CHUNK - 49);
    assert_int_equal(info.bytes,
                     2 * (CHUNK - 49) * (2 * 32 + 2 * 32 + 4 * sizeof(float))); // of the last chunk
    banyan_session_info_free(&info);
    drop(session);
    // floor 0 is the other call.
    OK(banyan_session_create_at(at_there, &s.spec, NULL, 0, &session, ERR));
    assert_int_equal(floor_of(session), 0);
    drop(session);
    FAILS(BANYAN_OUT_OF_RANGE, "LIMIT",
          banyan_session_create_at(at_there, &s.spec, NULL, UINT64_C(1) << 40, &session, ERR));
    s.spec.forget = 0;
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_session_create_at(at_there, &s.spec, NULL, 5, &session, ERR));
    subject_free(&s);
}

// ---- manifests that make no sense -------------------------------------------------------------------------

static void write_manifest(struct snapshot *snapshot)
{
    assert_int_equal(mkdir(path_of("odd"), 0700), 0);
    char path[300], *text = snapshot_text(snapshot);
    snprintf(path, sizeof path, "%s/manifest.json", path_of("odd"));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    free(text);
}

static void odd_manifests(void **state)
{
    (void)state;
    static const struct {
        uint64_t length, floor;
        int forget;
        const char *says;
    } cases[] = {{100, 101, 8, "'floor' is past 'length'"},
                 {100, 50, 0, "the 'spec' does not forget"},
                 {100, 50, 8, "no file has layer 0 from position 31 on"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct snapshot odd = {.length = cases[i].length,
                               .floor = cases[i].floor,
                               .info = json_object(),
                               .spec = json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:i}", "layers", 1,
                                                 "q_heads", 2, "kv_heads", 2, "k_dim", 8, "v_dim", 8,
                                                 "kv_type", "f32", "window", 20, "chunk_tokens", 16, "forget",
                                                 cases[i].forget)};
        assert_non_null(odd.spec);
        write_manifest(&odd);
        banyanctl_expect(there, 4, cases[i].says, "session restore %s", path_of("odd"));
        support_remove_folder(path_of("odd"));
        snapshot_clear(&odd);
    }
    // Of a real one: files that begin where the rows of another floor do.
    struct subject s;
    subject_of_windows(&s, BANYAN_F16, false);
    banyan_session *old = filled(at_here, &s);
    banyanctl_snapshot(here, old, "", path_of("real"));
    char name[64];
    snprintf(name, sizeof name, "layer-0000-%012" PRIu64 ".safetensors", floor_of(old) - 50 + 1);
    assert_true(has_file("real", name));
    assert_false(has_file("real", "layer-0000-000000000000.safetensors"));
    drop(old);
    subject_free(&s);
    support_remove_folder(path_of("real"));
    banyan_session_list list;
    OK(banyan_session_get_list(at_there, &list, ERR));
    assert_int_equal(list.n, 0);
    banyan_session_list_free(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),
        cmocka_unit_test(a_floor_without_forgotten_rows),
        cmocka_unit_test(the_floor_stays_where_it_was),
        cmocka_unit_test(while_it_is_stepped),
        cmocka_unit_test(restarts),
        cmocka_unit_test(made_by_hand),
        cmocka_unit_test(odd_manifests),
    };
    char stores[2][128];
    const char *args[2][3];
    snprintf(scratch, sizeof scratch, "/tmp/banyan-snapshot.XXXXXX");
    assert_non_null(mkdtemp(scratch));
    for (int i = 0; i < 2; i++) {
        snprintf(stores[i], sizeof stores[i], "%s/store-%d", scratch, i);
        args[i][0] = "--store";
        args[i][1] = stores[i];
        args[i][2] = NULL;
    }
    const char *const *const each[2] = {args[0], args[1]};
    here = support_start(&(struct harness_options){.workers = 3});
    there = support_start(&(struct harness_options){.workers = 2, .each_args = each});
    at_here = support_connect(here, "tcp");
    at_there = support_connect(there, "nng+tcp");
    int failed = cmocka_run_group_tests_name("snapshot_forget", tests, NULL, NULL);
    banyan_disconnect(at_here);
    banyan_disconnect(at_there);
    support_stop(here);
    support_stop(there);
    support_remove_folder(scratch);
    return failed;
}
