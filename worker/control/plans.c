// SPDX-License-Identifier: Apache-2.0
// Plans: who is whose parent in the tree that answers steps.
#include "worker/control/plans.h"

#include <stdlib.h>
#include <string.h>

#include "reduce/plan.h"
#include "worker/core/state.h"

static void plan_free(struct worker_plan *plan)
{
    if (plan->group)
        plan->engine->close(plan->group);
    free(plan->packed);
    free(plan);
}

// Ranks are the indices; parents come before their children; subtrees are contiguous, so a rank's parent is
// an ancestor of the rank before it, or that rank itself.
static const char *tree_problem(const Banyan__Pb__PlanInstallRequest *body)
{
    if (body->n_members < 1 || body->n_members > REDUCE_PLAN_MEMBERS_MAX)
        return "a plan has 1..4096 members";
    if (body->self_rank >= body->n_members)
        return "self_rank is not a member's";
    for (size_t i = 0; i < body->n_members; i++) {
        const Banyan__Pb__PlanMember *member = body->members[i];
        if (member->rank != i)
            return "members must be in the order of their ranks";
        size_t name = strlen(member->name), endpoint = strlen(member->edge_endpoint);
        if (name < 1 || name > WORKER_NAME_MAX || endpoint < 1 ||
            endpoint >= sizeof((struct reduce_group_member *)0)->edge_endpoint)
            return "a member's name has 1..64 bytes and its endpoint 1..127";
        if (i == 0 ? member->parent != -1 : (member->parent < 0 || (uint64_t)member->parent >= i))
            return "rank 0 is the root, every other parent comes before its child";
        int32_t at = (int32_t)i - 1;
        while (i > 0 && at != member->parent && at > 0)
            at = body->members[at]->parent;
        if (i > 0 && at != member->parent)
            return "subtrees must be contiguous";
    }
    return NULL;
}

static enum common_code plan_open(struct worker *worker, const Banyan__Pb__PlanInstallRequest *body,
                                  struct worker_plan *plan, struct common_error *err)
{
    struct reduce_group_member *members = calloc(body->n_members, sizeof *members);
    if (!members)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a plan");
    for (size_t i = 0; i < body->n_members; i++) {
        strcpy(members[i].name, body->members[i]->name); // lengths: tree_problem
        strcpy(members[i].edge_endpoint, body->members[i]->edge_endpoint);
        members[i].parent = body->members[i]->parent;
    }
    struct reduce_group_spec spec = {.plan = body->plan,
                                     .epoch = body->epoch,
                                     .self = body->self_rank,
                                     .n = (uint32_t)body->n_members,
                                     .members = members};
    enum common_code code = plan->engine->open(&worker->env, &spec, &plan->group, err);
    free(members);
    return code;
}

static bool plan_pack(const Banyan__Pb__PlanInstallRequest *body, struct worker_plan *plan)
{
    plan->packed_bytes = banyan__pb__plan_install_request__get_packed_size(body);
    plan->packed = malloc(plan->packed_bytes + 1);
    if (plan->packed)
        banyan__pb__plan_install_request__pack(body, plan->packed);
    return plan->packed != NULL;
}

static enum common_code plan_new(struct worker *worker, const Banyan__Pb__PlanInstallRequest *body,
                                 struct worker_plan **out, struct common_error *err)
{
    const char *problem = body->plan == 0 ? "0 is not a plan's id" : tree_problem(body);
    if (!problem && strcmp(body->members[body->self_rank]->name, worker->name) != 0)
        problem = "self_rank names another worker";
    if (problem)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "plan: %s", problem);
    const struct reduce_engine_ops *engine = reduce_engine_find(body->engine);
    if (!engine)
        return common_error_set(err, COMMON_UNIMPLEMENTED, "this worker has no engine '%.32s'", body->engine);
    struct worker_plan *plan = calloc(1, sizeof *plan);
    if (!plan || !plan_pack(body, plan)) {
        free(plan);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a plan");
    }
    plan->id = body->plan;
    plan->epoch = body->epoch;
    plan->digest = body->digest;
    plan->self = body->self_rank;
    plan->n = (uint32_t)body->n_members;
    plan->engine = engine;
    *out = plan;
    return COMMON_OK;
}

