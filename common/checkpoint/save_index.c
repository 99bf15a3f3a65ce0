#include "common/checkpoint/atomic_file.h"
#include "common/checkpoint/checkpoint_impl.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- names ------------------------------------------------------------------------------------ */

/* The index of the save before may be damaged: all that matters is which files it could name. */
status checkpoint_choose_set(const char *index, char *set)
{
    char buffer[1 << 14];
    size_t bytes;
    *set = 'a';
    FILE *file = fopen(index, "rbe");
    if (!file) return STATUS_OK;
    while (*set == 'a' && (bytes = fread(buffer, 1, sizeof buffer - 1, file)) > 0) {
        if (memmem(buffer, bytes, "-a-00001-of-", 12)) *set = 'b';
        if (bytes < sizeof buffer - 1) break;
        fseek(file, -12, SEEK_CUR); /* the name may lie across the border */
    }
    fclose(file);
    return STATUS_OK;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- the files -------------------------------------------------------------------------------- */

status checkpoint_probe_file(const checkpoint_file *file)
{
    char path[CHECKPOINT_PATH_MAX];
    if (strlen(file->index) > CHECKPOINT_PATH_MAX - 64)
        return fail(STATUS_CANNOT_CREATE, "%.200s...: expected a path of at most %d bytes", file->index,
                    CHECKPOINT_PATH_MAX - 64);
    if (file->number == 0) TRY(checkpoint_probe(file->index));
    return checkpoint_probe(index_file_path(file, path));
}

void checkpoint_drop_file(const checkpoint_file *file)
{
    char path[CHECKPOINT_PATH_MAX];
    unlink(index_file_path(file, path));
}

/* Ranks of several hosts may have written to several folders. */
static status look_for(const checkpoint_file *file, uint64_t hash)
{
    char path[CHECKPOINT_PATH_MAX];
    checkpoint *c;
    TRY(checkpoint_open(index_file_path(file, path), &c));
    uint64_t found;
    status rc = checkpoint_header_hash(c, &found);
    if (rc == STATUS_OK && found != hash)
        rc = fail(STATUS_DATA,
                  "%s: expected the file that rank %d wrote, got another; all ranks need one folder", path,
                  file->number);
    checkpoint_close(&c);
    return rc;
}

/* ---- the index -------------------------------------------------------------------------------- */

static int add_files(json_t *files, const checkpoint_file *of, const uint64_t *hashes)
{
    int failures = 0;
    for (checkpoint_file f = *of; f.number < f.count; f.number++) {
        char path[CHECKPOINT_PATH_MAX], digits[METADATA_HASH_DIGITS + 1];
        if (hashes[f.number] == 0) continue;
        snprintf(digits, sizeof digits, "%016" PRIx64, hashes[f.number]);
        failures += json_object_set_new(files, name_of(index_file_path(&f, path)), json_string(digits));
    }
    return failures;
}

static int add_tensors(json_t *map, const checkpoint_file *of, const checkpoint_subject *subject,
                       const checkpoint_contents *contents)
{
    int failures = 0;
    checkpoint_file f = *of;
    for (int i = 0; i < contents->count; i++) {
        char path[CHECKPOINT_PATH_MAX];
        f.number = checkpoint_file_of(subject, contents, &contents->tensors[i], f.count);
        failures += json_object_set_new(map, contents->tensors[i].name,
                                        json_string(name_of(index_file_path(&f, path))));
    }
    return failures;
}

/* NULL without memory, or if the name is not UTF-8. */
static char *encode(const checkpoint_file *files, const checkpoint_subject *subject,
                    const checkpoint_contents *contents, const uint64_t *hashes)
{
    json_t *json = json_object(), *metadata = json_object(), *named = json_object(), *map = json_object();
    char *text = NULL;
    int failures = add_files(named, files, hashes) + add_tensors(map, files, subject, contents);
    failures += json_object_set_new(metadata, "total_size", json_integer(contents->data_bytes));
    failures += json_object_set_new(metadata, METADATA_HEADER_HASH, json_string("0000000000000000"));
    failures += json_object_set_new(metadata, INDEX_FILES, named);
    failures += json_object_set_new(json, "metadata", metadata);
    failures += json_object_set_new(json, "weight_map", map);
    if (failures == 0) text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return text;
}

static status seal(const char *path, char *text)
{
    char digits[METADATA_HASH_DIGITS + 1];
    uint64_t hash;
    int64_t bytes = (int64_t)strlen(text);
    TRY(metadata_hash_header(text, bytes, &hash));
    char *at = metadata_hash_digits(text, bytes, METADATA_HEADER_HASH);
    if (!at) return fail(STATUS_INTERNAL, "%s: the index has no digits for its checksum", path);
    snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    memcpy(at, digits, METADATA_HASH_DIGITS);
    return STATUS_OK;
}

static status write_index(const char *path, const char *text)
{
    atomic_file file;
    TRY(atomic_file_open(path, &file));
    status rc = atomic_file_append(&file, text, strlen(text));
    if (rc == STATUS_OK) rc = atomic_file_commit(&file);
    atomic_file_abandon(&file);
    return rc;
}

/* ---- files of earlier saves, also of those that were killed --------------------------------------- */

static bool skip_number(const char **at)
{
    const char *begin = *at;
    while (isdigit((unsigned char)**at)) ++*at;
    return *at - begin >= 5;
}

static bool skip_text(const char **at, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(*at, text, length) != 0) return false;
    *at += length;
    return true;
}

