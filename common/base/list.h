// SPDX-License-Identifier: Apache-2.0
// A ring of links inside objects: removal needs no head, so whole lists can be moved while callbacks remove
// from them.
#ifndef COMMON_LIST_H
#define COMMON_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct common_list {
    struct common_list *next, *prev;
};

#define common_list_entry(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

static inline void common_list_init(struct common_list *list)
{
    list->next = list->prev = list;
}

static inline bool common_list_empty(const struct common_list *list)
{
    return list->next == list;
}

static inline void common_list_push(struct common_list *list, struct common_list *link) // at the end
{
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}

static inline void
common_list_remove(struct common_list *link) // leaves it alone with itself: may be removed again
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    common_list_init(link);
}

static inline void common_list_move(struct common_list *from,
                                    struct common_list *to) // `to` is empty; `from` becomes so
{
    common_list_init(to);
    if (common_list_empty(from))
        return;
    *to = *from;
    to->next->prev = to;
    to->prev->next = to;
    common_list_init(from);
}

#endif
