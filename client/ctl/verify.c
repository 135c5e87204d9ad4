// SPDX-License-Identifier: Apache-2.0
// Command: session verify. Steps with random queries at positions that the session has, of each layer, are
// answered by the cluster, and again here: in float64, from the rows as the workers hold them (exact.c). Both
// must agree within what every answer promises, and all holders of a chunk must have the same bytes.
//
// The steps are the command's own, and alter nothing: it can be asked of any session at any time, and a
// random query looks at every key, where a model's looks at a few. Beside them the step that the coordinator
// keeps of the session, one of its client's own, is computed again (ctl_verify_kept.c).
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/exact.h"
#include "client/ctl/snapshot.h"
#include "client/ctl/verify.h"
#include "client/ctl/work.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/rows/read.h"
#include "client/lib/session/spec.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "proto/model/kv.h"

#define ROWS_MAX    16
#define PIECE_BYTES (UINT64_C(4) << 20) // read at a time, of each copy
#define NO_LAYER    UINT64_MAX

static struct {
    uint64_t layer, rows, seed, threads;
} verify = {.layer = NO_LAYER, .rows = 2};

const struct common_option ctl_verify_options[] = {
    {"layer", 0, COMMON_OPTION_U64, &verify.layer, "N", "Only this layer. Default: all.", 0, 1023},
    {"rows", 0, COMMON_OPTION_U64, &verify.rows, "N",
     "Query rows per layer: one at the end, the others anywhere. Default: 2.", 1, ROWS_MAX},
    {"seed", 0, COMMON_OPTION_U64, &verify.seed, "N",
     "Seed for queries and positions. Default: a new one each time.", 0, INT64_MAX},
    {"threads", 0, COMMON_OPTION_U64, &verify.threads, "N",
     "Layers to verify at once. Default: one per processor, at most 16.", 1, 16},
    {0},
};

const char ctl_verify_about[] =
    "Asks the cluster for attention of random queries over the session, computes "
    "the same in float64 from the rows\n"
    "that the workers hold, and compares the two; also compares all copies of "
    "each row with each other. ERROR is the\n"
    "largest error as a fraction of what is allowed (docs/internals/precision.md). A step "
    "of the session's client that the\n"
    "coordinator keeps (--keep-steps) is recomputed and compared with its "
    "answer. Exits with 10 if anything differs.\n"
    "Changes nothing, reads all that the rows see, and takes some seconds of a "
    "processor per 10^9 multiplications.";

struct finding { // of a layer
    uint32_t layer;
    uint64_t tokens; // whose rows were read
    uint32_t rows;
    double o, lse; // worst, as fractions
    uint64_t position;
    uint32_t head;
    double got, want; // where the worst is
    bool copies_differ;
    uint64_t differs_at;
};

struct verifying {
    banyan_session *session;
    const Banyan__Pb__Spec *spec;
    uint64_t length, floor; // rows may look from positions [floor, length)
    uint32_t copies;
    struct finding *findings;
    struct ctl_kept kept;
};

// ---- rows of one layer ------------------------------------------------------------------------------------

struct buffer {               // rows of one copy
    uint8_t *k, *v;           // v NULL: it lies in K
    float *k_scale, *v_scale; // NULL: a type without
};

// Room for `count` rows of each of two copies in one piece of memory. NULL: out of memory.
static void *buffers_new(const struct proto_layer *layer, bool scaled, uint64_t count, struct buffer out[2])
{
    size_t scales = scaled ? layer->kv_heads * sizeof(float) : 0, k = layer->k_row - scales;
    size_t v = layer->v_row ? layer->v_row - scales : 0, row = layer->k_row + layer->v_row;
    uint8_t *memory = malloc(2 * count * row + 64);
    for (int i = 0; i < 2 && memory; i++) {
        uint8_t *at = memory + (size_t)i * count * row / 16 * 16 + (i ? 16 : 0); // floats first
        out[i] = (struct buffer){0};
        if (scaled) {
            out[i].k_scale = (float *)at;
            at += count * scales;
            out[i].v_scale = v ? (float *)at : NULL;
            at += v ? count * scales : 0;
        }
        out[i].k = at;
        out[i].v = v ? at + count * k : NULL;
    }
    return memory;
}

static bool part_differs(const void *a, const void *b, uint64_t row, size_t bytes)
{
    return a && memcmp((const uint8_t *)a + row * bytes, (const uint8_t *)b + row * bytes, bytes) != 0;
}

