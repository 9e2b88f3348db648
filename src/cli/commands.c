#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/command.h"
#include "cli/exit.h"

/* What a newcomer needs comes first. */
static const ek_cli_command *const commands[] = {
    &ek_cli_serve,       &ek_cli_chat,      &ek_cli_status,       &ek_cli_experts, &ek_cli_models,
    &ek_cli_worker,      &ek_cli_cluster,   &ek_cli_manifest_cmd, &ek_cli_fetch,   &ek_cli_place,
    &ek_cli_lab_command, &ek_cli_calibrate, &ek_cli_tokenize,     &ek_cli_logits,  &ek_cli_check,
    &ek_cli_config,      &ek_cli_version,   &ek_cli_completion,   &ek_cli_help,
};

const ek_cli_command *ek_cli_command_at(size_t idx)
{
    return idx < EK_COUNT_OF(commands) ? commands[idx] : NULL;
}

const ek_cli_command *ek_cli_command_find(const char *name)
{
    for (size_t i = 0; i < EK_COUNT_OF(commands); i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

int ek_cli_command_unknown(const char *name)
{
    ek_nearest nearest = ek_nearest_start(ek_str_from(name));
    for (size_t i = 0; i < EK_COUNT_OF(commands); i++)
        ek_nearest_offer(&nearest, commands[i]->name);
    if (nearest.name)
        return ek_cli_fail(EK_EXIT_USAGE, "unknown command '%s'; did you mean %s?", name,
                           nearest.name);
    return ek_cli_fail(EK_EXIT_USAGE, "unknown command '%s'; see evenkeel help", name);
}

void ek_cli_command_print_all(void)
{
    printf("evenkeel %s: an inference server for Mixture-of-Experts models\n\n"
           "Usage: evenkeel COMMAND [OPTION]... [OPERAND]...\n\nCommands:\n",
           EK_VERSION);
    for (size_t i = 0; i < EK_COUNT_OF(commands); i++)
        printf("  %-12s %s\n", commands[i]->name, commands[i]->summary);
    printf("\nevenkeel COMMAND --help says more about each.\n");
}
