#include "common/base/program.h"
#include "common/data/dataset_impl.h"
#include "common/data/decoders.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Folders of the data in the source tree and in the installation. The build sets both paths. */
static const char *const folders[] = {PSRING_SOURCE_DATA, PSRING_INSTALLED_DATA};

static status find_wine(char *path, size_t size)
{
    char program[PATH_MAX];
    program_folder(program);
    for (int i = 0; i < 3; i++) {
        snprintf(path, size, "%s%s/wine_data.csv", i < 2 ? folders[i] : program,
                 i < 2 ? "" : "/../share/psring");
        if (access(path, R_OK) == 0) return STATUS_OK;
    }
    return fail(STATUS_DATA,
                "data set wine: no wine_data.csv in %s or %s; name the file with --data wine:FILE",
                folders[0], folders[1]);
}

/* Standardizes each feature to (x - mean) / deviation, with the mean and the deviation of the training part.
 * Computes in double precision. */
static void standardize(const csv_table *table, const int32_t *train, int64_t train_count, float *out)
{
    for (int64_t f = 0; f < table->features; f++) {
        const double *x = table->values + f;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < train_count; i++) sum += x[train[i] * table->features];
        double mean = sum / (double)train_count;
        for (int64_t i = 0; i < train_count; i++) {
            double centered = x[train[i] * table->features] - mean;
            squares += centered * centered;
        }
        double deviation = sqrt(squares / (double)train_count);
        if (deviation == 0) deviation = 1;
        for (int64_t i = 0; i < table->samples; i++)
            out[i * table->features + f] = (float)((x[i * table->features] - mean) / deviation);
    }
}

static status load(dataset *set, const csv_table *table, uint64_t seed)
{
    size_t values = (size_t)(table->samples * table->features);
    void *features;
    TRY(dataset_allocate(set, values * sizeof(float), &features));
    stored_part rows = {.features = features, .labels = table->labels};
    TRY(dataset_split(set, &rows, table->samples, seed));
    standardize(table, set->stored[DATA_TRAIN].picks, set->description.samples[DATA_TRAIN], features);
    set->description.form =
        (data_form){DATA_FEATURES, DATA_TARGET_CLASS, .features = table->features, .classes = table->classes};
    return STATUS_OK;
}

static status open_wine(dataset *set, const dataset_config *config, const char *argument)
{
    char found[PATH_MAX];
    const char *path;
    text_buffer file;
    csv_table table;
    if (!argument) {
        TRY(find_wine(found, sizeof found));
        argument = found;
    }
    TRY(dataset_add_file(set, argument, &path));
    TRY(file_read(path, &file));
    status result = csv_decode(path, (const uint8_t *)file.data, file.length, &table);
    text_free(&file);
    TRY(result);
    dataset_own(set, table.labels);
    result = load(set, &table, config->seed);
    free(table.values);
    return result;
}

const dataset_type dataset_wine = {"wine", "wine[:FILE]", open_wine};
