// SPDX-License-Identifier: Apache-2.0
// What may stand where the cursor is on a command line that is being typed. The scripts of the shells
// (client/ctl/completion/) ask a program itself, so that they know what its tables of options know:
//
//     PROGRAM --complete WORD...      the words behind the program's name up to the cursor; the last one is being
//                                     typed, and may be empty
//
// The answer, on stdout: a line that says what the shell is to add by itself ("words": nothing; "files",
// "files .ENDING" or "dirs"), then a line for each word: WORD, or WORD, a tab and a few words about it.
#ifndef COMMON_COMPLETE_H
#define COMMON_COMPLETE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/cli/options.h"

#define COMMON_COMPLETE "--complete"

struct common_typing {
    const struct common_option *options; // those that may stand where it reads
    char **words;
    int n, at;                        // at: the next word to read; the last one of n is being typed
    const struct common_option *open; // its value is being typed, in a word of its own; NULL: none is
    bool only_args;                   // behind "--"
};

// Reads as the parser does, up to the next argument before the word being typed. NULL: there is none.
const char *common_typing_next(struct common_typing *typing);

// Prints the whole answer where an option or an option's value is being typed; false: it is an argument.
bool common_typing_option(const struct common_typing *typing);

// Parts of an answer. `text` is what is typed so far of the word behind `before`, which is kept: "--name=" or
// "". Prints the whole answer where the name of an argument says it ("a|b", FILE, FILE.ending, PATH, DIR);
// false: the program has to know it.
bool common_complete_arg(const char *arg, const char *before, const char *text);
void common_complete_words(void); // the answer's first line, where words follow
// One, if it begins with `text`. about: may be NULL, or "".
void common_complete_word(const char *before, const char *text, const char *word, const char *about);

// For a program without arguments and commands: does it all when argv asks for it; false: it does not.
bool common_complete(const struct common_command *command, int argc, char **argv);

#endif
