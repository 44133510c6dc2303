/*
 * A libnvidia-ml that tells of invented GPUs, so that the real pynvml, its ctypes and its threads can be
 * tested where there is no driver.
 *
 * Read from the environment when NVML is initialised:
 *   NVML_STUB_DEVICES     number of GPUs (1)
 *   NVML_STUB_SLEEP_MS    how long a reading of memory takes (0)
 *   NVML_STUB_INIT_ERROR  the error code of nvmlInit (0)
 *   NVML_STUB_PROCESSES   a folder with an empty file "<device>.<pid>.<MiB>" for each process besides the
 *                         one that asks, which then uses nothing itself; "readings.<device>" and
 *                         "listings.<device>" have a byte for each time that its memory and its processes
 *                         were asked for
 *
 * Shutting down while another thread is inside a call ends the process with SIGABRT, where the real
 * library may crash (nvitop#222).
 */
#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_DEVICES 64
#define MAX_PROCESSES 64
#define MIB (1024ULL * 1024ULL)

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    FUNCTION_NOT_FOUND = 13,
};

typedef int result;
typedef struct { unsigned index; } device;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process;

static device devices[MAX_DEVICES];
static unsigned device_count;
static long sleep_ms;
static atomic_int initialized, inside;

static const unsigned long long TOTAL = 81920 * MIB, RESERVED = 600 * MIB, USED = 1024 * MIB;
static const unsigned long long OWN = 512 * MIB;

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static result enter(void) {
    atomic_fetch_add(&inside, 1);
    return atomic_load(&initialized) ? SUCCESS : UNINITIALIZED;
}

static result leave(result code) {
    if (code == SUCCESS && !atomic_load(&initialized)) abort();
    atomic_fetch_sub(&inside, 1);
    return code;
}

result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    long code = number("NVML_STUB_INIT_ERROR", SUCCESS);
    if (code != SUCCESS) return (result)code;
    long wanted = number("NVML_STUB_DEVICES", 1);
    device_count = wanted < 0 ? 0 : wanted > MAX_DEVICES ? MAX_DEVICES : (unsigned)wanted;
    for (unsigned i = 0; i < device_count; i++) devices[i].index = i;
    sleep_ms = number("NVML_STUB_SLEEP_MS", 0);
    atomic_fetch_add(&initialized, 1);
    return SUCCESS;
}

result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

result nvmlShutdown(void) {
    if (!atomic_load(&initialized)) return UNINITIALIZED;
    if (atomic_load(&inside)) abort();
    atomic_fetch_sub(&initialized, 1);
    return SUCCESS;
}

const char *nvmlErrorString(result code) {
    return code == SUCCESS ? "Success" : "an error of the stub";
}

result nvmlSystemGetDriverVersion(char *text, unsigned length) {
    result code = enter();
    if (code == SUCCESS) snprintf(text, length, "000.00 stub");
    return leave(code);
}

result nvmlDeviceGetCount_v2(unsigned *count) {
    result code = enter();
    if (code == SUCCESS) *count = device_count;
    return leave(code);
}

result nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
    result code = enter();
    if (code == SUCCESS && index >= device_count) code = INVALID_ARGUMENT;
    if (code == SUCCESS) *handle = &devices[index];
    return leave(code);
}

static void uuid_of(const device *handle, char *text, unsigned length) {
    snprintf(text, length, "GPU-%08x-0000-0000-0000-000000000000", handle->index);
}

result nvmlDeviceGetHandleByUUID(const char *uuid, device **handle) {
    result code = enter();
    if (code != SUCCESS) return leave(code);
    char text[96];
    for (unsigned i = 0; i < device_count; i++) {
        uuid_of(&devices[i], text, sizeof text);
        if (strcmp(text, uuid) == 0) {
            *handle = &devices[i];
            return leave(SUCCESS);
        }
    }
    return leave(NOT_FOUND);
}

result nvmlDeviceGetUUID(device *handle, char *text, unsigned length) {
    result code = enter();
    if (code == SUCCESS) uuid_of(handle, text, length);
    return leave(code);
}

