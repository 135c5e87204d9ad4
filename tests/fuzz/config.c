// SPDX-License-Identifier: Apache-2.0
// common/cli/config.c and options.c over a table that has every type: what is read is printed, and what is
// printed gives the same when it is read. Input: the file.
#include <string.h>

#include "common/cli/config.h"
#include "tests/fuzz/fuzz.h"

struct values {
    bool flag;
    const char *text, *word;
    uint64_t number, size, duration;
    double real;
    struct common_config_file file;
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    return 0;
}

static enum common_code read_it(struct values *v, const char *name, struct common_config **config,
                                char **printed, struct common_error *err)
{
    const struct common_option options[] = {
        {"flag", 'f', COMMON_OPTION_FLAG, &v->flag, NULL, "A flag.", 0, 0},
        {"text", 't', COMMON_OPTION_STRING, &v->text, "TEXT", "Any text.", 0, 0},
        {"word", 0, COMMON_OPTION_STRING, &v->word, "one|two|three", "A word.", 0, 0},
        {"number", 'n', COMMON_OPTION_U64, &v->number, "N", "A number.", 1, 1000000},
        {"size", 0, COMMON_OPTION_SIZE, &v->size, "BYTES", "A size.", 0, 0},
        {"duration", 0, COMMON_OPTION_DURATION, &v->duration, "TIME", "A time.", 0, 0},
        {"real", 0, COMMON_OPTION_DOUBLE, &v->real, "X", "A number.", 0, 0},
        {"config", 0, COMMON_OPTION_STRING, &v->file.path, "FILE", "A file.", 0, 0},
        {"print-config", 0, COMMON_OPTION_FLAG, &v->file.print, NULL, "Print.", 0, 0},
        {0}};
    const struct common_command command = {"fuzz", "[options]", "About.", options};
    char argument[32];
    snprintf(argument, sizeof argument, "--config=%s", name);
    char *argv[] = {(char *)"fuzz", argument, NULL};
    int rest;
    size_t len;
    *v = (struct values){.number = 1, .word = "one"};
    *printed = NULL;
    enum common_code code = common_config_read(&command, 2, argv, &v->file, config, &rest, err);
    if (code == COMMON_OK) {
        FILE *to = open_memstream(printed, &len);
        struct common_error why;
        FUZZ_CHECK(to);
        enum common_code shown = common_config_print(&command, &v->file, *config, to, &why);
        fclose(to);
        if (shown != COMMON_OK) {
            FUZZ_CHECK(why.message[0]);
            free(*printed);
            *printed = NULL;
        }
    }
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct values first, second;
    struct common_config *config, *again;
    struct common_error err;
    char *printed, *printed_again;
    fuzz_write_file("config", data, size);
    if (read_it(&first, "config", &config, &printed, &err) != COMMON_OK) {
        FUZZ_CHECK(err.message[0]);
        return 0;
    }
    FUZZ_CHECK(size <= COMMON_CONFIG_BYTES && first.number >= 1 && first.number <= 1000000);
    if (printed) {
        fuzz_write_file("printed", printed, strlen(printed));
        FUZZ_CHECK(read_it(&second, "printed", &again, &printed_again, &err) == COMMON_OK);
        FUZZ_CHECK(first.flag == second.flag && first.number == second.number && first.size == second.size &&
                   first.duration == second.duration);
        FUZZ_CHECK(!first.text == !second.text && (!first.text || strcmp(first.text, second.text) == 0));
        FUZZ_CHECK(strcmp(first.word, second.word) == 0);
        free(printed_again);
        common_config_free(again);
    }
    free(printed);
    common_config_free(config);
    return 0;
}
