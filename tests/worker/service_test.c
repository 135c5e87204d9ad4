// SPDX-License-Identifier: Apache-2.0
// Bad calls of the control plane and bad steps: each gets its own status, and the worker's state stays what
// it was.
#include "tests/common/named.h"
#include "tests/worker/service.h"

// ---- control ------------------------------------------------------------------------------------

static float zeros[Q_HEADS], not_a_number[Q_HEADS] = {0, 0, __builtin_nanf(""), 0};

// Specs that no session may have: CASE(what is wrong, the change of a good one).
#define BAD_SPECS(CASE)                                                                                      \
    CASE(no_layers, spec->layers = 0)                                                                        \
    CASE(too_many_layers, spec->layers = 1025)                                                               \
    CASE(query_heads_not_in_groups, spec->q_heads = 3)                                                       \
    CASE(no_kv_heads, spec->kv_heads = 0)                                                                    \
    CASE(no_k_dim, spec->k_dim = 0)                                                                          \
    CASE(v_dim_too_large, spec->v_dim = 1025)                                                                \
    CASE(kv_type_of_no_kv, spec->kv_type = BANYAN__PB__DTYPE__DTYPE_U8)                                      \
    CASE(unknown_kv_type, spec->kv_type = (Banyan__Pb__Dtype)77)                                             \
    CASE(chunk_not_a_power_of_two, spec->chunk_tokens = 17)                                                  \
    CASE(chunk_too_large, spec->chunk_tokens = 8192)                                                         \
    CASE(negative_scale, spec->scale = -1)                                                                   \
    CASE(infinite_soft_cap, spec->soft_cap = __builtin_inff())                                               \
    CASE(one_alibi_slope_for_all_heads, (spec->n_alibi = 1, spec->alibi = zeros))                            \
    CASE(sink_not_a_number, (spec->n_sinks = Q_HEADS, spec->sinks = not_a_number))

#define DEFINE(name, change)                                                                                 \
    static void spec_##name(Banyan__Pb__Spec *spec)                                                          \
    {                                                                                                        \
        change;                                                                                              \
    }
BAD_SPECS(DEFINE)
#undef DEFINE

static const struct {
    const char *name;
    void (*spoil)(Banyan__Pb__Spec *spec);
} bad_specs[] = {
#define ROW(name, change) {#name, spec_##name},
    BAD_SPECS(ROW)
#undef ROW
};

static void bad_layouts(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    const uint32_t method = BANYAN__PB__METHOD__METHOD_LAYOUT_SET;
    Banyan__Pb__Spec spec, other;
    spec_init(&spec);
    spec_init(&other);
    Banyan__Pb__LayoutChunk chunk = BANYAN__PB__LAYOUT_CHUNK__INIT, again = BANYAN__PB__LAYOUT_CHUNK__INIT;
    Banyan__Pb__LayoutChunk *list[2] = {&chunk, &again};
    chunk.chunk = 300;
    chunk.first = 2 * TOKENS;
    Banyan__Pb__LayoutSetRequest good = BANYAN__PB__LAYOUT_SET_REQUEST__INIT, r;
    good.term = TERM;
    good.session = SESSION;
    good.incarnation = INCARNATION;
    good.epoch = EPOCH;
    good.spec = &spec;
    good.chunks = list;
    good.n_chunks = 1;
    r = good, r.term = TERM - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_TERM");
    r = good, r.epoch = EPOCH - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, NULL);
    r = good, r.incarnation = INCARNATION - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, NULL);
    r = good, r.session = 0;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    r = good, r.session = 0xbeef, r.spec = NULL;
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.more = true;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    r = good, r.spec = &other;
    other.scale = 0.5f;
    expect(&s, method, &r.base, COMMON_FAILED_PRECONDITION, NULL);
    chunk.chunk = 0;
    expect(&s, method, &good.base, COMMON_INVALID_ARGUMENT, NULL);
    chunk.chunk = 300;
    chunk.first = 2 * TOKENS + 16;
    expect(&s, method, &good.base, COMMON_INVALID_ARGUMENT, NULL);
    chunk.first = UINT64_MAX - TOKENS + 1;
    expect(&s, method, &good.base, COMMON_INVALID_ARGUMENT, NULL);
    chunk.first = 2 * TOKENS;
    again.chunk = 300;
    again.first = 3 * TOKENS;
    r = good, r.n_chunks = 2;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL); // at two positions
    chunk.chunk = 100;
    r = good, r.session = OTHER;
    expect(&s, method, &r.base, COMMON_FAILED_PRECONDITION, NULL); // held at another position
    chunk.chunk = 300;
    for (size_t i = 0; i < sizeof bad_specs / sizeof *bad_specs; i++) { // of a session to be
        named_case_begin(bad_specs[i].name);
        spec_init(&other);
        bad_specs[i].spoil(&other);
        r = good, r.session = 0xbeef, r.spec = &other;
        expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    }
    named_cases_end();
    end(&s);
}