result nvmlDeviceGetName(device *handle, char *text, unsigned length) {
    (void)handle;
    result code = enter();
    if (code == SUCCESS) snprintf(text, length, "NVIDIA Stub");
    return leave(code);
}

/* The processes on a device, and what they use together. */
static unsigned processes_of(const device *handle, process *list, unsigned long long *used) {
    const char *folder = getenv("NVML_STUB_PROCESSES");
    unsigned count = 0;
    list[count++] = (process){(unsigned)getpid(), folder ? 0 : OWN, ~0u, ~0u};
    *used = folder ? 0 : USED;
    DIR *files = folder ? opendir(folder) : NULL;
    for (struct dirent *file; files && count < MAX_PROCESSES && (file = readdir(files));) {
        unsigned index, pid;
        unsigned long long mib;
        if (sscanf(file->d_name, "%u.%u.%llu", &index, &pid, &mib) != 3 || index != handle->index) continue;
        list[count++] = (process){pid, mib * MIB, ~0u, ~0u};
        *used += mib * MIB;
    }
    if (files) closedir(files);
    return count;
}

static void note(const char *what, const device *handle) {
    const char *folder = getenv("NVML_STUB_PROCESSES");
    char path[4096];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%s.%u", folder, what, handle->index);
    FILE *file = fopen(path, "a");
    if (file) fputc('.', file), fclose(file);
}

static void take_a_while(void) {
    if (sleep_ms > 0) {
        struct timespec time = {sleep_ms / 1000, (sleep_ms % 1000) * 1000000L};
        nanosleep(&time, NULL);
    }
}

result nvmlDeviceGetMemoryInfo(device *handle, memory_v1 *memory) {
    result code = enter();
    if (code == SUCCESS) take_a_while();
    process list[MAX_PROCESSES];
    unsigned long long used;
    processes_of(handle, list, &used);
    if (code == SUCCESS) *memory = (memory_v1){TOTAL, TOTAL - RESERVED - used, RESERVED + used};
    return leave(code);
}

result nvmlDeviceGetMemoryInfo_v2(device *handle, memory_v2 *memory) {
    result code = enter();
    if (code == SUCCESS) take_a_while();
    if (code == SUCCESS) {
        process list[MAX_PROCESSES];
        processes_of(handle, list, &memory->used);
        memory->total = TOTAL;
        memory->reserved = RESERVED;
        memory->free = TOTAL - RESERVED - memory->used;
        note("readings", handle);
    }
    return leave(code);
}

result nvmlDeviceGetComputeRunningProcesses_v3(device *handle, unsigned *count, process *list) {
    result code = enter();
    process all[MAX_PROCESSES];
    unsigned long long used;
    unsigned found = processes_of(handle, all, &used);
    if (code == SUCCESS && *count < found) code = INSUFFICIENT_SIZE;
    else if (code == SUCCESS) {
        memcpy(list, all, found * sizeof *all);
        note("listings", handle);
    }
    *count = found;
    return leave(code);
}

static result no_processes(unsigned *count) {
    result code = enter();
    if (code == SUCCESS) *count = 0;
    return leave(code);
}

result nvmlDeviceGetGraphicsRunningProcesses_v3(device *handle, unsigned *count, process *list) {
    (void)handle, (void)list;
    return no_processes(count);
}

result nvmlDeviceGetMPSComputeRunningProcesses_v3(device *handle, unsigned *count, process *list) {
    (void)handle, (void)list;
    return no_processes(count);
}

result nvmlDeviceGetUtilizationRates(device *handle, utilization *rates) {
    (void)handle;
    result code = enter();
    if (code == SUCCESS) *rates = (utilization){42, 7};
    return leave(code);
}

result nvmlDeviceGetMigMode(device *handle, unsigned *current, unsigned *pending) {
    (void)handle, (void)current, (void)pending;
    result code = enter();
    return leave(code == SUCCESS ? NOT_SUPPORTED : code);
}

result nvmlDeviceGetMaxMigDeviceCount(device *handle, unsigned *count) {
    (void)handle;
    result code = enter();
    if (code == SUCCESS) *count = 0;
    return leave(code);
}
