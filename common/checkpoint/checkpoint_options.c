#include "common/checkpoint/checkpoint.h"

#include <stddef.h>

#define FIELD(name) offsetof(checkpoint_options, name)
static const option checkpoint_option_list[] = {
    {.name = "save",
     .argument = "FILE",
     .type = OPTION_TEXT,
     .offset = FIELD(save),
     .help = "write a checkpoint there at the end (safetensors, PyTorch's names)"},
    {.name = "save-every",
     .argument = "STEPS",
     .type = OPTION_INT,
     .offset = FIELD(save_every),
     .initial = "0",
     .high = 1e12,
     .help = "with --save: also every so many steps (0: only at the end)"},
    {.name = "load",
     .argument = "FILE",
     .type = OPTION_TEXT,
     .offset = FIELD(load),
     .help = "go on from that checkpoint, or start from parameters that PyTorch saved"},
};
const option_table checkpoint_option_table = {
    "Checkpoints", checkpoint_option_list, sizeof checkpoint_option_list / sizeof checkpoint_option_list[0]};

static status check_name(const char *option, const char *file)
{
    if (!file || *file) return STATUS_OK;
    return fail(STATUS_USAGE, "--%s: found '', allowed is the name of a file", option);
}

status checkpoint_options_check(const checkpoint_options *o)
{
    TRY(check_name("save", o->save));
    TRY(check_name("load", o->load));
    if (o->save_every > 0 && !o->save)
        return fail(STATUS_USAGE,
                    "--save-every: found %lld without --save, allowed is to name the file too",
                    (long long)o->save_every);
    return STATUS_OK;
}

bool checkpoint_due(const checkpoint_options *o, int64_t steps, bool last)
{
    if (!o->save) return false;
    return last || (o->save_every > 0 && steps > 0 && steps % o->save_every == 0);
}
