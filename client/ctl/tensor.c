// SPDX-License-Identifier: Apache-2.0
// Commands that carry tensors: attach, attend. Everything in the file is checked against the session before
// anything is sent.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/layers.h"
#include "client/ctl/spec.h"
#include "client/snapshot/safetensors_write.h"
#include "common/base/clock.h"

#define NO_NUMBER UINT64_MAX

static struct common_safetensors *input; // of the command; open from open_input to the end of its run

// Before a connection is made: a file that cannot be read is no matter of the cluster.
static enum ctl_exit open_input(int n_args, char **args)
{
    (void)n_args;
    struct common_error err = {0};
    enum common_code code = common_safetensors_open(args[1], &input, &err);
    if (code == COMMON_OK)
        return CTL_OK;
    return ctl_say(code == COMMON_INVALID_ARGUMENT ? CTL_REFUSED : CTL_FILE, "%s", err.message);
}

// ---- attach -----------------------------------------------------------------------------------------------

static struct {
    uint64_t first, layer;
    bool commit;
} attach = {.layer = CTL_LAYERS_ALL};

static const struct common_option attach_options[] = {
    {"first", 0, COMMON_OPTION_U64, &attach.first, "N", "Position of the first token. Default: 0.", 0, 0},
    {"layer", 0, COMMON_OPTION_U64, &attach.layer, "N", "Only this layer of the file. Default: all.", 0,
     1023},
    {"commit", 0, COMMON_OPTION_FLAG, &attach.commit, NULL, "Make the tokens visible.", 0, 0},
    {0},
};

static enum ctl_exit send_layers(struct ctl *ctl, banyan_session *session, const struct ctl_kv *layers,
                                 uint32_t n_layers)
{
    uint64_t start = common_clock_ns();
    struct ctl_layers_sent sent;
    enum ctl_exit exit_code = ctl_layers_send(session, layers, attach.first, attach.commit, &sent);
    if (exit_code != CTL_OK)
        return exit_code;
    uint64_t took = common_clock_ns() - start;
    char size[32], time[32];
    if (ctl->json)
        ctl_print_json(json_pack("{s:o, s:o, s:i, s:o, s:b, s:o}", "first", ctl_json_u64(attach.first),
                                 "tokens", ctl_json_u64(sent.tokens), "layers", (int)n_layers, "bytes",
                                 ctl_json_u64(sent.bytes), "committed", attach.commit, "took_ns",
                                 ctl_json_u64(took)));
    else
        printf("%s %" PRIu64 " tokens of %u layer%s at %" PRIu64 ": %s in %s\n",
               attach.commit ? "attached and committed" : "attached (not visible before --commit)",
               sent.tokens, n_layers, n_layers == 1 ? "" : "s", attach.first,
               common_format_bytes(sent.bytes, size, sizeof size), common_format_ns(took, time, sizeof time));
    return CTL_OK;
}

static enum ctl_exit run_attach(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    uint32_t n_layers = 0;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        goto close_file;
    const banyan_spec *spec = banyan_session_spec(session);
    struct ctl_kv *layers = calloc(spec->layers, sizeof *layers);
    exit_code = layers ? ctl_layers_collect(input, spec, attach.layer, layers, &n_layers)
                       : ctl_say(CTL_INTERNAL, "out of memory");
    if (exit_code == CTL_OK)
        exit_code = send_layers(ctl, session, layers, n_layers);
    free(layers);
    banyan_session_close(session);
close_file:
    common_safetensors_close(input);
    return exit_code;
}

// ---- attend -----------------------------------------------------------------------------------------------

static struct {
    uint64_t layer, first;
    const char *out;
    bool trace, allow_partial;
    const char *traceparent;
} attend = {.first = NO_NUMBER};

