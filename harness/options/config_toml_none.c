#include "harness/options/config_toml.h"

status config_toml_to_json(const char *path, const char *text, size_t length, char **out)
{
    (void)text, (void)length, (void)out;
    return fail(STATUS_UNAVAILABLE, "--config: %s: expected JSON: this program was built without toml++",
                path);
}
