/*
 * The engine's life: everything it owns is made here, in an order in which each part needs only
 * earlier ones, and unmade in the reverse of it. The destructor takes half-built engines, so
 * create has one way out.
 */
#include "engine/engine.h"

#include <stdatomic.h>

#include "base/assert.h"
#include "base/size.h"
#include "engine/crew.h"
#include "engine/engine_internal.h"
#include "engine/loop.h"
#include "engine/memory.h"
#include "engine/watch.h"
#include "expert/local.h"
#include "route/activate.h"
#include "route/policy.h"
#include "sys/clock.h"
#include "sys/cpu.h"
#include "sys/log.h"

#define RUNNING_LIMIT 256
#define QUEUE_LIMIT   65536
#define THREADS_LIMIT 1024
#define PARTS_BYTES   ((size_t)64 << 10) /* small arrays, alignment */

/* ---- parameters ---- */

static ek_status check_range(ek_err *err, const char *name, int64_t value, int64_t low,
                             int64_t high)
{
    if (value >= low && value <= high) return EK_OK;
    return ek_err_set(err, EK_EINVAL, "%s is %lld; it must be from %lld to %lld", name,
                      (long long)value, (long long)low, (long long)high);
}

static ek_status check_params(const ek_engine_params *params, ek_err *err)
{
    ek_status status = check_range(err, "threads", params->n_threads, 0, THREADS_LIMIT);
    if (status == EK_OK)
        status = check_range(err, "running_max", params->running_max, 1, RUNNING_LIMIT);
    if (status == EK_OK) status = check_range(err, "queue_max", params->queue_max, 0, QUEUE_LIMIT);
    if (status == EK_OK)
        status = check_range(err, "prefill_chunk_tokens", params->prefill_chunk_tokens, 1,
                             INT32_MAX - RUNNING_LIMIT);
    if (status == EK_OK) status = check_range(err, "context", params->context_tokens, 0, INT32_MAX);
    if (status == EK_OK) status = check_range(err, "kv_cache", params->kv_bytes, 0, INT64_MAX);
    if (status == EK_OK)
        status = check_range(err, "step_target", params->step_target_us, 0, INT64_MAX);
    int32_t block = params->kv_block_tokens;
    if (status == EK_OK && block != 16 && block != 32 && block != 64)
        status = ek_err_set(err, EK_EINVAL, "kv_block_tokens is %d; it must be 16, 32 or 64",
                            (int)block);
    return status;
}

/* Replace what is left to us by what the machine and the model say. */
static ek_status resolve_params(ek_engine *engine, const ek_engine_params *params, ek_err *err)
{
    ek_engine_params *own = &engine->params;
    int32_t trained = engine->file->model->params.context_tokens;
    *own = *params;
    if (own->n_threads == 0) own->n_threads = ek_sys_cpu_count();
    if (own->context_tokens == 0) own->context_tokens = trained;
    if (own->context_tokens > trained)
        return ek_err_set(err, EK_EINVAL,
                          "context is %d tokens, but the model was trained for %d; choose at most "
                          "that",
                          (int)own->context_tokens, (int)trained);
    /* No step can have more prompt tokens than all places together hold. */
    int64_t most = (int64_t)own->context_tokens * own->running_max;
    if (own->prefill_chunk_tokens > most) own->prefill_chunk_tokens = (int32_t)most;
    ek_status status = ek_keel_check(&own->keel, engine->shape.n_experts, err);
    if (status != EK_OK) return status;
    int32_t n_layers = engine->shape.n_layers;
    if (own->placement && own->placement_layers != n_layers)
        return ek_err_set(err, EK_EINVAL,
                          "the placement has %d layers, but the model has %d; make one from this "
                          "model's loads",
                          (int)own->placement_layers, (int)n_layers);
    own->keel.n_slots = ek_keel_slots(&own->keel, engine->shape.n_experts);
    engine->sched = (ek_sched_params){
        .running_max = own->running_max,
        .step_tokens_max = own->running_max + own->prefill_chunk_tokens,
        .prefill_chunk_tokens = own->prefill_chunk_tokens,
        .kv_block_tokens = own->kv_block_tokens,
    };
    return EK_OK;
}

/* ---- what is kept even ---- */

/* Rough rates of one thread: rebalancing weighs seconds of work against seconds of moving. */
#define OPS_PER_S        300e9 /* one thread's, of int8 products (bench/kernels) */
#define LINK_BYTES_PER_S 10e9
#define READ_BYTES_PER_S 15e9 /* one thread's */

