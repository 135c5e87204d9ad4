// SPDX-License-Identifier: Apache-2.0
// Whose directory it is. Two files say so, and either can be made of the other:
//
//     banyan-store         banyan-worker store 1\ncluster CLUSTER\nname NAME\n
//     banyan-store.copy    the same, and check SUM\n: a copy with a flipped bit or no end is ignored
//
// A store of an older build has no copy. It gets one as soon as it is opened by whom it belongs to.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "common/memory/blob.h"
#include "worker/disk/fetch.h"
#include "worker/disk/state.h"

#define MARK_NAME "banyan-store"
#define COPY_NAME "banyan-store.copy"
#define MARK_HEAD "banyan-worker store 1\n"

enum { MARK_BYTES = 256, CLUSTER_CHARS = 16, SUM_CHARS = 16 };

struct mark { // one of the two files, as it was found
    char text[MARK_BYTES + 32];
    int result;   // of reading it: 0 or a negative errno
    bool whole;   // it says whose the store is: of the right form; of the copy: and its sum is right
    bool damaged; // it is there, and is not whole
};

// Distinguishes clusters, and reveals nothing else about their secrets.
static enum common_code cluster_mark(const struct common_secret *secret, char out[CLUSTER_CHARS + 1],
                                     struct common_error *err)
{
    static const char what[] = "banyan-worker --store";
    const struct common_slice part = {(const uint8_t *)what, sizeof what - 1};
    uint8_t mac[COMMON_MAC_BYTES];
    if (!common_mac(secret, &part, 1, mac))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for --store");
    for (int i = 0; i < CLUSTER_CHARS / 2; i++)
        snprintf(out + 2 * (ptrdiff_t)i, 3, "%02x", mac[i]);
    return COMMON_OK;
}

// ---- what they say ------------------------------------------------------------------------------

// Three lines, and nothing behind them.
static bool has_form(const char *text)
{
    size_t head = strlen(MARK_HEAD);
    if (strncmp(text, MARK_HEAD "cluster ", head + 8) != 0)
        return false;
    const char *at = text + head + 8;
    if (strspn(at, "0123456789abcdef") != CLUSTER_CHARS || strncmp(at + CLUSTER_CHARS, "\nname ", 6) != 0)
        return false;
    at += CLUSTER_CHARS + 6;
    return *at && *at != '\n' && strchr(at, '\n') && strchr(at, '\n')[1] == 0;
}

static void read_file(struct worker_files *files, const char *name, struct mark *out)
{
    *out = (struct mark){.result = 0};
    int64_t n = files->ops->read(files, name, 0, out->text, sizeof out->text - 1);
    if (n < 0)
        out->result = (int)n;
    else if (memchr(out->text, 0, (size_t)n)) // the text would seem to end there
        out->text[0] = 0;
}

static void read_mark(struct worker_files *files, struct mark *out)
{
    read_file(files, MARK_NAME, out);
    out->whole = out->result == 0 && has_form(out->text);
    out->damaged = !out->whole && out->result != -ENOENT;
}

static void sum_line(const char *text, char out[SUM_CHARS + 16])
{
    snprintf(out, SUM_CHARS + 16, "check %016" PRIx64 "\n", common_xxh3(text, strlen(text), 0));
}

// Its text is the mark's, without the sum.
static void read_copy(struct worker_files *files, struct mark *out)
{
    char want[SUM_CHARS + 16] = "";
    read_file(files, COPY_NAME, out);
    size_t sum = sizeof "check \n" - 1 + SUM_CHARS, len = strlen(out->text);
    if (out->result == 0 && len > sum) {
        char have[SUM_CHARS + 16];
        snprintf(have, sizeof have, "%s", out->text + len - sum);
        out->text[len - sum] = 0;
        sum_line(out->text, want);
        out->whole = strcmp(have, want) == 0 && has_form(out->text);
    }
    out->damaged = !out->whole && out->result != -ENOENT;
}

// ---- making them --------------------------------------------------------------------------------

static int write_file(struct worker_files *files, const char *name, const char *text, const char *sum)
{
    char fresh[64];
    const struct iovec pieces[] = {{(void *)(uintptr_t)text, strlen(text)},
                                   {(void *)(uintptr_t)sum, strlen(sum)}};
    snprintf(fresh, sizeof fresh, "%s.new", name);
    (void)files->ops->remove(files, fresh); // of an earlier try, which may be longer
    int result = files->ops->write(files, fresh, 0, pieces, *sum ? 2 : 1);
    if (result == 0)
        result = files->ops->sync(files, fresh);
    if (result == 0)
        result = files->ops->move(files, fresh, name);
    return result == 0 ? files->ops->sync_folder(files, ".") : result;
}

