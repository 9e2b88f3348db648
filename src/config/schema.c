#include "config/schema.h"

#include <assert.h>

#include "config/config.h"

/*
 * Offset of a field, which fails to compile where the field has not the type that the row's reader
 * writes.
 */
#define AT(type, field) \
    (offsetof(ek_config, field) + 0 * sizeof(_Generic(((ek_config *)0)->field, type : 1)))
#define AT_BYTES(field)           \
    (offsetof(ek_config, field) + \
     0 * sizeof(_Generic(((ek_config *)0)->field, int64_t : 1, size_t : 1)))

static_assert(sizeof(size_t) == sizeof(int64_t), "sizes are written as 64-bit numbers");
static_assert(sizeof(ek_log_level) == sizeof(int32_t), "choices are written as int32_t");
static_assert(sizeof(ek_kernels_choice) == sizeof(int32_t), "choices are written as int32_t");
static_assert(sizeof(ek_route_policy) == sizeof(int32_t), "choices are written as int32_t");
static_assert(sizeof(ek_link_fabric_choice) == sizeof(int32_t) &&
                  sizeof(ek_cluster_wire) == sizeof(int32_t) &&
                  sizeof(ek_cluster_combine) == sizeof(int32_t) &&
                  sizeof(ek_cluster_microbatches) == sizeof(int32_t) &&
                  sizeof(ek_cluster_loss) == sizeof(int32_t) &&
                  sizeof(ek_cluster_link_check) == sizeof(int32_t) &&
                  sizeof(ek_cluster_rebalance) == sizeof(int32_t) &&
                  sizeof(ek_gate_checking) == sizeof(int32_t),
              "choices are written as int32_t");

/*
 * Rows of the routing numbers, whose defaults, ranges and texts stand in route/params.h. They end
 * with their comma, which the formatter cannot know.
 */
/* clang-format off */
#define MILLIONTHS(x) ((int64_t)((x) * 1e6 + 0.5))
#define ROUTE_REAL(key, field, value, text, low, high, word, read_by, meaning) \
    {"routing", #key, EK_CONFIG_REAL, AT(double, engine.route.field), text,    \
     MILLIONTHS(low), MILLIONTHS(high), word, .help = meaning},
#define ROUTE_COUNT(key, field, value, text, low, high, word, read_by, meaning) \
    {"routing", #key, EK_CONFIG_INT, AT(int32_t, engine.route.field), text,     \
     low, high, word, .help = meaning},
#define ROUTE_TIME(key, field, value, text, low, high, word, read_by, meaning)   \
    {"routing", #key, EK_CONFIG_DURATION, AT(int64_t, engine.route.field), text, \
     low, high, word, .help = meaning},
/* clang-format on */

#define MS      INT64_C(1000)
#define SECONDS (1000 * MS)
#define MINUTES (60 * SECONDS)
#define HOURS   (60 * MINUTES)
#define KIB     (INT64_C(1) << 10)
#define MIB     (INT64_C(1) << 20)
#define TIB     (INT64_C(1) << 40)

const ek_config_section ek_config_sections[] = {
    {"model", "What is served."},
    {"log", "Where the program writes what it does: one line per event, logfmt."},
    {"engine", "How the model is computed."},
    {"routing", "Which experts a token goes to. docs/ROUTING.md tells how these work together."},
    {"experts",
     "How experts are shared out over devices, and kept even. docs/ROUTING.md tells when "
     "that pays."},
    {"gateway", "The HTTP side: addresses, limits and time limits."},
    {"cluster",
     "Experts on other machines, as `evenkeel serve` sees them. docs/CLUSTER.md tells how to "
     "set a cluster up."},
    {"worker",
     "A process that has experts for others: `evenkeel worker`. It reads `model.path`, `log` and "
     "the `engine` keys `threads`, `pin_threads`, `kernels`, `pack_weights` and `step_watchdog`, "
     "too."},
};
const int32_t ek_config_n_sections = EK_COUNT_OF(ek_config_sections);

