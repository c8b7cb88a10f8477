/* Chooses algorithm, protocol and channels of NCCL's large collectives, as environment variables say, through NCCL's
 * tuner interface (ncclTunerPlugin_v3 to _v6: NCCL 2.22 and later).
 *
 * FLEET_NCCL_ALLREDUCE, FLEET_NCCL_ALLGATHER, FLEET_NCCL_REDUCESCATTER hold `algorithm/protocol`, or one for each band
 * of sizes: `tree/simple@4194304+ring/simple` is a tree below 4 MiB. FLEET_NCCL_CHANNELS is a number for those of them
 * that are a ring or a tree. Every rank has the same variables, and what is chosen depends on nothing else than them,
 * NCCL's own table and what the vendor's tuner rules out: so all ranks of a communicator choose alike.
 *
 * A choice is made by giving its place in NCCL's table of costs the lowest one. A place that NCCL marked as impossible
 * (-1) stays so, and then NCCL chooses by itself. LL128 is no word of ours: forcing it corrupts data on hardware
 * without its guarantees.
 *
 * FLEET_NCCL_VENDOR names libraries, one a line, where NCCL would have found a tuner of the network's maker. The first
 * that can be opened is asked before us, always and with all that NCCL says; its answer stands wherever no choice of
 * ours is made. It is spoken to in the newest version that it and the calling NCCL both know, which NCCL would have
 * taken, too.
 */
#include <dlfcn.h>
#include <float.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result_t;                /* ncclResult_t: 0 is success. */
typedef int collective_t;            /* ncclFunc_t */
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

enum { ALLGATHER = 2, REDUCESCATTER = 3, ALLREDUCE = 4, COLLECTIVES = 5 };
enum { LL128 = 1 };
enum { LEAST_BYTES = 65536, MOST_CHANNELS = 32, BANDS = 4, NEWEST_THINKABLE = 16 };

static const char *const ALGORITHMS[] = {"tree", "ring", "", "", "nvls", "nvlstree", "pat"}; /* by NCCL's numbers */
static const char *const PROTOCOLS[] = {"ll", "", "simple"};
static const char *const VARIABLES[COLLECTIVES] = {[ALLGATHER] = "FLEET_NCCL_ALLGATHER",
                                                   [REDUCESCATTER] = "FLEET_NCCL_REDUCESCATTER",
                                                   [ALLREDUCE] = "FLEET_NCCL_ALLREDUCE"};

typedef struct {
    int algorithm, protocol; /* -1: NCCL's own */
    int channels;            /* 0: NCCL's own */
    size_t below;            /* The band's end, in bytes. */
} choice_t;

/* Read by the runtime, which proves with them that a choice was in force. By collective. */
long fleet_chosen[COLLECTIVES];
long fleet_impossible[COLLECTIVES];
long fleet_narrowed[COLLECTIVES];
long fleet_delegated[COLLECTIVES]; /* Asked of the vendor's tuner. */
int fleet_vendor_version;          /* 0: there is none, -1: it speaks none of ours. */
char fleet_vendor_name[128];

static int find(const char *word, size_t length, const char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (length > 0 && strlen(words[i]) == length && strncmp(words[i], word, length) == 0) return i;
    return -1;
}

static int read_choice(const char *text, size_t length, const char *channels, choice_t *choice) {
    const char *slash = memchr(text, '/', length), *end = text + length;
    if (!slash) return 0;
    choice->algorithm = find(text, (size_t)(slash - text), ALGORITHMS, sizeof ALGORITHMS / sizeof *ALGORITHMS);
    choice->protocol = find(slash + 1, (size_t)(end - slash - 1), PROTOCOLS, sizeof PROTOCOLS / sizeof *PROTOCOLS);
    if (choice->algorithm < 0 || choice->protocol < 0 || choice->protocol == LL128) return 0;
    int wanted = channels ? atoi(channels) : 0;
    choice->channels = 0;
    if (choice->algorithm <= 1 && wanted > 0) choice->channels = wanted < MOST_CHANNELS ? wanted : MOST_CHANNELS;
    return 1;
}

/* Reads the bands in the order of their sizes. Where one cannot be read, NCCL chooses for the whole collective. */
static void read_bands(const char *text, const char *channels, choice_t *bands) {
    memset(bands, 0, BANDS * sizeof *bands);
    for (int i = 0; text && *text && i < BANDS; i++) {
        size_t length = strcspn(text, "@+");
        char *end = (char *)text + length;
        bands[i].below = SIZE_MAX;
        if (*end == '@') {
            bands[i].below = (size_t)strtoull(end + 1, &end, 10);
            if (bands[i].below == 0) break;
        }
        if (!read_choice(text, length, channels, &bands[i]) || (*end && (*end != '+' || !end[1]))) break;
        if (!*end) return;
        text = end + 1;
    }
    memset(bands, 0, BANDS * sizeof *bands);
}

