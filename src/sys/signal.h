/*
 * Process signals as something to wait for, and the word to systemd.
 */
#ifndef EK_SYS_SIGNAL_H
#define EK_SYS_SIGNAL_H

#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"

/**
 * Block INT, TERM, QUIT, HUP, USR1 for all threads started from here on and ignore PIPE.
 * @return EK_OK; EK_EINTERNAL the kernel refused
 */
EK_MUST ek_status ek_sys_signal_block(void);

/** The next signal's number, or 0 after timeout_us (< 0: for ever). */
int ek_sys_signal_wait(int64_t timeout_us);

/** Send "READY=1", "STATUS=..." to $NOTIFY_SOCKET; nothing happens where it is not set. */
void ek_sys_notify(const char *message);

#endif