static ek_keel_setup keel_setup(const ek_engine *engine)
{
    const ek_model_params *p = &engine->file->model->params;
    double threads_per_device = (double)engine->params.n_threads / engine->params.keel.n_devices;
    double n_weights = 3.0 * p->d_model * p->expert_ff; /* gate, up and down */
    double seconds_per_row = 2.0 * n_weights / (OPS_PER_S * threads_per_device);
    double bytes_per_weight = (double)p->weight_bytes / (double)p->n_params_total;
    return (ek_keel_setup){
        .n_layers = p->n_layers,
        .n_experts = p->n_experts,
        .top_k = p->top_k,
        /* Elsewhere, devices say of themselves how long they are busy: each counts as one. */
        .n_threads =
            engine->params.source ? engine->params.keel.n_devices : engine->params.n_threads,
        .knee = ek_route_knee(n_weights * bytes_per_weight, READ_BYTES_PER_S * threads_per_device,
                              seconds_per_row),
        .bytes_per_expert = (int64_t)(n_weights * bytes_per_weight),
        .seconds_per_row = seconds_per_row,
        .link_bytes_per_s = LINK_BYTES_PER_S,
        .sample_us = engine->params.route.sample_us,
        .experts = engine->stats,
        .devices = engine->device_stats,
        .queues = engine->queues,
        .slot_expert = engine->params.placement,
    };
}

/* ---- memory ---- */

static size_t scratch_bytes(const ek_engine *engine)
{
    return (size_t)engine->shape.n_vocab * EK_SAMPLER_SCRATCH_PER_TOKEN + EK_CACHE_LINE;
}

/*
 * Sizes are products of checked int32_t and cannot overflow 64 bits; absurd ones fail to be
 * reserved.
 */
static size_t region_bytes(const ek_engine *engine, bool has_metrics)
{
    size_t n_running = (size_t)engine->params.running_max;
    size_t bytes = PARTS_BYTES + (has_metrics ? 0 : EK_METRICS_BYTES_MAX);
    const ek_route_gate gate = ek_engine_gate_of(&engine->file->model->params);
    bytes += ek_route_bytes(&gate, engine->shape.n_layers);
    const ek_keel_setup keel = keel_setup(engine);
    bytes += ek_telemetry_experts_bytes(keel.n_layers, keel.n_experts);
    bytes += ek_telemetry_experts_bytes(keel.n_layers, engine->params.keel.n_devices);
    bytes += ek_telemetry_queues_bytes(keel.n_layers, engine->params.keel.n_devices);
    bytes += ek_keel_bytes(&engine->params.keel, &keel);
    bytes += ek_engine_evenness_bytes(keel.n_layers, engine->params.keel.n_slots);
    bytes += (size_t)engine->params.keel.n_slots * sizeof(int32_t);
    bytes += n_running * (size_t)engine->shape.n_vocab * sizeof(float);
    bytes += (size_t)engine->params.n_threads * (scratch_bytes(engine) + sizeof(ek_arena));
    return bytes + n_running * (sizeof(ek_sched_running) + sizeof(ek_sched_pick) + sizeof(int32_t) +
                                sizeof(ek_batch_seq) + sizeof(ek_sampled) + 3 * sizeof(void *));
}

/* Buffers that are written before they are read stay untouched until then. */
static void *new_raw(ek_arena *arena, size_t bytes)
{
    void *mem = ek_arena_try_raw(arena, bytes, 1, EK_CACHE_LINE);
    ek_assert(mem != NULL); /* region_bytes counted it */
    return mem;
}

static void init_step(ek_engine *engine, ek_arena *arena)
{
    ek_step *step = &engine->step;
    int32_t n = engine->params.running_max;
    step->view = ek_new(arena, ek_sched_running, n);
    step->pick = ek_new(arena, ek_sched_pick, n);
    step->preempt = ek_new(arena, int32_t, n);
    step->seq = ek_new(arena, ek_batch_seq, n);
    step->row = ek_new(arena, ek_request *, n);
    step->sampled = ek_new(arena, ek_sampled, n);
    step->logits = new_raw(arena, (size_t)n * (size_t)engine->shape.n_vocab * sizeof(float));
    step->sampler_scratch = ek_new(arena, ek_arena, engine->params.n_threads);
    for (int32_t i = 0; i < engine->params.n_threads; i++)
        step->sampler_scratch[i] =
            ek_arena_over(new_raw(arena, scratch_bytes(engine)), scratch_bytes(engine));
    engine->crew.running = ek_new(arena, ek_request *, n);
    engine->crew.news = ek_new(arena, ek_news_item *, n);
    engine->crew.due_us = INT64_MAX;
    engine->slot_scratch = ek_new(arena, int32_t, engine->params.keel.n_slots);
}