static const struct {
    const char *name;
    uint64_t term, session, incarnation;
    uint32_t layer;
    uint64_t count; // from the first on
    enum common_code want;
} bad_ranges[] = {
    {"old term", TERM - 1, SESSION, INCARNATION, 0, 10, COMMON_ABORTED},
    {"session zero", TERM, 0, INCARNATION, 0, 10, COMMON_NOT_FOUND},
    {"unknown session", TERM, 0xdead, INCARNATION, 0, 10, COMMON_NOT_FOUND},
    {"another incarnation", TERM, SESSION, INCARNATION + 1, 0, 10, COMMON_ABORTED},
    {"layer past the last", TERM, SESSION, INCARNATION, LAYERS, 10, COMMON_INVALID_ARGUMENT},
    {"no rows", TERM, SESSION, INCARNATION, 0, 0, COMMON_INVALID_ARGUMENT},
    {"more rows than numbers", TERM, SESSION, INCARNATION, 0, UINT64_MAX, COMMON_INVALID_ARGUMENT},
};

static void bad_rows(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__RowsPrepareRequest good = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT, r;
    for (uint32_t method = BANYAN__PB__METHOD__METHOD_ROWS_PREPARE;
         method <= BANYAN__PB__METHOD__METHOD_ROWS_ABORT; method++) {
        // The three requests have the same fields; each goes as its own type.
        Banyan__Pb__RowsCommitRequest commit = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
        Banyan__Pb__RowsAbortRequest abort = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
        for (size_t i = 0; i < sizeof bad_ranges / sizeof *bad_ranges; i++) {
            named_case_begin(bad_ranges[i].name);
            r = good;
            r.term = bad_ranges[i].term;
            r.session = bad_ranges[i].session;
            r.incarnation = bad_ranges[i].incarnation;
            r.layer = bad_ranges[i].layer;
            r.count = bad_ranges[i].count;
            commit.term = abort.term = r.term;
            commit.session = abort.session = r.session;
            commit.incarnation = abort.incarnation = r.incarnation;
            commit.layer = abort.layer = r.layer;
            commit.first = abort.first = r.first;
            commit.count = abort.count = r.count;
            const ProtobufCMessage *body = method == BANYAN__PB__METHOD__METHOD_ROWS_PREPARE  ? &r.base
                                           : method == BANYAN__PB__METHOD__METHOD_ROWS_COMMIT ? &commit.base
                                                                                              : &abort.base;
            expect(&s, method, body, bad_ranges[i].want, NULL);
        }
    }
    named_cases_end();
    // A commit of what was not prepared, or is not there.
    assert_int_equal(cluster_commit(&s.c, 0, SESSION, 0, 40, 4), COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_commit(&s.c, 0, SESSION, 0, 50, 4), COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_commit(&s.c, 0, SESSION, 0, 0, 40), COMMON_OK); // again
    end(&s);
}

