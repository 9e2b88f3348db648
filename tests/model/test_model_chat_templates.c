/*
 * Goal: a file's template is taken for the format that it writes, in the various ways that such
 * templates are written, and for none when it writes another. Method: short templates in the manner
 * of each family.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/chat.h"
#include "model/chat_formats.h"
#include "support/fixtures.h"
#include "tokenized.h"

static const struct {
    const char *text;
    const char *format; /* NULL: none */
} templates[] = {
    {"{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + "
     "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif "
     "%}",
     "chatml"},
    {"{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
     "<|im_start|>assistant\n",
     "chatml"},
    {"{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou answer in "
     "verse.<|im_end|>\\n' "
     "}}{% endif %}{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ "
     "'<|im_end|>\\n' }}{% endfor %}",
     "chatml"},
    {"{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful "
     "assistant<|im_end|>\n"
     "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% "
     "endfor %}",
     "qwen1.5"},
    {"{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant."
     "<|im_end|>\\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role }}{% endfor %}",
     "qwen2"},
    {"{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- else %}{{- 'You are "
     "Qwen, "
     "created by Alibaba Cloud. You are a helpful assistant.' }}{%- endif %}<|im_start|><|im_end|>"
     "<tool_response>",
     "qwen2.5"},
    {"{%- for m in messages %}{%- if m.role == 'tool' %}{{- "
     "'<|im_start|>user\\n<tool_response>\\n' + "
     "m.content + '\\n</tool_response><|im_end|>\\n' }}{%- endif %}{%- endfor %}",
     "qwen3"},
    {"{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + "
     "' [/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
     "mixtral"},
    {"{{ bos_token }}{% for m in messages %}{{ ' [INST] ' + m.content + ' [/INST]' }}{{ ' ' + "
     "m.content "
     "+ eos_token }}{% endfor %}",
     "mistral-v1"},
    {"{{ bos_token }}{{ '[AVAILABLE_TOOLS]' }}{{ '[INST] ' + m.content + '[/INST]' }}",
     "mistral-v3"},
    {"{{ bos_token }}{{ \"[INST]\" + m.content + \"[/INST]\" }}{{ \"[AVAILABLE_TOOLS]\" }}",
     "mistral-v3"},
    {"{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}{{ '[INST] ' + m.content }}",
     "mistral-v7"},
    {"{% set content = '<<SYS>>\\n' + s + '\\n<</SYS>>\\n\\n' + m.content %}{{ bos_token + '[INST] "
     "' + "
     "content.strip() + ' [/INST]' }}{{ ' ' + m.content.strip() + ' ' + eos_token }}",
     "llama2"},
    {"{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + "
     "'<|eot_id|>' }}",
     "llama3"},
    {"{{ '<|header_start|>' + m.role + '<|header_end|>\\n\\n' + m.content | trim + '<|eot|>' }}",
     "llama4"},
    {"{{ bos_token }}{% for m in messages %}{{ '<|user|>\\n' + m.content + '\\n' }}{{ "
     "'<|assistant|>\\n' "
     "+ m.content + eos_token + '\\n' }}{% endfor %}",
     "olmo"},
    {"{% for m in messages %}{{ '<|user|>\\n' + m.content + '\\n' }}{{ '<|assistant|>\\n' + "
     "m.content + "
     "eos_token + '\\n' }}{% endfor %}",
     "tulu"},
    {"{% for message in messages %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
     "{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endfor %}",
     "zephyr"},
    {"{% for message in messages %}{{ '<|user|>\\n' + message['content'] + eos_token + '\\n' }}"
     "{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}{% endfor %}",
     "zephyr"},
    {"{{ bos_token }}{{ 'User: ' + m.content + '\\n\\n' }}{{ 'Assistant: ' + m.content + eos_token "
     "}}"
     "{{ 'Assistant:' }}",
     "deepseek"},
    {"{{ bos_token }}{{ '<｜User｜>' + m.content }}{{ '<｜Assistant｜>' + m.content + "
     "'<｜end▁of▁sentence｜>' }}",
     "deepseek-v3"},
    {"{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ '<｜User｜>' + "
     "m.content }}"
     "{{ '<｜Assistant｜>' }}{{ '</think>' }}",
     "deepseek-v3.1"},
    {"{{ '<｜User｜>' + m.content }}{{ '<｜Assistant｜>' + m.content }}{{ "
     "'<｜Assistant｜><think>\\n' }}",
     "deepseek-r1"},
    {"[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\\n{{ m.content }}{% endfor "
     "%}<|assistant|>\\n",
     "glm4"},
    {"[gMASK]<sop>{% for m in messages %}<|user|>\n{{ m.content }}<|assistant|>{{ "
     "'\\n<think></think>' }}"
     "{% endfor %}<|assistant|>",
     "glm4.5"},
    {"{{ bos_token }}{{ '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}"
     "{{ '<start_of_turn>model\\n' }}",
     "gemma"},
    {"{{ '<|start_of_role|>user<|end_of_role|>' + m.content + '<|end_of_text|>\\n' }}", "granite"},
    /* Not ours: another separator inside ChatML's markers, other markers, none at all. */
    {"{{ '<|im_start|>user<|im_sep|>' + m.content + '<|im_end|>' }}", NULL},
    {"{{ '<|im_start|>' }}{{ 'User: ' + m.content + '<end_of_utterance>\\n' }}", NULL},
    {"{{ '<|user|>\\n' + m.content + '<|end|>\\n' + '<|assistant|>\\n' }}{{ eos_token }}", NULL},
    {"{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{{ '<|start|>assistant' }}", NULL},
    {"### Instruction:\n{{ m.content }}\n### Response:\n", NULL},
    {"{{ m.content }}", NULL},
    {"", NULL},
};

