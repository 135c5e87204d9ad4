// SPDX-License-Identifier: Apache-2.0
// A daemon's configuration: its command line, and the file that --config names, in which options stand under
// the names that they have on the command line (options.h).
//
//     # a comment, on a line of its own
//     listen = unix:///run/banyan.sock      NAME = VALUE, the value as on the command line, without spaces at its ends
//     insecure = true                       an option without a value: true or false
//     cluster = " of \"us\" "               in quotes: with the spaces inside; \" and \\ stand for " and \ there
//
// A name stands there once. What the command line says wins. A file is at most COMMON_CONFIG_BYTES long.
#ifndef COMMON_CONFIG_H
#define COMMON_CONFIG_H

#include <stddef.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/cli/options.h"

#define COMMON_CONFIG_BYTES 65536

struct common_config; // opaque: the value and the origin of every option

// Options that the table has, whose values are read here.
struct common_config_file {
    const char *path; // of --config. "-PATH": the file may be absent. NULL: no file
    bool print;       // --print-config
};

// Parses as common_options_parse, then reads the file, too. Strings that the table's variables have
// afterwards belong to argv or to *out, which is the caller's, and is NULL unless OK is returned.
// INVALID_ARGUMENT: a mistake on the command line or in the file, that with FILE:LINE and, of a name, one
// that is like it; FAILED_PRECONDITION: the file cannot be read. RESOURCE_EXHAUSTED. CANCELLED after --help
// and --version.
enum common_code common_config_read(const struct common_command *command, int argc, char **argv,
                                    const struct common_config_file *file, struct common_config **out,
                                    int *rest, struct common_error *err);
void common_config_free(struct common_config *config); // NULL is allowed

// Every option with its value and, in a comment, where that is from, in the form of the file: what is printed
// gives the same where it is read again. What has its default is a comment, too, so that the next release's
// holds. The command is the one that it was read for. INVALID_ARGUMENT: a value that the form cannot hold;
// FAILED_PRECONDITION.
enum common_code common_config_print(const struct common_command *command,
                                     const struct common_config_file *file,
                                     const struct common_config *config, FILE *to, struct common_error *err);

// "/etc/x.conf", or NULL: there is none, or it was absent.
const char *common_config_path(const struct common_config *config);

// Of two of one table: whether this option has another value.
bool common_config_differs(const struct common_config *a, const struct common_config *b, const char *name);
// The names of the options that differ and are not in `but` (which NULL ends): "listen, http". Their number.
size_t common_config_differences(const struct common_config *a, const struct common_config *b,
                                 const char *const *but, char *names, size_t len);

#endif
