/*
 * evenkeel chat: talk to a running server from a terminal or a pipe.
 *
 * One thread. Signals are blocked and asked for between steps, so that Ctrl-C ends an answer and
 * never leaves a half-freed conversation behind.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/answer.h"
#include "cli/args.h"
#include "cli/exit.h"
#include "sys/signal.h"

#define LINE_MAX_BYTES ((size_t)1 << 20)
#define POLL_MS        100

enum {
    OPTION_URL,
    OPTION_MODEL,
    OPTION_SYSTEM,
    OPTION_MAX_TOKENS,
    OPTION_TEMPERATURE,
    OPTION_SEED
};

static const ek_cli_option options[] = {
    {OPTION_URL, "url", "URL", "server (default $EVENKEEL_URL, else http://127.0.0.1:8080)", NULL},
    {OPTION_MODEL, "model", "NAME", "model id (default: the server's own)", NULL},
    {OPTION_SYSTEM, "system", "TEXT", "system message of the conversation", NULL},
    {OPTION_MAX_TOKENS, "max-tokens", "N", "longest answer", NULL},
    {OPTION_TEMPERATURE, "temperature", "T", "0 (always the likeliest token) to 2", NULL},
    {OPTION_SEED, "seed", "N", "makes the sampling repeatable", NULL},
};

typedef struct chat {
    ek_cli_http *http;
    ek_cli_question question;
    const char *system; /* NULL: none; borrowed from argv or from system_text */
    ek_cli_text system_text;
    ek_cli_text input; /* bytes read from standard input and not used yet */
    bool leave;        /* a signal asked the program to end */
    int64_t n_answers, prompt_tokens, cached_tokens, completion_tokens, busy_us;
} chat;

static ek_status add_message(chat *c, const char *role, ek_str content)
{
    /* What is typed may be any bytes; JSON takes UTF-8 only. */
    json_t *text = json_stringn(content.data, content.len);
    if (!text) return EK_EFORMAT;
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", text);
    return message && json_array_append_new(c->question.messages, message) == 0 ? EK_OK : EK_ENOMEM;
}

static ek_status start_anew(chat *c)
{
    json_array_clear(c->question.messages);
    return c->system ? add_message(c, "system", ek_str_from(c->system)) : EK_OK;
}

/*
 * Between two pieces of an answer: Ctrl-C cancels it, everything else cancels it and ends the
 * program.
 */
static bool stop_answer(void *ctx)
{
    chat *c = ctx;
    const int signal_number = ek_sys_signal_wait(0);
    if (signal_number != 0 && signal_number != SIGINT) c->leave = true;
    return signal_number != 0;
}

static void count(chat *c, const ek_cli_answer *answer)
{
    c->n_answers++;
    c->prompt_tokens += answer->prompt_tokens;
    c->cached_tokens += answer->cached_tokens;
    c->completion_tokens += answer->completion_tokens;
    c->busy_us += answer->total_us;
}

static void print_answer_stats(const ek_cli_answer *answer)
{
    if (answer->canceled) {
        fprintf(stderr, "[canceled]\n");
        return;
    }
    fprintf(stderr, "[%" PRId64 " tokens, %.1f tokens/s, first after %.3f s%s]\n",
            answer->completion_tokens, ek_cli_answer_rate(answer), (double)answer->first_us / 1e6,
            strcmp(answer->finish, "length") == 0 ? ", cut at the token limit" : "");
}

/* Ask and remember. A failed question leaves the conversation as it was. */
static ek_status ask(chat *c, ek_str text, ek_cli_answer *out_answer, ek_err *err)
{
    ek_status status = add_message(c, "user", text);
    if (status == EK_EFORMAT) return ek_err_set(err, status, "the message is not valid UTF-8");
    if (status < 0) return ek_err_set(err, status, "no memory for the message");

    ek_cli_answer answer = {0};
    status = ek_cli_answer_stream(c->http, &c->question, stop_answer, c, &answer, err);
    if (status >= 0) {
        count(c, &answer);
        status = add_message(c, "assistant", ek_cli_text_str(&answer.text));
        if (status < 0) {
            ek_cli_text_free(&answer.text);
            status = ek_err_set(err, status, "no memory for the answer");
        }
    }
    if (status < 0) {
        json_array_remove(c->question.messages, json_array_size(c->question.messages) - 1);
        return status;
    }
    *out_answer = answer;
    return EK_OK;
}