static const struct common_option attend_options[] = {
    {"layer", 0, COMMON_OPTION_U64, &attend.layer, "N", "Layer of the step. Default: 0.", 0, 1023},
    {"first", 0, COMMON_OPTION_U64, &attend.first, "N",
     "Position of the first row. Default: with k and v, the layer's length (an append);\n"
     "without them, such that the last row is at the layer's end.",
     0, UINT64_MAX - 1},
    {"out", 0, COMMON_OPTION_STRING, &attend.out, "FILE", "Write o and lse to this file (.safetensors).", 0,
     0},
    {"trace", 0, COMMON_OPTION_FLAG, &attend.trace, NULL, "Show where the time went, by worker.", 0, 0},
    {"allow-partial", 0, COMMON_OPTION_FLAG, &attend.allow_partial, NULL,
     "If tokens are missing, answer over the others, and list the missing ones.", 0, 0},
    {"traceparent", 0, COMMON_OPTION_STRING, &attend.traceparent, "TRACEPARENT",
     "W3C trace context of the step: 00-TRACE_ID-SPAN_ID-01, in hexadecimal.\n"
     "Default: none.",
     0, 0},
    {0},
};

static enum ctl_exit find_tensors(const struct common_safetensors *file, const banyan_spec *spec,
                                  const struct common_safetensor **q, struct ctl_kv *kv)
{
    *q = common_safetensors_find(file, "q");
    *kv = (struct ctl_kv){common_safetensors_find(file, "k"), common_safetensors_find(file, "v"),
                          common_safetensors_find(file, "k_scale"), common_safetensors_find(file, "v_scale")};
    if (!*q)
        return ctl_say(CTL_REFUSED, "the file has no tensor 'q'");
    if (attend.layer >= spec->layers)
        return ctl_say(CTL_REFUSED, "--layer: the session has layers 0 to %u", spec->layers - 1);
    const banyan_kind kind = snapshot_layer_kind(spec, (uint32_t)attend.layer);
    if (kind.q_heads == 0)
        return ctl_say(CTL_REFUSED, "--layer: layer %u holds nothing in the session", (unsigned)attend.layer);
    enum ctl_exit exit_code = ctl_kv_shape(*q, COMMON_DTYPE_F32, kind.q_heads, kind.k_dim);
    if (exit_code == CTL_OK && (*q)->dims[0] > UINT32_MAX)
        exit_code = ctl_say(CTL_REFUSED, "tensor 'q' has more than 2^32 rows");
    if (exit_code == CTL_OK && (kv->k || kv->v || kv->k_scale || kv->v_scale))
        exit_code = ctl_kv_wanted(kv, spec, (uint32_t)attend.layer, "");
    if (exit_code == CTL_OK && kv->k)
        exit_code = ctl_kv_check(kv, spec, (uint32_t)attend.layer);
    if (exit_code == CTL_OK && kv->k && kv->k->dims[0] != (*q)->dims[0])
        exit_code =
            ctl_say(CTL_REFUSED, "'q' has %" PRIu64 " rows and 'k' %" PRIu64, (*q)->dims[0], kv->k->dims[0]);
    return exit_code;
}

static enum ctl_exit default_first(banyan_session *session, uint64_t rows, bool append, uint64_t *first)
{
    if (attend.first != NO_NUMBER) {
        *first = attend.first;
        return CTL_OK;
    }
    banyan_session_info info;
    banyan_error error;
    if (banyan_session_get_info(session, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    uint64_t length = attend.layer < info.n_layers ? info.layer_lengths[attend.layer] : 0;
    banyan_session_info_free(&info);
    *first = append ? length : length > rows ? length - rows : 0;
    return CTL_OK;
}

static void print_trace(const struct ctl *ctl, const banyan_trace *trace)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < trace->n_workers; i++) {
        const banyan_worker_trace *w = &trace->workers[i];
        json_array_append_new(rows, json_pack("{s:s, s:i, s:o, s:o, s:o, s:o}", "worker", w->worker, "rank",
                                              (int)w->rank, "queue_ns", ctl_json_u64(w->queue_ns),
                                              "compute_ns", ctl_json_u64(w->compute_ns), "wait_ns",
                                              ctl_json_u64(w->wait_ns), "tokens", ctl_json_u64(w->tokens)));
    }
    static const struct ctl_column columns[] = {
        {"worker", "WORKER", CTL_TEXT},
        {"rank", "RANK", CTL_COUNT},
        {"queue_ns", "QUEUED", CTL_TIME},
        {"compute_ns", "COMPUTED", CTL_TIME},
        {"wait_ns", "WAITED", CTL_TIME},
        {"tokens", "TOKENS", CTL_COUNT},
        {0},
    };
    ctl_print_rows(ctl, rows, columns);
}

