// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/copy.h"

#define TO(state) (1u << COORDINATOR_COPY_##state)
const struct common_machine coordinator_copy_machine = {
    .name = "copy",
    .n = COORDINATOR_COPY_STATES,
    .states = {"coming", "sync", "leaving", "wrong", "gone"},
    .next =
        {
            [COORDINATOR_COPY_COMING] = TO(SYNC) | TO(WRONG) | TO(GONE),
            [COORDINATOR_COPY_SYNC] = TO(LEAVING) | TO(WRONG) | TO(GONE),
            [COORDINATOR_COPY_LEAVING] = TO(SYNC) | TO(WRONG) | TO(GONE),
            [COORDINATOR_COPY_WRONG] = TO(GONE),
            [COORDINATOR_COPY_GONE] = TO(SYNC),
        },
};
#undef TO

#define TO(word) (1u << COORDINATOR_WORD_##word)
const struct common_machine coordinator_word_machine = {
    .name = "word",
    .n = COORDINATOR_WORDS,
    .states = {"silent", "doubting", "heard", "doubtful"},
    .next =
        {
            [COORDINATOR_WORD_SILENT] = TO(DOUBTING) | TO(HEARD),
            [COORDINATOR_WORD_DOUBTING] = TO(SILENT) | TO(DOUBTFUL),
            [COORDINATOR_WORD_HEARD] = TO(SILENT) | TO(DOUBTFUL),
            [COORDINATOR_WORD_DOUBTFUL] = TO(DOUBTING) | TO(HEARD),
        },
};

void coordinator_copy_set_state(struct coordinator_copy *copy, enum coordinator_copy_state state)
{
    if (copy->state == state)
        return;
    common_machine_move(&coordinator_copy_machine, copy->state, state);
    copy->state = state;
}

static void set_word(struct coordinator_copy *copy, bool heard, bool doubtful)
{
    static const enum coordinator_copy_word words[2][2] = {
        {COORDINATOR_WORD_SILENT, COORDINATOR_WORD_DOUBTING},
        {COORDINATOR_WORD_HEARD, COORDINATOR_WORD_DOUBTFUL},
    };
    enum coordinator_copy_word word = words[heard][doubtful];
    if (copy->word == word)
        return;
    common_machine_move(&coordinator_word_machine, copy->word, word);
    copy->word = word;
}

void coordinator_copy_set_heard(struct coordinator_copy *copy, bool heard)
{
    set_word(copy, heard, coordinator_copy_doubtful(copy));
}

void coordinator_copy_set_doubtful(struct coordinator_copy *copy, bool doubtful)
{
    set_word(copy, coordinator_copy_heard(copy), doubtful);
}