static const ek_config_choice log_levels[] = {{"error", EK_LOG_ERROR},
                                              {"warn", EK_LOG_WARN},
                                              {"info", EK_LOG_INFO},
                                              {"debug", EK_LOG_DEBUG},
                                              {NULL, 0}};
static const ek_config_choice kernels[] = {{"auto", EK_KERNELS_AUTO},
                                           {"reference", EK_KERNELS_REFERENCE},
                                           {"avx2", EK_KERNELS_AVX2},
                                           {"avx512", EK_KERNELS_AVX512},
                                           {NULL, 0}};
static const ek_config_choice block_tokens[] = {{"16", 16}, {"32", 32}, {"64", 64}, {NULL, 0}};
static const ek_config_choice policies[] = {
    {"static", EK_ROUTE_POLICY_STATIC},     {"least-load", EK_ROUTE_POLICY_LEAST_LOAD},
    {"discount", EK_ROUTE_POLICY_DISCOUNT}, {"breaker", EK_ROUTE_POLICY_BREAKER},
    {"adaptive", EK_ROUTE_POLICY_ADAPTIVE}, {NULL, 0}};

static const ek_config_choice fabrics[] = {{"auto", EK_LINK_FABRIC_AUTO},
                                           {"tls", EK_LINK_FABRIC_TLS},
                                           {"tcp", EK_LINK_FABRIC_TCP},
                                           {"ucx", EK_LINK_FABRIC_UCX},
                                           {NULL, 0}};
static const ek_config_choice wires[] = {
    {"f32", EK_CLUSTER_WIRE_F32}, {"bf16", EK_CLUSTER_WIRE_BF16}, {NULL, 0}};
static const ek_config_choice microbatches[] = {{"auto", EK_CLUSTER_MICROBATCHES_AUTO},
                                                {"1", EK_CLUSTER_MICROBATCHES_ONE},
                                                {"2", EK_CLUSTER_MICROBATCHES_TWO},
                                                {NULL, 0}};
static const ek_config_choice combines[] = {
    {"exact", EK_CLUSTER_COMBINE_EXACT}, {"summed", EK_CLUSTER_COMBINE_SUMMED}, {NULL, 0}};
static const ek_config_choice rebalances[] = {
    {"off", EK_CLUSTER_REBALANCE_OFF},
    {"auto", EK_CLUSTER_REBALANCE_AUTO},
    {NULL, 0},
};
static const ek_config_choice losses[] = {
    {"fail", EK_CLUSTER_LOSS_FAIL}, {"degrade", EK_CLUSTER_LOSS_DEGRADE}, {NULL, 0}};
static const ek_config_choice gate_checkings[] = {{"auto", EK_GATE_CHECKING_AUTO},
                                                  {"require", EK_GATE_CHECKING_REQUIRE},
                                                  {"warn", EK_GATE_CHECKING_WARN},
                                                  {"off", EK_GATE_CHECKING_OFF},
                                                  {NULL, 0}};
static const ek_config_choice link_checks[] = {
    {"warn", EK_CLUSTER_LINK_WARN}, {"refuse", EK_CLUSTER_LINK_REFUSE}, {NULL, 0}};

