// SPDX-License-Identifier: Apache-2.0
// generate: a Llama-family model whose KV cache lives only in a Banyan cluster.
//
//   generate --model DIR --endpoint E --prompt-file F --tokens 16384 --generate 200 --record run.rec
//   generate --model DIR --check run.rec          another process: the same tokens with float64 attention
//   generate --model DIR --local …                no cluster: the reference itself generates
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cli/options.h"
#include "examples/generate.h"
#include "examples/pool.h"
#include "examples/rounding.h"
#include "examples/text.h"

// The file's first tokens, and then what is asked: --tokens in all.
static enum common_code read_prompt(const struct generate_options *o, uint32_t vocab, uint32_t **out,
                                    uint64_t *n, struct common_error *err)
{
    uint64_t asked = o->ask ? strlen(o->ask) : 0, count = 0;
    uint64_t room = o->prompt_tokens > asked ? o->prompt_tokens - asked : 0;
    uint32_t *tokens = NULL;
    enum common_code code = text_read(o->prompt_file, vocab, 0, room, &tokens, &count, err);
    if (code != COMMON_OK)
        return code;
    uint32_t *whole = realloc(tokens, (count + asked + 1) * sizeof(*tokens));
    if (!whole || count + asked == 0) {
        free(whole ? whole : tokens);
        return whole
                   ? common_error_set(err, COMMON_INVALID_ARGUMENT, "the prompt %s is empty", o->prompt_file)
                   : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for the prompt");
    }
    for (uint64_t i = 0; i < asked; i++)
        whole[count++] = (unsigned char)o->ask[i];
    *out = whole;
    *n = count;
    return COMMON_OK;
}

static enum common_code check(const struct generate_options *o, const struct llama *model, struct pool *pool,
                              struct common_error *err)
{
    struct generate_record record = {0};
    struct generate_check result = {0};
    enum common_code code = generate_record_read(o->check_file, &record, err);
    if (code == COMMON_OK)
        code = generate_check_run(&record, model, pool, generate_color(o), &result, err);
    if (code == COMMON_OK)
        generate_report_check(&result);
    if (code == COMMON_OK && o->json_file)
        code = generate_report_json(o->json_file, NULL, &result, err);
    if (code == COMMON_OK && result.tokens_agree != result.tokens)
        code = common_error_set(err, COMMON_DATA_LOSS,
                                "%" PRIu64 " of %" PRIu64 " tokens differ from the reference",
                                result.tokens - result.tokens_agree, result.tokens);
    generate_record_free(&record);
    return code;
}

static enum common_code run(const struct generate_options *o, const struct llama *model, struct pool *pool,
                            struct common_error *err)
{
    struct generate_record record = {0};
    uint32_t *tokens = NULL;
    uint64_t n = 0;
    struct generate_stats *stats = calloc(1, sizeof(*stats));
    if (!stats)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory");
    enum common_code code = read_prompt(o, model->config.vocab, &tokens, &n, err);
    if (code == COMMON_OK && n + o->generate_tokens > model->config.max_positions)
        code = common_error_set(err, COMMON_OUT_OF_RANGE,
                                "prompt and generated tokens exceed the model's %" PRIu64
                                " positions: use a smaller --tokens",
                                model->config.max_positions);
    if (code == COMMON_OK)
        code = generate_record_init(&record, o, model->config.vocab, n, err);
    if (code == COMMON_OK) {
        memcpy(record.tokens, tokens, n * sizeof(*tokens));
        code = generate_run(o, model, pool, &record, stats, err);
    }
    if (code == COMMON_OK && o->record_file)
        code = generate_record_write(&record, o->record_file, err);
    if (code == COMMON_OK && o->json_file)
        code = generate_report_json(o->json_file, stats, NULL, err);
    generate_record_free(&record);
    free(tokens);
    free(stats);
    return code;
}

static enum common_code check_options(struct generate_options *o, int argc, int rest,
                                      struct common_error *err)
{
    if (rest != argc)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "generate takes options only; try 'generate --help'");
    if (!o->model_dir)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--model DIR is required; try 'generate --help'");
    if (!o->prompt_file && !o->check_file)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--prompt-file F is required; try 'generate --help'");
    if (!(o->temperature >= 0) || !(o->top_p > 0 && o->top_p <= 1))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--temperature must be at least 0, --top-p above 0 and at most 1");
    if (!rounding_parse(o->kv_name, &o->kv_type))
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "--kv must be " ROUNDING_NAMES ", not %s",
                                o->kv_name);
    return COMMON_OK;
}

