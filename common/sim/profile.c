#include "common/sim/profile_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BASES = 4 };

/* Bases first, so that what extends them replaces. */
static status read_chain(const char *name, int depth, sim_profile *p)
{
    profile_file f;
    TRY(profile_file_open(name, &f));
    status rc = STATUS_OK;
    const char *base = json_string_value(json_object_get(f.root, "base"));
    if (base && depth == MOST_BASES) {
        rc = profile_bad(&f, "base: expected a chain of at most %d profiles, got more", MOST_BASES);
        goto out;
    }
    if (base) rc = read_chain(base, depth + 1, p);
    if (rc == STATUS_USAGE) {
        error_clear();
        rc = profile_bad(&f, "base: expected the name of a profile, got '%s'", base);
    }
    if (rc != STATUS_OK) goto out;
    TRY_GOTO(rc, profile_read_constants(&f, p), out);
    TRY_GOTO(rc, profile_read_wiring(&f, p), out);
    if (depth > 0) goto out;
    if (json_is_true(json_object_get(f.root, "abstract"))) {
        rc = profile_bad(&f, "expected a profile, got a base of profiles");
        goto out;
    }
    if (p->wiring.gpus == 0) {
        rc = profile_bad(&f, "topology: the object is missing");
        goto out;
    }
    TRY_GOTO(rc, profile_check_constants(&f, p), out);
    p->name = strdup(json_string_value(json_object_get(f.root, "profile")));
    p->summary = strdup(json_string_value(json_object_get(f.root, "summary")));
    p->file = strdup(f.path);
    if (!p->name || !p->summary || !p->file) rc = fail(STATUS_SYSTEM, "no memory for profile %s", name);
out:
    profile_file_close(&f);
    return rc;
}

status sim_profile_load(const char *name, sim_profile **out)
{
    *out = NULL;
    sim_profile *p = calloc(1, sizeof *p);
    if (!p) return fail(STATUS_SYSTEM, "no memory for profile %s", name);
    status rc = read_chain(name, 0, p);
    if (rc != STATUS_OK) sim_profile_free(&p);
    *out = p;
    return rc;
}

void sim_profile_free(sim_profile **profile)
{
    sim_profile *p = *profile;
    if (!p) return;
    for (int c = 0; c < SIM_CONSTANT_COUNT; c++) {
        free(p->provenance[c].tag);
        free(p->provenance[c].source);
        free(p->provenance[c].from);
    }
    profile_free_wiring(&p->wiring);
    free(p->name);
    free(p->summary);
    free(p->file);
    free(p);
    *profile = NULL;
}
