// SPDX-License-Identifier: Apache-2.0
// Each reason has its own hint or none; a failure without a reason has none, whatever its code.
#include "client/ctl/hints.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/model/reason.h"

static const char *hint(banyan_reason reason, banyan_code code)
{
    const banyan_error error = {.code = code, .reason = reason};
    return ctl_hint(&error);
}

static void a_code_alone_has_none(void **state)
{
    (void)state;
    for (int code = BANYAN_OK; code <= BANYAN_UNAUTHENTICATED; code++) {
        assert_null(hint(BANYAN_REASON_NONE, (banyan_code)code));
        assert_null(hint((banyan_reason)PROTO_REASON_COUNT, (banyan_code)code));
    }
}

static void each_reason_has_its_own(void **state)
{
    (void)state;
    static const struct {
        banyan_reason reason;
        banyan_code code;
        const char *says; // NULL: the sentence says it all
    } all[] = {
        {BANYAN_REASON_TOKEN, BANYAN_FAILED_PRECONDITION, "'banyanctl token list'"},
        {BANYAN_REASON_HOLE, BANYAN_FAILED_PRECONDITION, "'banyanctl attach' sends"},
        {BANYAN_REASON_FORGOTTEN, BANYAN_FAILED_PRECONDITION, NULL},
        {BANYAN_REASON_HASH_MISMATCH, BANYAN_DATA_LOSS, NULL},
        {BANYAN_REASON_OLD_TICKET, BANYAN_FAILED_PRECONDITION, NULL},
        {BANYAN_REASON_MISSING_RANGE, BANYAN_UNAVAILABLE, "start them again"},
        {BANYAN_REASON_MISSING_RANGE, BANYAN_DATA_LOSS, "before the lost tokens"},
        {BANYAN_REASON_WORKER_LOST, BANYAN_UNAVAILABLE, "try again"},
        {BANYAN_REASON_QUARANTINE, BANYAN_UNAVAILABLE, "'banyanctl quarantine list'"},
        {BANYAN_REASON_RESTORED, BANYAN_UNAVAILABLE, "'banyanctl accept'"},
        {BANYAN_REASON_COVERAGE, BANYAN_DATA_LOSS, "'banyanctl doctor'"},
        {BANYAN_REASON_OLD_EPOCH, BANYAN_ABORTED, NULL},
        {BANYAN_REASON_OLD_PLAN, BANYAN_ABORTED, NULL},
        {BANYAN_REASON_COLD, BANYAN_ABORTED, NULL},
        {BANYAN_REASON_FULL, BANYAN_RESOURCE_EXHAUSTED, "add workers"},
        {BANYAN_REASON_OLD_INCARNATION, BANYAN_ABORTED, "its length now"},
        {BANYAN_REASON_OLD_WRITE, BANYAN_ABORTED, NULL},
        {BANYAN_REASON_UNCONFIRMED, BANYAN_UNAVAILABLE, NULL},
        {BANYAN_REASON_OLD_COMMIT, BANYAN_ABORTED, NULL},
        {BANYAN_REASON_OLD_TERM, BANYAN_ABORTED, NULL},
        {BANYAN_REASON_QUOTA, BANYAN_RESOURCE_EXHAUSTED, "'banyanctl quota show'"},
        {BANYAN_REASON_AUDIT_LOG, BANYAN_UNKNOWN, NULL},
        {BANYAN_REASON_LIMIT, BANYAN_RESOURCE_EXHAUSTED, NULL},
        {BANYAN_REASON_OTHER_BYTES, BANYAN_FAILED_PRECONDITION, "another program writes"},
        {BANYAN_REASON_TLS, BANYAN_UNAUTHENTICATED, NULL},
        {BANYAN_REASON_CREDENTIALS, BANYAN_UNAUTHENTICATED, "BANYAN_TOKEN_FILE"},
        {BANYAN_REASON_CREDENTIALS, BANYAN_NOT_FOUND, NULL}, // its file: the sentence names it
        {BANYAN_REASON_ACCESS, BANYAN_PERMISSION_DENIED, "a token that permits it"},
        {BANYAN_REASON_UNREACHABLE, BANYAN_UNAVAILABLE, "BANYAN_ENDPOINT"},
        {BANYAN_REASON_NO_ANSWER, BANYAN_DEADLINE_EXCEEDED, "--timeout"},
        {BANYAN_REASON_NO_WORKER, BANYAN_UNAVAILABLE, "'banyanctl join-command'"},
        {BANYAN_REASON_NO_SESSION, BANYAN_NOT_FOUND, "'banyanctl sessions'"},
        {BANYAN_REASON_UNKNOWN_WORKER, BANYAN_NOT_FOUND, "'banyanctl workers'"},
        {BANYAN_REASON_NAME_TAKEN, BANYAN_ALREADY_EXISTS, "choose another name"},
        {BANYAN_REASON_PAST_END, BANYAN_OUT_OF_RANGE, "how many tokens"},
        {BANYAN_REASON_STORE, BANYAN_RESOURCE_EXHAUSTED, "the coordinator's --store"},
        {BANYAN_REASON_FILE, BANYAN_NOT_FOUND, NULL},
    };
    bool seen[PROTO_REASON_COUNT] = {0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *got = hint(all[i].reason, all[i].code);
        seen[all[i].reason] = true;
        if (!got != !all[i].says || (got && !strstr(got, all[i].says)))
            fail_msg("%s, %s: %s", banyan_reason_name(all[i].reason), banyan_code_name(all[i].code),
                     got ? got : "no hint");
        for (size_t other = 0; got && other < sizeof all / sizeof *all; other++)
            if (all[other].reason != all[i].reason)
                assert_ptr_not_equal(got, hint(all[other].reason, all[i].code));
    }
    for (uint32_t i = 1; i < PROTO_REASON_COUNT; i++)
        if (!seen[i])
            fail_msg("%s: this table does not say which hint it has",
                     proto_reason_name((enum proto_reason)i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_code_alone_has_none),
        cmocka_unit_test(each_reason_has_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