static void bad_copies_and_a_good_one(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    const struct chunk_place target = {200, 0};
    cluster_layout_ok(&s.c, 0, OTHER, &target, 1);
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    const uint32_t method = BANYAN__PB__METHOD__METHOD_CHUNK_COPY;
    Banyan__Pb__ChunkCopyRequest good = BANYAN__PB__CHUNK_COPY_REQUEST__INIT, r;
    good.term = TERM;
    good.from_chunk = 100;
    good.session = OTHER;
    good.incarnation = INCARNATION;
    good.chunk = 200;
    good.rows = 17;
    r = good, r.term = TERM - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_TERM");
    r = good, r.incarnation++;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_INCARNATION");
    r = good, r.session = 0;
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.from_chunk = 0;
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.chunk = 101; // another session's
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.rows = TOKENS + 1;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    struct answer first, again;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], method, &good.base, NULL, 0, &first), COMMON_OK);
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], method, &good.base, NULL, 0, &again), COMMON_OK);
    assert_int_equal(((const Banyan__Pb__ChunkCopyReply *)first.body)->hash,
                     ((const Banyan__Pb__ChunkCopyReply *)again.body)->hash);
    answer_free(&first);
    answer_free(&again);
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, OTHER, 1, 16, 1, &target, 1);
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    assert_exact(step, &out, 0);
    outcome_free(&out);
    proto_step_free(step);
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    end(&s);
}

// Plans that no worker installs: CASE(what is wrong, expected code, the change of a good one of four
// members).
#define BAD_PLANS(CASE)                                                                                      \
    CASE(old_term, ABORTED, r->term = TERM - 1)                                                              \
    CASE(plan_zero, INVALID_ARGUMENT, r->plan = 0)                                                           \
    CASE(no_members, INVALID_ARGUMENT, r->n_members = 0)                                                     \
    CASE(own_rank_past_the_last, INVALID_ARGUMENT, r->self_rank = 4)                                         \
    CASE(own_rank_has_another_name, INVALID_ARGUMENT, r->self_rank = 1)                                      \
    CASE(rank_twice, INVALID_ARGUMENT, members[2].rank = 1)                                                  \
    CASE(root_below_itself, INVALID_ARGUMENT, members[0].parent = 0)                                         \
    CASE(parent_after_its_child, INVALID_ARGUMENT, members[1].parent = 3)                                    \
    CASE(two_roots, INVALID_ARGUMENT,                                                                        \
         (members[2].parent = 1, members[3].parent = 0, members[1].parent = -1))                             \
    CASE(subtree_in_two_pieces, INVALID_ARGUMENT, (members[2].parent = 0, members[3].parent = 1))            \
    CASE(unknown_engine, UNIMPLEMENTED, r->engine = "carrier pigeons")

#define DEFINE(name, code, change)                                                                           \
    static void plan_##name(Banyan__Pb__PlanInstallRequest *r, Banyan__Pb__PlanMember members[4])            \
    {                                                                                                        \
        (void)r, (void)members;                                                                              \
        change;                                                                                              \
    }
BAD_PLANS(DEFINE)
#undef DEFINE

static const struct {
    const char *name;
    enum common_code want;
    void (*spoil)(Banyan__Pb__PlanInstallRequest *r, Banyan__Pb__PlanMember members[4]);
} bad_plan_cases[] = {
#define ROW(name, code, change) {#name, COMMON_##code, plan_##name},
    BAD_PLANS(ROW)
#undef ROW
};

