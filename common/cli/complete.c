// SPDX-License-Identifier: Apache-2.0
#include "common/cli/complete.h"

#include <stdio.h>
#include <string.h>

static bool takes_value(const struct common_option *option)
{
    return option->type != COMMON_OPTION_FLAG;
}

// ---- reading ----------------------------------------------------------------------------------------------

static const struct common_option *find_long(const struct common_option *options, const char *name,
                                             size_t len)
{
    for (const struct common_option *o = options; o && o->name; o++)
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    return NULL;
}

static const struct common_option *find_letter(const struct common_option *options, char letter)
{
    for (const struct common_option *o = options; o && o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

// The option that takes the word behind this one; NULL: none does.
static const struct common_option *value_behind(const struct common_option *options, const char *word)
{
    const struct common_option *option;
    if (word[1] == '-') {
        if (strchr(word, '='))
            return NULL;
        option = find_long(options, word + 2, strlen(word + 2));
        return option && takes_value(option) ? option : NULL;
    }
    for (const char *c = word + 1; *c; c++) {
        option = find_letter(options, *c);
        if (option && takes_value(option))
            return c[1] ? NULL : option;
    }
    return NULL;
}

// What the program asks the cluster for its words may need: --endpoint, --token-file.
static void take(const struct common_option *option, const char *value)
{
    if (option->type == COMMON_OPTION_STRING)
        *(const char **)option->out = value;
}

static void take_inline(const struct common_option *options, const char *word)
{
    const char *equals = strchr(word, '=');
    const struct common_option *option =
        equals && word[1] == '-' ? find_long(options, word + 2, (size_t)(equals - word - 2)) : NULL;
    if (option)
        take(option, equals + 1);
    else if (word[1] != '-' && (option = find_letter(options, word[1])) && takes_value(option))
        take(option, word + 2);
}

const char *common_typing_next(struct common_typing *t)
{
    while (t->at < t->n - 1) {
        const char *word = t->words[t->at++];
        if (t->only_args || word[0] != '-' || !word[1])
            return word;
        if (strcmp(word, "--") == 0) {
            t->only_args = true;
            continue;
        }
        const struct common_option *option = value_behind(t->options, word);
        if (!option)
            take_inline(t->options, word);
        else if (t->at == t->n - 1)
            t->open = option;
        else
            take(option, t->words[t->at++]);
    }
    return NULL;
}

// ---- answers ----------------------------------------------------------------------------------------------

void common_complete_words(void)
{
    puts("words");
}

void common_complete_word(const char *before, const char *text, const char *word, const char *about)
{
    if (strncmp(word, text, strlen(text)) != 0 || strpbrk(word, "\t\n"))
        return;
    printf("%s%s", before, word);
    if (about && *about) {
        putchar('\t');
        for (const char *c = about; *c; c++)
            putchar(*c == '\n' || *c == '\t' ? ' ' : *c);
    }
    putchar('\n');
}

bool common_complete_arg(const char *arg, const char *before, const char *text)
{
    size_t len;
    bool is_word;
    const char *part = common_option_part(arg, 0, &len, &is_word);
    if (part) {
        common_complete_words();
        for (size_t i = 0; (part = common_option_part(arg, i, &len, &is_word)); i++) {
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)len, part);
            if (is_word)
                common_complete_word(before, text, word, NULL);
        }
        return true;
    }
    if (strcmp(arg, "DIR") == 0)
        puts("dirs");
    else if (strcmp(arg, "PATH") == 0 || strcmp(arg, "FILE") == 0)
        puts("files");
    else if (strncmp(arg, "FILE.", 5) == 0)
        printf("files %s\n", arg + 4);
    else
        return false;
    return true;
}

static void offer_value(const struct common_option *option, const char *before, const char *text)
{
    if (!option->arg || !common_complete_arg(option->arg, before, text))
        common_complete_words(); // a number, a name: nothing that could be known
}

// The first sentence of its help.
static void offer(const char *text, const struct common_option *option)
{
    char name[72], about[160];
    snprintf(name, sizeof name, "--%s%s", option->name, takes_value(option) ? "=" : "");
    snprintf(about, sizeof about, "%s", option->help ? option->help : "");
    for (char *c = about; *c; c++)
        if (*c == '.' && (!c[1] || c[1] == ' ' || c[1] == '\n')) {
            *c = '\0';
            break;
        }
    if (option->letter && strcmp(text, "-") == 0) {
        char letter[3] = {'-', option->letter, '\0'};
        common_complete_word("", text, letter, about);
    }
    common_complete_word("", text, name, about);
}

// Once is enough.
static bool is_given(const struct common_typing *t, const struct common_option *option)
{
    for (int i = 0; i < t->n - 1; i++) {
        const char *word = t->words[i];
        size_t len = strlen(option->name);
        if (word[0] != '-' || word[1] == '\0')
            continue;
        if (word[1] == '-'
                ? strncmp(word + 2, option->name, len) == 0 && (!word[2 + len] || word[2 + len] == '=')
                : option->letter && word[1] == option->letter)
            return true;
    }
    return false;
}

bool common_typing_option(const struct common_typing *t)
{
    const char *text = t->words[t->n - 1];
    if (t->open) {
        offer_value(t->open, "", text);
        return true;
    }
    if (t->only_args || text[0] != '-')
        return false;
    const char *equals = strchr(text, '=');
    if (equals && text[1] == '-') {
        const struct common_option *option = find_long(t->options, text + 2, (size_t)(equals - text - 2));
        char before[80];
        snprintf(before, sizeof before, "--%s=", option ? option->name : "");
        if (option && takes_value(option))
            offer_value(option, before, equals + 1);
        else
            common_complete_words();
        return true;
    }
    common_complete_words();
    for (const struct common_option *o = t->options; o && o->name; o++)
        if (!is_given(t, o))
            offer(text, o);
    for (const struct common_option *o = common_help_options; o->name; o++)
        offer(text, o);
    return true;
}

bool common_complete(const struct common_command *command, int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], COMMON_COMPLETE) != 0)
        return false;
    struct common_typing typing = {.options = command->options, .words = argv + 2, .n = argc - 2};
    if (typing.n == 0)
        return true;
    while (common_typing_next(&typing))
        ; // arguments that it does not take
    if (!common_typing_option(&typing))
        common_complete_words();
    fflush(stdout);
    return true;
}
