// SPDX-License-Identifier: Apache-2.0
// For daemons: a mail of its own for each call. Apart, so that no library links it.
#include <stdlib.h>

#include "common/loop.h"

struct post {
    struct common_mail mail; // first: common_loop_free frees a post by it
    common_loop_fn fn;
    void *arg;
};

static void run_post(void *arg)
{
    struct post post = *(struct post *)arg;
    free(arg);
    post.fn(post.arg); // what it posts is another one
}

void common_loop_post(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    struct post *post = malloc(sizeof *post);
    if (!post)
        abort();
    *post = (struct post){.mail = {.fn = run_post, .arg = post, .is_post = true}, .fn = fn, .arg = arg};
    common_loop_push(loop, &post->mail);
}
