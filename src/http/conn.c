#include "http/conn.h"

#include "base/assert.h"
#include "base/rng.h"
#include "sys/mem.h"

#define NONE (-1)

ek_status ek_http_conns_init(ek_conn_table *table, int32_t n_slots)
{
    ek_assert(n_slots > 0);
    *table = (ek_conn_table){.n_slots = n_slots, .n_buckets = n_slots};
    table->slot = ek_sys_calloc((size_t)n_slots, sizeof table->slot[0]);
    table->bucket = ek_sys_calloc((size_t)n_slots, sizeof table->bucket[0]);
    if (!table->slot || !table->bucket) {
        ek_http_conns_fini(table);
        return EK_ENOMEM;
    }
    for (int32_t i = 0; i < n_slots; i++) {
        table->slot[i].slot = i;
        table->slot[i].next = i + 1 < n_slots ? i + 1 : NONE;
        table->bucket[i] = NONE;
    }
    return EK_OK;
}

void ek_http_conns_fini(ek_conn_table *table)
{
    for (int32_t i = 0; table->slot && i < table->n_slots; i++)
        ek_sys_free(table->slot[i].head_text);
    ek_sys_free(table->slot);
    ek_sys_free(table->bucket);
    ek_sys_free(table->slot_of_fd);
    *table = (ek_conn_table){0};
}

/*
 * The map from descriptor to slot grows with the highest descriptor seen; the kernel hands out the
 * lowest free.
 */
static bool map_fd(ek_conn_table *table, int fd, int32_t slot)
{
    if (fd >= table->n_fds) {
        int32_t n = table->n_fds ? table->n_fds : 64;
        while (n <= fd)
            n *= 2;
        int32_t *map = ek_sys_realloc(table->slot_of_fd, (size_t)n * sizeof *map);
        if (!map) return false;
        for (int32_t i = table->n_fds; i < n; i++)
            map[i] = NONE;
        table->slot_of_fd = map;
        table->n_fds = n;
    }
    table->slot_of_fd[fd] = slot;
    return true;
}

static int32_t bucket_of(const ek_conn_table *table, const uint8_t ip[16])
{
    uint64_t half[2];
    memcpy(half, ip, sizeof half);
    return (int32_t)(ek_mix64(half[0] ^ ek_mix64(half[1])) % (uint64_t)table->n_buckets);
}

ek_conn *ek_http_conns_take(ek_conn_table *table, int fd, const uint8_t ip[16])
{
    int32_t slot = table->free_head;
    if (slot == NONE || table->n_used == table->n_slots || !map_fd(table, fd, slot)) return NULL;
    ek_conn *conn = &table->slot[slot];
    ek_assert(conn->state == EK_CONN_FREE);
    table->free_head = conn->next;
    table->n_used++;
    *conn = (ek_conn){
        .state = EK_CONN_HEAD,
        .generation = conn->generation + 1,
        .slot = slot,
        .fd = fd,
        .head_text = conn->head_text,
        .head_cap = conn->head_cap,
        .ip_bucket = bucket_of(table, ip),
        .prev = NONE,
    };
    memcpy(conn->ip, ip, sizeof conn->ip);
    int32_t *first = &table->bucket[conn->ip_bucket];
    conn->next = *first;
    if (*first != NONE) table->slot[*first].prev = slot;
    *first = slot;
    return conn;
}

void ek_http_conns_release(ek_conn_table *table, ek_conn *conn)
{
    ek_assert(conn->state != EK_CONN_FREE);
    table->slot_of_fd[conn->fd] = NONE;
    if (conn->next != NONE) table->slot[conn->next].prev = conn->prev;
    if (conn->prev != NONE) {
        table->slot[conn->prev].next = conn->next;
    } else {
        table->bucket[conn->ip_bucket] = conn->next;
    }
    conn->state = EK_CONN_FREE;
    conn->mhd = NULL;
    conn->exchange = NULL;
    conn->next = table->free_head;
    table->free_head = conn->slot;
    table->n_used--;
}

ek_conn *ek_http_conns_find(ek_conn_table *table, int32_t slot, uint32_t generation)
{
    ek_assert(slot >= 0 && slot < table->n_slots);
    ek_conn *conn = &table->slot[slot];
    return conn->state != EK_CONN_FREE && conn->generation == generation ? conn : NULL;
}

ek_conn *ek_http_conns_by_fd(ek_conn_table *table, int fd)
{
    if (fd < 0 || fd >= table->n_fds || table->slot_of_fd[fd] == NONE) return NULL;
    return &table->slot[table->slot_of_fd[fd]];
}

int32_t ek_http_conns_of_ip(const ek_conn_table *table, const uint8_t ip[16], int32_t max)
{
    int32_t n = 0;
    int32_t slot = table->bucket[bucket_of(table, ip)];
    for (; slot != NONE && n < max; slot = table->slot[slot].next)
        if (memcmp(table->slot[slot].ip, ip, 16) == 0) n++;
    return n;
}

ek_status ek_http_conn_keep_head(ek_conn *conn, ek_str text)
{
    if (text.len > conn->head_cap) {
        char *grown = ek_sys_realloc(conn->head_text, text.len);
        if (!grown) return EK_ENOMEM;
        conn->head_text = grown;
        conn->head_cap = text.len;
    }
    memcpy(conn->head_text, text.data, text.len);
    return EK_OK;
}
