/*
 * A line between two network namespaces that can be slow, narrow, lossy or cut: what netem is for,
 * where a kernel has no netem.
 *
 *   tun_line NEAR FAR      IPv4 addresses of the two ends
 *
 * The near end is a TUN device in the namespace that it is started in. It makes a namespace of its
 * own for the far end, stays in it (so that `nsenter --net=/proc/PID/ns/net` leads there), and
 * carries packets between the two. Nothing has a name in any file system: devices and namespaces
 * go with the processes that use them, whatever ends those.
 *
 * Standard input takes one command a line; each is answered by `ok` or by what is wrong:
 *   delay MS               of each packet, one way (0)
 *   rate BYTES_PER_S       of each direction; 0: as fast as it goes (0)
 *   loss PERCENT           of packets, drawn from a fixed seed (0)
 *   cut, restore           nothing gets through, nor does what was under way; as before
 *   count                  answers `carried N lost N full N` packets since it started
 * Its end ends the line. Exit codes: 0, 77 namespaces or TUN devices are not to be had here (the
 * reason is on standard error), 1 otherwise.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define PACKET_BYTES 1500
#define QUEUE_MAX    512 /* packets under way in one direction, then they are dropped */
#define EXIT_SKIP    77

typedef struct packet {
    int64_t due_us;
    size_t len;
    uint8_t bytes[PACKET_BYTES];
} packet;

/* One direction: a ring of packets, due in the order in which they came. */
typedef struct way {
    int from, to;
    packet *queue; /* (QUEUE_MAX) */
    uint32_t head, n;
    int64_t free_us; /* the line has sent all before */
} way;

typedef struct line {
    way ways[2];
    int64_t delay_us;
    int64_t rate; /* bytes a second; 0: any */
    double loss;  /* 0..1 */
    bool is_cut;
    uint64_t random;
    long long n_carried, n_lost, n_full;
} line;

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- devices ---- */

static int no_line(const char *what)
{
    bool may_not = errno == EPERM || errno == EACCES || errno == ENOENT || errno == ENODEV ||
                   errno == ENXIO || errno == ENOSPC || errno == ENOSYS;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return may_not ? EXIT_SKIP : 1;
}

static bool set_address(int sock, struct ifreq *request, unsigned long op, const char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, address, &in.sin_addr) != 1) {
        errno = EINVAL;
        return false;
    }
    memcpy(&request->ifr_addr, &in, sizeof in);
    return ioctl(sock, op, request) == 0;
}

static bool set_up(int sock, struct ifreq *request)
{
    request->ifr_flags = IFF_UP | IFF_RUNNING;
    return ioctl(sock, SIOCSIFFLAGS, request) == 0;
}

/* A TUN device of the calling process's namespace, and its loopback. @return descriptor; -1 */
static int open_end(const char *own, const char *other)
{
    struct ifreq device = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    struct ifreq loopback = {.ifr_name = "lo"};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(device.ifr_name, sizeof device.ifr_name, "line");
    bool ok = fd >= 0 && sock >= 0 && ioctl(fd, TUNSETIFF, &device) == 0 &&
              set_address(sock, &device, SIOCSIFADDR, own) &&
              set_address(sock, &device, SIOCSIFDSTADDR, other) && set_up(sock, &device) &&
              set_up(sock, &loopback);
    int error = errno;
    if (sock >= 0) close(sock);
    if (!ok && fd >= 0) close(fd);
    errno = error;
    return ok ? fd : -1;
}

/* ---- packets ---- */

static double draw(line *l)
{
    l->random ^= l->random << 13;
    l->random ^= l->random >> 7;
    l->random ^= l->random << 17;
    return (double)(l->random >> 11) * 0x1p-53;
}

static void take(line *l, way *w)
{
    uint8_t bytes[PACKET_BYTES];
    ssize_t len;
    while ((len = read(w->from, bytes, sizeof bytes)) > 0) {
        int64_t now = now_us();
        if (l->is_cut || draw(l) < l->loss) {
            l->n_lost++;
            continue;
        }
        if (w->n == QUEUE_MAX) {
            l->n_full++;
            continue;
        }
        packet *p = &w->queue[(w->head + w->n++) % QUEUE_MAX];
        if (w->free_us < now) w->free_us = now;
        if (l->rate > 0) w->free_us += len * 1000000 / l->rate;
        p->due_us = w->free_us + l->delay_us;
        p->len = (size_t)len;
        memcpy(p->bytes, bytes, p->len);
    }
}

