// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/wishes.h"

#include <stdlib.h>

#include "coordinator/session/table.h"

void coordinator_wishes_init(struct coordinator_sessions *sessions)
{
    sessions->wishes = coordinator_alloc(sizeof(*sessions->wishes));
}

void coordinator_wishes_tick(struct coordinator_sessions *sessions)
{
    struct coordinator_wishes *wishes = sessions->wishes;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < wishes->n; i++)
        if (coordinator_session_any(sessions, wishes->list[i].session))
            wishes->list[kept++] = wishes->list[i];
    wishes->n = kept;
}

void coordinator_wishes_fini(struct coordinator_sessions *sessions)
{
    free(sessions->wishes->list);
    free(sessions->wishes);
    sessions->wishes = NULL;
}
