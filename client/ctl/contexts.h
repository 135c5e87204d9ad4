// SPDX-License-Identifier: Apache-2.0
// The file of contexts: names for clusters and how to reach them.
//
//     # used where nothing else is said
//     current = prod
//
//     [prod]
//     endpoint = tcp://a:7412,tcp://b:7412
//     token-file = ~/.config/banyan/prod.token
//     tls-ca = ~/.config/banyan/prod-ca.pem
//     timeout = 30s
//
// endpoint and timeout are as --endpoint and --timeout; tls-cert and tls-key as the options, too. Lines that
// begin with # are comments. It holds names of files, no secrets; but who can write it can send its user to
// another cluster, so that a file which others may write is refused. Edits keep what they do not concern as
// it is.
#ifndef CLIENT_CTL_CONTEXTS_H
#define CLIENT_CTL_CONTEXTS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define CTL_CONTEXT_NAME     64 // bytes
#define CTL_CONTEXT_ENDPOINT 1023
#define CTL_CONTEXTS_MAX     256

struct ctl_context {
    char name[CTL_CONTEXT_NAME + 1], endpoint[CTL_CONTEXT_ENDPOINT + 1];
    char token_file[PATH_MAX];                                    // absolute; "": none
    char tls_ca[PATH_MAX], tls_cert[PATH_MAX], tls_key[PATH_MAX]; // likewise
    uint64_t timeout_ns;                                          // 0: not given
    size_t begin, end;                                            // its lines in the text
};

struct ctl_contexts {
    char path[PATH_MAX];
    char *text; // NULL: there is no file
    size_t len;
    char current[CTL_CONTEXT_NAME + 1]; // "": none
    size_t current_begin, current_end;  // its line; both 0: there is none
    uint32_t n;
    struct ctl_context *list;
};

// $XDG_CONFIG_HOME/banyan/contexts, or ~/.config/banyan/contexts. A file that is not there is an empty one.
// INVALID_ARGUMENT: file, line, and what is wrong there; PERMISSION_DENIED: others may write it, or it is
// another's; UNAVAILABLE: it cannot be read. *out is to be freed after a failure, too.
enum common_code ctl_contexts_load(struct ctl_contexts *out, struct common_error *err);
void ctl_contexts_free(struct ctl_contexts *contexts);

const struct ctl_context *ctl_contexts_find(const struct ctl_contexts *contexts,
                                            const char *name); // NULL: none
// 1 to 64 letters, digits, dots, dashes and underscores.
bool ctl_context_name_valid(const char *name);

// ---- ctl_contexts_edit.c ----------------------------------------------------------------------------------

// Each rewrites the file, completely or not at all, and leaves *contexts as it was read: load again.
// UNAVAILABLE: it cannot be written.
enum common_code ctl_contexts_use(const struct ctl_contexts *contexts, const char *name,
                                  struct common_error *err);
// Of the context: name, endpoint, files and timeout_ns. One of the same name gives way.
enum common_code ctl_contexts_add(const struct ctl_contexts *contexts, const struct ctl_context *context,
                                  struct common_error *err);
enum common_code ctl_contexts_remove(const struct ctl_contexts *contexts, const char *name,
                                     struct common_error *err);

#endif
