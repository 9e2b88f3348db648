#include "route/activate.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/assert.h"

#define STEPS_PER_DEVICE 4 /* of the local search, at most; each is some microsecond */

/* One answer in progress. */
typedef struct seating {
    int32_t *quota;  /* (n_replicas) */
    int32_t *load;   /* (n_devices) token-slots */
    int32_t *active; /* (n_devices) replicas with tokens */
} seating;

/* One call. */
typedef struct activator {
    const ek_route_replicas *r;
    const int32_t *tokens;
    int64_t knee;
    int32_t *expert_of; /* (n_replicas) */
    int32_t *on_beg;    /* (n_devices + 1) replicas of experts with tokens, by device */
    int32_t *on;        /* replica indices */
    int32_t *via;       /* (n_devices) replica on the previous device of a path; -1: not reached */
    int32_t *into;      /* (n_devices) replica on this device of a path */
    int32_t *queue;     /* (n_devices) */
} activator;

int32_t ek_route_knee(double expert_bytes, double bytes_per_s, double seconds_per_row)
{
    /* Negated, so that NaN is refused, too. */
    if (!(expert_bytes > 0 && bytes_per_s > 0 && seconds_per_row > 0)) return 0;
    double knee = expert_bytes / bytes_per_s / seconds_per_row;
    return knee < INT32_MAX ? (int32_t)(knee + 0.5) : INT32_MAX;
}

/* ---- memory ---- */

size_t ek_route_activate_bytes(const ek_route_replicas *r)
{
    size_t n_replicas = (size_t)r->beg[r->n_experts], n_devices = (size_t)r->n_devices;
    size_t own = sizeof(int32_t) * (4 * n_replicas + 8 * n_devices + 1) + 12 * EK_CACHE_LINE;
    return own + ek_route_split_bytes(r);
}

static seating new_seating(const ek_route_replicas *r, ek_arena *scratch)
{
    return (seating){
        .quota = ek_new(scratch, int32_t, r->beg[r->n_experts]),
        .load = ek_new(scratch, int32_t, r->n_devices),
        .active = ek_new(scratch, int32_t, r->n_devices),
    };
}

/* Which replicas lie on each device, of experts that have tokens. */
static void index_devices(activator *a)
{
    const ek_route_replicas *r = a->r;
    for (int32_t e = 0; e < r->n_experts; e++)
        for (int32_t k = r->beg[e]; a->tokens[e] > 0 && k < r->beg[e + 1]; k++) {
            a->on_beg[r->device[k] + 1]++;
            a->expert_of[k] = e;
        }
    for (int32_t d = 0; d < r->n_devices; d++)
        a->on_beg[d + 1] += a->on_beg[d];
    for (int32_t e = 0; e < r->n_experts; e++)
        for (int32_t k = r->beg[e]; a->tokens[e] > 0 && k < r->beg[e + 1]; k++)
            a->on[a->on_beg[r->device[k]]++] = k;
    for (int32_t d = r->n_devices; d > 0; d--)
        a->on_beg[d] = a->on_beg[d - 1];
    a->on_beg[0] = 0;
}

/* ---- what a device waits for ---- */

static int64_t time_of(const activator *a, int32_t n_active, int32_t n_tokens)
{
    int64_t reading = a->knee * n_active;
    return reading > n_tokens ? reading : n_tokens;
}

static int64_t time_at(const activator *a, const seating *s, int32_t device)
{
    return time_of(a, s->active[device], s->load[device]);
}

static int32_t busiest_of(const activator *a, const seating *s)
{
    int32_t busiest = 0;
    int64_t most = time_at(a, s, 0);
    for (int32_t d = 1; d < a->r->n_devices; d++) {
        int64_t time = time_at(a, s, d);
        if (time > most) {
            most = time;
            busiest = d;
        }
    }
    return busiest;
}

static int32_t most_active(const activator *a, const seating *s)
{
    int32_t most = 0;
    for (int32_t d = 1; d < a->r->n_devices; d++)
        if (s->active[d] > s->active[most]) most = d;
    return most;
}

static int32_t tokens_max(const activator *a, const seating *s)
{
    int32_t most = 0;
    for (int32_t d = 0; d < a->r->n_devices; d++)
        most = s->load[d] > most ? s->load[d] : most;
    return most;
}

/* Move n tokens from one replica to another of the same expert. */
static void move(const activator *a, seating *s, int32_t from, int32_t to, int32_t n)
{
    int32_t d = a->r->device[from], next = a->r->device[to];
    s->active[next] += s->quota[to] == 0;
    s->quota[from] -= n;
    s->quota[to] += n;
    s->active[d] -= s->quota[from] == 0;
    s->load[d] -= n;
    s->load[next] += n;
}

/* ---- every expert in one place: the least that the most activated device can have ---- */

