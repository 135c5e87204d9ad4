// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_step.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/clock.h"
#include "common/hash.h"
#include "proto/status.h"
#include "proto/step.h"

#define EDGE_GRACE_NS (250 * COMMON_NS_PER_MS) // as reduce/edge.c

struct child {
    struct proto_channel *channel;
    uint32_t rank;
    char name[65];
    bool met, connected;
};

struct sim_plan {
    struct sim_plan *next;
    uint64_t id, epoch, made_ns, digest;
    uint32_t self, n_children;
    struct child *children; // ascending rank
    uint32_t refs;          // the list, and each step
};

struct running { // a step
    struct sim_worker *worker;
    struct sim_plan *plan;
    struct proto_request *request;
    struct proto_step *step;
    struct proto_step_result *result;
    uint32_t pending; // children, and one for the own part
    struct answer {
        struct running *running;
        struct proto_step_result *result; // NULL: code and text say why not
        enum common_code code;
        char text[200];
    } answers[];
};

static void *zeroed(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        abort();
    return p;
}

// ---- plans ----------------------------------------------------------------------------------------------

static void plan_unref(struct sim_plan *plan)
{
    if (--plan->refs > 0)
        return;
    free(plan->children);
    free(plan);
}

static void plan_close(struct sim_worker *worker, struct sim_plan *plan)
{
    struct sim_plan **at = &worker->plans;
    while (*at != plan)
        at = &(*at)->next;
    *at = plan->next;
    for (uint32_t i = 0; i < plan->n_children; i++) {
        proto_channel_close(plan->children[i].channel); // its calls end on this stack
        plan->children[i].channel = NULL;
    }
    plan_unref(plan);
}

void sim_plans_close(struct sim_worker *worker)
{
    while (worker->plans)
        plan_close(worker, worker->plans);
}

static struct sim_plan *plan_find(const struct sim_worker *worker, uint64_t id)
{
    struct sim_plan *plan = worker->plans;
    while (plan && plan->id != id)
        plan = plan->next;
    return plan;
}

static void edge_state(void *arg, bool connected)
{
    struct child *child = arg;
    child->connected = connected;
    child->met = true;
}

void sim_handle_plan_install(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__PlanInstallRequest *m = (const void *)proto_request_message(request)->body;
    if (!sim_term_check(worker, m->term, request))
        return;
    struct sim_plan *plan = plan_find(worker, m->plan);
    if (plan && plan->epoch != m->epoch) {
        plan_close(worker, plan);
        plan = NULL;
    }
    if (!plan) {
        plan = zeroed(sizeof *plan);
        *plan = (struct sim_plan){.next = worker->plans,
                                  .id = m->plan,
                                  .epoch = m->epoch,
                                  .made_ns = common_clock_ns(),
                                  .digest = m->digest,
                                  .self = m->self_rank,
                                  .children = zeroed(m->n_members * sizeof(struct child)),
                                  .refs = 1};
        worker->plans = plan;
        for (size_t i = 0; i < m->n_members; i++) {
            if (m->members[i]->parent != (int32_t)m->self_rank)
                continue;
            struct child *child = &plan->children[plan->n_children++];
            child->rank = m->members[i]->rank;
            snprintf(child->name, sizeof child->name, "%s", m->members[i]->name);
            struct proto_channel_options options = {.name = worker->name,
                                                    .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                    .secret = worker->options.secret,
                                                    .state = edge_state,
                                                    .state_arg = child};
            struct common_error err;
            if (proto_channel_open(worker->loop, m->members[i]->edge_endpoint, &options, &child->channel,
                                   &err) != COMMON_OK)
                abort();
        }
    }
    Banyan__Pb__PlanInstallReply reply = BANYAN__PB__PLAN_INSTALL_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void sim_handle_plan_drop(struct sim_worker *worker, struct proto_request *request)
{
    const Banyan__Pb__PlanDropRequest *m = (const void *)proto_request_message(request)->body;
    if (!sim_term_check(worker, m->term, request))
        return;
    struct sim_plan *plan = plan_find(worker, m->plan);
    if (plan)
        plan_close(worker, plan);
    Banyan__Pb__PlanDropReply reply = BANYAN__PB__PLAN_DROP_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// ---- the own part ---------------------------------------------------------------------------------------

static bool holds(const struct proto_append_run *run, uint32_t rank)
{
    for (uint32_t i = 0; i < run->n_holders; i++)
        if (run->holders[i] == rank)
            return true;
    return false;
}

static enum common_code append(struct running *r, struct sim_session *session,
                               const struct proto_step_item *item, uint32_t *appends, const char **reason,
                               struct common_error *err)
{
    const struct proto_step *step = r->step;
    bool older = step->term < session->write_term ||
                 (step->term == session->write_term && item->write < session->write);
    bool newer = step->term > session->write_term || item->write > session->write;
    for (uint32_t i = 0; i < item->n_append; i++) {
        const struct proto_append_run *run = &step->appends[item->append_first + i];
        if (!holds(run, r->plan->self))
            continue;
        if (!item->k_bytes)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "the frame has no k and v for a holder");
        if (item->k_bytes != item->rows * session->k_row || item->v_bytes != item->rows * session->v_row)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "k or v does not have the item's size");
        for (uint32_t row = 0; row < run->rows; row++) {
            uint64_t at = run->first + row, nth = at - item->first;
            uint64_t tag = common_xxh3(step->k + item->k_offset + nth * session->k_row, session->k_row, 0) ^
                           common_xxh3(step->v + item->v_offset + nth * session->v_row, session->v_row, 1);
            if (older) {
                const struct sim_chunk *chunk = sim_session_chunk(session, at);
                const struct sim_row *have =
                    chunk ? sim_chunk_row(chunk, item->layer, (uint32_t)(at - chunk->first)) : NULL;
                if (!have || have->state < SIM_ROW_APPENDED || have->tag != tag) {
                    *reason = "OLD_WRITE";
                    return common_error_set(err, COMMON_ABORTED,
                                            "write %" PRIu64 " was overtaken by write %" PRIu64, item->write,
                                            session->write);
                }
                continue;
            }
            enum common_code code = sim_session_append(session, run, item->layer, at, tag,
                                                       newer ? item->length : UINT64_MAX, err);
            if (code != COMMON_OK) {
                *reason = code == COMMON_DATA_LOSS ? "COVERAGE" : "";
                return code;
            }
        }
        *appends += run->rows;
    }
    if (!older) {
        session->write_term = step->term;
        session->write = item->write;
    }
    return COMMON_OK;
}

