/*
 * A directory of the test's own, removed with all that is in it.
 */
#ifndef EK_TESTS_SYS_TEMP_DIR_H
#define EK_TESTS_SYS_TEMP_DIR_H

#include <stdbool.h>

#define TEMP_DIR_MAX 64

bool temp_dir_make(char out_path[TEMP_DIR_MAX]);
bool temp_dir_remove(const char *path);
/** Entries of a directory, without "." and ".."; -1 when it cannot be read. */
int temp_dir_count(const char *path);

#endif
