/* harness policies: how each engine can behave, and where that was read. */
#include "harness/commands/commands.h"

#include "harness/run/engines.h"

#include <stdio.h>

static status run_policies(int argc, char *argv[], int *exit_code)
{
    if (argc > 0) return fail(STATUS_USAGE, "policies: found '%s', allowed is nothing", argv[0]);
    text_buffer out = {0};
    text_append(&out, "--policy ps=P,ring=P; the first of each engine is its default\n");
    for (int e = 0; e < ENGINE_COUNT; e++) {
        const sync_engine_type *type = engine_table[e];
        text_append(&out, "\n%s\n", type->name);
        for (int i = 0; i < type->policy_count; i++) {
            const sync_policy_info *p = &type->policies[i];
            text_append(&out, "  %-18s %s\n  %-18s (%s)\n", p->name, p->summary, "", p->source);
        }
    }
    status rc = STATUS_OK;
    if (out.out_of_memory || fputs(out.data, stdout) < 0 || fflush(stdout) != 0)
        rc = fail_errno(STATUS_CANNOT_CREATE, "stdout");
    text_free(&out);
    *exit_code = 0;
    return rc;
}

const command command_policies = {"policies", "", "list the engines' policies, with their sources", run_policies, NULL};
