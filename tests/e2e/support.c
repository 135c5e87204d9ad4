// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

_Thread_local banyan_error support_error;

void support_expect(banyan_code got, banyan_code want, const char *reason, const char *call, const char *file,
                    int line)
{
    if (got != want)
        fail_msg("%s:%d: %s\n  is %s, should be %s\n  %s", file, line, call, banyan_code_name(got),
                 banyan_code_name(want), got == BANYAN_OK ? "" : support_error.message);
    if (want != BANYAN_OK && (!support_error.message[0] || strchr(support_error.message, '\n')))
        fail_msg("%s:%d: %s\n  fails without one line that says why", file, line, call);
    if (reason && strcmp(banyan_reason_name(support_error.reason), reason) != 0)
        fail_msg("%s:%d: %s\n  has reason '%s', should have '%s'\n  %s", file, line, call,
                 banyan_reason_name(support_error.reason), reason, support_error.message);
}

// The step's layer as if all were like it. Nothing where it has no shape.
static banyan_spec shape_of(const struct step *step)
{
    const banyan_spec *s = banyan_session_spec(step->session);
    if (!s->n_kinds)
        return *s;
    if (step->layer >= s->layers || s->layer_kind[step->layer] == BANYAN_LAYER_LOCAL)
        return (banyan_spec){0};
    const banyan_kind *kind = &s->kinds[s->layer_kind[step->layer]];
    return (banyan_spec){.q_heads = kind->q_heads, .k_dim = kind->k_dim, .v_dim = kind->v_dim};
}

size_t step_floats(const struct step *step)
{
    const banyan_spec s = shape_of(step);
    return (size_t)step->rows * s.q_heads * s.v_dim;
}

static size_t lse_floats(const struct step *step)
{
    return (size_t)step->rows * shape_of(step).q_heads;
}

void step_append(struct step *step, const struct context *context)
{
    step->k = context_k(context, step->layer, step->first);
    step->v = context_v(context, step->layer, step->first);
    step->k_scale = context_k_scale(context, step->layer, step->first);
    step->v_scale = context_v_scale(context, step->layer, step->first);
}

banyan_item step_item(struct step *step)
{
    const banyan_spec spec = shape_of(step);
    step_free(step);
    if (!step->q)
        step->made_q = context_queries(&spec, step->rows ? step->rows : 1, step->seed);
    step->o = malloc((step_floats(step) + 1) * sizeof(float));
    step->lse = malloc((lse_floats(step) + 1) * sizeof(float));
    assert_non_null(step->o);
    assert_non_null(step->lse);
    memset(step->o, 0xa5, (step_floats(step) + 1) * sizeof(float));
    memset(step->lse, 0xa5, (lse_floats(step) + 1) * sizeof(float));
    return (banyan_item){.session = step->session,
                         .layer = step->layer,
                         .first = step->first,
                         .rows = step->rows,
                         .q = step->q ? step->q : step->made_q,
                         .k = step->k,
                         .v = step->v,
                         .k_scale = step->k_scale,
                         .v_scale = step->v_scale,
                         .visible = step->visible,
                         .block_first = step->block_first,
                         .block_count = step->block_count,
                         .o = step->o,
                         .lse = step->lse,
                         .partial = step->partial,
                         .error = ERR};
}

static bool untouched(const float *x, size_t n)
{
    const uint8_t *bytes = (const uint8_t *)x;
    for (size_t i = 0; i < n * sizeof(float); i++)
        if (bytes[i] != 0xa5)
            return false;
    return true;
}

banyan_code step_run(banyan_client *client, struct step *step)
{
    banyan_item item = step_item(step);
    banyan_code code = banyan_attend(client, &item, 1, step->timeout_ns, NULL, ERR);
    if (code == BANYAN_OK) {
        code = item.code;
        step->digest = item.digest;
        step->length = item.length;
    } else {
        assert_int_equal(item.code, code);
    }
    // Outputs are written only on success, and never past their end
    assert_true(untouched(step->o + step_floats(step), 1));
    assert_true(untouched(step->lse + lse_floats(step), 1));
    if (code != BANYAN_OK) {
        assert_true(untouched(step->o, step_floats(step)));
        assert_true(untouched(step->lse, lse_floats(step)));
    }
    return code;
}

