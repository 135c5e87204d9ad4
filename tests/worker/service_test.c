// SPDX-License-Identifier: Apache-2.0
// Bad calls of the control plane and bad steps: each gets its own status, and the worker's state stays what
// it was.
#include "tests/worker/service.h"

// ---- control ------------------------------------------------------------------------------------

static void bad_layouts(void **state)
{
    (void)state;
    float zeros[Q_HEADS] = {0}, not_a_number[Q_HEADS] = {0, 0, __builtin_nanf(""), 0};
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
    for (int i = 0; i < 14; i++) { // specs of a session to be
        spec_init(&other);
        switch (i) {
        case 0:
            other.layers = 0;
            break;
        case 1:
            other.layers = 1025;
            break;
        case 2:
            other.q_heads = 3;
            break;
        case 3:
            other.kv_heads = 0;
            break;
        case 4:
            other.k_dim = 0;
            break;
        case 5:
            other.v_dim = 1025;
            break;
        case 6:
            other.kv_type = BANYAN__PB__DTYPE__DTYPE_U8;
            break;
        case 7:
            other.kv_type = (Banyan__Pb__Dtype)77;
            break;
        case 8:
            other.chunk_tokens = 17;
            break;
        case 9:
            other.chunk_tokens = 8192;
            break;
        case 10:
            other.scale = -1;
            break;
        case 11:
            other.soft_cap = __builtin_inff();
            break;
        case 12:
            other.n_alibi = 1, other.alibi = zeros;
            break;
        default:
            other.n_sinks = Q_HEADS, other.sinks = not_a_number;
            break;
        }
        r = good, r.session = 0xbeef, r.spec = &other;
        expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    }
    end(&s);
}

