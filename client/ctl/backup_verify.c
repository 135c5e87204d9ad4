// SPDX-License-Identifier: Apache-2.0
// Command: backup verify. The head and the sums of a backup (coordinator/store/backup.h), all of it here.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "proto/model/limits.h"

#define MAGIC  "BANYAN BACKUP\n\0"
#define FORMAT 1

static ssize_t read_whole(int fd, uint8_t *out, size_t want)
{
    size_t got = 0;
    while (got < want) {
        ssize_t n = read(fd, out + got, want - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

static uint64_t field(const uint8_t *head, int nth)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | head[16 + 8 * nth + i];
    return value;
}

// NULL: it is whole. Else what is wrong with it; errno of a file that cannot be read.
static const char *verify(int fd, uint8_t head[PROTO_BACKUP_HEAD], int *failed)
{
    ssize_t n = read_whole(fd, head, PROTO_BACKUP_HEAD);
    if (n < 0)
        goto unread;
    if (n != PROTO_BACKUP_HEAD || memcmp(head, MAGIC, 16) != 0)
        return "it is not a backup of a coordinator's store";
    if (field(head, 13) != common_xxh3(head, 120, 0))
        return "its header does not match its checksum";
    if (field(head, 0) != FORMAT)
        return "it is of a newer version: verify it with the version that made it";
    uint8_t *piece = malloc(PROTO_BACKUP_PIECE);
    if (!piece)
        abort();
    const char *wrong = NULL;
    uint64_t left = field(head, 1), sum = 0;
    while (left && !wrong) {
        size_t want = left < PROTO_BACKUP_PIECE ? (size_t)left : PROTO_BACKUP_PIECE;
        n = read_whole(fd, piece, want);
        if (n < 0)
            break;
        wrong = (size_t)n != want ? "its end is missing" : NULL;
        sum = common_xxh3(piece, (size_t)n, sum);
        left -= want;
    }
    if (n >= 0 && !wrong && (n = read_whole(fd, piece, 1)) > 0)
        wrong = "it continues after its end";
    if (n >= 0 && !wrong && sum != field(head, 2))
        wrong = "its contents do not match its checksum";
    free(piece);
    if (n >= 0)
        return wrong;
unread:
    *failed = errno;
    return NULL;
}

static enum ctl_exit run_verify(struct ctl *ctl, int n_args, char **args)
{
    uint8_t head[PROTO_BACKUP_HEAD];
    char made[32] = "";
    int failed = 0;
    (void)n_args;
    int fd = open(args[0], O_RDONLY | O_CLOEXEC);
    const char *wrong = fd >= 0 ? verify(fd, head, &failed) : NULL;
    if (fd < 0)
        failed = errno;
    else
        close(fd);
    if (failed)
        return ctl_say(CTL_FILE, "cannot read %s: %s", args[0], strerror(failed));
    if (wrong)
        return ctl_say(CTL_DATA_LOSS, "%s cannot be restored: %s", args[0], wrong);
    time_t s = (time_t)(field(head, 4) / COMMON_NS_PER_S);
    struct tm tm;
    if (gmtime_r(&s, &tm))
        strftime(made, sizeof made, "%Y-%m-%dT%H:%M:%SZ", &tm);
    static const struct ctl_column fields[] = {
        {"file", "file", CTL_TEXT},          {"made", "made", CTL_TEXT},
        {"bytes", "size", CTL_BYTES},        {"sum", "sum", CTL_TEXT},
        {"sessions", "sessions", CTL_COUNT}, {"chunks", "chunks", CTL_COUNT},
        {"term", "term", CTL_COUNT},         {0},
    };
    ctl_print_record(ctl,
                     json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "file", args[0], "made", made, "bytes",
                               ctl_json_u64(field(head, 1) + PROTO_BACKUP_HEAD), "sum",
                               ctl_json_id(field(head, 2)), "sessions", ctl_json_u64(field(head, 5)),
                               "chunks", ctl_json_u64(field(head, 6)), "term", ctl_json_u64(field(head, 7))),
                     fields);
    return CTL_OK;
}

const struct ctl_command ctl_backup_verify_commands[] = {
    {"backup verify", "FILE", "check a backup before it is needed",
     "Reads FILE on this machine and compares it with its checksums, as --restore-backup does. Code 10: it "
     "is "
     "damaged.\n"
     "Prints what 'backup' printed when it was made. A file called 'verify' is './verify' for 'backup'.",
     NULL, 1, 1, run_verify, NULL},
    {0},
};