void step_free(struct step *step)
{
    free(step->made_q);
    free(step->o);
    free(step->lse);
    step->made_q = step->o = step->lse = NULL;
}

bool step_same_bits(const struct step *a, const struct step *b)
{
    return step_floats(a) == step_floats(b) && memcmp(a->o, b->o, step_floats(a) * sizeof(float)) == 0 &&
           memcmp(a->lse, b->lse, lse_floats(a) * sizeof(float)) == 0;
}

void support_check_step(banyan_client *client, banyan_session *session, const struct context *context,
                        uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible, struct worst *worst,
                        const char *what)
{
    struct step step = {.session = session,
                        .layer = layer,
                        .first = first,
                        .rows = rows,
                        .visible = visible,
                        .seed = first * 31 + layer};
    OK(step_run(client, &step));
    context_check(context, layer, first, rows, visible, step.made_q, step.o, step.lse, worst, what);
    step_free(&step);
}

void support_fill(banyan_session *session, const struct context *context, uint64_t first, uint64_t count)
{
    for (uint32_t l = 0; l < context->spec.layers; l++) {
        OK(context_attach(session, context, l, first, count, ERR));
        OK(banyan_commit(session, l, first, count, ERR));
    }
}

void support_drop(banyan_session *session, struct context *context)
{
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    context_free(context);
}

void support_wait_sealed(banyan_client *client, const banyan_session *session, uint64_t chunks)
{
    banyan_scrub scrub = {0};
    for (int i = 0; scrub.chunks != chunks || scrub.unsealed; i++) {
        if (i == 600)
            fail_msg("of %d full chunks %d are there, and %d of them are not sealed", (int)chunks,
                     (int)scrub.chunks, (int)scrub.unsealed);
        support_sleep_ms(i ? 100 : 0);
        OK(banyan_get_scrub(client, banyan_session_id(session), &scrub, ERR));
    }
}

struct harness_cluster *support_start(const struct harness_options *options)
{
    static const char *const patient[] = {"--heartbeat", SUPPORT_BEAT, NULL};
    struct harness_options o = *options;
    if (!o.coordinator_args)
        o.coordinator_args = patient;
    struct harness_cluster *cluster = harness_cluster_start(&o);
    assert_non_null(cluster);
    return cluster;
}

void support_stop(struct harness_cluster *cluster)
{
    assert_int_equal(harness_cluster_stop(cluster), 0);
}

banyan_client *support_connect(const struct harness_cluster *cluster, const char *transport)
{
    banyan_client *client = NULL;
    banyan_options options = {.token_file = harness_cluster_token_file(cluster),
                              .timeout_ns = SUPPORT_LONG_NS};
    OK(banyan_connect(harness_cluster_endpoint(cluster, transport), &options, &client, ERR));
    return client;
}

uint64_t support_now_ns(void)
{
    return common_clock_ns();
}

void support_sleep_ms(unsigned ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

void support_remove_folder(const char *path)
{
    char command[512];
    assert_true((size_t)snprintf(command, sizeof command, "rm -rf '%s'", path) < sizeof command);
    assert_int_equal(system(command), 0);
}

uint64_t support_resident_bytes(int pid)
{
    char path[64];
    unsigned long size = 0, resident = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &size, &resident), 2);
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t support_used_bytes(banyan_client *client)
{
    banyan_cluster_info info;
    uint64_t used = 0;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        used += info.workers[i].used_bytes;
    banyan_cluster_info_free(&info);
    return used;
}

bool support_alive(const struct harness_cluster *cluster)
{
    for (uint32_t i = 0; i <= harness_cluster_workers(cluster); i++) {
        int pid =
            harness_cluster_pid(cluster, i < harness_cluster_workers(cluster) ? i : HARNESS_COORDINATOR);
        char path[64], text[512];
        snprintf(path, sizeof(path), "/proc/%d/stat", pid);
        FILE *file = pid > 0 ? fopen(path, "re") : NULL;
        size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
        if (file)
            fclose(file);
        text[n] = '\0';
        const char *state = strrchr(text, ')'); // "pid (name) S …"; a zombie is Z until it is reaped
        if (!state || state[2] == 'Z' || state[2] == 'X')
            return false;
    }
    return true;
}
