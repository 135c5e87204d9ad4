// SPDX-License-Identifier: Apache-2.0
// A ring of links inside objects: removal needs no head, so whole lists can be moved while callbacks remove
// from them.
#ifndef PROTO_LIST_H
#define PROTO_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct proto_list {
    struct proto_list *next, *prev;
};

#define proto_list_entry(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

static inline void proto_list_init(struct proto_list *list)
{
    list->next = list->prev = list;
}

static inline bool proto_list_empty(const struct proto_list *list)
{
    return list->next == list;
}

static inline void proto_list_push(struct proto_list *list, struct proto_list *link) // at the end
{
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}

static inline void
proto_list_remove(struct proto_list *link) // leaves it alone with itself: may be removed again
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    proto_list_init(link);
}

static inline void proto_list_move(struct proto_list *from,
                                   struct proto_list *to) // `to` is empty; `from` becomes so
{
    proto_list_init(to);
    if (proto_list_empty(from))
        return;
    *to = *from;
    to->next->prev = to;
    to->prev->next = to;
    proto_list_init(from);
}

#endif