static void bad_plans(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    const uint32_t method = BANYAN__PB__METHOD__METHOD_PLAN_INSTALL;
    for (size_t i = 0; i < sizeof bad_plan_cases / sizeof *bad_plan_cases; i++) {
        named_case_begin(bad_plan_cases[i].name);
        Banyan__Pb__PlanMember members[4], *list[4];
        char endpoint[] = "unix:///tmp/none", name[4][3] = {"w0", "x1", "x2", "x3"};
        Banyan__Pb__PlanInstallRequest r = BANYAN__PB__PLAN_INSTALL_REQUEST__INIT;
        r.term = TERM;
        r.plan = PLAN + 1;
        r.epoch = 1;
        r.engine = "stream";
        r.members = list;
        r.n_members = 4;
        for (uint32_t m = 0; m < 4; m++) {
            banyan__pb__plan_member__init(&members[m]);
            members[m].rank = m;
            members[m].parent = m == 0 ? -1 : 0;
            members[m].name = name[m];
            members[m].host = "h";
            members[m].edge_endpoint = endpoint;
            list[m] = &members[m];
        }
        bad_plan_cases[i].spoil(&r, members);
        expect(&s, method, &r.base, bad_plan_cases[i].want, NULL);
    }
    named_cases_end();
    // The installed one: the same again is fine, another one at its epoch is not, dropping is idempotent.
    cluster_plan(&s.c, true);
    Banyan__Pb__PlanMember member = BANYAN__PB__PLAN_MEMBER__INIT, *list[1] = {&member};
    member.parent = -1;
    member.name = "w0";
    member.host = "elsewhere";
    member.edge_endpoint = "unix:///tmp/none";
    Banyan__Pb__PlanInstallRequest r = BANYAN__PB__PLAN_INSTALL_REQUEST__INIT;
    r.term = TERM;
    r.plan = PLAN;
    r.epoch = 1;
    r.engine = "stream";
    r.members = list;
    r.n_members = 1;
    expect(&s, method, &r.base, COMMON_FAILED_PRECONDITION, NULL);
    r.epoch = 0;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_EPOCH");
    Banyan__Pb__PlanDropRequest drop = BANYAN__PB__PLAN_DROP_REQUEST__INIT;
    drop.term = TERM;
    drop.plan = PLAN + 5;
    expect(&s, BANYAN__PB__METHOD__METHOD_PLAN_DROP, &drop.base, COMMON_OK, NULL);
    end(&s);
}

// ---- steps --------------------------------------------------------------------------------------

// Steps that a worker refuses as a whole: CASE(what is wrong, expected code, the change of a good one).
#define BAD_FRAMES(CASE)                                                                                     \
    CASE(old_term, ABORTED, step->term = TERM - 1)                                                           \
    CASE(plan_zero, ABORTED, step->plan = 0)                                                                 \
    CASE(another_epoch_of_the_plan, ABORTED, step->plan_epoch++)                                             \
    CASE(session_zero, INVALID_ARGUMENT, item->session = 0)                                                  \
    CASE(more_q_than_there_is, INVALID_ARGUMENT, item->q_bytes += 4)

// Items that fail alone. CASE as above; the items before and after are good.
#define BAD_ITEMS(CASE)                                                                                      \
    CASE(session_not_here, DATA_LOSS, item->session = 0xdead) /* the coordinator thinks that it is here */   \
    CASE(layer_past_the_last, INVALID_ARGUMENT, item->layer = LAYERS)                                        \
    CASE(kv_head_past_the_last, INVALID_ARGUMENT, item->kv_head = 1)                                         \
    CASE(fewer_kv_heads, INVALID_ARGUMENT, item->kv_heads = 1)                                               \
    CASE(fewer_query_heads, INVALID_ARGUMENT, item->q_heads = 3)                                             \
    CASE(another_v_dim, INVALID_ARGUMENT, item->v_dim++)                                                     \
    CASE(visible_past_all_numbers, INVALID_ARGUMENT, item->visible = UINT64_MAX)                             \
    CASE(position_past_all_numbers, INVALID_ARGUMENT, item->first = UINT64_C(1) << 50)                       \
    CASE(old_incarnation, ABORTED, item->incarnation--)                                                      \
    CASE(another_epoch, ABORTED, item->epoch++)                                                              \
    CASE(put_but_not_committed, DATA_LOSS, (item->visible = 42, item->first = 41, item->rows = 2))           \
    CASE(append_of_other_bytes, FAILED_PRECONDITION, step_append(step, 1, 100, 0, 9, 40, 1))                 \
    CASE(append_over_attached_rows, FAILED_PRECONDITION, step_append(step, 1, 100, 0, 10, 0, 1))             \
    CASE(append_outside_its_chunk, INVALID_ARGUMENT, step_append(step, 1, 101, 0, 11, 0, 0))                 \
    CASE(append_to_a_chunk_not_here, DATA_LOSS, step_append(step, 1, 999, 0, 12, 0, 0))                      \
    CASE(append_with_less_v, INVALID_ARGUMENT,                                                               \
         (step_append(step, 1, 100, 0, 13, 40, 0), step->v_bytes -= 4, item->v_bytes -= 4))

