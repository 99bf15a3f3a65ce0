#include "common/data/data_options.h"

#include "common/data/loader.h"
#include "common/data/sampler.h"

static const char *const sampler_names[] = {
    [SAMPLER_DISTRIBUTED] = "distributed", [SAMPLER_GLOBAL] = "global", [SAMPLER_GLOBAL + 1] = NULL};

static const option options[] = {
    {.name = "data",
     .argument = "SET",
     .type = OPTION_TEXT,
     .offset = offsetof(data_options, data),
     .initial = "synthetic",
     .help = "wine[:FILE], fashion-mnist[:DIR], mnist:DIR, idx:IMAGES,LABELS, cifar10:DIR or "
             "synthetic[:SHAPE[:CLASSES]]"},
    {.name = "batch",
     .argument = "N",
     .type = OPTION_INT,
     .offset = offsetof(data_options, batch),
     .initial = "32",
     .low = 1,
     .high = 1 << 20,
     .help = "samples a rank and step"},
    {.name = "sampler",
     .type = OPTION_CHOICE,
     .offset = offsetof(data_options, sampler),
     .initial = "distributed",
     .choices = sampler_names,
     .help = "each rank batches its share of the epoch, or batches of all ranks are cut in chunks"},
    {.name = "drop-last",
     .type = OPTION_FLAG,
     .offset = offsetof(data_options, drop_last),
     .help = "drop what does not fill the ranks or a batch, instead of repeating and smaller batches"},
    {.name = "augment",
     .argument = "none|crop|flip|crop,flip",
     .type = OPTION_TEXT,
     .offset = offsetof(data_options, augment),
     .initial = "none",
     .help = "training images: random window with a border of 4 pixels, random left to right"},
    {.name = "loader-threads",
     .argument = "N",
     .type = OPTION_INT,
     .offset = offsetof(data_options, loader_threads),
     .initial = "1",
     .low = 0,
     .high = LOADER_MAX_THREADS,
     .help = "threads that prepare batches ahead; 0: none is prepared ahead"},
};

const option_table data_option_table = {
    .title = "Data", .options = options, .count = sizeof options / sizeof options[0]};
