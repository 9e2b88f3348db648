/*
 * The table of pre-tokenizers. The expressions are facts of the published tokenizers (the
 * `pre_tokenizer` of their tokenizer.json, the pattern strings of tiktoken); names are those of
 * GGUF files.
 *
 * White space is spelled out, since PCRE2's \s takes U+180E for a space, which Unicode no longer
 * does.
 */
#include <stddef.h>

#include "model/pretokenize.h"

#define WS                                                                          \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define SPACE     "[" WS "]"
#define NOT_SPACE "[^" WS "]"

/*
 * The tail that nearly all of them share: line ends, then a run of spaces less the one before a
 * word.
 */
#define LINE_ENDS SPACE "*[\\r\\n]+"
#define SPACES    SPACE "+(?!" NOT_SPACE ")|" SPACE "+"

#define CONTRACTIONS     "'(?:[sdmt]|ll|ve|re)"
#define CONTRACTIONS_ANY "(?i:" CONTRACTIONS ")"

#define GPT2 CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES

/* The family of GPT-4: letters take one odd character before them, digits come in groups. */
#define CL100K(letters, digits)                                              \
    CONTRACTIONS_ANY "|[^\\r\\n\\p{L}\\p{N}]?" letters "|" digits "| ?[^" WS \
                     "\\p{L}\\p{N}]+[\\r\\n]*|" LINE_ENDS "|" SPACES

/* The family of GPT-4o: words break where capitals follow small letters. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(contractions, digits)                                                           \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contractions "|[^\\r\\n\\p{L}\\p{N}]?" UPPER \
    "+" LOWER "*" contractions "|" digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" LINE_ENDS    \
    "|" SPACES

/* Letters that have case, as DeepSeek-LLM lists them. */
#define CASED                                                                                   \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"              \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"      \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"               \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}" \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}"              \
    "\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"              \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}"      \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"     \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"              \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}"      \
    "\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}"      \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"                \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"               \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"              \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"              \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"          \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"      \
    "\\x{1e900}-\\x{1e943}"

static const char *const gpt2[] = {GPT2, NULL};
static const char *const digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const qwen2[] = {CL100K("\\p{L}+", "\\p{N}"), NULL};
static const char *const qwen35[] = {CONTRACTIONS_ANY
                                     "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS
                                     "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINE_ENDS "|" SPACES,
                                     NULL};
static const char *const llama3[] = {CL100K("\\p{L}+", "\\p{N}{1,3}"), NULL};
static const char *const o200k[] = {O200K("(?:" CONTRACTIONS_ANY ")?", "\\p{N}{1,3}"), NULL};
static const char *const tekken[] = {O200K("", "\\p{N}"), NULL};
static const char *const bailing[] = {CONTRACTIONS_ANY
                                      "|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" WS
                                      "\\p{L}\\p{N}]++[\\r\\n]*|" SPACE "*[\\r\\n]|" SPACES,
                                      NULL};
/*
 * The fourth is `\s+$`. Written so that only the start of a run of spaces is tried, else a long run
 * in the middle of a piece would cost its square.
 */
static const char *const deepseek_llm[] = {
    "[\\r\\n]",
    SPACE "?[" CASED "]+",
    SPACE "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
    "(?<!" SPACE ")" SPACE "++\\z",
    "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+",
    "\\p{N}",
    NULL};
static const char *const deepseek_coder[] = {
    "[\\r\\n]",       SPACE "?\\p{L}+",
    SPACE "?\\p{P}+", "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+",
    "\\p{N}",         NULL};
static const char *const deepseek_v3[] = {
    "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+",
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINE_ENDS "|" SPACES,
    NULL};
static const char *const unnamed[] = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]",
                                      NULL};

static const ek_pretokenize_rule rules[] = {
    {"default", unnamed, false, false},
    {"gpt-2", gpt2, false, false},
    {"gpt2", gpt2, false, false},
    {"olmo", gpt2, false, false},
    {"phi-2", gpt2, false, false},
    {"mpt", gpt2, false, false},
    {"jais", gpt2, false, false},
    {"exaone4", gpt2, false, false},
    {"starcoder", digits_gpt2, false, false},
    {"refact", digits_gpt2, false, false},
    {"smollm", digits_gpt2, false, false},
    {"command-r", digits_gpt2, false, false},
    {"qwen2", qwen2, false, false},
    {"deepseek-r1-qwen", qwen2, false, false},
    {"stablelm2", qwen2, false, false},
    {"megrez", qwen2, false, false},
    {"hunyuan", qwen2, false, false},
    {"grok-2", qwen2, false, false},
    {"solar-open", qwen2, false, false},
    {"qwen35", qwen35, false, false},
    {"llama3", llama3, true, true},
    {"llama-v3", llama3, true, true},
    {"llama-bpe", llama3, true, true},
    {"falcon3", llama3, true, true},
    {"lfm2", llama3, true, true},
    {"dbrx", llama3, false, false},
    {"smaug-bpe", llama3, false, false},
    {"glm4", llama3, false, false},
    {"chatglm-bpe", llama3, false, false},
    {"gpt-4o", o200k, false, false},
    {"o200k", o200k, false, false},
    {"llama4", o200k, false, false},
    {"minimax-m2", o200k, false, false},
    {"tekken", tekken, true, true},
    {"bailingmoe", bailing, false, false},
    {"bailingmoe2", bailing, false, false},
    {"llada-moe", bailing, false, false},
    {"deepseek-llm", deepseek_llm, false, false},
    {"deepseek-coder", deepseek_coder, false, false},
    {"deepseek-v3", deepseek_v3, false, false},
    {"hunyuan-dense", deepseek_v3, false, false},
};

const ek_pretokenize_rule *ek_model_pretokenize_rules(int32_t *out_n)
{
    *out_n = (int32_t)EK_COUNT_OF(rules);
    return rules;
}
