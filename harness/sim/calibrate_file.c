/* Where calibrated profiles lie, and how they are written. */
#include "common/checkpoint/atomic_file.h"
#include "common/sim/profile.h"
#include "harness/sim/calibrate_program.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

status calibration_file_path(const char *file, char *path, size_t size)
{
    char folder[PATH_MAX];
    TRY(sim_profile_user_folder(folder, sizeof folder));
    snprintf(path, size, "%s/%s", folder, file);
    return STATUS_OK;
}

void calibration_make_folders(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(folder, 0777);
        *at = '/';
    }
}

static status write_text(const text_buffer *text, const char *path)
{
    atomic_file file;
    if (text->out_of_memory) return fail(STATUS_SYSTEM, "no memory for a profile");
    TRY(atomic_file_open(path, &file));
    status rc = atomic_file_append(&file, text->data, text->length);
    if (rc == STATUS_OK) return atomic_file_commit(&file);
    atomic_file_abandon(&file);
    return rc;
}

status calibration_file_write(text_buffer *text, const char *path)
{
    status rc = write_text(text, path);
    text_free(text);
    return rc;
}
