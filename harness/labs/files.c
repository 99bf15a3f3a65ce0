/* Reads and writes files of labs and students. */
#include "harness/labs/grader.h"

#include "common/base/input.h"
#include "common/base/program.h"
#include "common/base/random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_FILE = 1 << 20 };

status grader_data_folder(char out[PATH_MAX])
{
    char program[PATH_MAX], path[PATH_MAX + 32];
    program_folder(program);
    /* Looks first in the folder of the installation or autograder, which may have been moved, then in the
     * source tree. */
    for (int i = 0; i < 2; i++) {
        snprintf(out, PATH_MAX, "%s%s", i ? PSRING_SOURCE_LABS : program, i ? "" : "/../share/psring");
        snprintf(path, sizeof path, "%s/labs/lab.h", out);
        if (access(path, R_OK) == 0) return STATUS_OK;
    }
    return fail(STATUS_DATA, "lab: expected labs/lab.h in %s", out);
}

status grader_read_file(const char *folder, const char *name, text_buffer *out)
{
    char path[PATH_MAX];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return fail_errno(STATUS_DATA, "%s", path);
    status rc = STATUS_OK;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size > MOST_FILE)
        rc = fail(STATUS_DATA, "%s: expected a file of at most 1 MiB", path);
    if (rc == STATUS_OK) rc = input_read_fd(fd, path, MOST_FILE, out);
    close(fd);
    if (rc != STATUS_OK || !memchr(out->data, 0, out->length)) return rc;
    text_free(out);
    return fail(STATUS_DATA, "%s: expected text", path);
}

static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    for (char *end = text + strlen(text); end > text && strchr(" \t\r", end[-1]); end--) end[-1] = 0;
    return text;
}

static void read_pairs(grader *g)
{
    char *rest = NULL;
    if (grader_read_file(g->folder, "answers.txt", &g->answers_text) != STATUS_OK)
        error_clear(); /* It is no error if the student has not written the file yet. */
    char *text = g->answers_text.data;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strchr(line, '=');
        line = trim(line);
        if (line[0] == '#' || !equals || g->answer_count == LAB_MOST_ANSWERS) continue;
        *equals = 0;
        g->answers[g->answer_count][0] = trim(line);
        g->answers[g->answer_count++][1] = trim(equals + 1);
    }
}

const char *grader_answer(const grader *g, const char *key)
{
    for (int i = 0; i < g->answer_count; i++)
        if (strcmp(g->answers[i][0], key) == 0) return g->answers[i][1];
    return NULL;
}

void grader_read_answers(grader *g)
{
    text_buffer hours = {0};
    char *end = NULL;
    read_pairs(g);
    const char *student = grader_answer(g, "student");
    if (!g->student[0])
        snprintf(g->student, sizeof g->student, "%s", student && student[0] ? student : "student");
    g->hours = -1;
    if (grader_read_file(g->folder, "time.txt", &hours) == STATUS_OK) {
        double value = strtod(hours.data, &end);
        if (end != hours.data && value >= 0 && isfinite(value)) g->hours = value;
    }
    error_clear();
    text_free(&hours);
}

/* Writes a new file. Leaves an existing file unchanged, and says so in `out`. */
static status write_new(const char *folder, const char *name, const text_buffer *text, text_buffer *out)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wxe");
    if (!file && errno == EEXIST) {
        text_append(out, "kept %s: it is there already\n", path);
        return STATUS_OK;
    }
    if (!file) return fail_errno(STATUS_CANNOT_CREATE, "%s", path);
    bool written = fwrite(text->data, 1, text->length, file) == text->length;
    if (fclose(file) != 0 || !written) {
        status rc = fail_errno(STATUS_IO, "%s", path);
        unlink(path); /* Another start would keep the file. */
        return rc;
    }
    text_append(out, "%s\n", path);
    return STATUS_OK;
}

static status copy_folder(const char *from, const char *to, text_buffer *out)
{
    struct dirent **entries;
    int count = scandir(from, &entries, NULL, alphasort);
    status rc = count < 0 ? fail_errno(STATUS_DATA, "%s", from) : STATUS_OK;
    for (int i = 0; i < count; i++) {
        text_buffer text = {0};
        const char *name = entries[i]->d_name;
        if (rc == STATUS_OK && name[0] != '.') {
            rc = grader_read_file(from, name, &text);
            if (rc == STATUS_OK) rc = write_new(to, name, &text, out);
        }
        text_free(&text);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return rc;
}

status grader_start(const lab *l, const char *folder, const char *student, text_buffer *out)
{
    char data[PATH_MAX], from[PATH_MAX + 96];
    text_buffer answers = {0}, hours = {0};
    TRY(grader_data_folder(data));
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return fail_errno(STATUS_CANNOT_CREATE, "%s", folder);
    snprintf(from, sizeof from, "%s/labs/%d-%s", data, l->number, l->name);
    status rc = copy_folder(from, folder, out);
    if (rc == STATUS_OK) {
        const char *only = l->source ? " -k why" : ""; /* without code there are only questions */
        text_append(&answers,
                    "# Answers to lab %d: a value after each '='. `harness lab check %d%s` checks "
                    "them.\nstudent = %s\n\n",
                    l->number, l->number, only, student);
        l->questions(random_fnv1a64(student), &answers);
        rc = write_new(folder, "answers.txt", &answers, out);
    }
    if (rc == STATUS_OK) rc = write_new(folder, "time.txt", &hours, out);
    text_free(&answers);
    return rc;
}