/* The vendor's tuner. */

typedef struct {
    const char *name;
    result_t (*init)(size_t, size_t, logger_t, void **);
    result_t (*getCollInfo)(void *, collective_t, size_t, int, int, int, int *, int *, int *);
    result_t (*destroy)(void *);
} tuner_v2_t;

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

/* Version 6 is version 5 with one function more at its end. */
typedef struct {
    const char *name;
    result_t (*init)(void **, uint64_t, size_t, size_t, logger_t, void *links, void *constants);
    result_t (*getCollInfo)(void *, collective_t, size_t, int, float **, int, int, int, int *);
    result_t (*finalize)(void *);
    result_t (*getChunkSize)(void *, collective_t, size_t, int, int, int, size_t *);
} tuner_v6_t;

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static void *vendor; /* The library. Never closed: its name and its code are asked for until the process ends. */

static void look_for_vendor(void) {
    const char *names = getenv("FLEET_NCCL_VENDOR");
    while (names && *names && !vendor) {
        char path[4096];
        size_t length = strcspn(names, "\n");
        if (length < sizeof path) {
            memcpy(path, names, length);
            path[length] = 0;
            vendor = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
        names += length + (names[length] == '\n');
    }
}

static void *find_tuner(int newest, int *version) {
    pthread_once(&looked, look_for_vendor);
    for (*version = vendor ? newest : 0; *version >= 2; --*version) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", *version);
        void *found = dlsym(vendor, symbol);
        if (found) return found;
    }
    for (int later = newest + 1; vendor && later <= NEWEST_THINKABLE; later++) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", later);
        if (dlsym(vendor, symbol)) fleet_vendor_version = -1;
    }
    *version = 0;
    return NULL;
}

/* One for each communicator, read when it is made. */
typedef struct {
    choice_t choices[COLLECTIVES][BANDS];
    void *tuner; /* The vendor's, NULL for none. */
    int version;
    void *context; /* Its own. */
} communicator_t;

static result_t begin(int spoken, void **context, uint64_t id, size_t ranks, size_t nodes, logger_t log, void *links,
                      void *constants) {
    communicator_t *made = calloc(1, sizeof *made);
    if (!made) return 1;
    for (int i = 0; i < COLLECTIVES; i++)
        read_bands(VARIABLES[i] ? getenv(VARIABLES[i]) : NULL, getenv("FLEET_NCCL_CHANNELS"), made->choices[i]);
    made->tuner = find_tuner(spoken, &made->version);
    result_t result = 0;
    if (made->version >= 5)
        result = ((tuner_v6_t *)made->tuner)->init(&made->context, id, ranks, nodes, log, links, constants);
    else if (made->version) /* Versions 2 to 4 begin alike. */
        result = ((tuner_v4_t *)made->tuner)->init(ranks, nodes, log, &made->context);
    if (result) { /* Without us it would end the communicator, too; and ranks that go on without it choose otherwise. */
        free(made);
        return result;
    }
    if (made->version) {
        fleet_vendor_version = made->version;
        const char *name = ((tuner_v4_t *)made->tuner)->name;
        snprintf(fleet_vendor_name, sizeof fleet_vendor_name, "%s", name ? name : "");
    }
    *context = made;
    return 0;
}

/* As NCCL asks a tuner of version 2, which has no table. */
static result_t ask_v2(const communicator_t *made, collective_t collective, size_t bytes, int operations, float *costs,
                       int algorithms, int protocols, int *channels) {
    int algorithm = -1, protocol = -1;
    int nvls = algorithms > 5 && (costs[4 * protocols + 2] >= 0.0f || costs[5 * protocols + 2] >= 0.0f);
    int collnet = algorithms > 3 && costs[3 * protocols + 2] >= 0.0f;
    tuner_v2_t *tuner = made->tuner;
    result_t result = tuner->getCollInfo(made->context, collective, bytes, collnet, nvls, operations, &algorithm,
                                         &protocol, channels);
    if (!result && algorithm >= 0 && algorithm < algorithms && protocol >= 0 && protocol < protocols &&
        costs[algorithm * protocols + protocol] >= 0.0f)
        costs[algorithm * protocols + protocol] = 0.0f;
    return result;
}