// The one that is not as it should be, or both. 0 or a negative errno.
static int write_files(struct worker_files *files, const char *text, bool mark, bool copy)
{
    char sum[SUM_CHARS + 16];
    int result = mark ? write_file(files, MARK_NAME, text, "") : 0;
    sum_line(text, sum);
    return result == 0 && copy ? write_file(files, COPY_NAME, text, sum) : result;
}

// ---- whose it is --------------------------------------------------------------------------------

static bool note_any(void *arg, const char *name)
{
    (void)name;
    *(bool *)arg = true;
    return false;
}

// Whether it has nothing of anybody's.
static bool is_empty(struct worker_files *files)
{
    bool any = false;
    return files->ops->list(files, "sessions", note_any, &any) == 0 &&
           files->ops->list(files, "chunks", note_any, &any) == 0 && !any;
}

static enum common_code not_ours(const struct worker_disk *disk, const char *have, const char *want,
                                 const char *name, bool sure, struct common_error *err)
{
    const char *cluster = have + strlen(MARK_HEAD), *wanted = want + strlen(MARK_HEAD);
    const char *unless = sure ? "" : ", unless its file " MARK_NAME " is damaged: it has no copy";
    if (strncmp(cluster, wanted, strcspn(wanted, "\n") + 1) != 0)
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "--store %s belongs to a cluster with another secret%s: give that secret, or another directory",
            disk->path, unless);
    const char *owner = strstr(cluster, "\nname ") + 6;
    return common_error_set(err, COMMON_FAILED_PRECONDITION,
                            "--store %s belongs to another worker, --name %.*s, not to %s%s: give that "
                            "name, or another directory",
                            disk->path, (int)strcspn(owner, "\n"), owner, name, unless);
}

static enum common_code unknown(const struct worker_disk *disk, const char *name, struct common_error *err)
{
    return common_error_set(
        err, COMMON_FAILED_PRECONDITION,
        "--store %s: its file " MARK_NAME " is damaged or of a kind that this build does "
        "not read, and no whole copy of it (" COPY_NAME
        ") exists. If you are sure that the directory belongs to worker %s of this cluster, move both files "
        "out of it and start again; otherwise give another directory",
        disk->path, name);
}

static enum common_code cannot(const struct worker_disk *disk, const char *name, const char *what, int why,
                               struct common_error *err)
{
    return common_error_set(err, COMMON_UNAVAILABLE, "--store %s: %s cannot be %s: %s", disk->path, name,
                            what, strerror(-why));
}

// Both are as they should be from here on.
static enum common_code make_right(struct worker_disk *disk, const char *want, const struct mark *mark,
                                   const struct mark *copy, struct common_error *err)
{
    bool mark_right = mark->whole && strcmp(mark->text, want) == 0,
         copy_right = copy->whole && strcmp(copy->text, want) == 0;
    if (mark->damaged || (mark->whole && !mark_right))
        worker_disk_quarantine(disk, MARK_NAME, "replaced by its copy");
    if (copy->damaged || (copy->whole && !copy_right))
        worker_disk_quarantine(disk, COPY_NAME, "written again");
    COMMON_FAILPOINT("disk_mark_set_aside");
    int result = write_files(disk->files, want, !mark_right, !copy_right);
    return result == 0 ? COMMON_OK : cannot(disk, MARK_NAME, "written", result, err);
}

enum common_code worker_disk_mark(struct worker_disk *disk, const struct worker_disk_options *options,
                                  struct common_error *err)
{
    char want[MARK_BYTES], cluster[CLUSTER_CHARS + 1];
    struct mark mark, copy;
    enum common_code code = cluster_mark(options->secret, cluster, err);
    if (code != COMMON_OK)
        return code;
    snprintf(want, sizeof want, MARK_HEAD "cluster %s\nname %s\n", cluster, options->name);
    read_mark(disk->files, &mark);
    read_copy(disk->files, &copy);
    const char *unread = mark.result && !worker_fetch_lost(mark.result)   ? MARK_NAME
                         : copy.result && !worker_fetch_lost(copy.result) ? COPY_NAME
                                                                          : NULL;
    if (unread) // for a reason that may pass
        return cannot(disk, unread, "read", unread[sizeof MARK_NAME - 1] ? copy.result : mark.result, err);
    if (mark.whole && strcmp(mark.text, want) == 0)
        return make_right(disk, want, &mark, &copy, err);
    if (copy.whole) // nothing that chance does to the copy leaves it whole
        return strcmp(copy.text, want) == 0 ? make_right(disk, want, &mark, &copy, err)
                                            : not_ours(disk, copy.text, want, options->name, true, err);
    if (mark.whole)
        return not_ours(disk, mark.text, want, options->name, false, err);
    bool none = mark.result == -ENOENT && copy.result == -ENOENT;
    return none || is_empty(disk->files) ? make_right(disk, want, &mark, &copy, err)
                                         : unknown(disk, options->name, err);
}
