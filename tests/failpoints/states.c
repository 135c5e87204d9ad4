// SPDX-License-Identifier: Apache-2.0
#include "tests/failpoints/states.h"

#include <string.h>

#include "common/hash/hash.h"

enum { WORDS = 1200 }; // 9,600 bytes: three rows of the session that holds them, and a part of the third

void script_states_add(struct script_states *states, uint64_t position, uint64_t seed)
{
    states->at[states->n++] = (struct script_state){position, seed};
}

void script_states_cut(struct script_states *states, uint64_t length)
{
    while (states->n && states->at[states->n - 1].position > length)
        states->n--;
}

static void fill(uint64_t seed, uint64_t words[WORDS], uint64_t digest[2])
{
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = common_mix64(seed * WORDS + i);
    digest[0] = common_mix64(~seed);
    digest[1] = seed;
}

banyan_code script_state_put(banyan_session *session, uint64_t position, uint64_t seed, banyan_error *error)
{
    uint64_t words[WORDS], digest[2];
    fill(seed, words, digest);
    return banyan_state_put(session, SCRIPT_STATE_LAYER, position, words, sizeof words, digest, error);
}

static bool is(const banyan_state *state, const struct script_state *of)
{
    uint64_t words[WORDS], digest[2];
    fill(of->seed, words, digest);
    return state->position == of->position && state->bytes == sizeof words &&
           !memcmp(state->digest, digest, sizeof digest) && !memcmp(state->data, words, sizeof words);
}

banyan_code script_state_check(banyan_session *session, const struct script_states *states, uint64_t position,
                               bool *same, banyan_error *error)
{
    banyan_state state = {0};
    uint32_t n = 0;
    while (n < states->n && states->at[n].position <= position)
        n++;
    banyan_code code = banyan_state_get(session, SCRIPT_STATE_LAYER, position, &state, error);
    *same = code == BANYAN_NOT_FOUND && (!n || states->maybe);
    for (uint32_t i = n; code == BANYAN_OK && i-- > 0 && !*same;) {
        *same = is(&state, &states->at[i]);
        if (!states->maybe)
            break;
    }
    banyan_state_free(&state);
    return code == BANYAN_NOT_FOUND ? BANYAN_OK : code;
}