/* NAME-a-00001-of-00004.safetensors of any set and numbers, also unfinished. */
static bool is_of_save(const char *name, const char *stem, size_t length)
{
    if (strncmp(name, stem, length) != 0) return false;
    name += length;
    if (!skip_text(&name, "-a-") && !skip_text(&name, "-b-")) return false;
    if (!skip_number(&name) || !skip_text(&name, "-of-") || !skip_number(&name)) return false;
    return strcmp(name, ".safetensors") == 0 || strcmp(name, ".safetensors.partial") == 0;
}

static bool is_present(const checkpoint_file *files, const uint64_t *hashes, const char *name)
{
    for (checkpoint_file f = *files; f.number < f.count; f.number++) {
        char path[CHECKPOINT_PATH_MAX];
        if (hashes[f.number] != 0 && strcmp(name_of(index_file_path(&f, path)), name) == 0) return true;
    }
    return false;
}

/* Those that cannot be removed stay: the checkpoint is whole without that. */
static void remove_old_files(const checkpoint_file *files, const uint64_t *hashes)
{
    char folder_path[CHECKPOINT_PATH_MAX];
    const char *stem = name_of(files->index);
    DIR *folder = opendir(index_path_of(files->index, ".", folder_path));
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (is_of_save(entry->d_name, stem, strlen(stem) - strlen(INDEX_SUFFIX)) &&
            !is_present(files, hashes, entry->d_name))
            unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
}

status checkpoint_save_index(const checkpoint_file *files, const checkpoint_subject *subject,
                             const uint64_t *hashes)
{
    checkpoint_contents contents = {0};
    checkpoint_file f = *files;
    for (f.number = 0; f.number < f.count; f.number++)
        if (hashes[f.number] != 0) TRY(look_for(&f, hashes[f.number]));
    f.number = 0;
    TRY(checkpoint_contents_make(subject->model, subject->type, subject->optimizer, &contents));
    char *text = encode(&f, subject, &contents, hashes);
    status rc = text ? seal(f.index, text)
                     : fail(STATUS_SYSTEM, "%s: no memory for an index, or its name is not UTF-8", f.index);
    if (rc == STATUS_OK) rc = write_index(f.index, text);
    if (rc == STATUS_OK) remove_old_files(&f, hashes);
    free(text);
    checkpoint_contents_free(&contents);
    return rc;
}