#define DEFINE(name, code, change)                                                                           \
    static void step_##name(struct proto_step *step, struct proto_step_item *item)                           \
    {                                                                                                        \
        (void)step, (void)item;                                                                              \
        change;                                                                                              \
    }
#define DEFINE_ITEM(name, code, change) DEFINE(item_##name, code, change)
BAD_FRAMES(DEFINE)
BAD_ITEMS(DEFINE_ITEM)
#undef DEFINE_ITEM
#undef DEFINE

struct bad_step {
    const char *name;
    enum common_code want;
    void (*spoil)(struct proto_step *step, struct proto_step_item *item);
};

static const struct bad_step bad_frame_cases[] = {
#define ROW(name, code, change) {#name, COMMON_##code, step_##name},
    BAD_FRAMES(ROW)
#undef ROW
};

static const struct bad_step bad_item_cases[] = {
#define ROW(name, code, change) {#name, COMMON_##code, step_item_##name},
    BAD_ITEMS(ROW)
#undef ROW
};

static void bad_frames(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    for (size_t i = 0; i < sizeof bad_frame_cases / sizeof *bad_frame_cases; i++) {
        named_case_begin(bad_frame_cases[i].name);
        struct proto_step *step = step_new(1);
        struct outcome out;
        step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
        bad_frame_cases[i].spoil(step, &step->items[0]);
        assert_int_equal(cluster_step(&s.c, 0, step, &out), bad_frame_cases[i].want);
        outcome_free(&out);
        proto_step_free(step);
        unchanged(&s);
    }
    named_cases_end();
    end(&s);
}

static void a_bad_item_fails_alone(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    for (size_t i = 0; i < sizeof bad_item_cases / sizeof *bad_item_cases; i++) {
        named_case_begin(bad_item_cases[i].name);
        struct proto_step *step = step_new(3);
        struct outcome out;
        struct proto_step_item *item = &step->items[1];
        step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
        step_item(step, 1, SESSION, 1, 30, 2, chunks, 2);
        step_item(step, 2, SESSION, 1, 2, 1, chunks, 2);
        bad_item_cases[i].spoil(step, item);
        assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
        assert_int_equal(out.result->items[1].code, bad_item_cases[i].want);
        assert_true(out.result->items[1].message[0] != 0);
        const float *o = out.result->tensors[0];
        size_t heads = item->q_heads;
        for (size_t d = 0; d < item->rows * heads * item->v_dim; d++)
            assert_true(o[Q_HEADS * V_DIM + d] == 0);
        assert_exact(step, &out, 0);
        if (heads == Q_HEADS && item->v_dim == V_DIM)
            assert_exact(step, &out, 2);
        outcome_free(&out);
        proto_step_free(step);
        unchanged(&s);
    }
    named_cases_end();
    end(&s);
}

static void nan_and_inf_flow_through(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    struct proto_step *step = step_new(2);
    struct outcome out;
    step_item(step, 0, SESSION, 0, 20, 1, chunks, 2);
    step_item(step, 1, SESSION, 0, 21, 1, chunks, 2);
    ((float *)(step->blob->data))[0] = __builtin_nanf(""); // q of head 0
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    const float *o = out.result->tensors[0];
    assert_int_equal(out.result->items[0].code, COMMON_OK);
    for (uint32_t d = 0; d < Q_HEADS * V_DIM; d++)
        assert_true((o[d] != o[d]) == (d < V_DIM)); // that head and no other
    assert_exact(step, &out, 1);
    outcome_free(&out);
    proto_step_free(step);
    end(&s);
}

