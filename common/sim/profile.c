/* Finds profiles, and reads the top level of their files. */
#include "common/base/input.h"
#include "common/base/program.h"
#include "common/base/text.h"
#include "common/sim/cluster.h"
#include "common/sim/profile_impl.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Folders that the build sets. The first is in the source tree, the second contains installed profiles. */
static const char *const folders[] = {PSRING_SOURCE_PROFILES, PSRING_INSTALLED_PROFILES};
enum { PROFILE_MOST_BYTES = 16 << 20 };
/* The third folder is the folder of installed profiles if the installation has been moved. The last folder
 * contains the user's profiles. */
enum { FOLDERS = 4 };

status sim_profile_user_folder(char *path, size_t size)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (data && data[0])
        snprintf(path, size, "%s/psring/profiles", data);
    else if (home && home[0])
        snprintf(path, size, "%s/.local/share/psring/profiles", home);
    else
        return fail(STATUS_CONFIG, "profiles: expected HOME or XDG_DATA_HOME in the environment");
    return STATUS_OK;
}

/* Returns folder number `index`, or "" if there is none. */
static const char *folder_number(int index, char *buffer, size_t size)
{
    char program[PATH_MAX];
    if (index < FOLDERS - 2) return folders[index];
    if (index == FOLDERS - 2) {
        program_folder(program);
        snprintf(buffer, size, "%s/../share/psring/profiles", program);
        return buffer;
    }
    if (sim_profile_user_folder(buffer, size) == STATUS_OK) return buffer;
    error_clear();
    return "";
}

static const char suffix[] = ".json";

/* Returns the length of `file` without its suffix, or 0 if it has no suffix. */
static size_t stem(const char *file)
{
    return text_ends_with(file, suffix) ? strlen(file) - strlen(suffix) : 0;
}

static bool is_path(const char *name)
{
    return strchr(name, '/') || stem(name);
}

/* ---- the names there are ---------------------------------------------------------------------- */

static status add_name(char ***names, size_t *count, const char *file, size_t length)
{
    for (size_t i = 0; i < *count; i++)
        if (strlen((*names)[i]) == length && strncmp((*names)[i], file, length) == 0) return STATUS_OK;
    char **grown = realloc(*names, (*count + 1) * sizeof *grown), *name = strndup(file, length);
    if (grown) *names = grown;
    if (!grown || !name) {
        free(name);
        return fail(STATUS_SYSTEM, "no memory for the names of profiles");
    }
    (*names)[(*count)++] = name;
    return STATUS_OK;
}

static bool is_abstract(const char *folder, const char *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    json_t *root;
    if (input_json(path, PROFILE_MOST_BYTES, &root) != STATUS_OK) error_clear();
    bool abstract = json_is_true(json_object_get(root, "abstract"));
    json_decref(root);
    return abstract;
}

static status add_folder(const char *folder, char ***names, size_t *count)
{
    DIR *dir = opendir(folder);
    if (!dir) return STATUS_OK;
    status rc = STATUS_OK;
    for (struct dirent *entry = readdir(dir); entry && rc == STATUS_OK; entry = readdir(dir)) {
        size_t length = stem(entry->d_name);
        if (length && !is_abstract(folder, entry->d_name)) rc = add_name(names, count, entry->d_name, length);
    }
    closedir(dir);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

status sim_profile_list(char ***names, size_t *count)
{
    status rc = STATUS_OK;
    *names = NULL;
    *count = 0;
    for (int i = 0; i < FOLDERS && rc == STATUS_OK; i++) {
        char folder[PATH_MAX];
        rc = add_folder(folder_number(i, folder, sizeof folder), names, count);
    }
    if (rc == STATUS_OK && *count) qsort(*names, *count, sizeof **names, by_name);
    if (rc != STATUS_OK) sim_profile_free_names(*names, *count);
    return rc;
}

void sim_profile_free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
}

static status unknown_profile(const char *name)
{
    char **names;
    size_t count;
    int index;
    TRY(sim_profile_list(&names, &count));
    status rc = text_parse_choice("profile or its file", name, (const char *const *)names, sizeof *names,
                                  count, &index);
    sim_profile_free_names(names, count);
    return rc;
}

/* ---- a file ----------------------------------------------------------------------------------- */

status profile_bad(const profile_file *f, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail(STATUS_DATA, "profile %s (%s): %s", f->name, f->path, text);
}

status profile_check_keys(const profile_file *f, const char *where, const json_t *object,
                          const char *const *allowed, size_t count)
{
    for (void *i = json_object_iter((json_t *)object); i; i = json_object_iter_next((json_t *)object, i)) {
        const char *key = json_object_iter_key(i);
        size_t k = 0;
        while (k < count && strcmp(key, allowed[k]) != 0) k++;
        char list[256];
        if (k == count)
            return profile_bad(f, "%s: expected one of %s, got '%s'", where,
                               text_join(list, sizeof list, allowed, count), key);
    }
    return STATUS_OK;
}

static status find_file(const char *name, char *path)
{
    if (is_path(name)) {
        snprintf(path, PATH_MAX, "%s", name);
        return access(path, R_OK) == 0 ? STATUS_OK
                                       : fail_errno(STATUS_USAGE, "profile %s cannot be read", name);
    }
    for (int i = 0; i < FOLDERS; i++) {
        char folder[PATH_MAX];
        snprintf(path, PATH_MAX, "%s/%s%s", folder_number(i, folder, sizeof folder), name, suffix);
        if (access(path, R_OK) == 0) return STATUS_OK;
    }
    return unknown_profile(name);
}