static enum common_code plan_install(struct worker *worker, const Banyan__Pb__PlanInstallRequest *body,
                                     struct common_error *err)
{
    struct worker_plan *plan = NULL, *old = worker_map_get(&worker->plans, body->plan);
    if (old && body->epoch < old->epoch)
        return common_error_set(err, COMMON_ABORTED, "plan %016" PRIx64 " is already at epoch %" PRIu64,
                                body->plan, old->epoch);
    if (!old && worker->plans.count >= WORKER_PLANS_MAX)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "a worker has at most %u plans",
                                WORKER_PLANS_MAX);
    enum common_code code = plan_new(worker, body, &plan, err);
    if (code != COMMON_OK)
        return code;
    if (old && old->packed_bytes == plan->packed_bytes &&
        memcmp(old->packed, plan->packed, plan->packed_bytes) == 0) {
        plan_free(plan);
        return COMMON_OK;
    }
    if (old && body->epoch == old->epoch) {
        plan_free(plan);
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "plan %016" PRIx64 " differs at this epoch",
                                body->plan);
    }
    code = plan_open(worker, body, plan, err);
    if (code == COMMON_OK && !old && !worker_map_put(&worker->plans, plan->id, plan))
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a plan");
    if (code != COMMON_OK) {
        plan_free(plan);
        return code;
    }
    if (old) {
        worker_map_remove(&worker->plans, old->id);
        worker_map_put(&worker->plans, plan->id, plan); // there is a free slot: cannot fail
        plan_free(old);
    }
    return COMMON_OK;
}

void worker_handle_plan_install(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__PlanInstallRequest *body =
        (const Banyan__Pb__PlanInstallRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct common_error err;
    if (plan_install(worker, body, &err) != COMMON_OK) {
        worker_fail(request, &err, err.code == COMMON_ABORTED ? "OLD_EPOCH" : "");
        return;
    }
    Banyan__Pb__PlanInstallReply reply = BANYAN__PB__PLAN_INSTALL_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_handle_plan_drop(void *arg, struct proto_request *request)
{
    struct worker *worker = arg;
    const Banyan__Pb__PlanDropRequest *body =
        (const Banyan__Pb__PlanDropRequest *)proto_request_message(request)->body;
    if (!worker_term_check(worker, body->term, request))
        return;
    struct worker_plan *plan = worker_map_remove(&worker->plans, body->plan);
    if (plan)
        plan_free(plan);
    Banyan__Pb__PlanDropReply reply = BANYAN__PB__PLAN_DROP_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void worker_plans_close(struct worker *worker)
{
    size_t cursor = 0;
    void *value;
    struct worker_map plans = worker->plans;
    worker->plans = (struct worker_map){0};
    while (worker_map_next(&plans, &cursor, &value))
        plan_free(value); // ends its steps
    worker_map_free(&plans);
}

// ---- terms --------------------------------------------------------------------------------------

bool worker_term_check(struct worker *worker, uint64_t term, struct proto_request *request)
{
    struct proto_status status;
    // Another worker's step of a term that is not known here is of a plan that is not, either.
    if (term > worker->term && proto_request_role(request) == BANYAN__PB__ROLE__ROLE_WORKER) {
        proto_status_set(&status, COMMON_ABORTED, "OLD_PLAN",
                         "term %" PRIu64 " has not begun here: the coordinator must begin it", term);
        proto_request_fail_status(request, &status);
        return false;
    }
    if (term >= worker->term) {
        worker->term = term;
        if (worker->plans_term < term) { // membership may have seen the term first
            worker_plans_close(worker);
            worker->plans_term = term;
        }
        return true;
    }
    proto_status_set(&status, COMMON_ABORTED, "OLD_TERM",
                     "term %" PRIu64 " is over: term %" PRIu64 " has begun", term, worker->term);
    proto_request_fail_status(request, &status);
    return false;
}
