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

// Whether the text goes on with this name, and the name ends there: "w1", and at a sentence's end "w1.", but not "w12".
static bool goes_on(const char *at, const char *name, size_t len)
{
    if (strncmp(at, name, len) != 0)
        return false;
    const char *next = at + len;
    return !in_name(name[len - 1]) || !in_name(*next) || (*next == '.' && !in_name(next[1]));
}

// Bytes of the longest name of a worker or host that stands here; 0: none does. Names have whatever prints.
static size_t named(const struct coordinator_cluster *cluster, const char *at)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *w = cluster->workers[i];
        const char *const names[] = {w ? w->name : "", w ? w->host : ""};
        for (size_t n = 0; n < 2; n++) {
            size_t len = names[n][0] == *at ? strlen(names[n]) : 0;
            if (len > longest && goes_on(at, names[n], len))
                longest = len;
        }
    }
    return longest;
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
        size_t hide = named(cluster, at), take = hide ? hide : len ? len : 1;
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