static void test_templates_are_recognised(void **state)
{
    (void)state;
    for (size_t i = 0; i < EK_COUNT_OF(templates); i++) {
        const ek_chat_format *format = ek_model_chat_recognise(ek_str_from(templates[i].text));
        const char *name = format ? ek_model_chat_name(format) : "(none)";
        const char *wanted = templates[i].format ? templates[i].format : "(none)";
        if (strcmp(name, wanted) != 0)
            fail_msg("taken for %s, not %s:\n%s", name, wanted, templates[i].text);
    }
}

static void test_every_format_is_recognised_somewhere(void **state)
{
    (void)state;
    int32_t n;
    const ek_chat_format *formats = ek_model_chat_formats(&n);
    for (int32_t f = 0; f < n; f++) {
        bool found = false;
        for (size_t i = 0; i < EK_COUNT_OF(templates) && !found; i++)
            found = templates[i].format && strcmp(templates[i].format, formats[f].name) == 0;
        if (!found) fail_msg("no template of this test is %s", formats[f].name);
    }
}

static void detect(vocab_file *f, ek_status wanted, const char *text)
{
    build_bpe(f, "gpt2", NULL, 0, NULL, 0);
    tokenized t = tokenized_build(f);
    const ek_chat_format *format = NULL;
    ek_err err = {0};
    assert_int_equal(ek_model_chat_detect(t.gguf, &format, &err), wanted);
    if (wanted == EK_OK)
        assert_string_equal(ek_model_chat_name(format), text);
    else
        assert_null(format);
    if (wanted != EK_OK && !strstr(err.text, text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    tokenized_close(&t);
}

static void test_detection_says_what_to_do(void **state)
{
    (void)state;
    vocab_file f = {0};
    vocab_file_str(&f, "tokenizer.chat_template", templates[0].text);
    detect(&f, EK_OK, "chatml");
    detect(&f, EK_ENOTFOUND, "name the format with --chat-format NAME, one of chatml, qwen1.5");
    vocab_file_str(&f, "tokenizer.chat_template", "{{ m.content }}");
    detect(&f, EK_EUNSUPPORTED, "--chat-format NAME, one of chatml, qwen1.5");
    vocab_file_str(&f, "tokenizer.chat_template", "{{ m.content }}");
    detect(&f, EK_EUNSUPPORTED, "gemma, granite"); /* the list is not cut off */
    vocab_file_id(&f, "tokenizer.chat_template", 1);
    detect(&f, EK_EFORMAT, "tokenizer.chat_template");
}

static void test_shared_models(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        const char *format;
    } models[] = {
        {"tiny-qwen2moe", "chatml"}, {"tiny-olmoe", "chatml"}, {"tiny-mixtral", "mixtral"}};
    for (size_t i = 0; i < EK_COUNT_OF(models); i++) {
        ek_fixture_path path;
        if (!ek_fixture_shared_gguf(models[i].preset, "f32", &path)) skip();
        tokenized t = tokenized_read(path.text);
        const ek_chat_format *format = NULL;
        ek_err err = {0};
        assert_int_equal(ek_model_chat_detect(t.gguf, &format, &err), EK_OK);
        assert_string_equal(ek_model_chat_name(format), models[i].format);
        tokenized_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates_are_recognised),
        cmocka_unit_test(test_every_format_is_recognised_somewhere),
        cmocka_unit_test(test_detection_says_what_to_do),
        cmocka_unit_test(test_shared_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