static void bad_rows(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__RowsPrepareRequest good = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT, r;
    good.term = TERM;
    good.session = SESSION;
    good.incarnation = INCARNATION;
    good.first = 0;
    good.count = 10;
    for (uint32_t method = BANYAN__PB__METHOD__METHOD_ROWS_PREPARE;
         method <= BANYAN__PB__METHOD__METHOD_ROWS_ABORT; method++) {
        // The three requests have the same fields; each goes as its own type.
        Banyan__Pb__RowsCommitRequest commit = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
        Banyan__Pb__RowsAbortRequest abort = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
        for (int i = 0; i < 7; i++) {
            enum common_code want = COMMON_INVALID_ARGUMENT;
            r = good;
            switch (i) {
            case 0:
                r.term = TERM - 1, want = COMMON_ABORTED;
                break;
            case 1:
                r.session = 0, want = COMMON_NOT_FOUND;
                break;
            case 2:
                r.session = 0xdead, want = COMMON_NOT_FOUND;
                break;
            case 3:
                r.incarnation++, want = COMMON_ABORTED;
                break;
            case 4:
                r.layer = LAYERS;
                break;
            case 5:
                r.count = 0;
                break;
            default:
                r.count = UINT64_MAX;
                break;
            }
            commit.term = abort.term = r.term;
            commit.session = abort.session = r.session;
            commit.incarnation = abort.incarnation = r.incarnation;
            commit.layer = abort.layer = r.layer;
            commit.first = abort.first = r.first;
            commit.count = abort.count = r.count;
            const ProtobufCMessage *body = method == BANYAN__PB__METHOD__METHOD_ROWS_PREPARE  ? &r.base
                                           : method == BANYAN__PB__METHOD__METHOD_ROWS_COMMIT ? &commit.base
                                                                                              : &abort.base;
            expect(&s, method, body, want, NULL);
        }
    }
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

static void bad_plans(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    const uint32_t method = BANYAN__PB__METHOD__METHOD_PLAN_INSTALL;
    for (int i = 0; i < 11; i++) {
        Banyan__Pb__PlanMember members[4], *list[4];
        char endpoint[] = "unix:///tmp/none", name[4][3] = {"w0", "x1", "x2", "x3"};
        enum common_code want = COMMON_INVALID_ARGUMENT;
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
        switch (i) {
        case 0:
            r.term = TERM - 1, want = COMMON_ABORTED;
            break;
        case 1:
            r.plan = 0;
            break;
        case 2:
            r.n_members = 0;
            break;
        case 3:
            r.self_rank = 4;
            break;
        case 4:
            r.self_rank = 1;
            break; // another's name
        case 5:
            members[2].rank = 1;
            break;
        case 6:
            members[0].parent = 0;
            break;
        case 7:
            members[1].parent = 3;
            break;
        case 8:
            members[2].parent = 1, members[3].parent = 0, members[1].parent = -1;
            break;
        case 9:
            members[2].parent = 0, members[3].parent = 1;
            break; // rank 1's subtree in two pieces
        default:
            r.engine = "carrier pigeons", want = COMMON_UNIMPLEMENTED;
            break;
        }
        expect(&s, method, &r.base, want, NULL);
    }
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

static void bad_frames(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    for (int i = 0; i < 5; i++) {
        struct proto_step *step = step_new(1);
        struct outcome out;
        enum common_code want = COMMON_ABORTED;
        step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
        switch (i) {
        case 0:
            step->term = TERM - 1;
            break;
        case 1:
            step->plan = 0;
            break;
        case 2:
            step->plan_epoch++;
            break;
        case 3:
            step->items[0].session = 0, want = COMMON_INVALID_ARGUMENT;
            break;
        default:
            step->items[0].q_bytes += 4, want = COMMON_INVALID_ARGUMENT;
            break;
        }
        assert_int_equal(cluster_step(&s.c, 0, step, &out), want);
        outcome_free(&out);
        proto_step_free(step);
        unchanged(&s);
    }
    end(&s);
}

static void a_bad_item_fails_alone(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    for (int i = 0; i < 16; i++) {
        struct proto_step *step = step_new(3);
        struct outcome out;
        struct proto_step_item *item = &step->items[1];
        enum common_code want = COMMON_INVALID_ARGUMENT;
        step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
        step_item(step, 1, SESSION, 1, 30, 2, chunks, 2);
        step_item(step, 2, SESSION, 1, 2, 1, chunks, 2);
        switch (i) {
        case 0:
            item->session = 0xdead, want = COMMON_DATA_LOSS;
            break; // the coordinator thinks that it is here
        case 1:
            item->layer = LAYERS;
            break;
        case 2:
            item->kv_head = 1;
            break;
        case 3:
            item->kv_heads = 1;
            break;
        case 4:
            item->q_heads = 3;
            break;
        case 5:
            item->v_dim++;
            break;
        case 6:
            item->visible = UINT64_MAX;
            break;
        case 7:
            item->first = UINT64_C(1) << 50;
            break;
        case 8:
            item->incarnation--, want = COMMON_ABORTED;
            break;
        case 9:
            item->epoch++, want = COMMON_ABORTED;
            break;
        case 10:
            item->visible = 42, item->first = 41, item->rows = 2, want = COMMON_DATA_LOSS;
            break; // put, not committed
        case 11:
            step_append(step, 1, 100, 0, 9, 40, 1), want = COMMON_FAILED_PRECONDITION;
            break; // other bytes
        case 12:
            step_append(step, 1, 100, 0, 9, 0, 1), want = COMMON_FAILED_PRECONDITION;
            break; // attached: never replaced
        case 13:
            step_append(step, 1, 101, 0, 9, 0, 0);
            break; // leaves its chunk
        case 14:
            step_append(step, 1, 999, 0, 9, 0, 0), want = COMMON_DATA_LOSS;
            break; // no such chunk here
        default:
            step_append(step, 1, 100, 0, 9, 40, 0), step->v_bytes -= 4, item->v_bytes -= 4;
            break;
        }
        assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
        assert_int_equal(out.result->items[1].code, want);
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

// What another life of a coordinator's store laid out is in quarantine: neither altered nor dropped, unless the
// store says that it knows it.
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
        drop.claim = true; // the store knows that it was deleted, or an operator does
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
        cmocka_unit_test(bad_layouts),
        cmocka_unit_test(another_life),
        cmocka_unit_test(bad_rows),
        cmocka_unit_test(bad_copies_and_a_good_one),
        cmocka_unit_test(bad_plans),
        cmocka_unit_test(bad_frames),
        cmocka_unit_test(a_bad_item_fails_alone),
        cmocka_unit_test(nan_and_inf_flow_through),
        cmocka_unit_test(roles_are_checked),
        cmocka_unit_test(a_higher_term_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