// The first row that is not the same in both; count: all are.
static uint64_t first_difference(const struct proto_layer *layer, const struct buffer both[2], uint64_t count)
{
    size_t scales = both[0].k_scale ? layer->kv_heads * sizeof(float) : 0;
    uint64_t row = 0;
    while (row < count && !part_differs(both[0].k, both[1].k, row, layer->k_row - scales) &&
           !part_differs(both[0].v, both[1].v, row, layer->v_row - scales) &&
           !part_differs(both[0].k_scale, both[1].k_scale, row, scales) &&
           !part_differs(both[0].v_scale, both[1].v_scale, row, scales))
        row++;
    return row;
}

// Reads what the rows see, every copy of it.
static enum ctl_exit read_layer(const struct verifying *v, const struct proto_layer *layer,
                                struct exact_row *const *rows, struct finding *f, uint64_t *bytes,
                                struct ctl_problem *problem)
{
    uint64_t row_bytes = layer->k_row + layer->v_row, most = PIECE_BYTES / row_bytes, from = v->length, n;
    struct buffer both[2];
    banyan_error error;
    most = most ? most : 1;
    void *memory = buffers_new(layer, proto_kv_scaled(v->spec->kv_type), most, both);
    enum ctl_exit exit_code = CTL_OK;
    for (uint32_t i = 0; i < f->rows; i++)
        from = exact_row_from(rows[i]) < from ? exact_row_from(rows[i]) : from;
    if (!memory) {
        client_error_set(&error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        return ctl_problem_cluster(problem, &error);
    }
    for (uint64_t at = from; at < v->length && exit_code == CTL_OK; at += n) {
        n = most < v->length - at ? most : v->length - at;
        for (uint32_t copy = 0; copy < v->copies && exit_code == CTL_OK; copy++) {
            struct buffer *b = &both[copy > 0];
            if (client_read_copy(v->session, layer->source, at, n, copy, b->k, b->k_scale, b->v, b->v_scale,
                                 &error) != BANYAN_OK)
                exit_code = ctl_problem_cluster(problem, &error);
            uint64_t same = copy > 0 && exit_code == CTL_OK ? first_difference(layer, both, n) : n;
            if (same < n && !f->copies_differ) {
                f->copies_differ = true;
                f->differs_at = at + same;
            }
        }
        for (uint32_t i = 0; i < f->rows && exit_code == CTL_OK; i++)
            exact_row_add(rows[i], at, n, both[0].k, both[0].k_scale, both[0].v, both[0].v_scale);
    }
    f->tokens = v->length - from;
    *bytes = f->tokens * row_bytes * v->copies;
    free(memory);
    return exit_code;
}

// ---- one layer --------------------------------------------------------------------------------------------

static uint64_t draw(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15); // splitmix64
    uint64_t x = (*state ^ (*state >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

struct asking { // of one layer: rows of q, o and lse
    struct exact_row *rows[ROWS_MAX];
    uint64_t positions[ROWS_MAX];
    float *q, *o, *lse;
};

static enum ctl_exit ask(const struct verifying *v, const struct proto_layer *layer, uint32_t nth,
                         struct asking *a, uint32_t n, struct ctl_problem *problem)
{
    banyan_item items[ROWS_MAX];
    banyan_error errors[ROWS_MAX], error;
    for (uint32_t i = 0; i < n; i++)
        items[i] = (banyan_item){.session = v->session,
                                 .layer = nth,
                                 .first = a->positions[i],
                                 .rows = 1,
                                 .q = a->q + (size_t)i * layer->q_heads * layer->k_dim,
                                 .visible = layer->not_causal ? v->length : 0,
                                 .o = a->o + (size_t)i * layer->q_heads * layer->v_dim,
                                 .lse = a->lse + (size_t)i * layer->q_heads,
                                 .error = &errors[i]};
    if (banyan_attend(v->session->client, items, n, 0, NULL, &error) != BANYAN_OK)
        return ctl_problem_cluster(problem, &error);
    for (uint32_t i = 0; i < n; i++)
        if (items[i].code != BANYAN_OK)
            return ctl_problem_cluster(problem, &errors[i]);
    return CTL_OK;
}

static bool prepare(const struct verifying *v, const struct proto_layer *layer, struct asking *a, uint32_t n,
                    uint64_t seed)
{
    size_t q = (size_t)layer->q_heads * layer->k_dim, o = (size_t)layer->q_heads * layer->v_dim;
    a->q = malloc(n * (q + o + layer->q_heads) * sizeof(float));
    if (!a->q)
        return false;
    a->o = a->q + n * q;
    a->lse = a->o + n * o;
    for (size_t i = 0; i < n * q; i++) // between -√3 and √3: of variance 1
        a->q[i] = ((float)(draw(&seed) >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
    bool ok = true;
    for (uint32_t i = 0; i < n; i++) {
        a->positions[i] = i == 0 ? v->length - 1 : v->floor + draw(&seed) % (v->length - v->floor);
        a->rows[i] = exact_row_new(layer, (banyan_kv_type)v->spec->kv_type, a->positions[i],
                                   layer->not_causal ? v->length : a->positions[i] + 1, a->q + i * q);
        ok = ok && a->rows[i];
    }
    return ok;
}

static void judge(const struct proto_layer *layer, const struct asking *a, struct finding *f)
{
    for (uint32_t i = 0; i < f->rows; i++) {
        const struct exact_verdict verdict =
            exact_row_judge(a->rows[i], a->o + (size_t)i * layer->q_heads * layer->v_dim,
                            a->lse + (size_t)i * layer->q_heads);
        double worst = verdict.o > verdict.lse ? verdict.o : verdict.lse;
        if (worst > f->o && worst > f->lse) {
            f->position = a->positions[i];
            f->head = verdict.head;
            f->got = verdict.got;
            f->want = verdict.want;
        }
        f->o = verdict.o > f->o ? verdict.o : f->o;
        f->lse = verdict.lse > f->lse ? verdict.lse : f->lse;
    }
}

static enum ctl_exit verify_layer(void *arg, size_t nth, uint64_t *bytes, struct ctl_problem *problem)
{
    const struct verifying *v = arg;
    struct finding *f = &v->findings[nth];
    const struct proto_layer layer = proto_spec_layer(v->spec, f->layer);
    struct asking a = {0};
    banyan_error error;
    f->rows = (uint32_t)verify.rows;
    enum ctl_exit exit_code = CTL_OK;
    if (!prepare(v, &layer, &a, f->rows, verify.seed * 1024 + f->layer)) {
        client_error_set(&error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        exit_code = ctl_problem_cluster(problem, &error);
    }
    if (exit_code == CTL_OK)
        exit_code = ask(v, &layer, f->layer, &a, f->rows, problem);
    if (exit_code == CTL_OK)
        exit_code = read_layer(v, &layer, a.rows, f, bytes, problem);
    if (exit_code == CTL_OK)
        judge(&layer, &a, f);
    for (uint32_t i = 0; i < f->rows; i++)
        exact_row_free(a.rows[i]);
    free(a.q);
    return exit_code;
}

// ---- all of them ------------------------------------------------------------------------------------------

static bool is_wrong(const struct finding *f)
{
    return !(f->o <= 1) || !(f->lse <= 1) || f->copies_differ;
}

static json_t *finding_json(const struct finding *f, uint32_t copies)
{
    json_t *row = json_pack("{s:i, s:o, s:i, s:i, s:b, s:s}", "layer", (int)f->layer, "tokens",
                            ctl_json_u64(f->tokens), "rows", (int)f->rows, "copies", (int)copies,
                            "copies_differ", f->copies_differ, "verdict", is_wrong(f) ? "WRONG" : "ok");
    // JSON has no infinity: what is not finite where it should be, and the other way round
    json_object_set_new(row, "o_error", f->o < 1e300 ? json_real(f->o) : json_null());
    json_object_set_new(row, "lse_error", f->lse < 1e300 ? json_real(f->lse) : json_null());
    return row;
}

static void tell_wrong(const struct finding *f)
{
    if (f->copies_differ)
        ctl_say(CTL_OK, "layer %" PRIu32 ": the holders of token %" PRIu64 " have different bytes for it",
                f->layer, f->differs_at);
    if (!(f->o <= 1) || !(f->lse <= 1))
        ctl_say(CTL_OK,
                "layer %" PRIu32 ": a row at position %" PRIu64 ", query head %" PRIu32
                ": the cluster answered %.9g, and float64 over its rows gives %.9g (%.3g of what is allowed)",
                f->layer, f->position, f->head, f->got, f->want, f->o > f->lse ? f->o : f->lse);
}

static enum ctl_exit report(const struct ctl *ctl, const struct verifying *v, size_t n, uint64_t took_ns)
{
    static const struct ctl_column columns[] = {
        {"layer", "LAYER", CTL_COUNT},    {"tokens", "TOKENS", CTL_COUNT},
        {"rows", "ROWS", CTL_COUNT},      {"copies", "COPIES", CTL_COUNT},
        {"o_error", "ERROR", CTL_REAL},   {"lse_error", "LSE ERROR", CTL_REAL},
        {"verdict", "VERDICT", CTL_TEXT}, {0},
    };
    json_t *rows = json_array();
    size_t wrong = 0;
    char took[32];
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(rows, finding_json(&v->findings[i], v->copies));
        wrong += is_wrong(&v->findings[i]);
    }
    bool kept_wrong = ctl_kept_is_wrong(&v->kept);
    if (ctl->json)
        ctl_print_json(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "session",
                                 ctl_json_id(banyan_session_id(v->session)), "length",
                                 ctl_json_u64(v->length), "seed", ctl_json_u64(verify.seed), "wrong",
                                 ctl_json_u64(wrong), "took_ns", ctl_json_u64(took_ns), "layers", rows,
                                 "kept", ctl_kept_json(&v->kept)));
    else
        ctl_print_rows(ctl, rows, columns);
    for (size_t i = 0; i < n; i++)
        if (is_wrong(&v->findings[i]))
            tell_wrong(&v->findings[i]);
    if (!ctl->json || kept_wrong)
        ctl_kept_tell(&v->kept);
    if (!wrong && kept_wrong)
        return ctl_say(CTL_DATA_LOSS, "all %zu layers are right now, but the kept step is wrong", n);
    if (wrong)
        return ctl_say(CTL_DATA_LOSS, "%zu of %zu layers are wrong (--seed %" PRIu64 " repeats this check)",
                       wrong, n, verify.seed);
    if (!ctl->json)
        printf("all %zu layers are right: %" PRIu64 " tokens, in %s, seed %" PRIu64 "\n", n, v->length,
               common_format_ns(took_ns, took, sizeof took), verify.seed);
    return CTL_OK;
}

// Layers that can be attended, or the one that was asked for.
static size_t choose_layers(const Banyan__Pb__Spec *spec, struct finding *findings)
{
    size_t n = 0;
    for (uint32_t l = 0; l < spec->layers; l++) {
        const struct proto_layer layer = proto_spec_layer(spec, l);
        if (!proto_layer_local(&layer) && (verify.layer == NO_LAYER || verify.layer == l))
            findings[n++].layer = l;
    }
    return n;
}

static enum ctl_exit verify_all(struct ctl *ctl, struct verifying *v)
{
    struct ctl_work work = {.what = "verify", .quiet = ctl->json, .run = verify_layer, .arg = v};
    struct ctl_problem problem = {.exit = CTL_OK};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t threads = verify.threads ? (uint32_t)verify.threads : processors > 1 ? (uint32_t)processors : 1;
    work.n = choose_layers(v->spec, v->findings);
    if (work.n == 0)
        return ctl_say(CTL_REFUSED, "layer %" PRIu64 " holds nothing in the session or does not exist",
                       verify.layer);
    for (size_t i = 0; i < work.n; i++) {
        const struct proto_layer layer = proto_spec_layer(v->spec, v->findings[i].layer);
        work.total_bytes += (layer.k_row + layer.v_row) * v->length * v->copies; // windows read less
    }
    v->session->client->aside = true; // what is kept stays a step of the session's own client
    enum ctl_exit exit_code =
        ctl_kept_verify(v->session, v->spec, v->copies, verify.layer, &v->kept, &problem);
    if (exit_code == CTL_OK)
        exit_code = ctl_work_run(&work, threads < 16 ? threads : 16, &problem);
    return exit_code == CTL_OK ? report(ctl, v, work.n, work.took_ns) : ctl_problem_tell(&problem);
}

enum ctl_exit ctl_verify_run(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    banyan_session_info info;
    banyan_error error;
    Banyan__Pb__Spec spec;
    void *memory = NULL;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    struct verifying v = {.session = session,
                          .spec = &spec,
                          .copies = banyan_session_spec(session)->replicas};
    if (verify.seed == 0 && common_random(&verify.seed, sizeof verify.seed))
        verify.seed >>= 24;
    if (banyan_session_get_info(session, &info, &error) != BANYAN_OK ||
        client_spec_to_pb(banyan_session_spec(session), &spec, &memory, &error) != BANYAN_OK) {
        exit_code = ctl_fail(&error);
        goto close_session;
    }
    v.length = info.length;
    v.floor = info.forgotten < info.length ? info.forgotten : info.length - (info.length > 0);
    banyan_session_info_free(&info);
    v.findings = calloc(spec.layers, sizeof *v.findings);
    if (v.length == 0)
        exit_code =
            ctl_say(CTL_STATE, "the session has no token that all layers have: there is nothing to verify");
    else if (!v.findings)
        exit_code = ctl_say(CTL_INTERNAL, "out of memory");
    else
        exit_code = verify_all(ctl, &v);
    free(v.findings);
    banyan_kept_step_free(&v.kept.step);
close_session:
    free(memory);
    banyan_session_close(session);
    return exit_code;
}