static enum common_code take_item(struct running *r, uint32_t i, const char **reason,
                                  struct common_error *err)
{
    const struct proto_step_item *item = &r->step->items[i];
    struct proto_step_result_item *result = &r->result->items[i];
    struct sim_session *session;
    enum common_code code =
        sim_rows_check(&r->worker->rows, item->session, item->incarnation, item->layer, &session, err);
    if (code != COMMON_OK) {
        *reason = code == COMMON_ABORTED ? "OLD_INCARNATION" : "";
        return code;
    }
    if (session->epoch != item->epoch) {
        *reason = "OLD_EPOCH";
        return common_error_set(err, COMMON_ABORTED, "epoch %" PRIu64 " here, %" PRIu64 " in the step",
                                session->epoch, item->epoch);
    }
    code = item->n_append ? append(r, session, item, &result->appends, reason, err) : COMMON_OK;
    if (code == COMMON_OK)
        sim_session_cover(session, item->layer, item->visible, &result->cover_tokens, &result->cover_sum);
    return code;
}

static void item_fail(struct proto_step_result_item *item, const char *worker, enum common_code code,
                      const char *reason, const char *text)
{
    item->code = code;
    snprintf(item->message, sizeof item->message, "%s: %.180s", worker, text);
    snprintf(item->reason, sizeof item->reason, "%s", reason);
    snprintf(item->worker, sizeof item->worker, "%s", worker);
}

// ---- merging and answering ------------------------------------------------------------------------------

static void merge(struct running *r, const struct child *child, const struct answer *answer)
{
    bool lost = answer->code == COMMON_UNAVAILABLE || answer->code == COMMON_DEADLINE_EXCEEDED;
    for (uint32_t i = 0; i < r->step->n_items; i++) {
        struct proto_step_result_item *into = &r->result->items[i];
        if (!answer->result) {
            if (into->code == COMMON_OK)
                item_fail(into, child->name, answer->code, lost ? "WORKER_LOST" : "", answer->text);
            continue;
        }
        const struct proto_step_result_item *from = &answer->result->items[i];
        if (into->code == COMMON_OK && from->code != COMMON_OK)
            *into = *from;
        into->cover_tokens += from->cover_tokens;
        into->cover_sum += from->cover_sum;
        into->appends += from->appends;
        into->digest = common_mix64(into->digest ^ from->digest);
    }
}

// As a root does (worker/step.c, check_cover).
static void check_cover(struct running *r, uint32_t i)
{
    const struct proto_step_item *item = &r->step->items[i];
    struct proto_step_result_item *result = &r->result->items[i];
    if (result->code == COMMON_NOT_FOUND) {
        result->code = COMMON_DATA_LOSS;
        snprintf(result->reason, sizeof result->reason, "COVERAGE");
    }
    if (result->code == COMMON_UNAVAILABLE)
        snprintf(result->reason, sizeof result->reason, "MISSING_RANGE");
    if (result->code == COMMON_OK &&
        (result->cover_tokens != item->cover_tokens || result->cover_sum != item->cover_sum ||
         result->appends != item->cover_appends))
        item_fail(result, r->worker->name, COMMON_DATA_LOSS, "COVERAGE",
                  "other tokens were seen than the layout has");
}

