#include "sys/signal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "sys/clock.h"

static void waited_signals(sigset_t *out_set)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1};
    sigemptyset(out_set);
    for (size_t i = 0; i < EK_COUNT_OF(signals); i++)
        sigaddset(out_set, signals[i]);
}

ek_status ek_sys_signal_block(void)
{
    sigset_t set;
    waited_signals(&set);
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR) return EK_EINTERNAL;
    return pthread_sigmask(SIG_BLOCK, &set, NULL) == 0 ? EK_OK : EK_EINTERNAL;
}

int ek_sys_signal_wait(int64_t timeout_us)
{
    sigset_t set;
    waited_signals(&set);
    int64_t now_us = ek_sys_now_us();
    int64_t until_us = timeout_us > INT64_MAX - now_us ? INT64_MAX : now_us + timeout_us;
    for (;;) {
        int number;
        if (timeout_us < 0) {
            number = sigwaitinfo(&set, NULL);
        } else {
            int64_t left_us = until_us - ek_sys_now_us();
            left_us = left_us < 0 ? 0 : left_us;
            struct timespec left = {.tv_sec = (time_t)(left_us / 1000000),
                                    .tv_nsec = left_us % 1000000 * 1000};
            number = sigtimedwait(&set, NULL, &left);
        }
        if (number > 0) return number;
        if (errno != EINTR) return 0; /* a stop and continue of the whole process interrupts, too */
    }
}

void ek_sys_notify(const char *message)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    /* A path, or '@' and the name of an abstract socket. */
    if (!path || (path[0] != '/' && path[0] != '@')) return;
    size_t len = strlen(path);
    if (len >= sizeof address.sun_path) return;
    memcpy(address.sun_path, path, len);
    if (path[0] == '@') address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    sendto(fd, message, strlen(message), MSG_NOSIGNAL, (struct sockaddr *)&address,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    close(fd);
}
