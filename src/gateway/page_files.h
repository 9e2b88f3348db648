/*
 * The files of web/ as data. The table is written by web/embed.py when the program is built.
 */
#ifndef EK_GATEWAY_PAGE_FILES_H
#define EK_GATEWAY_PAGE_FILES_H

#include <stddef.h>
#include <stdint.h>

typedef struct ek_page_entry {
    const char *name; /* "index.html" */
    const char *type; /* content type */
    const unsigned char *data;
    size_t bytes;
} ek_page_entry;

extern const ek_page_entry ek_gateway_page_file[]; /* (ek_gateway_page_n_files) */
extern const int32_t ek_gateway_page_n_files;

#endif