/* What is due goes out. @return when the next one is; INT64_MAX: none is under way */
static int64_t give(line *l, way *w)
{
    while (w->n > 0) {
        const packet *p = &w->queue[w->head];
        if (p->due_us > now_us()) return p->due_us;
        if (write(w->to, p->bytes, p->len) == (ssize_t)p->len)
            l->n_carried++;
        else
            l->n_full++;
        w->head = (w->head + 1) % QUEUE_MAX;
        w->n--;
    }
    return INT64_MAX;
}

/* ---- commands ---- */

/* Packets under way keep to what is new, too. */
static void set_pace(line *l, int64_t delay_us, int64_t rate)
{
    int64_t latest = now_us() + delay_us;
    l->delay_us = delay_us;
    l->rate = rate;
    for (int i = 0; i < 2; i++) {
        way *w = &l->ways[i];
        w->free_us = 0;
        for (uint32_t k = 0; k < w->n; k++) {
            packet *p = &w->queue[(w->head + k) % QUEUE_MAX];
            if (p->due_us > latest) p->due_us = latest;
        }
    }
}

static void set_cut(line *l, bool is_cut)
{
    l->is_cut = is_cut;
    for (int i = 0; i < 2; i++) {
        l->n_lost += l->ways[i].n;
        l->ways[i].n = 0;
        l->ways[i].free_us = 0;
    }
}

static void obey(line *l, const char *command)
{
    char word[16] = "", rest[2] = "";
    double value = -1;
    int n = sscanf(command, "%15s %lf %1s", word, &value, rest);
    bool has_value = n == 2 && value >= 0;
    if (has_value && strcmp(word, "delay") == 0) {
        set_pace(l, (int64_t)(value * 1000), l->rate);
    } else if (has_value && strcmp(word, "rate") == 0) {
        set_pace(l, l->delay_us, (int64_t)value);
    } else if (has_value && strcmp(word, "loss") == 0) {
        l->loss = value / 100;
    } else if (n == 1 && strcmp(word, "cut") == 0) {
        set_cut(l, true);
    } else if (n == 1 && strcmp(word, "restore") == 0) {
        set_cut(l, false);
    } else if (n == 1 && strcmp(word, "count") == 0) {
        printf("carried %lld lost %lld full %lld\n", l->n_carried, l->n_lost, l->n_full);
        return;
    } else {
        printf("not a command: %s\n", word);
        return;
    }
    printf("ok\n");
}

/* @return false: there will be no more */
static bool take_commands(line *l)
{
    static char text[256]; /* of a command that is not complete yet */
    static size_t len;
    ssize_t n = read(STDIN_FILENO, text + len, sizeof text - 1 - len);
    if (n <= 0) return n < 0 && errno == EINTR;
    len += (size_t)n;
    text[len] = '\0';
    char *at = text, *end;
    while ((end = strchr(at, '\n')) != NULL) {
        *end = '\0';
        obey(l, at);
        at = end + 1;
    }
    len = strlen(at);
    memmove(text, at, len);
    fflush(stdout);
    return len < sizeof text - 1;
}

static void carry(line *l)
{
    for (;;) {
        int64_t due = INT64_MAX;
        for (int i = 0; i < 2; i++) {
            int64_t one = give(l, &l->ways[i]);
            if (one < due) due = one;
        }
        struct pollfd fds[] = {
            {.fd = l->ways[0].from, .events = POLLIN},
            {.fd = l->ways[1].from, .events = POLLIN},
            {.fd = STDIN_FILENO, .events = POLLIN},
        };
        int64_t wait_us = due == INT64_MAX ? 1000000 : due - now_us();
        if (wait_us < 0) wait_us = 0;
        struct timespec wait = {wait_us / 1000000, wait_us % 1000000 * 1000};
        if (ppoll(fds, 3, &wait, NULL) < 0 && errno != EINTR) return;
        for (int i = 0; i < 2; i++)
            take(l, &l->ways[i]);
        if (fds[2].revents && !take_commands(l)) return;
    }
}

int main(int argc, char **argv)
{
    line l = {.random = 0x9e3779b97f4a7c15};
    if (argc != 3) {
        fprintf(stderr, "usage: tun_line NEAR FAR\n");
        return 1;
    }
    int near = open_end(argv[1], argv[2]);
    if (near < 0) return no_line("no TUN device");
    if (unshare(CLONE_NEWNET) != 0) return no_line("no network namespace");
    int far = open_end(argv[2], argv[1]);
    if (far < 0) return no_line("no TUN device in a network namespace");
    l.ways[0] = (way){.from = near, .to = far, .queue = calloc(QUEUE_MAX, sizeof(packet))};
    l.ways[1] = (way){.from = far, .to = near, .queue = calloc(QUEUE_MAX, sizeof(packet))};
    if (!l.ways[0].queue || !l.ways[1].queue) return 1;
    printf("ready\n");
    fflush(stdout);
    carry(&l);
    return 0;
}
