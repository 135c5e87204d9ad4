// SPDX-License-Identifier: Apache-2.0
// What the tests against real daemons share: a cluster, a client, sessions filled with zeros (other tests
// look at the numbers).
#ifndef TESTS_COORDINATOR_HELPER_H
#define TESTS_COORDINATOR_HELPER_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/banyan.h"
#include "tests/harness/cluster.h"
#include "tests/harness/process.h"

#define HELPER_SPEC                                                                                          \
    {                                                                                                        \
        .layers = 1, .q_heads = 4, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_F32,           \
        .chunk_tokens = 16                                                                                   \
    }

static banyan_error helper_error;

#define OK(call)                                                                                             \
    do {                                                                                                     \
        if ((call) != BANYAN_OK)                                                                             \
            fail_msg("%s: %s: %s", #call, banyan_code_name(helper_error.code), helper_error.message);        \
    } while (0)
#define FAILS(want, call)                                                                                    \
    do {                                                                                                     \
        helper_error = (banyan_error){0};                                                                    \
        banyan_code got = (call);                                                                            \
        if (got != (want))                                                                                   \
            fail_msg("%s: %s: %s", #call, banyan_code_name(got), helper_error.message);                      \
        assert_true(helper_error.message[0] != 0);                                                           \
    } while (0)

static const float helper_zeros[1 << 20]; // q, k and v of any item here
static float helper_o[1 << 20], helper_lse[1 << 16];

static inline banyan_session *helper_session(banyan_client *client, const banyan_spec *spec, const char *name)
{
    banyan_session *session = NULL;
    OK(banyan_session_create(client, spec, name, &session, &helper_error));
    return session;
}

static inline banyan_item helper_item(banyan_session *session, uint64_t first, uint32_t rows, bool append)
{
    return (banyan_item){.session = session,
                         .first = first,
                         .rows = rows,
                         .q = helper_zeros,
                         .k = append ? helper_zeros : NULL,
                         .v = append ? helper_zeros : NULL,
                         .o = helper_o,
                         .lse = helper_lse,
                         .error = &helper_error};
}

// One item in one call.
static inline banyan_code helper_step(banyan_client *client, banyan_session *session, uint64_t first,
                                      uint32_t rows, bool append)
{
    banyan_item item = helper_item(session, first, rows, append);
    banyan_code code = banyan_attend(client, &item, 1, 0, NULL, &helper_error);
    return code == BANYAN_OK ? item.code : code;
}

static inline void helper_fill(banyan_client *client, banyan_session *session, uint64_t first, uint64_t count)
{
    for (uint64_t at = first; at < first + count; at += 64)
        OK(helper_step(client, session, at, (uint32_t)(first + count - at < 64 ? first + count - at : 64),
                       true));
}

struct helper_counts {
    uint64_t frames, steps, sessions, chunks;
};

static inline struct helper_counts helper_counts(banyan_client *client)
{
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, &helper_error));
    struct helper_counts counts = {info.frames, info.steps, info.sessions, info.chunks};
    banyan_cluster_info_free(&info);
    return counts;
}

static inline uint64_t helper_length(banyan_session *session)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, &helper_error));
    uint64_t length = info.length;
    banyan_session_info_free(&info);
    return length;
}

#endif
