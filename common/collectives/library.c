/* The libraries of collectives, and the algorithms of each. */
#include "common/base/text.h"
#include "common/collectives/collective_impl.h"

#include <string.h>

#define DECLARE(id, name) extern const collective_type collective_##id;
COLLECTIVE_LIST(DECLARE)
DECLARE(sim, "sim")
DECLARE(plan, "plan")
#undef DECLARE

#define LIBRARY(id, name) {name, &collective_##id},
static const struct {
    const char *name;
    const collective_type *type;
} libraries[] = {COLLECTIVE_LIST(LIBRARY) LIBRARY(sim, "sim") LIBRARY(plan, "plan")};
#undef LIBRARY

enum { LIBRARIES = sizeof libraries / sizeof libraries[0] };

#define NAME(upper, lower, name) name,
const char *const collective_algorithm_names[] = {
    "auto", COLLECTIVE_SHM_LIST(NAME) "tuned", "library", "tree", "hierarchical", NULL};
#undef NAME

status collective_find_library(const char *name, const collective_type **out)
{
    int index;
    TRY(text_parse_choice("collectives", name, &libraries[0].name, sizeof libraries[0], LIBRARIES, &index));
    *out = libraries[index].type;
    return STATUS_OK;
}

status collective_choose_algorithm(const char *library, collective_algorithm wanted,
                                   collective_algorithm *out)
{
    const collective_type *type;
    const char *names[COLLECTIVE_ALGORITHM_COUNT];
    char list[96];
    size_t count = 0;
    TRY(collective_find_library(library, &type));
    *out = wanted == COLLECTIVE_ALGORITHM_AUTO ? type->algorithm : wanted;
    if (type->algorithms >> *out & 1) return STATUS_OK;
    for (int a = 0; a < COLLECTIVE_ALGORITHM_COUNT; a++)
        if (type->algorithms >> a & 1) names[count++] = collective_algorithm_names[a];
    return fail(STATUS_USAGE, "--algorithm: expected %s%s with --collective %s, got '%s'",
                count > 1 ? "one of " : "", text_join(list, sizeof list, names, count), type->name,
                collective_algorithm_names[wanted]);
}

bool collective_has_algorithm(const char *library, collective_algorithm a)
{
    for (int i = 0; i < LIBRARIES; i++)
        if (strcmp(libraries[i].name, library) == 0)
            return a == COLLECTIVE_ALGORITHM_AUTO || libraries[i].type->algorithms >> a & 1;
    return false;
}
