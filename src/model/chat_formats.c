#include "model/chat_formats.h"

#include <stddef.h>

#define BOS EK_CHAT_BOS
#define EOS EK_CHAT_EOS

#define PLAIN(before, after)             \
    {                                    \
        before, after, EK_CHAT_TRIM_NONE \
    }
#define TRIMMED(before, after)           \
    {                                    \
        before, after, EK_CHAT_TRIM_EACH \
    }

#define CHATML(role)  PLAIN("<|im_start|>" role "\n", "<|im_end|>\n")
#define CHATML_TURNS  CHATML("system"), CHATML("user"), CHATML("assistant")
#define CHATML_ANSWER "<|im_start|>assistant\n"
/* Qwen shows the model what a tool said as a user's turn. */
#define QWEN_TOOL PLAIN("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n")

#define LLAMA3(role)    TRIMMED("<|start_header_id|>" role "<|end_header_id|>\n\n", "<|eot_id|>")
#define LLAMA4(role)    TRIMMED("<|header_start|>" role "<|header_end|>\n\n", "<|eot|>")
#define TULU(role, end) PLAIN("<|" role "|>\n", end "\n")
#define GRANITE(role)   PLAIN("<|start_of_role|>" role "<|end_of_role|>", "<|end_of_text|>\n")

