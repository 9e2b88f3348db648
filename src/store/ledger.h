/*
 * The ledger of a fetch: which shards of a manifest are complete in a directory, so that a fetch
 * that was killed goes on where it was. A small file, replaced as a whole; what it says has reached
 * the disk before, and is still checked by hash when it is used.
 */
#ifndef EK_STORE_LEDGER_H
#define EK_STORE_LEDGER_H

#include "store/manifest.h"

/**
 * @param out_done (n_shards) 1: complete
 * @return EK_OK; EK_ENOTFOUND there is none; EK_ESTALE it is of another manifest; EK_EFORMAT it is
 *         damaged; EK_EIO; EK_EACCESS; EK_ENOMEM. Only on EK_OK is out_done written.
 */
EK_MUST ek_status ek_store_ledger_read(const char *path, const ek_store_manifest *manifest,
                                       uint8_t *out_done, ek_err *err);

/** @return EK_OK; EK_ENOMEM; what ek_sys_file_write returns */
EK_MUST ek_status ek_store_ledger_write(const char *path, const ek_store_manifest *manifest,
                                        const uint8_t *done, ek_err *err);

#endif
