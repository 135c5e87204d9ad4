// SPDX-License-Identifier: Apache-2.0
// common/trail/trail_writer.h without a thread: a record is written where it is put, and its end comes by
// mail.
#include "common/trail/trail_writer.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

struct common_trail_writer {
    struct common_loop *loop;
    struct common_trail *file;
    common_trail_done_fn done;
    void *arg;
    struct common_mail mail;
    bool posted, left;
    uint64_t put, told;
    bool written[COMMON_TRAIL_RECORDS]; // of those above the last that was reported
};

enum common_code common_trail_writer_new(struct common_loop *loop, struct common_trail *file,
                                         common_trail_done_fn done, void *arg,
                                         struct common_trail_writer **out)
{
    struct common_trail_writer *w = calloc(1, sizeof *w);
    if (!w) {
        common_trail_close(file);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    *w = (struct common_trail_writer){.loop = loop, .file = file, .done = done, .arg = arg};
    *out = w;
    return COMMON_OK;
}

static void tell(struct common_trail_writer *w)
{
    while (w->told < w->put) {
        uint64_t number = ++w->told;
        w->done(w->arg, number, w->written[number % COMMON_TRAIL_RECORDS]);
    }
}

static void discard(struct common_trail_writer *w)
{
    common_trail_close(w->file);
    free(w);
}

static void on_mail(void *arg)
{
    struct common_trail_writer *w = arg;
    w->posted = false;
    if (w->left)
        discard(w);
    else
        tell(w);
}

uint64_t common_trail_writer_put(struct common_trail_writer *w, const struct common_trail_body *body)
{
    uint64_t now = common_clock_ns();
    if (w->put - w->told == COMMON_TRAIL_RECORDS) {
        common_trail_lose(w->file, 1, now, "too many records were waiting");
        return 0;
    }
    struct common_trail_body copy = *body;
    uint64_t number = ++w->put;
    w->written[number % COMMON_TRAIL_RECORDS] = common_trail_write_at(w->file, &copy, common_clock_wall_ns());
    if (!w->posted)
        common_loop_mail(w->loop, &w->mail, on_mail, w);
    w->posted = true;
    return number;
}

uint64_t common_trail_writer_waiting(struct common_trail_writer *w)
{
    (void)w;
    return 0;
}

unsigned common_trail_writer_full(const struct common_trail_writer *w)
{
    return (unsigned)((w->put - w->told) * 100 / COMMON_TRAIL_RECORDS);
}

uint64_t common_trail_writer_waits_ns(struct common_trail_writer *w, uint64_t now_ns)
{
    (void)w;
    (void)now_ns;
    return 0;
}

void common_trail_writer_reopen(struct common_trail_writer *w)
{
    struct common_error err;
    (void)common_trail_reopen(w->file, &err);
}

void common_trail_writer_retry(struct common_trail_writer *w)
{
    common_trail_retry(w->file);
}

void common_trail_writer_state(struct common_trail_writer *w, struct common_trail_state *out)
{
    common_trail_counts(w->file, &out->counts);
    snprintf(out->head, sizeof out->head, "%s", out->counts.head);
    out->counts.head = out->head;
    out->works = common_trail_works(w->file);
    snprintf(out->trouble, sizeof out->trouble, "%s", out->works ? "" : common_trail_trouble(w->file));
}

bool common_trail_writer_flush(struct common_trail_writer *w, uint64_t until_ns)
{
    (void)until_ns;
    tell(w);
    return true;
}

void common_trail_writer_free(struct common_trail_writer *w)
{
    if (!w)
        return;
    w->left = true;
    if (!w->posted)
        discard(w);
}