/* ---- parts ---- */

static ek_status open_model(ek_engine *engine, const char *path, const char *chat_format,
                            const char *gate_overlay, ek_err *err)
{
    ek_status status = ek_expert_model_open(path, chat_format, &engine->file, err);
    if (status == EK_OK && gate_overlay)
        status = ek_expert_model_overlay(engine->file, gate_overlay, err);
    if (status != EK_OK) return status;
    const ek_model_params *model = &engine->file->model->params;
    engine->shape = (ek_request_shape){
        .n_vocab = model->n_vocab,
        .n_layers = model->n_layers,
        .n_experts = model->n_experts,
        .texts_begin_with_space = ek_model_tokenizer_strips_first_space(engine->file->tokenizer),
    };
    return EK_OK;
}

/* Who computes experts: this process, or others. */
static ek_status open_dispatcher(ek_engine *engine, ek_err *err)
{
    const ek_engine_params *params = &engine->params;
    if (params->source) {
        const ek_dispatcher_setup setup = {
            .kernels = &engine->kernels,
            .pool = engine->pool,
            .tokens_max = engine->sched.step_tokens_max,
            .stats = engine->stats,
            .device_stats = engine->device_stats,
        };
        return params->source->open(params->source->ctx, &setup, &engine->dispatcher, err);
    }
    const ek_expert_local_params local = {
        .model = engine->model,
        .kernels = &engine->kernels,
        .pool = engine->pool,
        .n_devices = params->keel.n_devices,
        .stats = engine->stats,
        .device_stats = engine->device_stats,
        .queues = engine->queues,
    };
    return ek_expert_local_create(&local, &engine->dispatcher, err);
}

/* What computes, but for the two parts whose size the memory plan decides. */
static ek_status open_compute(ek_engine *engine, ek_arena *arena, ek_err *err)
{
    const ek_engine_params *params = &engine->params;
    const ek_model *model = engine->file->model;
    ek_status status = ek_kernels_select(params->kernels, ek_sys_cpu_flags(), &engine->kernels);
    if (status != EK_OK)
        return ek_err_set(err, status,
                          "the kernels asked for do not run on this processor; "
                          "choose --kernels auto");
    status = ek_engine_cores_open(params, &engine->cores, &engine->pool, err);
    if (status != EK_OK) return status;
    if (params->pack_weights) {
        const ek_model_part dense = {.dense = true};
        status = ek_expert_pack_create(model, params->source ? &dense : NULL, &engine->kernels,
                                       &engine->packed, err);
        if (status != EK_OK) return status;
        model = ek_expert_pack_model(engine->packed);
    }
    engine->model = model;
    const ek_route_gate gate = ek_engine_gate_of(&model->params);
    status =
        ek_route_create(&gate, model->params.n_layers, &params->route, arena, &engine->router, err);
    if (status != EK_OK) return status;
    status = ek_telemetry_experts_create(model->params.n_layers, model->params.n_experts, arena,
                                         &engine->stats);
    if (status == EK_OK)
        status = ek_telemetry_experts_create(model->params.n_layers, params->keel.n_devices, arena,
                                             &engine->device_stats);
    if (status == EK_OK)
        status = ek_telemetry_queues_create(model->params.n_layers, params->keel.n_devices, arena,
                                            &engine->queues);
    if (status != EK_OK) return ek_err_set(err, status, "too many experts to count");
    const ek_keel_setup keel = keel_setup(engine);
    status = ek_keel_create(&params->keel, &keel, arena, &engine->keel, err);
    engine->params.placement = NULL; /* the caller's */
    engine->params.gate_overlay = NULL;
    if (status == EK_OK && params->recorded)
        status = ek_engine_recorded_open(params->recorded, &model->params, &engine->recorded, err);
    engine->params.recorded = NULL;
    return status == EK_OK ? open_dispatcher(engine, err) : status;
}

