// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/hide.h"

#include <ctype.h>
#include <string.h>

#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.' || (unsigned char)c >= 0x80;
}

static bool same(const char *name, const char *word, size_t len)
{
    return strlen(name) == len && memcmp(name, word, len) == 0;
}

static bool is_worker(const struct coordinator_cluster *cluster, const char *word, size_t len)
{
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *w = cluster->workers[i];
        if (w && (same(w->name, word, len) || same(w->host, word, len)))
            return true;
    }
    return false;
}

// "w1" and, at a sentence's end, "w1."
static size_t named(const struct coordinator_cluster *cluster, const char *word, size_t len)
{
    while (len > 0 && !is_worker(cluster, word, len))
        len = word[len - 1] == '.' ? len - 1 : 0;
    return len;
}

void coordinator_hide_workers(const struct coordinator_cluster *cluster, char *text, size_t bytes)
{
    static const char instead[] = "a worker";
    char out[1025]; // as long as a status may be
    size_t room = bytes < sizeof(out) ? bytes : sizeof(out), used = 0;
    for (const char *at = text; *at && used + 1 < room;) {
        size_t len = 0;
        while (in_name(at[len]))
            len++;
        size_t hide = named(cluster, at, len), take = hide ? hide : len ? len : 1;
        const char *from = hide ? instead : at;
        size_t n = hide ? sizeof(instead) - 1 : take;
        n = n < room - 1 - used ? n : room - 1 - used;
        memcpy(out + used, from, n);
        used += n;
        at += take;
    }
    out[used] = '\0';
    memcpy(text, out, used + 1);
}

void coordinator_hide_in_status(const struct coordinator_cluster *cluster, struct proto_status *status)
{
    status->n_workers = 0;
    coordinator_hide_workers(cluster, status->message, sizeof(status->message));
}
