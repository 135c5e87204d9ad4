// SPDX-License-Identifier: Apache-2.0
// For daemons: a mail of its own for each call. Apart, so that no library links it.
#include <stdlib.h>

#include "common/loop.h"

struct post {
    struct common_mail mail;
    common_loop_fn fn;
    void *arg;
};

static void run_post(void *arg)
{
    struct post post = *(struct post *)arg;
    free(arg);
    post.fn(post.arg);
}

void common_loop_post(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    struct post *post = malloc(sizeof *post);
    if (!post)
        abort();
    post->fn = fn;
    post->arg = arg;
    common_loop_mail(loop, &post->mail, run_post, post);
}
