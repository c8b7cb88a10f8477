/* Chooses algorithm, protocol and channels of NCCL's large collectives, as environment variables say, through NCCL's
 * tuner interface (ncclTunerPlugin_v3 and _v4: NCCL 2.22 and later).
 *
 * FLEET_NCCL_ALLREDUCE, FLEET_NCCL_ALLGATHER, FLEET_NCCL_REDUCESCATTER hold `algorithm/protocol`; FLEET_NCCL_CHANNELS a
 * number for those of them that are a ring or a tree. Every rank has the same variables, and what is chosen depends on
 * nothing else than them and NCCL's own table: so all ranks of a communicator choose alike.
 *
 * A choice is made by giving its place in NCCL's table of costs the lowest one. A place that NCCL marked as impossible
 * (-1) stays so, and then NCCL chooses by itself. LL128 is no word of ours: forcing it corrupts data on hardware
 * without its guarantees.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int result_t;                /* ncclResult_t: 0 is success. */
typedef int collective_t;            /* ncclFunc_t */
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

enum { ALLGATHER = 2, REDUCESCATTER = 3, ALLREDUCE = 4, COLLECTIVES = 5 };
enum { LL128 = 1 };
enum { LEAST_BYTES = 65536, MOST_CHANNELS = 32 };

static const char *const ALGORITHMS[] = {"tree", "ring", "", "", "nvls", "nvlstree", "pat"}; /* by NCCL's numbers */
static const char *const PROTOCOLS[] = {"ll", "", "simple"};
static const char *const VARIABLES[COLLECTIVES] = {[ALLGATHER] = "FLEET_NCCL_ALLGATHER",
                                                   [REDUCESCATTER] = "FLEET_NCCL_REDUCESCATTER",
                                                   [ALLREDUCE] = "FLEET_NCCL_ALLREDUCE"};

typedef struct {
    int algorithm, protocol; /* -1: NCCL's own */
    int channels;            /* 0: NCCL's own */
} choice_t;

/* Read by the runtime, which proves with them that a choice was in force. By collective. */
long fleet_chosen[COLLECTIVES];
long fleet_impossible[COLLECTIVES];
long fleet_narrowed[COLLECTIVES];

static int find(const char *word, size_t length, const char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (length > 0 && strlen(words[i]) == length && strncmp(words[i], word, length) == 0) return i;
    return -1;
}

static choice_t read_choice(const char *text, const char *channels) {
    choice_t none = {-1, -1, 0}, choice = none;
    const char *slash = text ? strchr(text, '/') : NULL;
    if (!slash) return none;
    choice.algorithm = find(text, (size_t)(slash - text), ALGORITHMS, sizeof ALGORITHMS / sizeof *ALGORITHMS);
    choice.protocol = find(slash + 1, strlen(slash + 1), PROTOCOLS, sizeof PROTOCOLS / sizeof *PROTOCOLS);
    if (choice.algorithm < 0 || choice.protocol < 0 || choice.protocol == LL128) return none;
    int wanted = channels ? atoi(channels) : 0;
    if (choice.algorithm <= 1 && wanted > 0) choice.channels = wanted < MOST_CHANNELS ? wanted : MOST_CHANNELS;
    return choice;
}

/* One for each communicator, read when it is made. */
static result_t begin(size_t ranks, size_t nodes, logger_t log, void **context) {
    (void)ranks, (void)nodes, (void)log;
    choice_t *choices = malloc(COLLECTIVES * sizeof *choices);
    if (!choices) return 1;
    for (int i = 0; i < COLLECTIVES; i++)
        choices[i] = read_choice(VARIABLES[i] ? getenv(VARIABLES[i]) : NULL, getenv("FLEET_NCCL_CHANNELS"));
    *context = choices;
    return 0;
}

static result_t choose(const choice_t *choices, collective_t collective, size_t bytes, float *costs, int algorithms,
                       int protocols, int *channels) {
    if (!choices || collective < 0 || collective >= COLLECTIVES || bytes < LEAST_BYTES) return 0;
    choice_t choice = choices[collective];
    if (choice.algorithm < 0 || choice.algorithm >= algorithms || choice.protocol >= protocols) return 0;
    float *cost = &costs[choice.algorithm * protocols + choice.protocol];
    if (*cost < 0.0f) {
        __atomic_fetch_add(&fleet_impossible[collective], 1, __ATOMIC_RELAXED);
        return 0;
    }
    *cost = 0.0f;
    if (choice.channels > 0) {
        *channels = choice.channels;
        __atomic_fetch_add(&fleet_narrowed[collective], 1, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&fleet_chosen[collective], 1, __ATOMIC_RELAXED);
    return 0;
}

/* The table comes as float **, and is an array of arrays in one piece. */
static result_t choose_v3(void *context, collective_t collective, size_t bytes, int operations, float **costs,
                          int algorithms, int protocols, int *channels) {
    (void)operations;
    return choose(context, collective, bytes, (float *)costs, algorithms, protocols, channels);
}

static result_t choose_v4(void *context, collective_t collective, size_t bytes, int operations, float **costs,
                          int algorithms, int protocols, int is_registered, int *channels) {
    (void)operations, (void)is_registered;
    return choose(context, collective, bytes, (float *)costs, algorithms, protocols, channels);
}

static result_t end(void *context) {
    free(context);
    return 0;
}

typedef struct {
    const char *name;
    result_t (*init)(size_t, size_t, logger_t, void **);
    result_t (*getCollInfo)(void *, collective_t, size_t, int, float **, int, int, int *);
    result_t (*destroy)(void *);
} tuner_v3_t;

typedef struct {
    const char *name;
    result_t (*init)(size_t, size_t, logger_t, void **);
    result_t (*getCollInfo)(void *, collective_t, size_t, int, float **, int, int, int, int *);
    result_t (*destroy)(void *);
} tuner_v4_t;

const tuner_v3_t ncclTunerPlugin_v3 = {"Fleet Advisor", begin, choose_v3, end};
const tuner_v4_t ncclTunerPlugin_v4 = {"Fleet Advisor", begin, choose_v4, end};