static ek_kv_params kv_params(const ek_engine *engine, int32_t n_blocks)
{
    const ek_model_params *model = &engine->file->model->params;
    return (ek_kv_params){
        .n_layers = model->n_layers,
        .n_kv_heads = model->n_kv_heads,
        .head_dim_k = model->head_dim_k,
        .head_dim_v = model->head_dim_v,
        .block_tokens = engine->params.kv_block_tokens,
        .n_blocks = n_blocks,
        .prefix_cache = engine->params.prefix_cache,
        .prefix_ttl_us = engine->params.prefix_ttl_us,
    };
}

static ek_forward_params forward_params(const ek_engine *engine)
{
    return (ek_forward_params){
        .model = engine->model,
        .kernels = &engine->kernels,
        .pool = engine->pool,
        .kv = engine->kv,
        .router = engine->router,
        .dispatcher = engine->dispatcher,
        .keel = engine->keel,
        .stats = engine->stats,
        .replay = ek_engine_recorded_replay(engine->recorded),
        .batch_tokens_max = engine->sched.step_tokens_max,
        .context_tokens = engine->params.context_tokens,
        .logits_rows_max = engine->params.running_max,
    };
}

/* Of all routed experts: what a process does not need that leaves them to others. */
static int64_t expert_bytes(const ek_engine *engine)
{
    const ek_model *model = engine->file->model;
    size_t bytes = 0;
    for (int32_t l = 0; l < model->params.n_layers; l++)
        bytes += model->layers[l].expert_gate->bytes + model->layers[l].expert_up->bytes +
                 model->layers[l].expert_down->bytes;
    return (int64_t)bytes;
}

static ek_memory_facts memory_facts(const ek_engine *engine, int64_t available_bytes)
{
    const ek_kv_params kv = kv_params(engine, 1);
    const ek_forward_params forward = forward_params(engine);
    return (ek_memory_facts){
        .available_bytes = available_bytes,
        .weight_bytes =
            engine->file->file_bytes - (engine->params.source ? expert_bytes(engine) : 0),
        .buffer_bytes = (int64_t)engine->region.bytes + ek_engine_forward_bytes(&forward),
        .block_bytes = ek_engine_kv_block_bytes(&kv),
        .context_tokens = engine->params.context_tokens,
    };
}

/* Refuse before anything big is touched, then make the cache and the forward pass. */
static ek_status open_cache_and_forward(ek_engine *engine, ek_err *err)
{
    const uint64_t available = ek_sys_mem_available();
    const ek_memory_facts facts =
        memory_facts(engine, available > INT64_MAX ? INT64_MAX : (int64_t)available);
    ek_memory_plan plan;
    ek_status status = ek_engine_memory_plan(&engine->params, &facts, &plan, err);
    if (status != EK_OK) return status;
    engine->kv_blocks = plan.kv_blocks;
    engine->params.kv_bytes = plan.kv_bytes;
    if (engine->packed)
        status = ek_engine_cores_set_homes(&engine->cores, engine->keel, engine->packed, err);
    if (status != EK_OK) return status;
    const ek_kv_params kv = kv_params(engine, plan.kv_blocks);
    status = ek_engine_kv_create(&kv, &engine->kv, err);
    if (status != EK_OK) return status;
    const ek_forward_params forward = forward_params(engine);
    return ek_engine_forward_create(&forward, &engine->forward, err);
}

static void fill_info(ek_engine *engine)
{
    const ek_model_params *model = &engine->file->model->params;
    engine->info = (ek_engine_info){
        .arch = model->arch,
        .chat_format = engine->file->chat ? ek_model_chat_name(engine->file->chat) : NULL,
        .kernels = engine->kernels.name,
        .n_layers = model->n_layers,
        .n_experts = model->n_experts,
        .top_k = model->top_k,
        .n_vocab = model->n_vocab,
        .context_tokens = engine->params.context_tokens,
        .running_max = engine->params.running_max,
        .params_total = model->n_params_total,
        .params_active = model->n_params_active,
        .weight_bytes = model->weight_bytes,
        .kv_bytes = engine->params.kv_bytes,
        .kv_tokens = (int64_t)engine->kv_blocks * engine->params.kv_block_tokens,
    };
    if (engine->file->overlay) {
        engine->info.overlay_method = ek_expert_overlay_method(engine->file->overlay);
        engine->info.overlay_sha256 = ek_expert_overlay_sha256(engine->file->overlay);
    }
}