// Who may call what.
static void roles_are_checked(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__SessionDropRequest drop = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    drop.term = TERM;
    drop.session = SESSION;
    // A client has no business on the public endpoint but puts.
    assert_int_not_equal(cluster_call(&s.c, s.c.clients[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP,
                                      &drop.base, NULL, 0, NULL),
                         COMMON_OK);
    unchanged(&s);
    // A parent in a tree sends steps, and nothing that changes layouts.
    struct proto_channel *parent;
    struct proto_channel_options options = {.name = "p",
                                            .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                            .secret = &s.c.secret};
    assert_int_equal(proto_channel_open(s.c.loop, worker_edge_endpoint(s.c.workers[0]), &options, &parent,
                                        NULL),
                     COMMON_OK);
    assert_int_equal(cluster_call(&s.c, parent, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base, NULL, 0,
                                  NULL),
                     COMMON_PERMISSION_DENIED);
    // Nor does it begin a term: that would end what this worker hears from its coordinator.
    struct proto_step *step = step_new(1);
    struct proto_channel *coordinator = s.c.edges[0];
    struct outcome out;
    step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
    step->term = UINT64_MAX;
    s.c.edges[0] = parent;
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_ABORTED);
    outcome_free(&out);
    s.c.edges[0] = coordinator;
    proto_step_free(step);
    unchanged(&s);
    drop.session = 0x9999;
    assert_int_equal(cluster_call(&s.c, coordinator, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    proto_channel_close(parent);
    end(&s);
}

static void a_higher_term_is_kept(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__SessionDropRequest drop = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    drop.term = TERM + 1;
    drop.session = 0x9999;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    drop.term = TERM;
    drop.session = SESSION;
    struct answer answer;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                  NULL, 0, &answer),
                     COMMON_ABORTED);
    assert_string_equal(answer.reason, "OLD_TERM");
    answer_free(&answer);
    free(s.before);
    cluster_stop(&s.c);
}

// What another life of a coordinator's store laid out is in quarantine: neither altered nor dropped, unless
// the store says that it lists it.
static void another_life(void **state)
{
    (void)state;
    struct setup s;
    begin(&s); // laid out by life 0
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION;
    layout.epoch = EPOCH;
    layout.life = 8;
    expect(&s, BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base, COMMON_FAILED_PRECONDITION, "");
    layout.replace = true; // all its chunks would go
    expect(&s, BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base, COMMON_FAILED_PRECONDITION, "");
    Banyan__Pb__SessionDropRequest drop = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    drop.term = TERM;
    drop.session = SESSION;
    drop.life = 8;
    expect(&s, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base, COMMON_OK, "");
    layout.replace = false;
    layout.claim = true; // from here on it is life 8's
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    drop.life = 0; // it is not life 0's any more
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    struct answer answer;
    Banyan__Pb__InventoryRequest ask = BANYAN__PB__INVENTORY_REQUEST__INIT;
    ask.term = TERM;
    ask.life = 9;
    for (int held = 2; held > 0; held--) {
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &ask.base,
                                      NULL, 0, &answer),
                         COMMON_OK);
        const Banyan__Pb__InventoryReply *reply = (const Banyan__Pb__InventoryReply *)answer.body;
        assert_int_equal(reply->n_sessions, held);
        for (int i = 0; i < held; i++) {
            const Banyan__Pb__InventorySession *session = reply->sessions[i];
            assert_int_equal(session->life, session->session == SESSION ? 8 : 0);
            assert_int_equal(session->bytes > 0, session->session == SESSION);
        }
        answer_free(&answer);
        drop.life = 9;
        drop.claim = true; // the store records that it was deleted, or an operator says so
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                      NULL, 0, NULL),
                         COMMON_OK);
    }
    free(s.before);
    cluster_stop(&s.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        named_cases_test(bad_layouts),
        cmocka_unit_test(another_life),
        named_cases_test(bad_rows),
        cmocka_unit_test(bad_copies_and_a_good_one),
        named_cases_test(bad_plans),
        named_cases_test(bad_frames),
        named_cases_test(a_bad_item_fails_alone),
        cmocka_unit_test(nan_and_inf_flow_through),
        cmocka_unit_test(roles_are_checked),
        cmocka_unit_test(a_higher_term_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