static status check_top(const profile_file *f, const char *asked)
{
    static const char *const keys[] = {"profile", "summary", "base", "abstract", "constants", "topology"};
    if (!json_is_object(f->root)) return profile_bad(f, "expected an object");
    TRY(profile_check_keys(f, "top level", f->root, keys, sizeof keys / sizeof keys[0]));
    const char *name = json_string_value(json_object_get(f->root, "profile"));
    if (!name) return profile_bad(f, "profile: the name is missing");
    if (!is_path(asked) && strcmp(name, asked) != 0)
        return profile_bad(f, "profile: expected the file's name, got '%s'", name);
    if (!json_is_string(json_object_get(f->root, "summary")))
        return profile_bad(f, "summary: the text is missing");
    if (!json_is_object(json_object_get(f->root, "constants")))
        return profile_bad(f, "constants: the object is missing");
    return STATUS_OK;
}

static status open_file(const char *name, int depth, profile_file *f, sim_profile *p)
{
    f->name = name;
    TRY(find_file(name, f->path));
    status rc = input_json(f->path, PROFILE_MOST_BYTES, &p->files[depth]);
    if (rc != STATUS_OK) error_context("profile");
    f->root = p->files[depth];
    return rc == STATUS_OK ? check_top(f, name) : rc;
}

/* Reads the base of a profile before the profile, so that constants of the profile replace constants of the
 * base. */
static status read_chain(const char *name, int depth, sim_profile *p)
{
    profile_file f;
    TRY(open_file(name, depth, &f, p));
    const char *base = json_string_value(json_object_get(f.root, "base"));
    if (base && depth == SIM_BASES_MOST)
        return profile_bad(&f, "base: expected a chain of at most %d profiles, got more", SIM_BASES_MOST);
    status rc = base ? read_chain(base, depth + 1, p) : STATUS_OK;
    if (rc == STATUS_USAGE) {
        error_clear();
        return profile_bad(&f, "base: expected the name of a profile, got '%s'", base);
    }
    TRY(rc);
    TRY(profile_read_constants(&f, p));
    TRY(profile_read_wiring(&f, p));
    if (depth > 0) return STATUS_OK;
    if (json_is_true(json_object_get(f.root, "abstract")))
        return profile_bad(&f, "expected a profile, got a base of profiles");
    if (p->wiring.gpus == 0) return profile_bad(&f, "topology: the object is missing");
    p->name = json_string_value(json_object_get(f.root, "profile"));
    p->summary = json_string_value(json_object_get(f.root, "summary"));
    p->file = strdup(f.path);
    if (!p->file) return fail(STATUS_SYSTEM, "no memory for profile %s", name);
    return profile_check_constants(&f, p);
}

/* Loads a profile by its name. The base of a composed profile overrides the constants of any cluster. */
static status load(sim_profile *p)
{
    const char *wiring = sim_cluster_wiring(p->asked);
    profile_file any;
    if (!wiring) return read_chain(p->asked, 0, p);
    TRY(open_file("any-cluster", SIM_BASES_MOST + 1, &any, p));
    TRY(profile_read_constants(&any, p));
    snprintf(p->gpu, sizeof p->gpu, "%.*s", (int)(wiring - 1 - p->asked), p->asked);
    status rc = read_chain(sim_cluster_profile(p->gpu), 0, p);
    if (rc == STATUS_OK) return sim_cluster_compose(p, wiring);
    if (rc != STATUS_USAGE) return rc;
    int index;
    error_clear();
    return text_parse_choice("--gpu", p->gpu, sim_gpu_names, sizeof *sim_gpu_names, SIM_GPU_NAMES, &index);
}

status sim_profile_load(const char *name, sim_profile **out)
{
    sim_profile *p = *out = calloc(1, sizeof *p);
    if (p) p->asked = strdup(name);
    status rc = p && p->asked ? load(p) : fail(STATUS_SYSTEM, "no memory for profile %s", name);
    if (rc != STATUS_OK) sim_profile_free(out);
    return rc;
}

void sim_profile_free(sim_profile **profile)
{
    sim_profile *p = *profile;
    if (!p) return;
    for (int i = 0; i <= SIM_BASES_MOST + 1; i++) json_decref(p->files[i]);
    free(p->asked);
    free(p->file);
    free(p);
    *profile = NULL;
}

status sim_profile_keep_adapters(sim_profile *p, int count)
{
    sim_wiring *w = &p->wiring;
    int numbers[SIM_NODES_MOST], nodes = 0, links = 0; /* new number of each node, or -1 */
    if (count == 0) return STATUS_OK;
    if (count > w->nics)
        return fail(STATUS_CONFIG, "--adapters: expected at most %d for profile %s, got %d", w->nics, p->name,
                    count);
    for (int i = 0; i < w->node_count; i++) {
        bool kept = w->nodes[i].kind != SIM_NODE_NIC || w->nodes[i].index < count;
        numbers[i] = kept ? nodes : -1;
        if (kept) w->nodes[nodes++] = w->nodes[i];
    }
    for (int l = 0; l < w->link_count; l++) {
        sim_link link = w->links[l];
        link.a = numbers[link.a];
        link.b = numbers[link.b];
        if (link.a >= 0 && link.b >= 0) w->links[links++] = link;
    }
    w->node_count = nodes;
    w->link_count = links;
    w->nics = count;
    return STATUS_OK;
}