/*
 * Move one line, without its end, from standard input to out_line. Waits in small steps, so that
 * signals are seen.
 * @return EK_OK; EK_END input is over or a signal asked to end; EK_EIO; EK_ERANGE; EK_ENOMEM
 */
static ek_status read_line(chat *c, ek_cli_text *out_line)
{
    for (;;) {
        const ek_str have = ek_cli_text_str(&c->input);
        const ptrdiff_t end = ek_str_find(have, EK_STR("\n"));
        if (end >= 0) {
            ek_cli_text_clear(out_line);
            const ek_status status =
                ek_cli_text_append(out_line, (ek_str){have.data, (size_t)end}, LINE_MAX_BYTES);
            ek_cli_text_drop(&c->input, (size_t)end + 1);
            return status;
        }
        const int signal_number = ek_sys_signal_wait(0);
        if (signal_number == SIGINT)
            fprintf(stderr, "\n(/quit or Ctrl-D ends the chat)\n> ");
        else if (signal_number != 0)
            return EK_END;

        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&in, 1, POLL_MS) <= 0) continue;
        char bytes[4096];
        const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
        if (n == 0) return EK_END;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return EK_EIO;
        const ek_status status =
            ek_cli_text_append(&c->input, (ek_str){bytes, (size_t)n}, LINE_MAX_BYTES);
        if (status < 0) return status;
    }
}

static void print_session_stats(const chat *c)
{
    fprintf(stderr,
            "[%" PRId64 " answers, %" PRId64 " prompt tokens (%" PRId64 " from the cache), %" PRId64
            " completion tokens, %.1f tokens/s overall]\n",
            c->n_answers, c->prompt_tokens, c->cached_tokens, c->completion_tokens,
            c->busy_us > 0 ? (double)c->completion_tokens * 1e6 / (double)c->busy_us : 0.0);
}

static ek_status change_system(chat *c, ek_str text)
{
    ek_cli_text_clear(&c->system_text);
    const ek_status status = ek_cli_text_append(&c->system_text, text, LINE_MAX_BYTES);
    if (status < 0) return status;
    c->system = text.len > 0 ? c->system_text.data : NULL;
    return start_anew(c);
}

/* @return false: leave */
static bool obey(chat *c, ek_str line)
{
    ek_status status = EK_OK;
    if (ek_str_eqz(line, "/quit")) return false;
    if (ek_str_eqz(line, "/reset")) {
        status = start_anew(c);
        if (status >= 0) fprintf(stderr, "[new conversation]\n");
    } else if (ek_str_eqz(line, "/stats")) {
        print_session_stats(c);
    } else if (ek_str_eqz(line, "/system") || ek_str_starts(line, EK_STR("/system "))) {
        const size_t skip = line.len > 8 ? 8 : line.len;
        status = change_system(c, (ek_str){line.data + skip, line.len - skip});
        if (status >= 0)
            fprintf(stderr, "[%s system message, new conversation]\n", c->system ? "new" : "no");
    } else {
        fprintf(stderr,
                "/quit         leave\n"
                "/reset        forget the conversation\n"
                "/system TEXT  forget it and begin with this system message; none without TEXT\n"
                "/stats        what this session has cost\n"
                "Ctrl-C        stop an answer\n");
    }
    if (status < 0) fprintf(stderr, "evenkeel: %s\n", ek_status_text(status));
    return true;
}

static int talk(chat *c)
{
    ek_cli_text line = {0};
    ek_status status = EK_OK;
    fprintf(stderr, "evenkeel chat with %s; /help lists the commands\n", c->question.url);
    while (!c->leave && !ferror(stdout)) {
        fputs("> ", stderr);
        status = read_line(c, &line);
        if (status != EK_OK) break;
        const ek_str text = ek_cli_text_str(&line);
        if (text.len == 0) continue;
        if (text.data[0] == '/') {
            if (!obey(c, text)) break;
            continue;
        }
        ek_err err = {0};
        ek_cli_answer answer;
        if (ask(c, text, &answer, &err) < 0) {
            (void)ek_cli_fail_err(&err);
            continue;
        }
        putchar('\n');
        fflush(stdout);
        print_answer_stats(&answer);
        ek_cli_text_free(&answer.text);
    }
    if (status == EK_END) fputc('\n', stderr);
    ek_cli_text_free(&line);
    if (status < 0) return ek_cli_fail(EK_EXIT_IO, "chat: reading standard input failed");
    return EK_EXIT_OK;
}