static void running_free(struct running *r)
{
    for (uint32_t i = 0; i < r->plan->n_children; i++)
        proto_step_result_free(r->answers[i].result);
    proto_step_result_free(r->result);
    proto_step_free(r->step);
    plan_unref(r->plan);
    free(r);
}

static void sent(void *arg)
{
    free(arg);
}

static void part_done(struct running *r)
{
    if (--r->pending > 0)
        return;
    bool dropped = false;
    for (uint32_t i = 0; i < r->plan->n_children; i++) {
        merge(r, &r->plan->children[i], &r->answers[i]);
        dropped = dropped || r->answers[i].code == COMMON_CANCELLED;
    }
    float *zeros = NULL;
    if (r->plan->self == 0) {
        size_t o = 0, lse = 0;
        for (uint32_t i = 0; i < r->step->n_items; i++) {
            const struct proto_step_item *item = &r->step->items[i];
            o += (size_t)item->rows * item->q_heads * item->v_dim * sizeof(float);
            lse += (size_t)item->rows * item->q_heads * sizeof(float);
            check_cover(r, i);
        }
        zeros = zeroed(o > lse ? o : lse);
        r->result->tensors[0] = r->result->tensors[1] = zeros;
        r->result->tensor_bytes[0] = o;
        r->result->tensor_bytes[1] = lse;
        r->result->n_tensors = 2;
    }
    r->worker->steps++;
    if (dropped) {
        struct common_error err;
        common_error_set(&err, COMMON_ABORTED, "the plan was replaced or dropped under the step");
        sim_refuse(r->request, &err, "OLD_EPOCH");
        free(zeros);
    } else {
        proto_step_reply(r->request, r->result, sent, zeros);
    }
    running_free(r);
}

static void child_done(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    struct answer *answer = arg;
    answer->code = code;
    answer->result = result;
    snprintf(answer->text, sizeof answer->text, "%s", text);
    part_done(answer->running);
}

static void send_down(struct running *r, uint32_t i)
{
    const struct child *child = &r->plan->children[i];
    struct answer *answer = &r->answers[i];
    struct common_error err;
    bool down = child->met ? !child->connected : common_clock_ns() - r->plan->made_ns > EDGE_GRACE_NS;
    answer->running = r;
    if (down)
        answer->code = common_error_set(&err, COMMON_UNAVAILABLE, "the link to %s is down", child->name);
    else
        answer->code =
            proto_step_send(child->channel, r->step, r->step->has_kv, child_done, answer, NULL, &err);
    if (answer->code == COMMON_OK)
        r->pending++;
    else
        snprintf(answer->text, sizeof answer->text, "%.199s", err.message);
}

void sim_handle_step(struct sim_worker *worker, struct proto_request *request)
{
    struct proto_step *step = NULL;
    struct common_error err;
    if (proto_step_decode(proto_request_message(request), proto_request_deadline(request), &step, &err) !=
        COMMON_OK) {
        sim_refuse(request, &err, "");
        return;
    }
    if (!sim_term_check(worker, step->term, request)) {
        proto_step_free(step);
        return;
    }
    struct sim_plan *plan = plan_find(worker, step->plan);
    if (!plan || plan->epoch != step->plan_epoch) {
        common_error_set(&err, COMMON_ABORTED, "plan %016" PRIx64 " is not installed here", step->plan);
        sim_refuse(request, &err, "OLD_EPOCH");
        proto_step_free(step);
        return;
    }
    struct running *r = zeroed(sizeof(*r) + plan->n_children * sizeof(r->answers[0]));
    r->worker = worker;
    r->plan = plan;
    plan->refs++;
    r->request = request;
    r->step = step;
    r->result = proto_step_result_new(step->n_items, 0);
    r->pending = 1;
    for (uint32_t i = 0; i < plan->n_children; i++)
        send_down(r, i);
    for (uint32_t i = 0; i < step->n_items; i++) {
        const char *reason = "";
        if (take_item(r, i, &reason, &err) != COMMON_OK) {
            r->result->items[i].appends = 0;
            item_fail(&r->result->items[i], worker->name, err.code, reason, err.message);
        }
        r->result->items[i].digest = common_mix64(r->result->items[i].cover_sum ^ plan->digest);
    }
    part_done(r);
}
