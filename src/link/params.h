/*
 * What a configuration may say about links, on a front and on a worker alike. Defaults stand in
 * config/schema.
 */
#ifndef EK_LINK_PARAMS_H
#define EK_LINK_PARAMS_H

typedef enum ek_link_fabric_choice {
    EK_LINK_FABRIC_AUTO, /* bare within a machine, encrypted between machines */
    EK_LINK_FABRIC_TLS,
    EK_LINK_FABRIC_TCP, /* bare: for an isolated segment */
    EK_LINK_FABRIC_UCX, /* bare, over whatever UCX finds */
} ek_link_fabric_choice;

#endif