int main(int argc, char **argv)
{
    struct generate_options o = {.kv_name = "f32",
                                 .prompt_tokens = 16384,
                                 .generate_tokens = 200,
                                 .block = 256,
                                 .seed = 1,
                                 .top_p = 0.9};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    o.threads = cores > 0 ? (uint64_t)cores : 1;
    const struct common_option options[] = {
        {"model", 'm', COMMON_OPTION_STRING, &o.model_dir, "DIR",
         "directory with config.json and model.safetensors", 0, 0},
        {"endpoint", 'e', COMMON_OPTION_STRING, &o.endpoint, "URL",
         "coordinator (default: BANYAN_ENDPOINT, else nng+tcp://127.0.0.1:7411)", 0, 0},
        {"token-file", 0, COMMON_OPTION_STRING, &o.token_file, "FILE", "client token", 0, 0},
        {"prompt-file", 'f', COMMON_OPTION_STRING, &o.prompt_file, "FILE",
         "text (vocabulary of 256) or decimal token ids", 0, 0},
        {"ask", 'a', COMMON_OPTION_STRING, &o.ask, "TEXT", "text to append to the prompt file's", 0, 0},
        {"tokens", 'n', COMMON_OPTION_U64, &o.prompt_tokens, "N", "most tokens of the prompt (default 16384)",
         1, 1u << 28},
        {"generate", 'g', COMMON_OPTION_U64, &o.generate_tokens, "N", "tokens to generate (default 200)", 1,
         1u << 24},
        {"temperature", 't', COMMON_OPTION_DOUBLE, &o.temperature, "T", "0: greedy (default)", 0, 0},
        {"top-p", 'p', COMMON_OPTION_DOUBLE, &o.top_p, "P", "probability kept when sampling (default 0.9)", 0,
         0},
        {"seed", 's', COMMON_OPTION_U64, &o.seed, "N", "of the sampling (default 1)", 0, 0},
        {"kv", 0, COMMON_OPTION_STRING, &o.kv_name, "TYPE",
         "type of K and V in the cluster: " ROUNDING_NAMES " (default: f32)", 0, 0},
        {"block", 0, COMMON_OPTION_U64, &o.block, "N",
         "prompt tokens attached and read at a time (default 256)", 1, 4096},
        {"members", 0, COMMON_OPTION_U64, &o.members, "N", "exactly N workers, or all (default: all)", 0,
         4096},
        {"session", 0, COMMON_OPTION_STRING, &o.session_name, "NAME", "name of the session", 0, 0},
        {"keep-session", 0, COMMON_OPTION_FLAG, &o.keep_session, NULL, "do not delete the session at the end",
         0, 0},
        {"threads", 0, COMMON_OPTION_U64, &o.threads, "N",
         "threads for the model itself (default: all cores)", 1, 1024},
        {"local", 0, COMMON_OPTION_FLAG, &o.local, NULL, "no cluster: float64 attention in this process", 0,
         0},
        {"record", 'r', COMMON_OPTION_STRING, &o.record_file, "FILE", "write tokens and logits, for --check",
         0, 0},
        {"full-check", 0, COMMON_OPTION_FLAG, &o.full_check, NULL,
         "record the logits of every prompt row instead of 128", 0, 0},
        {"check", 'c', COMMON_OPTION_STRING, &o.check_file, "FILE",
         "only check a record against float64 attention", 0, 0},
        {"json", 'j', COMMON_OPTION_STRING, &o.json_file, "FILE",
         "write the numbers; with --check, add the check's to them", 0, 0},
        {"no-color", 0, COMMON_OPTION_FLAG, &o.no_color, NULL, "plain progress lines", 0, 0},
        {0},
    };
    const struct common_command command = {
        "generate", "--model DIR --prompt-file FILE [options]",
        "Runs a Llama-family model whose KV cache lives only in a Banyan cluster.", options};
    struct common_error err = {0};
    int rest = 0;
    enum common_code code = common_options_parse(&command, argc, argv, &rest, &err);
    if (code == COMMON_CANCELLED)
        return 0;
    if (code == COMMON_OK)
        code = check_options(&o, argc, rest, &err);
    if (code != COMMON_OK) {
        fprintf(stderr, "generate: %s\n", err.message);
        return 2;
    }
    struct llama *model = NULL;
    struct pool *pool = pool_new((unsigned)o.threads);
    if (!pool)
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "no memory");
    if (code == COMMON_OK)
        code = llama_load(o.model_dir, &model, &err);
    if (code == COMMON_OK)
        code = o.check_file ? check(&o, model, pool, &err) : run(&o, model, pool, &err);
    if (code != COMMON_OK)
        fprintf(stderr, "generate: %s\n", err.message);
    llama_free(model);
    pool_free(pool);
    return code == COMMON_OK ? 0 : 1;
}