static result_t ask_vendor(const communicator_t *made, collective_t collective, size_t bytes, int operations,
                           float *costs, int algorithms, int protocols, int registered, int *channels) {
    if (!made->version) return 0;
    if (collective >= 0 && collective < COLLECTIVES)
        __atomic_fetch_add(&fleet_delegated[collective], 1, __ATOMIC_RELAXED);
    if (made->version == 2)
        return ask_v2(made, collective, bytes, operations, costs, algorithms, protocols, channels);
    float **table = (float **)costs;
    if (made->version == 3)
        return ((tuner_v3_t *)made->tuner)
            ->getCollInfo(made->context, collective, bytes, operations, table, algorithms, protocols, channels);
    /* Versions 4 to 6 ask alike. */
    return ((tuner_v4_t *)made->tuner)
        ->getCollInfo(made->context, collective, bytes, operations, table, algorithms, protocols, registered, channels);
}

static const choice_t *find_choice(const communicator_t *made, collective_t collective, size_t bytes, int algorithms,
                                   int protocols) {
    if (collective < 0 || collective >= COLLECTIVES || bytes < LEAST_BYTES) return NULL;
    for (const choice_t *band = made->choices[collective]; band < made->choices[collective] + BANDS; band++)
        if (bytes < band->below) return band->algorithm < algorithms && band->protocol < protocols ? band : NULL;
    return NULL;
}

/* The table comes as float **, and is an array of arrays in one piece. */
static result_t choose(void *context, collective_t collective, size_t bytes, int operations, float **table,
                       int algorithms, int protocols, int registered, int *channels) {
    communicator_t *made = context;
    float *costs = (float *)table;
    if (!made) return 0;
    const choice_t *choice = find_choice(made, collective, bytes, algorithms, protocols);
    float *cost = choice ? &costs[choice->algorithm * protocols + choice->protocol] : NULL;
    int is_possible = cost && *cost >= 0.0f, own_channels = *channels;
    result_t failed =
        ask_vendor(made, collective, bytes, operations, costs, algorithms, protocols, registered, channels);
    if (!choice || failed) return failed; /* Of one that fails NCCL takes nothing, and chooses by itself. */
    if (!is_possible || *cost < 0.0f) { /* The vendor knows what its network cannot do. */
        __atomic_fetch_add(&fleet_impossible[collective], 1, __ATOMIC_RELAXED);
        return 0;
    }
    /* Of equal costs NCCL takes the first: the vendor's choice may have the lowest one, too. */
    for (int i = 0; i < algorithms * protocols; i++)
        if (costs[i] == 0.0f) costs[i] = FLT_MIN;
    *cost = 0.0f;
    *channels = own_channels; /* The vendor's number was for its own choice. */
    if (choice->channels > 0) {
        *channels = choice->channels;
        __atomic_fetch_add(&fleet_narrowed[collective], 1, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&fleet_chosen[collective], 1, __ATOMIC_RELAXED);
    return 0;
}

static result_t end(void *context) {
    communicator_t *made = context;
    result_t result = 0;
    if (made && made->version) /* It has the same place in all versions. */
        result = ((tuner_v4_t *)made->tuner)->destroy(made->context);
    free(made);
    return result;
}

static result_t begin_v3(size_t ranks, size_t nodes, logger_t log, void **context) {
    return begin(3, context, 0, ranks, nodes, log, NULL, NULL);
}

static result_t begin_v4(size_t ranks, size_t nodes, logger_t log, void **context) {
    return begin(4, context, 0, ranks, nodes, log, NULL, NULL);
}

static result_t begin_v5(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t log, void *links,
                         void *constants) {
    return begin(5, context, id, ranks, nodes, log, links, constants);
}

static result_t begin_v6(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t log, void *links,
                         void *constants) {
    return begin(6, context, id, ranks, nodes, log, links, constants);
}

static result_t choose_v3(void *context, collective_t collective, size_t bytes, int operations, float **table,
                          int algorithms, int protocols, int *channels) {
    return choose(context, collective, bytes, operations, table, algorithms, protocols, 0, channels);
}

static result_t size_chunks(void *context, collective_t collective, size_t bytes, int algorithm, int protocol,
                            int channels, size_t *size) {
    communicator_t *made = context;
    if (!made || made->version < 6 || !((tuner_v6_t *)made->tuner)->getChunkSize) return 0;
    return ((tuner_v6_t *)made->tuner)
        ->getChunkSize(made->context, collective, bytes, algorithm, protocol, channels, size);
}

const tuner_v3_t ncclTunerPlugin_v3 = {"Fleet Advisor", begin_v3, choose_v3, end};
const tuner_v4_t ncclTunerPlugin_v4 = {"Fleet Advisor", begin_v4, choose, end};
const tuner_v6_t ncclTunerPlugin_v5 = {"Fleet Advisor", begin_v5, choose, end, NULL};
const tuner_v6_t ncclTunerPlugin_v6 = {"Fleet Advisor", begin_v6, choose, end, size_chunks};