static enum ctl_exit write_out(const banyan_item *item, const banyan_kind *kind)
{
    size_t heads = (size_t)item->rows * kind->q_heads;
    struct common_safetensor tensors[] = {
        {.name = "o",
         .dtype = COMMON_DTYPE_F32,
         .n_dims = 3,
         .dims = {item->rows, kind->q_heads, kind->v_dim},
         .data = item->o,
         .bytes = heads * kind->v_dim * sizeof(float)},
        {.name = "lse",
         .dtype = COMMON_DTYPE_F32,
         .n_dims = 2,
         .dims = {item->rows, kind->q_heads},
         .data = item->lse,
         .bytes = heads * sizeof(float)},
    };
    struct common_error err = {0};
    return client_safetensors_write(attend.out, tensors, 2, &err) == COMMON_OK
               ? CTL_OK
               : ctl_say(CTL_FILE, "%s", err.message);
}

static void add_partial(json_t *record, const banyan_partial *partial)
{
    json_t *missing = json_array();
    for (uint32_t i = 0; i < partial->n; i++)
        json_array_append_new(missing,
                              json_pack("{s:o, s:o}", "first", ctl_json_u64(partial->missing[i].first),
                                        "count", ctl_json_u64(partial->missing[i].count)));
    json_object_set_new(record, "seen", ctl_json_u64(partial->seen));
    json_object_set_new(record, "missing", missing);
}

static void summarise(const struct ctl *ctl, const banyan_item *item, const banyan_kind *kind,
                      const banyan_trace *trace)
{
    size_t heads = (size_t)item->rows * kind->q_heads;
    double sum_lse = 0, largest = 0;
    for (size_t i = 0; i < heads; i++)
        sum_lse += (double)item->lse[i];
    for (size_t i = 0; i < heads * kind->v_dim; i++)
        largest = fmax(largest, fabs((double)item->o[i]));
    json_t *record =
        json_pack("{s:i, s:o, s:i, s:b, s:o, s:o, s:o, s:o, s:o}", "layer", (int)item->layer, "first",
                  ctl_json_u64(item->first), "rows", (int)item->rows, "appended", item->k != NULL, "length",
                  ctl_json_u64(item->length), "digest", ctl_json_id(item->digest), "took_ns",
                  ctl_json_u64(trace->total_ns), "coordinator_ns", ctl_json_u64(trace->coordinator_ns),
                  "tree_ns", ctl_json_u64(trace->tree_ns));
    double mean = sum_lse / (double)heads;
    json_object_set_new(record, "lse_mean", isfinite(mean) ? json_real(mean) : json_null());
    json_object_set_new(record, "o_largest", isfinite(largest) ? json_real(largest) : json_null());
    static const struct ctl_column fields[] = {
        {"layer", "layer", CTL_COUNT},        {"first", "first position", CTL_COUNT},
        {"rows", "rows", CTL_COUNT},          {"length", "layer's length", CTL_COUNT},
        {"lse_mean", "mean lse", CTL_REAL},   {"o_largest", "largest |o|", CTL_REAL},
        {"digest", "plan digest", CTL_TEXT},  {"seen", "tokens seen", CTL_COUNT},
        {"took_ns", "took", CTL_TIME},        {"coordinator_ns", "in the coordinator", CTL_TIME},
        {"tree_ns", "in the tree", CTL_TIME}, {0},
    };
    if (item->partial)
        add_partial(record, item->partial);
    ctl_print_record(ctl, record, fields);
    for (uint32_t i = 0; !ctl->json && item->partial && i < item->partial->n; i++)
        printf("missing: tokens [%" PRIu64 ", %" PRIu64 ")\n", item->partial->missing[i].first,
               item->partial->missing[i].first + item->partial->missing[i].count);
}

