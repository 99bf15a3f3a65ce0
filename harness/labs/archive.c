/* Writes zip archives (PKWARE's APPNOTE.TXT): what students hand in, and autograders. The archives hold no
 * times and no owners, so equal files give equal archives. */
#include "harness/labs/grader.h"

#include "common/base/input.h"
#include "common/checkpoint/atomic_file.h"
#include "common/data/dataset.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { MOST_BYTES = 1 << 30 }; /* largest size of a file */

static void append(text_buffer *b, const void *data, size_t size)
{
    char *grown = b->out_of_memory ? NULL : realloc(b->data, b->length + size + 1);
    b->out_of_memory = !grown;
    if (!grown) return;
    memcpy(grown + b->length, data, size);
    b->data = grown;
    b->length += size;
}

/* Compresses with zlib, without zlib's header. */
static status deflate_bytes(const text_buffer *in, text_buffer *out)
{
    z_stream z = {0};
    if (in->out_of_memory || deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return fail(STATUS_SYSTEM, "lab: no memory for the archive");
    size_t bound = deflateBound(&z, in->length);
    out->data = malloc(bound + 1);
    z.next_in = (Bytef *)in->data;
    z.avail_in = (uInt)in->length;
    z.next_out = (Bytef *)out->data;
    z.avail_out = (uInt)bound;
    int rc = out->data ? deflate(&z, Z_FINISH) : Z_MEM_ERROR;
    out->length = z.total_out;
    deflateEnd(&z);
    return rc == Z_STREAM_END ? STATUS_OK : fail(STATUS_SYSTEM, "lab: no memory for the archive");
}

/* ---- zip ---- */

typedef struct zip {
    text_buffer files, directory;
    int count;
} zip;

static status zip_add(zip *z, const char *name, const text_buffer *content, bool executable)
{
    text_buffer packed = {0};
    uint32_t crc = (uint32_t)crc32(0, (const Bytef *)content->data, (uInt)content->length),
             offset = (uint32_t)z->files.length;
    uint32_t mode = (uint32_t)(S_IFREG | (executable ? 0755 : 0644)) << 16;
    uint16_t name_size = (uint16_t)strlen(name);
    TRY(deflate_bytes(content, &packed));
    uint32_t sizes[2] = {(uint32_t)packed.length, (uint32_t)content->length};
    /* Version 2.0, flag 0x800 (the name is UTF-8), method 8, time 0, date 1 January 1980. */
    uint16_t common[] = {20, 0x800, 8, 0, 0x21}, local_end[] = {name_size, 0},
             central_end[] = {name_size, 0, 0, 0, 0};
    uint16_t made_by = 3 << 8 | 20; /* Unix */
    append(&z->files, "PK\3\4", 4);
    append(&z->files, common, sizeof common);
    append(&z->files, &crc, 4);
    append(&z->files, sizes, sizeof sizes);
    append(&z->files, local_end, sizeof local_end);
    append(&z->files, name, name_size);
    append(&z->files, packed.data, packed.length);
    append(&z->directory, "PK\1\2", 4);
    append(&z->directory, &made_by, 2);
    append(&z->directory, common, sizeof common);
    append(&z->directory, &crc, 4);
    append(&z->directory, sizes, sizeof sizes);
    append(&z->directory, central_end, sizeof central_end);
    append(&z->directory, &mode, 4);
    append(&z->directory, &offset, 4);
    append(&z->directory, name, name_size);
    z->count++;
    text_free(&packed);
    return STATUS_OK;
}

static status zip_add_file(zip *z, const char *path, const char *name, bool executable)
{
    text_buffer content = {0};
    TRY(input_read(path, MOST_BYTES, &content));
    status rc = zip_add(z, name, &content, executable);
    text_free(&content);
    return rc;
}

/* Returns true if an entry of a folder goes into the archive. Sets *s to the result of stat(). */
typedef bool entry_filter(const char *path, const char *name, struct stat *s);

static bool is_visible(const char *path, const char *name, struct stat *s)
{
    return name[0] != '.' && stat(path, s) == 0;
}

/* Adds the entries of a folder that `wanted` accepts. `name` is the folder's name in the archive, or "". Adds
 * the files of subfolders, too. */
static status zip_add_folder(zip *z, const char *path, const char *name, entry_filter *wanted)
{
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) return fail_errno(STATUS_DATA, "%s", path);
    status rc = STATUS_OK;
    for (int i = 0; i < count; i++) {
        char inner_path[PATH_MAX], inner_name[PATH_MAX];
        struct stat s;
        snprintf(inner_path, sizeof inner_path, "%s/%s", path, entries[i]->d_name);
        snprintf(inner_name, sizeof inner_name, "%s%s%s", name, name[0] ? "/" : "", entries[i]->d_name);
        if (rc == STATUS_OK && wanted(inner_path, entries[i]->d_name, &s))
            rc = S_ISDIR(s.st_mode) ? zip_add_folder(z, inner_path, inner_name, wanted)
                                    : zip_add_file(z, inner_path, inner_name, false);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static status zip_write(zip *z, const char *path)
{
    uint16_t counts[] = {0, 0, (uint16_t)z->count, (uint16_t)z->count}, comment = 0;
    uint32_t where[] = {(uint32_t)z->directory.length, (uint32_t)z->files.length};
    append(&z->files, z->directory.data, z->directory.length);
    append(&z->files, "PK\5\6", 4);
    append(&z->files, counts, sizeof counts);
    append(&z->files, where, sizeof where);
    append(&z->files, &comment, sizeof comment);
    if (z->files.out_of_memory || z->directory.out_of_memory)
        return fail(STATUS_SYSTEM, "lab: no memory for the archive");
    return atomic_file_write(path, z->files.data, z->files.length);
}

/* ---- what students hand in ---- */

static bool is_handed_in(const char *path, const char *name, struct stat *s)
{
    static const char *const endings[] = {".c", ".h", ".txt", ".md", ".csv", ".json", ".svg", ".pdf"};
    for (size_t i = 0; name[0] != '.' && i < sizeof endings / sizeof endings[0]; i++)
        if (text_ends_with(name, endings[i])) return lstat(path, s) == 0 && S_ISREG(s->st_mode);
    return false;
}

status grader_pack(const char *folder, const char *path)
{
    zip z = {0};
    status rc = zip_add_folder(&z, folder, "", is_handed_in);
    if (rc == STATUS_OK && z.count == 0) rc = fail(STATUS_DATA, "%s: expected files of a lab", folder);
    if (rc == STATUS_OK) rc = zip_write(&z, path);
    text_free(&z.files);
    text_free(&z.directory);
    return rc;
}

/* Adds the Wine data set, which lab_ranks_open() reads. */
static status zip_add_wine(zip *z)
{
    dataset *set = NULL;
    TRY(dataset_open(&(dataset_config){.spec = "wine"}, &set));
    status rc = zip_add_file(z, dataset_describe(set)->files[0], "share/psring/wine_data.csv", false);
    dataset_close(&set);
    return rc;
}

/* ---- autograders: an installation in a folder of its own ---- */

static const char set_up_script[] =
    "#!/bin/sh\n"
    "# Installs what the grader needs, on the system that packed it.\n"
    "set -e\n"
    "apt-get update\n"
    "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc "
    "libc6-dev binutils libdnnl-dev libzmq5 \\\n"
    "  libprotobuf-c1 libjansson4 libxxhash0 zlib1g libgomp1\n"
    "chmod +x \"$(dirname \"$0\")/bin/harness\"\n";

/* Script for Gradescope. The student's id is the e-mail address that Gradescope has on file, so that
 * questions differ and a student cannot choose them. */
static const char run_gradescope[] =
    "#!/bin/sh\n"
    "# Grades submission/ and writes results.json into results/, in the folder of this file: /autograder.\n"
    "cd \"$(dirname \"$0\")\" || exit 1\n"
    "student=$(grep -o '\"email\": *\"[^\"]*\"' submission_metadata.json 2>/dev/null | head -n 1 | cut -d "
    "'\"' -f 4)\n"
    "mkdir -p results\n"
    "source/bin/harness lab check %d submission --format gradescope --out \"$PWD/results\"/results.json "
    "${student:+--student \"$student\"} %s\n"
    "[ -s \"$PWD/results\"/results.json ]\n";

static const char run_prairielearn[] =
    "#!/bin/sh\n"
    "# Grades /grade/student and writes results.json into /grade/results.\n"
    "out=/grade/results\n"
    "mkdir -p $out\n"
    "/grade/serverFilesCourse/labs-grader/bin/harness lab check %d /grade/student --format prairielearn "
    "--out $out/results.json %s\n"
    "[ -s $out/results.json ]\n";

status grader_autograder(const lab *l, int format, const char *hidden, const char *path)
{
    static const char *const hidden_option[] = {"--hidden source/hidden",
                                                "--hidden /grade/serverFilesCourse/labs-grader/hidden"};
    bool gradescope = strcmp(report_formats[format], "gradescope") == 0;
    char data[PATH_MAX], labs[PATH_MAX + 8], profiles[PATH_MAX + 32], tests[64];
    text_buffer set_up = {0}, run = {0}, hidden_tests = {0};
    zip z = {0};
    snprintf(tests, sizeof tests, "%d-%s.txt", l->number, l->name);
    /* Reports a missing file now, not when the first submission is graded. */
    if (hidden) TRY(grader_read_file(hidden, tests, &hidden_tests));
    text_free(&hidden_tests);
    TRY(grader_data_folder(data));
    snprintf(labs, sizeof labs, "%s/labs", data);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const char *options = hidden ? hidden_option[!gradescope] : "";
    text_append(&run, gradescope ? run_gradescope : run_prairielearn, l->number, options);
#pragma GCC diagnostic pop
    text_append(&set_up, "%s", set_up_script);
    status rc = zip_add(&z, "setup.sh", &set_up, true);
    if (rc == STATUS_OK) rc = zip_add(&z, gradescope ? "run_autograder" : "run.sh", &run, true);
    if (rc == STATUS_OK) rc = zip_add_file(&z, "/proc/self/exe", "bin/harness", true);
    if (rc == STATUS_OK) rc = zip_add_folder(&z, labs, "share/psring/labs", is_visible);
    if (rc == STATUS_OK) rc = zip_add_wine(&z);
    snprintf(profiles, sizeof profiles, "%s/common/sim/profiles", data);
    if (access(profiles, R_OK) != 0) snprintf(profiles, sizeof profiles, "%s/profiles", data);
    if (rc == STATUS_OK) rc = zip_add_folder(&z, profiles, "share/psring/profiles", is_visible);
    if (rc == STATUS_OK && hidden) rc = zip_add_folder(&z, hidden, "hidden", is_visible);
    if (rc == STATUS_OK) rc = zip_write(&z, path);
    text_free(&z.files);
    text_free(&z.directory);
    text_free(&set_up);
    text_free(&run);
    return rc;
}
