// SPDX-License-Identifier: Apache-2.0
#include "bench/main.h"

#include <assert.h>
#include <stdio.h>

#define OPTIONS_MOST 16u // --json and the end included

enum common_code bench_parse(const struct common_command *command, int argc, char **argv)
{
    struct common_error err = {0};
    int rest = argc;
    enum common_code code = common_options_parse(command, argc, argv, &rest, &err);
    if (code == COMMON_OK && rest < argc)
        code =
            common_error_set(&err, COMMON_INVALID_ARGUMENT, "unexpected argument '%.100s'; try '%s --help'",
                             argv[rest], command->program);
    if (code != COMMON_OK && code != COMMON_CANCELLED)
        fprintf(stderr, "%s: %s\n", command->program, err.message);
    return code;
}

enum bench_status bench_parse_status(enum common_code code)
{
    return code == COMMON_CANCELLED ? BENCH_MEASURED : BENCH_USAGE;
}

int bench_main(const struct bench_program *program, int argc, char **argv)
{
    struct common_option options[OPTIONS_MOST] = {0};
    size_t n = 0;
    for (const struct common_option *o = program->options; o && o->name; o++) {
        assert(n + 2 < OPTIONS_MOST);
        options[n++] = *o;
    }
    options[n] = (struct common_option){
        "json", 'j', COMMON_OPTION_FLAG, program->json, NULL, "one JSON object per line", 0, 0};
    const struct common_command command = {program->name, "[options]", program->about, options};
    enum common_code code = bench_parse(&command, argc, argv);
    if (code != COMMON_OK)
        return bench_parse_status(code);
    if (program->check && !program->check())
        return BENCH_USAGE;
    return program->measure() ? BENCH_MEASURED : BENCH_FAILED;
}