static void seat(activator *a, seating *s, int32_t e)
{
    const ek_route_replicas *r = a->r;
    int32_t best = r->beg[e];
    for (int32_t k = best + 1; k < r->beg[e + 1]; k++) {
        int32_t d = r->device[k], b = r->device[best];
        if (s->active[d] < s->active[b] ||
            (s->active[d] == s->active[b] && s->load[d] < s->load[b]))
            best = k;
    }
    s->quota[best] = a->tokens[e];
    s->load[r->device[best]] += a->tokens[e];
    s->active[r->device[best]]++;
}

/*
 * Breadth first from the most activated device over the experts that it serves, until a device is
 * reached that can take one and still be less activated. @return that device, or -1: then the
 * experts of all devices reached lie on these devices only, each of which is as full or one short
 * of it, and no way of seating them is better.
 */
static int32_t find_path(activator *a, const seating *s, int32_t most)
{
    const ek_route_replicas *r = a->r;
    int32_t head = 0, tail = 0;
    memset(a->via, 0xff, (size_t)r->n_devices * sizeof *a->via);
    a->queue[tail++] = most;
    while (head < tail) {
        int32_t d = a->queue[head++];
        for (int32_t i = a->on_beg[d]; i < a->on_beg[d + 1]; i++) {
            int32_t from = a->on[i];
            if (s->quota[from] == 0) continue;
            int32_t e = a->expert_of[from];
            for (int32_t to = r->beg[e]; to < r->beg[e + 1]; to++) {
                int32_t next = r->device[to];
                if (a->via[next] >= 0 || next == most) continue;
                a->via[next] = from;
                a->into[next] = to;
                if (s->active[next] <= s->active[most] - 2) return next;
                a->queue[tail++] = next;
            }
        }
    }
    return -1;
}

static void seat_all(activator *a, seating *s)
{
    const ek_route_replicas *r = a->r;
    for (int32_t e = 0; e < r->n_experts; e++)
        if (a->tokens[e] > 0 && r->beg[e + 1] - r->beg[e] == 1) seat(a, s, e);
    for (int32_t e = 0; e < r->n_experts; e++)
        if (a->tokens[e] > 0 && r->beg[e + 1] - r->beg[e] > 1) seat(a, s, e);
    for (;;) {
        int32_t most = most_active(a, s);
        int32_t last = find_path(a, s, most);
        if (last < 0) return;
        for (int32_t d = last; d != most; d = r->device[a->via[d]])
            move(a, s, a->via[d], a->into[d], s->quota[a->via[d]]);
    }
}

/* ---- where tokens count: a local search ---- */

/*
 * A step relieves a device: n tokens of an expert go to another replica, and, if that makes the
 * other device too busy, one of its experts goes on to a third, or back.
 */
typedef struct step {
    int64_t time; /* of the busiest device involved, afterwards */
    int32_t from, to, n;
    int32_t on_from, on_to; /* -1: nothing goes on */
} step;

