/* A libcuda.so.1 without a GPU: FAKE_CUINIT is what cuInit returns, FAKE_DRIVER the version, FAKE_HANGS never returns,
   FAKE_DEVICES how many devices of capability FAKE_CAPABILITY there are. Enough for CUDA's runtime to believe in it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

CUresult cuInit(unsigned flags) {
    if (getenv("FAKE_HANGS")) for (;;) pause();
    return number("FAKE_CUINIT", 0);
}

CUresult cuDriverGetVersion(int *version) { *version = number("FAKE_DRIVER", 13020); return 0; }

CUresult cuDeviceGetCount(int *count) { *count = number("FAKE_DEVICES", 0); return number("FAKE_CUINIT", 0); }

CUresult cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }

CUresult cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Fake GPU", length); return 0; }

CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)8 << 30; return 0; }

CUresult cuDeviceGetAttribute(int *value, int which, int device) {
    int capability = number("FAKE_CAPABILITY", 90);
    *value = which == 75 ? capability / 10 : which == 76 ? capability % 10 : number("FAKE_MODE", 0);
    return 0;
}

CUresult cuGetErrorString(CUresult code, const char **text) { *text = "fake"; return 0; }

CUresult cuGetErrorName(CUresult code, const char **text) { *text = "FAKE"; return 0; }

CUresult cuGetExportTable(const void **table, const void *id) { *table = 0; return number("FAKE_CUINIT", 1); }

static CUresult other(void) { return number("FAKE_CUINIT", 1); }

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
    if (status) *status = 0;
    if (!strcmp(name, "cuInit")) *found = cuInit;
    else if (!strcmp(name, "cuDriverGetVersion")) *found = cuDriverGetVersion;
    else if (!strcmp(name, "cuDeviceGetCount")) *found = cuDeviceGetCount;
    else if (!strcmp(name, "cuGetExportTable")) *found = cuGetExportTable;
    else if (!strcmp(name, "cuGetProcAddress")) *found = cuGetProcAddress_v2;
    else if (!strcmp(name, "cuGetErrorString")) *found = cuGetErrorString;
    else if (!strcmp(name, "cuGetErrorName")) *found = cuGetErrorName;
    else *found = other;
    return 0;
}

CUresult cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, found, version, flags, 0);
}