static ek_status open_exchange(ek_engine *engine, ek_metrics *metrics, ek_arena *arena, ek_err *err)
{
    ek_status status = EK_OK;
    if (!metrics) status = ek_telemetry_metrics_create(arena, &metrics);
    if (status == EK_OK) {
        ek_engine_meters_init(&engine->meters, metrics);
        ek_engine_evenness_init(&engine->evenness, engine->router, engine->keel,
                                engine->shape.n_layers, engine->shape.n_experts, metrics, arena);
        ek_engine_crew_deliver(engine); /* the gauges' first values */
    }
    /* Room for every request inside, and one nudge. */
    size_t capacity = (size_t)engine->params.running_max + (size_t)engine->params.queue_max + 1;
    if (status == EK_OK) status = ek_sys_queue_create(capacity, &engine->inbox);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for the engine's queue");
    return EK_OK;
}

/* All that is known and small: what decides how much memory the rest will take. */
static ek_status prepare(ek_engine *engine, const ek_engine_params *params, const char *model_path,
                         const char *chat_format, bool has_metrics, ek_arena *out_arena,
                         ek_err *err)
{
    ek_status status = check_params(params, err);
    if (status == EK_OK)
        status = open_model(engine, model_path, chat_format, params->gate_overlay, err);
    if (status == EK_OK) status = resolve_params(engine, params, err);
    if (status != EK_OK) return status;
    engine->shape.kv_block_tokens = engine->params.kv_block_tokens;
    size_t bytes = region_bytes(engine, has_metrics);
    if (ek_sys_region_open(bytes, 0, &engine->region) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for %zu bytes of step buffers", bytes);
    *out_arena = ek_sys_region_arena(&engine->region);
    init_step(engine, out_arena);
    ek_sched_pace_init(&engine->pace);
    return open_compute(engine, out_arena, err);
}

static ek_status build(ek_engine *engine, const ek_engine_params *params, const char *model_path,
                       const char *chat_format, ek_metrics *metrics, ek_err *err)
{
    ek_arena arena;
    ek_status status =
        prepare(engine, params, model_path, chat_format, metrics != NULL, &arena, err);
    if (status == EK_OK) status = open_cache_and_forward(engine, err);
    if (status == EK_OK) status = open_exchange(engine, metrics, &arena, err);
    if (status != EK_OK) return status;
    fill_info(engine);
    engine->packing = engine->packed != NULL;
    engine->pack_us = ek_sys_now_us();
    if (ek_sys_thread_start(&engine->thread, "ek-step", ek_engine_loop_run, engine) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "cannot start the step thread");
    return EK_OK;
}

static ek_status engine_new(ek_engine **out_engine, ek_err *err)
{
    ek_sys_region home;
    if (ek_sys_region_open(sizeof(ek_engine), 0, &home) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for the engine");
    ek_engine *engine = home.base;
    engine->home = home;
    ek_engine_news_init(&engine->news);
    *out_engine = engine;
    return EK_OK;
}

/* ---- life ---- */

/* Whoever asks for a policy expects it to do something. */
static void warn_idle_policy(const ek_engine *engine, ek_route_policy policy)
{
    if (policy == EK_ROUTE_POLICY_STATIC || engine->params.keel.n_devices > 1) return;
    ek_log(EK_LOG_WARN, "engine", "idle_policy",
           "policy=%s devices=1 why=\"all experts share one device and are equally loaded, so load "
           "bends nothing; set experts.devices\"",
           ek_route_policies[policy].name);
}

ek_status ek_engine_create(const ek_engine_params *params, const char *model_path,
                           const char *chat_format, ek_metrics *metrics, ek_engine **out_engine,
                           ek_err *err)
{
    ek_engine *engine = NULL;
    ek_status status = engine_new(&engine, err);
    if (status != EK_OK) return status;
    status = build(engine, params, model_path, chat_format, metrics, err);
    if (status != EK_OK) {
        ek_engine_destroy(engine);
        return status;
    }
    const ek_engine_info *info = &engine->info;
    ek_log(EK_LOG_INFO, "engine", "started",
           "arch=%s layers=%d experts=%d top_k=%d kernels=%s threads=%d numa_nodes=%d context=%d "
           "kv_blocks=%d",
           info->arch, (int)info->n_layers, (int)info->n_experts, (int)info->top_k, info->kernels,
           (int)engine->params.n_threads, (int)engine->cores.n_nodes, (int)info->context_tokens,
           (int)engine->kv_blocks);
    warn_idle_policy(engine, engine->params.route.policy);
    *out_engine = engine;
    return EK_OK;
}

void ek_engine_destroy(ek_engine *engine)
{
    if (!engine) return;
    bool ran = engine->thread.running;
    if (ran) {
        atomic_store_explicit(&engine->draining, true, memory_order_relaxed);
        /* Release pairs with the loop's acquire; the nudge makes it look. */
        atomic_store_explicit(&engine->stopping, true, memory_order_release);
        ek_engine_nudge(engine);
        ek_sys_thread_join(&engine->thread);
        ek_assert(atomic_load_explicit(&engine->n_handles, memory_order_relaxed) == 0);
    }
    ek_engine_forward_destroy(engine->forward);
    ek_engine_kv_destroy(engine->kv);
    ek_expert_destroy(engine->dispatcher);
    ek_sys_pool_destroy(engine->pool);
    ek_sys_queue_destroy(engine->inbox);
    ek_engine_news_fini(&engine->news);
    ek_engine_evenness_fini(&engine->evenness);
    ek_engine_recorded_close(engine->recorded);
    ek_expert_pack_destroy(engine->packed);
    ek_engine_cores_close(&engine->cores);
    ek_expert_model_close(engine->file);
    ek_sys_region_close(&engine->region);
    ek_sys_region home = engine->home;
    ek_sys_region_close(&home);
    if (ran) ek_log(EK_LOG_INFO, "engine", "stopped", "reason=destroyed");
}

ek_status ek_engine_estimate(const ek_engine_params *params, const char *model_path,
                             ek_engine_memory *out_memory, ek_err *err)
{
    ek_engine *engine = NULL;
    ek_status status = engine_new(&engine, err);
    if (status != EK_OK) return status;
    ek_arena arena;
    ek_memory_plan plan;
    status = prepare(engine, params, model_path, NULL, true, &arena, err);
    if (status == EK_OK) {
        const ek_memory_facts facts = memory_facts(engine, INT64_MAX);
        status = ek_engine_memory_plan(&engine->params, &facts, &plan, err);
        if (status == EK_OK)
            *out_memory = (ek_engine_memory){
                .weight_bytes = facts.weight_bytes,
                .kv_bytes = plan.kv_bytes,
                .buffer_bytes = facts.buffer_bytes,
                .need_bytes = plan.need_bytes,
            };
    }
    ek_engine_destroy(engine);
    return status;
}

/* ---- looking at it ---- */

int32_t ek_engine_inflight(const ek_engine *engine)
{
    return atomic_load_explicit(&engine->n_inflight, memory_order_acquire);
}

bool ek_engine_healthy(const ek_engine *engine)
{
    int64_t start_us = atomic_load_explicit(&engine->step_start_us, memory_order_relaxed);
    int64_t limit_us = engine->params.step_watchdog_us;
    return start_us == 0 || limit_us <= 0 || ek_sys_now_us() - start_us <= limit_us;
}

void ek_engine_info_get(const ek_engine *engine, ek_engine_info *out_info)
{
    *out_info = engine->info;
}

ek_expert_stats *ek_engine_experts(ek_engine *engine)
{
    return engine->stats;
}

ek_expert_stats *ek_engine_devices(ek_engine *engine)
{
    return engine->device_stats;
}

const int32_t *ek_engine_device_nodes(ek_engine *engine)
{
    return engine->cores.n_nodes > 0 ? engine->cores.device_node : NULL;
}

const ek_queues *ek_engine_queues(ek_engine *engine)
{
    return engine->queues;
}

ek_load_view *ek_engine_load_view(ek_engine *engine)
{
    return ek_keel_load(engine->keel);
}

ek_status ek_engine_route_switch(ek_engine *engine, const ek_route_params *params, ek_err *err)
{
    ek_status status = ek_route_switch(engine->router, params, err);
    if (status == EK_OK) warn_idle_policy(engine, params->policy);
    return status;
}

void ek_engine_load_get(const ek_engine *engine, ek_engine_load *out_load)
{
    const ek_meters *m = &engine->meters;
    *out_load = (ek_engine_load){
        .n_running = (int32_t)ek_gauge_get(m->running),
        .n_waiting = (int32_t)ek_gauge_get(m->waiting),
        .kv_blocks = engine->kv_blocks,
        .kv_blocks_used = (int32_t)ek_gauge_get(m->kv_used),
        .kv_blocks_cached = (int32_t)ek_gauge_get(m->kv_cached),
        .prompt_tokens = ek_counter_get(m->prompt_tokens),
        .cached_tokens = ek_counter_get(m->prefix_hit_tokens),
        .completion_tokens = ek_counter_get(m->completion_tokens),
    };
}