static void offer(step *best, int64_t time, const step *candidate)
{
    if (time >= best->time) return;
    *best = *candidate;
    best->time = time;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* All of a replica's tokens go over, and one expert of the device that takes them goes on. */
static void look_further(const activator *a, const seating *s, step *best, int32_t from, int32_t to)
{
    const ek_route_replicas *r = a->r;
    int32_t b = r->device[from], d = r->device[to], n = s->quota[from];
    int32_t active_d = s->active[d] + (s->quota[to] == 0) - 1;
    for (int32_t i = a->on_beg[d]; i < a->on_beg[d + 1]; i++) {
        int32_t next = a->on[i], m = s->quota[next];
        if (m == 0 || next == to) continue;
        int64_t time_d = time_of(a, active_d, s->load[d] + n - m);
        if (time_d >= best->time) continue;
        int32_t f = a->expert_of[next];
        for (int32_t last = r->beg[f]; last < r->beg[f + 1]; last++) {
            int32_t g = r->device[last];
            if (g == d) continue;
            int32_t opens = s->quota[last] == 0;
            int64_t time = g == b ? time_of(a, s->active[b] - 1 + opens, s->load[b] - n + m)
                                  : later(time_of(a, s->active[g] + opens, s->load[g] + m),
                                          time_of(a, s->active[b] - 1, s->load[b] - n));
            offer(best, later(time, time_d),
                  &(step){.from = from, .to = to, .n = n, .on_from = next, .on_to = last});
        }
    }
}

/* The step that leaves the busiest device `b`, and whom it burdens, least busy. */
static bool find_step(const activator *a, const seating *s, int32_t b, step *out_step)
{
    const ek_route_replicas *r = a->r;
    step best = {.time = time_at(a, s, b)};
    int64_t before = best.time;
    for (int32_t i = a->on_beg[b]; i < a->on_beg[b + 1]; i++) {
        int32_t from = a->on[i], e = a->expert_of[from], n = s->quota[from];
        if (n == 0) continue;
        int64_t without = time_of(a, s->active[b] - 1, s->load[b] - n);
        for (int32_t to = r->beg[e]; to < r->beg[e + 1] && without < best.time; to++) {
            int32_t d = r->device[to];
            if (to == from) continue;
            int32_t active = s->active[d] + (s->quota[to] == 0);
            offer(&best, later(without, time_of(a, active, s->load[d] + n)),
                  &(step){.from = from, .to = to, .n = n, .on_from = -1});
            int32_t half = (s->load[b] - s->load[d]) / 2;
            half = half < n ? half : n - 1;
            if (half > 0)
                offer(&best,
                      later(time_of(a, s->active[b], s->load[b] - half),
                            time_of(a, active, s->load[d] + half)),
                      &(step){.from = from, .to = to, .n = half, .on_from = -1});
            look_further(a, s, &best, from, to);
        }
    }
    *out_step = best;
    return best.time < before;
}

/* Each step leaves fewer devices as busy as the busiest was, or makes it less busy. */
static void refine(const activator *a, seating *s, int64_t bound)
{
    for (int32_t i = 0; i < STEPS_PER_DEVICE * a->r->n_devices; i++) {
        int32_t b = busiest_of(a, s);
        step best;
        if (time_at(a, s, b) <= bound || !find_step(a, s, b, &best)) return;
        if (best.on_from >= 0) move(a, s, best.on_from, best.on_to, s->quota[best.on_from]);
        move(a, s, best.from, best.to, best.n);
    }
}

/* Whatever is read twice without need: tokens go together where no device gets busier for it. */
static void fold(const activator *a, seating *s)
{
    const ek_route_replicas *r = a->r;
    int64_t most = time_at(a, s, busiest_of(a, s));
    for (int32_t e = 0; e < r->n_experts; e++) {
        if (r->beg[e + 1] - r->beg[e] == 1) continue;
        for (int32_t from = r->beg[e]; from < r->beg[e + 1]; from++)
            for (int32_t to = r->beg[e]; to < r->beg[e + 1]; to++) {
                if (to == from || s->quota[from] == 0 || s->quota[to] == 0) continue;
                if (s->load[r->device[to]] + s->quota[from] <= most)
                    move(a, s, from, to, s->quota[from]);
            }
    }
}

/* ---- all of it ---- */

/* The split by tokens, as a seating. @return the busiest device's tokens */
static int32_t seat_by_tokens(const activator *a, ek_arena scratch, seating *s)
{
    const ek_route_replicas *r = a->r;
    ek_status status = ek_route_split(r, a->tokens, scratch, s->quota, s->load);
    ek_assert(status == EK_OK); /* its scratch is part of ours */
    for (int32_t k = 0; k < r->beg[r->n_experts]; k++)
        s->active[r->device[k]] += s->quota[k] > 0;
    return tokens_max(a, s);
}

/* The better of two answers after a search from both. */
static seating search(const activator *a, seating whole, int64_t bound, seating split)
{
    refine(a, &whole, bound);
    if (time_at(a, &whole, busiest_of(a, &whole)) <= bound) return whole;
    refine(a, &split, bound);
    int64_t time_whole = time_at(a, &whole, busiest_of(a, &whole));
    return time_at(a, &split, busiest_of(a, &split)) < time_whole ? split : whole;
}

static void tell(const activator *a, const seating *s, int64_t bound, ek_route_activation *out)
{
    ek_route_activation told = {
        .busiest = time_at(a, s, busiest_of(a, s)),
        .bound = bound,
        .n_active_max = s->active[most_active(a, s)],
        .n_tokens_max = tokens_max(a, s),
    };
    for (int32_t d = 0; d < a->r->n_devices; d++)
        told.n_active += s->active[d];
    *out = told;
}

ek_status ek_route_activate(const ek_route_replicas *r, const int32_t *tokens, int32_t knee,
                            ek_arena scratch, int32_t *out_quota,
                            ek_route_activation *out_activation)
{
    ek_assert(knee >= 0);
    if (ek_arena_free_bytes(&scratch) < ek_route_activate_bytes(r)) return EK_ENOMEM;
    size_t n_replicas = (size_t)r->beg[r->n_experts];
    activator a = {
        .r = r,
        .tokens = tokens,
        .knee = knee,
        .expert_of = ek_new(&scratch, int32_t, n_replicas),
        .on_beg = ek_new(&scratch, int32_t, r->n_devices + 1),
        .on = ek_new(&scratch, int32_t, n_replicas),
        .via = ek_new(&scratch, int32_t, r->n_devices),
        .into = ek_new(&scratch, int32_t, r->n_devices),
        .queue = ek_new(&scratch, int32_t, r->n_devices),
    };
    index_devices(&a);
    seating answer = new_seating(r, &scratch);
    seat_all(&a, &answer);
    int64_t bound = a.knee * answer.active[most_active(&a, &answer)];
    if (tokens_max(&a, &answer) > bound) {
        seating split = new_seating(r, &scratch);
        bound = later(bound, seat_by_tokens(&a, scratch, &split));
        answer = time_at(&a, &split, busiest_of(&a, &split)) <= bound
                     ? split
                     : search(&a, answer, bound, split);
        fold(&a, &answer);
    }
    memcpy(out_quota, answer.quota, n_replicas * sizeof *out_quota);
    tell(&a, &answer, bound, out_activation);
    return EK_OK;
}