static enum ctl_exit attend_session(struct ctl *ctl, banyan_session *session,
                                    const struct common_safetensors *file)
{
    const banyan_spec *spec = banyan_session_spec(session);
    const struct common_safetensor *q;
    struct ctl_kv kv;
    struct ctl_kv_rows rows = {0};
    uint64_t first = 0;
    enum ctl_exit exit_code = find_tensors(file, spec, &q, &kv);
    if (exit_code == CTL_OK)
        exit_code = default_first(session, q->dims[0], kv.k != NULL, &first);
    if (exit_code == CTL_OK && kv.k)
        exit_code = ctl_kv_rows(&kv, spec, &rows);
    if (exit_code != CTL_OK)
        return exit_code;
    const banyan_kind kind = snapshot_layer_kind(spec, (uint32_t)attend.layer);
    size_t heads = (size_t)q->dims[0] * kind.q_heads;
    float *o = calloc(heads, kind.v_dim * sizeof *o);
    float *lse = calloc(heads, sizeof *lse);
    banyan_error item_error = {0}, error;
    banyan_trace trace;
    banyan_partial partial = {0};
    banyan_item item = {
        .session = session,
        .layer = (uint32_t)attend.layer,
        .first = first,
        .rows = (uint32_t)q->dims[0],
        .q = q->data,
        .k = rows.k,
        .v = rows.v,
        .k_scale = rows.k_scale,
        .v_scale = rows.v_scale,
        .o = o,
        .lse = lse,
        .partial = attend.allow_partial ? &partial : NULL,
        .traceparent = attend.traceparent,
        .error = &item_error,
    };
    if (!o || !lse)
        exit_code = ctl_say(CTL_INTERNAL, "out of memory");
    else if (banyan_attend(ctl->client, &item, 1, 0, &trace, &error) != BANYAN_OK)
        exit_code = ctl_fail(&error);
    else if (item.code != BANYAN_OK)
        exit_code = ctl_fail(&item_error);
    else {
        summarise(ctl, &item, &kind, &trace);
        if (attend.trace && !ctl->json)
            print_trace(ctl, &trace);
        exit_code = attend.out ? write_out(&item, &kind) : CTL_OK;
        banyan_trace_free(&trace);
    }
    banyan_partial_free(&partial);
    free(o);
    free(lse);
    free(rows.memory);
    return exit_code;
}

static enum ctl_exit run_attend(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code == CTL_OK) {
        exit_code = attend_session(ctl, session, input);
        banyan_session_close(session);
    }
    common_safetensors_close(input);
    return exit_code;
}

const struct ctl_command ctl_tensor_commands[] = {
    {"attach", "SESSION FILE.safetensors", "send K and V from a file to a session",
     "Sends the tensors layers.N.k [tokens][kv_heads][k_dim] and layers.N.v [tokens][kv_heads][v_dim] of a "
     "file, where\n"
     "N is the layer, directly to the workers. Types and shapes are checked before anything is sent.\n"
     "For a session of type int8 or fp8 they are I8 or F8_E4M3, with layers.N.k_scale and layers.N.v_scale\n"
     "[tokens][kv_heads] (F32); or F32 without scales, quantised before sending.",
     attach_options, 2, 2, run_attach, open_input},
    {"attend", "SESSION FILE.safetensors", "run attention with the queries in a file",
     "Sends the tensor q [rows][q_heads][k_dim] (F32) of a file, and appends its k and v if it has them\n"
     "(with k_scale and v_scale, or quantised before sending, as for attach).\n"
     "With --allow-partial it lists the tokens that the answer lacks, one range per line; without such lines "
     "it is complete.",
     attend_options, 2, 2, run_attend, open_input},
    {0},
};