static int ask_once(chat *c, ek_str prompt)
{
    ek_err err = {0};
    ek_cli_answer answer = {0};
    if (ask(c, prompt, &answer, &err) < 0) return ek_cli_fail_err(&err);
    putchar('\n');
    const bool canceled = answer.canceled;
    ek_cli_text_free(&answer.text);
    if (canceled) return c->leave ? EK_EXIT_TERMINATED : EK_EXIT_INTERRUPTED;
    return EK_EXIT_OK;
}

/* Everything on standard input is one message. */
static int ask_piped(chat *c)
{
    char bytes[4096];
    size_t n;
    while ((n = fread(bytes, 1, sizeof bytes, stdin)) > 0)
        if (ek_cli_text_append(&c->input, (ek_str){bytes, n}, LINE_MAX_BYTES) < 0)
            return ek_cli_fail(EK_EXIT_DATA, "chat: the message is longer than %zu bytes",
                               LINE_MAX_BYTES);
    ek_str prompt = ek_cli_text_str(&c->input);
    while (prompt.len > 0 && prompt.data[prompt.len - 1] == '\n')
        prompt.len--;
    if (prompt.len == 0)
        return ek_cli_fail(EK_EXIT_USAGE,
                           "chat: standard input is empty; pipe a message in, or name "
                           "one: evenkeel chat \"hello\"");
    return ask_once(c, prompt);
}

static int converse(chat *c, const char *prompt)
{
    ek_err err = {0};
    if (ek_sys_signal_block() < 0 || ek_cli_http_open(&c->http, &err) < 0)
        return ek_cli_fail_err(&err);
    c->question.messages = json_array();
    const ek_status status = c->question.messages ? start_anew(c) : EK_ENOMEM;
    int code;
    if (status == EK_EFORMAT)
        code = ek_cli_fail(EK_EXIT_USAGE, "chat: --system is not valid UTF-8");
    else if (status < 0)
        code = ek_cli_fail(EK_EXIT_MEMORY, "chat: no memory for the conversation");
    else if (prompt)
        code = ask_once(c, ek_str_from(prompt));
    else
        code = isatty(STDIN_FILENO) ? talk(c) : ask_piped(c);
    json_decref(c->question.messages);
    ek_cli_text_free(&c->input);
    ek_cli_text_free(&c->system_text);
    ek_cli_http_close(c->http);
    return code;
}

static int run(int argc, char **argv)
{
    chat c = {.question = {.url = ek_cli_http_default_url(), .temperature = -1, .seed = -1}};
    const char *prompt = NULL;
    ek_cli_args args = ek_cli_args_start(&ek_cli_chat, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        bool good = true;
        switch (id) {
        case OPTION_URL: c.question.url = args.value; break;
        case OPTION_MODEL: c.question.model = args.value; break;
        case OPTION_SYSTEM: c.system = args.value; break;
        case OPTION_MAX_TOKENS:
            good = ek_cli_args_int(&args, 1, INT32_MAX, &c.question.max_tokens);
            break;
        case OPTION_TEMPERATURE:
            good = ek_cli_args_number(&args, 0, 2, &c.question.temperature);
            break;
        case OPTION_SEED: good = ek_cli_args_int(&args, 0, INT64_MAX, &c.question.seed); break;
        case EK_CLI_ARGS_OPERAND:
            if (prompt) return ek_cli_args_exit(&args, id);
            prompt = args.value;
            break;
        default: return ek_cli_args_exit(&args, id);
        }
        if (!good) return EK_EXIT_USAGE;
    }
    return converse(&c, prompt);
}

const ek_cli_command ek_cli_chat = {
    .name = "chat",
    .operands = "[PROMPT]",
    .summary = "talk to a running server",
    .about = "A conversation in the terminal. With PROMPT, or with text on standard input, it asks "
             "that\n"
             "one question, prints the answer and ends. In the terminal /help lists what can be\n"
             "typed; Ctrl-C stops an answer, /quit or Ctrl-D ends the chat.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