const ek_config_key ek_config_keys[] = {
    {"model", "path", EK_CONFIG_TEXT, AT(const char *, model_path),
     .unset = "has to be named on the command line",
     .help = "GGUF file to serve; of a split model, its first file."},
    {"model", "alias", EK_CONFIG_TEXT, AT(const char *, model_alias),
     .unset = "the file's name without `.gguf`", .help = "The model's id in the API."},
    {"model", "gate_overlay", EK_CONFIG_TEXT, AT(const char *, engine.gate_overlay),
     .unset = "the model's own gates",
     .help = "Gates that `evenkeel calibrate` made for this model, used in the place of its own."},
    {"model", "chat_format", EK_CONFIG_TEXT, AT(const char *, chat_format),
     .unset = "recognised from the file's template",
     .help = "How messages become a prompt, where the file does not say it in a known way."},

    {"log", "path", EK_CONFIG_TEXT, AT(const char *, log_path), .unset = "standard error",
     .help = "File that lines are appended to; opened anew on SIGUSR1."},
    {"log", "level", EK_CONFIG_CHOICE, AT(ek_log_level, log_level), "info", .choices = log_levels,
     .help = "Least severe kind of line that is written."},

    {"engine", "threads", EK_CONFIG_INT, AT(int32_t, engine.n_threads), "auto", 0, 1024, "auto",
     .help = "Compute threads; `auto` is one per CPU that the process may use."},
    {"engine", "pin_threads", EK_CONFIG_BOOL, AT(bool, engine.pin_threads), "false",
     .help = "Bind each compute thread to a CPU of its own: a core each before two on one, and the "
             "threads of a device (`experts.devices`) on one NUMA node where that is possible. "
             "Faster on a machine that does nothing else, slower on a shared one."},
    {"engine", "gate_check", EK_CONFIG_CHOICE, AT(ek_gate_checking, engine.gate_check), "auto",
     .choices = gate_checkings,
     .help = "Before the server is ready, a short text goes through the model. Gates whose logits "
             "are not finite, or that send every token to the same experts, and experts that do "
             "not answer, keep it from becoming ready (`require`), or are only told of in the log "
             "(`warn`). `auto` is `require` with `cluster.workers`, else `off`."},
    {"engine", "kernels", EK_CONFIG_CHOICE, AT(ek_kernels_choice, engine.kernels), "auto",
     .choices = kernels,
     .help = "Instruction set of the compute kernels; `auto` is the best that the CPU has."},
    {"engine", "pack_weights", EK_CONFIG_BOOL, AT(bool, engine.pack_weights), "true",
     .help = "Copy weights into memory of the process, in the order in which kernels read them: "
             "faster. That goes on behind the first requests, for some seconds when there are few; "
             "processes do not share such weights as they share a mapped file."},
    {"engine", "kv_cache", EK_CONFIG_SIZE, AT_BYTES(engine.kv_bytes), "auto", 0, 64 * TIB, "auto",
     .help =
         "Memory for keys and values; `auto` is what `running_max` sequences of `context` tokens "
         "need, at most a quarter of the free memory."},
    {"engine", "context", EK_CONFIG_INT, AT(int32_t, engine.context_tokens), "model", 0, 1 << 24,
     "model",
     .help = "Longest prompt and answer together, in tokens; `model` is what it was made for."},
    {"engine", "running_max", EK_CONFIG_INT, AT(int32_t, engine.running_max), "64", 1, 256,
     .help = "Sequences that decode together."},
    {"engine", "queue_max", EK_CONFIG_INT, AT(int32_t, engine.queue_max), "256", 0, 65536,
     .help = "Requests that may wait for a place; further ones are refused with 429."},
    {"engine", "queue_timeout", EK_CONFIG_DURATION, AT(int64_t, engine.queue_timeout_us), "60s", 0,
     24 * HOURS, "never", .help = "A request that waited longer is refused with 503."},
    {"engine", "kv_block_tokens", EK_CONFIG_CHOICE, AT(int32_t, engine.kv_block_tokens), "32",
     .choices = block_tokens,
     .help = "Tokens of one cache block: small ones share more of common prompts, large ones cost "
             "less bookkeeping."},
    {"engine", "prefill_chunk_tokens", EK_CONFIG_INT, AT(int32_t, engine.prefill_chunk_tokens),
     "256", 16, 8192, .help = "Most prompt tokens of one step."},
    {"engine", "step_target", EK_CONFIG_DURATION, AT(int64_t, engine.step_target_us), "100ms",
     1 * MS, 60 * SECONDS, "unlimited",
     .help = "While answers run, prompts are cut so that a step takes about so long, or 2.5 times "
             "as long "
             "as it will when all of them are answers, whichever is more: shorter is smoother for "
             "answers, longer is faster for prompts."},
    {"engine", "prefix_cache", EK_CONFIG_BOOL, AT(bool, engine.prefix_cache), "true",
     .help = "Compute the common beginning of prompts once."},
    {"engine", "prefix_ttl", EK_CONFIG_DURATION, AT(int64_t, engine.prefix_ttl_us), "10m",
     1 * SECONDS, 30 * 24 * HOURS, .help = "Prefixes that nobody used for so long are forgotten."},
    {"engine", "step_watchdog", EK_CONFIG_DURATION, AT(int64_t, engine.step_watchdog_us), "30s",
     100 * MS, 1 * HOURS, .help = "One step that takes longer turns health to unhealthy."},

    {"routing", "policy", EK_CONFIG_CHOICE, AT(ek_route_policy, engine.route.policy), "static",
     .choices = policies,
     .help =
         "How load bends the choice of experts: not at all (`static`, the model's own choice, bit "
         "for bit), or as docs/ROUTING.md describes."},
    /* clang-format off */
    EK_ROUTE_PARAM_TABLE(ROUTE_REAL, ROUTE_COUNT, ROUTE_TIME)
    /* clang-format on */
    {"routing", "recorded", EK_CONFIG_TEXT, AT(const char *, engine.recorded),
     .unset = "the model's gate",
     .help =
         "For experiments: MRT1 files (docs/formats/mrt.md), commas between them, whose choices "
         "take the place of the gate's. A request follows the sequence that its `seed` says. "
         "What the model answers then means nothing."},

    {"experts", "devices", EK_CONFIG_INT, AT(int32_t, engine.keel.n_devices), "1", 1,
     EK_KEEL_DEVICES_MAX,
     .help =
         "Devices that each layer's experts are divided between. On one machine these are groups "
         "of `engine.threads`, each of which computes its own experts; with 1 all threads "
         "compute all of them, and there is nothing to keep even."},
    {"experts", "slots", EK_CONFIG_INT, AT(int32_t, engine.keel.n_slots), "auto", 1, 1 << 20,
     "auto",
     .help = "Places of each layer, of all devices together: one for each expert, and more for "
             "replicas. `auto` is an eighth more than there are experts."},
    {"experts", "placement", EK_CONFIG_TEXT, AT(const char *, placement_path),
     .unset = "as even as can be without knowing loads",
     .help =
         "Placement to begin with: a file that `evenkeel place --out` wrote for this model, so "
         "many `devices`, and the loads that are expected. It says how many `slots` there are."},
    {"experts", "rebalance", EK_CONFIG_BOOL, AT(bool, engine.keel.rebalance), "true",
     .help = "Move replicas when traffic makes that worth while."},
    {"experts", "window", EK_CONFIG_DURATION, AT(int64_t, engine.keel.window_us), "1s", 100 * MS,
     10 * MINUTES,
     .help = "Counts of so long are looked at together, for alerts and for rebalancing."},
    {"experts", "rebalance_horizon", EK_CONFIG_DURATION, AT(int64_t, engine.keel.horizon_us), "60s",
     1 * SECONDS, 24 * HOURS,
     .help = "For so long traffic is believed to stay what it is: what a move saves within it has "
             "to be more than it costs."},
    {"experts", "rebalance_min_gain", EK_CONFIG_REAL, AT(double, engine.keel.min_gain), "0.02", 0,
     MILLIONTHS(10),
     .help = "Nothing moves for less: how far the busiest device over the mean has to fall."},
    {"experts", "rebalance_pause", EK_CONFIG_DURATION, AT(int64_t, engine.keel.pause_us), "1s", 0,
     1 * HOURS, .help = "A layer is left alone for so long after it was rebalanced."},

    {"gateway", "listen", EK_CONFIG_TEXT, AT(const char *, gateway.listen), "127.0.0.1:8080", 1,
     .help = "Address of the API: `host:port`, `[ipv6]:port`, or `:port` for all addresses; port 0 "
             "takes a free one."},
    {"gateway", "health_listen", EK_CONFIG_TEXT, AT(const char *, gateway.health_listen),
     .unset = "they are on the API's address only",
     .help = "Address of an own listener for health and metrics."},
    {"gateway", "admin_key_file", EK_CONFIG_TEXT, AT(const char *, gateway.admin_key_file),
     .unset = "clients of this machine may administer",
     .help = "File of admin keys, one in each line, 16 characters at least: who shows one "
             "(`Authorization: Bearer KEY`) may drain workers. Read again on SIGHUP."},
    {"gateway", "connections_max", EK_CONFIG_INT, AT(int32_t, gateway.connections_max), "4096", 1,
     1000000, .help = "Open connections; further ones are closed at once."},
    {"gateway", "connections_per_ip_max", EK_CONFIG_INT,
     AT(int32_t, gateway.connections_per_ip_max), "unlimited", 0, 1000000, "unlimited",
     .help = "Open connections of one address."},
    {"gateway", "workers", EK_CONFIG_INT, AT(int32_t, gateway.workers), "2", 1, 64,
     .help = "Threads that check request bodies and count tokens."},
    {"gateway", "body_max", EK_CONFIG_SIZE, AT_BYTES(gateway.body_bytes_max), "8MiB", 1 * KIB,
     1024 * MIB, .help = "Largest request body; larger ones get 413."},
    {"gateway", "header_max", EK_CONFIG_SIZE, AT_BYTES(gateway.header_bytes_max), "32KiB", 4 * KIB,
     1 * MIB, .help = "Memory of one connection for its request line and headers."},
    {"gateway", "json_depth_max", EK_CONFIG_INT, AT(int32_t, gateway.json_depth_max), "64", 4, 512,
     .help = "How deep arrays and objects of a body may nest."},
    {"gateway", "messages_max", EK_CONFIG_INT, AT(int32_t, gateway.messages_max), "1024", 1,
     1000000, .help = "Messages of one conversation."},
    {"gateway", "choices_max", EK_CONFIG_INT, AT(int32_t, gateway.choices_max), "8", 1, 128,
     .help = "Answers that one request may ask for (`n`)."},
    {"gateway", "max_tokens_default", EK_CONFIG_INT, AT(int32_t, gateway.max_tokens_default),
     "2048", 1, 1 << 24,
     .help = "Answer length where a request names none; at most what the context leaves."},
    {"gateway", "header_timeout", EK_CONFIG_DURATION, AT(int64_t, gateway.header_timeout_us), "10s",
     100 * MS, 1 * HOURS, .help = "Request line and headers have to be complete by then."},
    {"gateway", "body_timeout", EK_CONFIG_DURATION, AT(int64_t, gateway.body_timeout_us), "30s",
     100 * MS, 1 * HOURS, .help = "The body has to be complete by then."},
    {"gateway", "idle_timeout", EK_CONFIG_DURATION, AT(int64_t, gateway.idle_timeout_us), "75s",
     100 * MS, 24 * HOURS, .help = "How long a connection may wait for its next request."},
    {"gateway", "ping", EK_CONFIG_DURATION, AT(int64_t, gateway.ping_us), "15s", 100 * MS,
     1 * HOURS,
     .help =
         "A stream without a token for so long gets a comment line, so that proxies keep it open."},
    {"gateway", "request_timeout", EK_CONFIG_DURATION, AT(int64_t, gateway.request_timeout_us),
     "never", 0, 24 * HOURS, "never", .help = "A request that takes longer is ended."},
    {"gateway", "drain_settle", EK_CONFIG_DURATION, AT(int64_t, gateway.drain_settle_us), "5s", 0,
     1 * HOURS,
     .help = "After SIGTERM: requests are still taken for so long while readiness says "
             "no, so that balancers can notice."},
    {"gateway", "drain_timeout", EK_CONFIG_DURATION, AT(int64_t, gateway.drain_timeout_us), "30s",
     0, 24 * HOURS, .help = "After that: how long running answers may go on."},
    {"gateway", "strict", EK_CONFIG_BOOL, AT(bool, gateway.strict), "false",
     .help = "Unknown fields of a request are errors instead of being ignored."},
    {"gateway", "web_page", EK_CONFIG_BOOL, AT(bool, gateway.web_page), "true",
     .help = "Serve the chat page at `/`."},

    {"cluster", "workers", EK_CONFIG_TEXT, AT(const char *, cluster.workers),
     .unset = "all experts are computed in this process", .is_list = true,
     .help = "Workers that have the experts, `[host:port, ...]`; each is a device of `experts`. "
             "Their order is that of devices."},
    {"cluster", "certs", EK_CONFIG_TEXT, AT(const char *, cluster.certs),
     .unset = "needed where there are workers",
     .help = "Directory that `evenkeel cluster init` made for this front."},
    {"cluster", "fabric", EK_CONFIG_CHOICE, AT(ek_link_fabric_choice, cluster.fabric), "auto",
     .choices = fabrics,
     .help = "How activations travel: encrypted (`tls`), or bare (`tcp`, and `ucx` for RDMA) over "
             "a segment "
             "that nobody else can reach. `auto` is bare within a machine and encrypted between "
             "machines. What "
             "workers are told and asked is always encrypted."},
    {"cluster", "wire", EK_CONFIG_CHOICE, AT(ek_cluster_wire, cluster.wire), "f32",
     .choices = wires,
     .help = "Numbers that activations travel as: `bf16` is half the bytes, and rounds."},
    {"cluster", "combine", EK_CONFIG_CHOICE, AT(ek_cluster_combine, cluster.combine), "exact",
     .choices = combines,
     .help = "What comes back: each expert's output (`exact`: the answer does not depend on the "
             "workers, bit for bit), or each worker's sum per token (`summed`: fewer bytes where a "
             "worker has several of a token's experts)."},
    {"cluster", "microbatches", EK_CONFIG_CHOICE, AT(ek_cluster_microbatches, cluster.microbatches),
     "auto", .choices = microbatches,
     .help =
         "In how many halves a step goes through its layers: with `2` one half's experts are at "
         "work while the front computes the attention of the other. `auto` takes what was "
         "quicker for steps of that size, and never cuts one of less than 16 tokens. Answers "
         "do not depend on it."},
    {"cluster", "on_loss", EK_CONFIG_CHOICE, AT(ek_cluster_loss, cluster.on_loss), "fail",
     .choices = losses,
     .help = "When no worker has an expert any more: its requests get 503 (`fail`), or its part is "
             "left out and counted (`degrade`)."},
    {"cluster", "loss_wait", EK_CONFIG_DURATION, AT(int64_t, cluster.loss_wait_us), "2s", 0,
     1 * HOURS,
     .help = "Before that: how long after the last worker with an expert went its return is waited "
             "for. "
             "Everything stands still meanwhile."},
    {"cluster", "join_timeout", EK_CONFIG_DURATION, AT(int64_t, cluster.join_timeout_us), "60s",
     100 * MS, 24 * HOURS,
     .help = "At start: how long to wait for workers that are not there yet."},
    {"cluster", "hung_after", EK_CONFIG_DURATION, AT(int64_t, cluster.hung_us), "1s", 500 * MS,
     1 * HOURS,
     .help =
         "A worker from which nothing was heard for so long hangs, or the way to it is cut: its "
         "rows go to others. Workers say something every 100 ms."},
    {"cluster", "hedge_after", EK_CONFIG_DURATION, AT(int64_t, cluster.hedge_us), "500ms", 10 * MS,
     1 * HOURS,
     .help =
         "Rows that a worker has not answered by then, nor in four times the time that so many "
         "usually take, are given to another one that has their experts. The late one is passed "
         "by for a while, longer each time (1 to 16 s), as is one whose answers are long on "
         "their way although another could do everything sooner."},
    {"cluster", "slow_start", EK_CONFIG_DURATION, AT(int64_t, cluster.slow_start_us), "5s", 0,
     1 * HOURS,
     .help = "How long a worker that was away gets less than its part, a tenth first and then more "
             "and more, of what others can do as well."},
    {"cluster", "layer_timeout", EK_CONFIG_DURATION, AT(int64_t, cluster.layer_timeout_us), "10s",
     100 * MS, 1 * HOURS,
     .help = "And if there is no other: by then they are lost, as `on_loss` says."},
    {"cluster", "link_check", EK_CONFIG_CHOICE, AT(ek_cluster_link_check, cluster.link_check),
     "warn", .choices = link_checks,
     .help = "When a worker joins, the data link to it is tested. One that is worse than the next "
             "two keys ask for is told of in the log (`warn`), or the worker stays absent and is "
             "tried again (`refuse`)."},
    {"cluster", "link_latency_max", EK_CONFIG_DURATION, AT(int64_t, cluster.link_latency_max_us),
     "off", 0, 10 * SECONDS, "off",
     .help = "Longest that a small message may take there and back: the median of nine."},
    {"cluster", "link_bandwidth_min", EK_CONFIG_SIZE, AT_BYTES(cluster.link_bandwidth_min), "off",
     0, 1024 * TIB, "off",
     .help = "Fewest bytes a second, each way, of the longest message and its echo that were sent "
             "(16 KiB to 4 MiB)."},
    {"cluster", "rebalance", EK_CONFIG_CHOICE, AT(ek_cluster_rebalance, cluster.rebalance), "off",
     .choices = rebalances,
     .help = "Whether this front has workers acquire replicas of experts that are hot, and give up "
             "such that are not (`auto`), within their `worker.experts_bytes_max`. Of fronts that "
             "share workers only one may."},
    {"cluster", "rebalance_interval", EK_CONFIG_DURATION,
     AT(int64_t, cluster.rebalance_interval_us), "10s", 100 * MS, 1 * HOURS,
     .help = "Counts of so long are looked at together; at least three such windows have to agree "
             "before anything moves."},
    {"cluster", "rebalance_moves", EK_CONFIG_INT, AT(int32_t, cluster.rebalance_moves), "8", 2,
     1024, .help = "How many replicas may move in one interval."},

    {"worker", "listen", EK_CONFIG_TEXT, AT(const char *, worker.listen), "127.0.0.1:7070", 1,
     .help =
         "Address for fronts, `host:port`; only fronts with a certificate of the same "
         "authority are let in. Nothing leaves this machine unless a host of another network is "
         "named here."},
    {"worker", "health", EK_CONFIG_TEXT, AT(const char *, worker.health), .unset = "there is none",
     .help = "Address of a listener for health and metrics over HTTP, `host:port`. It asks nobody "
             "who they are: a host of another network shows figures to that network."},
    {"worker", "certs", EK_CONFIG_TEXT, AT(const char *, worker.certs), .unset = "has to be named",
     .help = "Directory that `evenkeel cluster init` made for this worker."},
    {"worker", "experts", EK_CONFIG_TEXT, AT(const char *, worker.experts),
     .unset = "as `placement` says, or all",
     .help = "Experts that it has: `LAYERS:EXPERTS`, several separated by blanks, as in "
             "`0-11:0-31,48 12:*`; or `all`."},
    {"worker", "placement", EK_CONFIG_TEXT, AT(const char *, worker.placement), .unset = "none",
     .help = "File that `evenkeel place --out` wrote, instead of `experts`."},
    {"worker", "device", EK_CONFIG_TEXT, AT(const char *, worker.device),
     .unset = "needed with `placement`",
     .help = "Which of the placement's devices this is: `0/4` is the first of four."},
    {"worker", "manifest", EK_CONFIG_TEXT, AT(const char *, worker.manifest), .unset = "none",
     .help =
         "Manifest (`evenkeel manifest`, or what `evenkeel fetch` left beside the weights) that "
         "the experts are checked by before anything is served. Needed where the model's file "
         "has only some of its weights."},
    {"worker", "fabric", EK_CONFIG_CHOICE, AT(ek_link_fabric_choice, worker.fabric), "auto",
     .choices = fabrics,
     .help = "Data links that it takes: encrypted ones always; bare ones with `tcp`, and with "
             "`auto` where "
             "`listen` is of this machine only; those over UCX with `ucx`."},
    {"worker", "fronts_max", EK_CONFIG_INT, AT(int32_t, worker.fronts_max), "8", 1,
     EK_WORKER_FRONTS_MAX, .help = "Fronts that it serves at once."},
    {"worker", "tokens_max", EK_CONFIG_INT, AT(int32_t, worker.tokens_max), "4096", 1, 65536,
     .help = "Most tokens of one dispatch, which buffers are made for; a front whose steps are "
             "larger is refused."},
    {"worker", "drain_timeout", EK_CONFIG_DURATION, AT(int64_t, worker.drain_timeout_us), "10s", 0,
     24 * HOURS, .help = "After SIGTERM: how long to go on for fronts that have nobody else."},
    {"worker", "experts_bytes_max", EK_CONFIG_SIZE, AT_BYTES(worker.experts_bytes_max), "off", 0,
     1024 * TIB, "off",
     .help =
         "Memory for experts that a front has it acquire while it serves, besides those that it "
         "is started with."},
    {"worker", "acquire_rate", EK_CONFIG_SIZE, AT_BYTES(worker.acquire_bytes_per_s), "64MiB", 0,
     1 * TIB, "off",
     .help = "Bytes a second at which it reads those, so that serving goes on beside it; `off` is "
             "as fast as can be."},
    {"worker", "sources", EK_CONFIG_TEXT, AT(const char *, worker.sources), .unset = "none",
     .is_list = true,
     .help = "Where their weights come from if the model's file has holes there: directories, "
             "`https://` and `s3://`, nearest first; other workers are asked after them. Needs "
             "`manifest`, which every byte is checked by."},
    {"worker", "pace_bandwidth", EK_CONFIG_SIZE, AT_BYTES(worker.pace.bytes_per_s), "off", 0,
     1024 * TIB, "off",
     .help = "For experiments: stand in for a device that reads so many bytes of weights a second. "
             "The work is done all the same, and what the device would take passes in all."},
    {"worker", "pace_gops", EK_CONFIG_REAL, AT(double, worker.pace.gops_per_s), "off",
     MILLIONTHS(0.001), MILLIONTHS(1e9), "off",
     .help = "And computes so many billions of operations a second; a dispatch takes the longer of "
             "the two."},
    {"worker", "pace_latency", EK_CONFIG_DURATION, AT(int64_t, worker.pace.latency_us), "0s", 0,
     1 * MINUTES, .help = "And takes so long for each dispatch besides."},
    {"worker", "pace_contention", EK_CONFIG_BOOL, AT(bool, worker.pace.contention), "false",
     .help = "And works at 65 % of its rates while it is busy more than 85 % of the time."},
};
const int32_t ek_config_n_keys = EK_COUNT_OF(ek_config_keys);

static_assert(EK_COUNT_OF(ek_config_keys) <= EK_CONFIG_KEYS_MAX, "raise EK_CONFIG_KEYS_MAX");
static_assert(EK_COUNT_OF(ek_config_sections) <= EK_CONFIG_SECTIONS_MAX,
              "raise EK_CONFIG_SECTIONS_MAX");

int32_t ek_config_section_find(ek_str name)
{
    for (int32_t i = 0; i < ek_config_n_sections; i++)
        if (ek_str_eqz(name, ek_config_sections[i].name)) return i;
    return -1;
}

int32_t ek_config_key_find(ek_str section, ek_str name)
{
    for (int32_t i = 0; i < ek_config_n_keys; i++)
        if (ek_str_eqz(section, ek_config_keys[i].section) &&
            ek_str_eqz(name, ek_config_keys[i].name))
            return i;
    return -1;
}