static const ek_chat_format formats[] = {
    {
        .name = "chatml",
        .turn = {CHATML_TURNS, CHATML("tool")},
        .answer = CHATML_ANSWER,
    },
    {
        .name = "qwen1.5",
        .default_system = "You are a helpful assistant",
        .turn = {CHATML_TURNS, QWEN_TOOL},
        .answer = CHATML_ANSWER,
    },
    {
        .name = "qwen2",
        .default_system = "You are a helpful assistant.",
        .turn = {CHATML_TURNS, QWEN_TOOL},
        .answer = CHATML_ANSWER,
    },
    {
        .name = "qwen2.5",
        .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        .turn = {CHATML_TURNS, QWEN_TOOL},
        .answer = CHATML_ANSWER,
    },
    {
        .name = "qwen3",
        .turn = {CHATML_TURNS, QWEN_TOOL},
        .answer = CHATML_ANSWER,
    },
    {
        .name = "mixtral",
        .begin = EK_CHAT_BEGIN_BOS,
        .system = EK_CHAT_SYSTEM_FIRST_USER,
        .turn = {PLAIN("", "\n\n"), PLAIN("[INST] ", " [/INST]"), PLAIN("", EOS)},
    },
    {
        .name = "mistral-v1",
        .begin = EK_CHAT_BEGIN_BOS,
        .system = EK_CHAT_SYSTEM_FIRST_USER,
        .turn = {PLAIN("", "\n\n"), PLAIN(" [INST] ", " [/INST]"), PLAIN(" ", EOS)},
    },
    /*
     * From here on [INST] is a control token. The space that the SentencePiece variants show after
     * it is the one which such a vocabulary puts in front of every text; the others have none.
     */
    {
        .name = "mistral-v3",
        .begin = EK_CHAT_BEGIN_BOS,
        .system = EK_CHAT_SYSTEM_LAST_USER,
        .turn = {PLAIN("", "\n\n"), PLAIN("[INST]", "[/INST]"), TRIMMED("", EOS)},
    },
    {
        .name = "mistral-v7",
        .begin = EK_CHAT_BEGIN_BOS,
        .turn = {PLAIN("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), PLAIN("[INST]", "[/INST]"),
                 PLAIN("", EOS)},
    },
    {
        .name = "llama2",
        .begin = EK_CHAT_BEGIN_NONE,
        .system = EK_CHAT_SYSTEM_FIRST_USER,
        .turn = {PLAIN("<<SYS>>\n", "\n<</SYS>>\n\n"),
                 {BOS "[INST] ", " [/INST]", EK_CHAT_TRIM_WHOLE},
                 TRIMMED(" ", " " EOS)},
    },
    {
        .name = "llama3",
        .begin = EK_CHAT_BEGIN_BOS,
        .turn = {LLAMA3("system"), LLAMA3("user"), LLAMA3("assistant"), LLAMA3("ipython")},
        .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
    },
    {
        .name = "llama4",
        .begin = EK_CHAT_BEGIN_BOS,
        .turn = {LLAMA4("system"), LLAMA4("user"), LLAMA4("assistant"), LLAMA4("ipython")},
        .answer = "<|header_start|>assistant<|header_end|>\n\n",
    },
    {
        .name = "olmo",
        .begin = EK_CHAT_BEGIN_BOS,
        .turn = {TULU("system", ""), TULU("user", ""), TULU("assistant", EOS)},
        .answer = "<|assistant|>\n",
    },
    {
        .name = "tulu",
        .turn = {TULU("system", ""), TULU("user", ""), TULU("assistant", EOS)},
        .answer = "<|assistant|>\n",
    },
    {
        .name = "zephyr",
        .turn = {TULU("system", EOS), TULU("user", EOS), TULU("assistant", EOS)},
        .answer = "<|assistant|>\n",
    },
    {
        .name = "deepseek",
        .begin = EK_CHAT_BEGIN_BOS,
        .turn = {PLAIN("", "\n\n"), PLAIN("User: ", "\n\n"), PLAIN("Assistant: ", EOS)},
        .answer = "Assistant:",
    },
    {
        .name = "deepseek-v3",
        .begin = EK_CHAT_BEGIN_BOS,
        .system = EK_CHAT_SYSTEM_START,
        .turn = {PLAIN("", ""), PLAIN("<｜User｜>", ""), PLAIN("<｜Assistant｜>", EOS)},
        .answer = "<｜Assistant｜>",
    },
    {
        .name = "deepseek-v3.1",
        .begin = EK_CHAT_BEGIN_BOS,
        .system = EK_CHAT_SYSTEM_START,
        .turn = {PLAIN("", ""), PLAIN("<｜User｜>", ""), PLAIN("<｜Assistant｜></think>", EOS)},
        .answer = "<｜Assistant｜></think>",
    },
    {
        .name = "deepseek-r1",
        .begin = EK_CHAT_BEGIN_BOS,
        .system = EK_CHAT_SYSTEM_START,
        .turn = {PLAIN("", ""), PLAIN("<｜User｜>", ""), PLAIN("<｜Assistant｜>", EOS)},
        .answer = "<｜Assistant｜><think>\n",
    },
    {
        .name = "glm4",
        .begin = EK_CHAT_BEGIN_NONE,
        .opening = "[gMASK]<sop>",
        .turn = {PLAIN("<|system|>\n", ""), PLAIN("<|user|>\n", ""), PLAIN("<|assistant|>\n", "")},
        .answer = "<|assistant|>\n",
    },
    {
        .name = "glm4.5",
        .begin = EK_CHAT_BEGIN_NONE,
        .opening = "[gMASK]<sop>",
        .turn = {PLAIN("<|system|>\n", ""), PLAIN("<|user|>\n", ""),
                 TRIMMED("<|assistant|>\n<think></think>\n", "")},
        .answer = "<|assistant|>",
    },
    {
        .name = "gemma",
        .begin = EK_CHAT_BEGIN_BOS,
        .system = EK_CHAT_SYSTEM_FIRST_USER,
        .turn = {PLAIN("", "\n\n"), TRIMMED("<start_of_turn>user\n", "<end_of_turn>\n"),
                 TRIMMED("<start_of_turn>model\n", "<end_of_turn>\n")},
        .answer = "<start_of_turn>model\n",
    },
    {
        .name = "granite",
        .turn = {GRANITE("system"), GRANITE("user"), GRANITE("assistant"),
                 GRANITE("tool_response")},
        .answer = "<|start_of_role|>assistant<|end_of_role|>",
    },
};

/*
 * What a template must contain, and must not, to be taken for a format; the first row that fits
 * decides.
 */
typedef struct template_rule {
    const char *name;
    const char *has[3];
    const char *lacks;
} template_rule;

static const template_rule rules[] = {
    {"qwen2.5",
     {"<|im_start|>", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
     NULL},
    {"qwen2", {"<|im_start|>", "You are a helpful assistant.<|im_end|>"}, NULL},
    {"qwen1.5", {"<|im_start|>", "You are a helpful assistant<|im_end|>"}, NULL},
    {"qwen3", {"<|im_start|>", "<tool_response>"}, "<|im_sep|>"},
    {"chatml", {"<|im_start|>", "<|im_end|>"}, "<|im_sep|>"},
    {"mistral-v7", {"[INST]", "[SYSTEM_PROMPT]"}, NULL},
    {"mistral-v3", {"[INST]", "[AVAILABLE_TOOLS]"}, NULL},
    {"llama2", {"[INST] ", "<<SYS>>", " [/INST]"}, NULL},
    {"mistral-v1", {"' [INST] '", " [/INST]"}, NULL},
    {"mistral-v1", {"\" [INST] \"", " [/INST]"}, NULL},
    {"mixtral", {"[INST] ", " [/INST]", "eos_token"}, NULL},
    {"llama3", {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, NULL},
    {"llama4", {"<|header_start|>", "<|header_end|>", "<|eot|>"}, NULL},
    {"glm4.5", {"[gMASK]<sop>", "<|assistant|>", "<think></think>"}, NULL},
    {"glm4", {"[gMASK]<sop>", "<|assistant|>\\n"}, "<think>"},
    {"zephyr", {"'<|user|>\n' + message['content'] + eos_token"}, NULL},
    {"zephyr", {"'<|user|>\\n' + message['content'] + eos_token"}, NULL},
    {"olmo", {"<|user|>", "<|assistant|>", "bos_token"}, "<|end|>"},
    {"tulu", {"<|user|>", "<|assistant|>", "eos_token"}, "<|end|>"},
    {"gemma", {"<start_of_turn>", "<end_of_turn>", "model"}, NULL},
    {"deepseek-r1", {"<｜User｜>", "<｜Assistant｜><think>\\n"}, NULL},
    {"deepseek-v3.1", {"<｜User｜>", "<｜Assistant｜>", "thinking"}, NULL},
    {"deepseek-v3", {"<｜User｜>", "<｜Assistant｜>"}, NULL},
    {"deepseek", {"'User: '", "'Assistant: '", "'Assistant:'"}, NULL},
    {"granite", {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"}, NULL},
};

const ek_chat_format *ek_model_chat_formats(int32_t *out_n)
{
    *out_n = (int32_t)EK_COUNT_OF(formats);
    return formats;
}

static bool fits(const template_rule *rule, ek_str chat_template)
{
    for (size_t i = 0; i < EK_COUNT_OF(rule->has) && rule->has[i]; i++)
        if (!ek_str_contains(chat_template, ek_str_from(rule->has[i]))) return false;
    return !rule->lacks || !ek_str_contains(chat_template, ek_str_from(rule->lacks));
}

const ek_chat_format *ek_model_chat_recognise(ek_str chat_template)
{
    for (size_t i = 0; i < EK_COUNT_OF(rules); i++)
        if (fits(&rules[i], chat_template))
            return ek_model_chat_by_name(ek_str_from(rules[i].name));
    return NULL;
}
