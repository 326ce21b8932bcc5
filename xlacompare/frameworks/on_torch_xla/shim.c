/* A PJRT plugin that is another plugin, for callers with a shorter PJRT_ExecuteOptions than the plugin expects.
 *
 * torch_xla 2.9.0 (PJRT C API of 2025-08) passes 80 bytes of options to PJRT_LoadedExecutable_Execute; plugins of API
 * 0.81 and 0.115 ask for 112 at least, and refuse what is shorter. Every PJRT struct begins with its size and new fields
 * come at its end, where zero means "not used": so the old options in front of zeros are the new ones.
 *
 * The real plugin's path is in the environment, XLACOMPARE_PJRT_PLUGIN. Its table of functions is copied, and the
 * one entry is replaced. Only what is read here is declared; the layout is that of pjrt_c_api.h for 64-bit machines,
 * the same in 0.81 and 0.114: PJRT_Api is a head of 40 bytes and then pointers, of which Execute has index 55.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  API_MAJOR = 0,
  EXECUTE_SLOT = 55,
  ROOM = 512 /* more than any version's PJRT_ExecuteOptions; a plugin ignores what it does not know */
};

struct version {
  size_t struct_size;
  void *extension_start;
  int major;
  int minor;
};

struct api {
  size_t struct_size;
  void *extension_start;
  struct version version;
  void *functions[];
};

struct options {
  size_t struct_size;
  unsigned char rest[ROOM - sizeof(size_t)];
};

struct execute_args {
  size_t struct_size;
  void *extension_start;
  void *executable;
  struct options *options;
  /* what follows is passed on untouched */
};

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "the layout is that of a 64-bit machine");
_Static_assert(offsetof(struct api, functions) == 40, "head of PJRT_Api");
_Static_assert(offsetof(struct execute_args, options) == 24, "options of PJRT_LoadedExecutable_Execute_Args");

typedef void *(*execute_function)(struct execute_args *);

static execute_function real_execute;
static struct api *own_api;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *execute(struct execute_args *args) {
  struct options *given = args->options;
  struct options longer;
  void *error;
  if (given == NULL || given->struct_size >= sizeof longer) return real_execute(args);
  memset(&longer, 0, sizeof longer);
  memcpy(&longer, given, given->struct_size);
  longer.struct_size = sizeof longer;
  args->options = &longer; /* the plugin reads the options during the call only */
  error = real_execute(args);
  args->options = given;
  return error;
}

static void refuse(const char *what, const char *detail) {
  fprintf(stderr, "xlacompare shim: %s%s\n", what, detail ? detail : "");
}

static void load(void) {
  const char *path = getenv("XLACOMPARE_PJRT_PLUGIN");
  void *library;
  const struct api *(*get)(void);
  const struct api *real;
  if (path == NULL) {
    refuse("XLACOMPARE_PJRT_PLUGIN is not set", NULL);
    return;
  }
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    refuse("", dlerror());
    return;
  }
  *(void **)&get = dlsym(library, "GetPjrtApi");
  real = get == NULL ? NULL : get();
  if (real == NULL) {
    refuse("no PJRT API in ", path);
    return;
  }
  if (real->version.major != API_MAJOR ||
      real->struct_size < offsetof(struct api, functions) + (EXECUTE_SLOT + 1) * sizeof(void *)) {
    refuse("another version of the PJRT API in ", path);
    return;
  }
  own_api = malloc(real->struct_size);
  if (own_api == NULL) return;
  memcpy(own_api, real, real->struct_size);
  *(void **)&real_execute = own_api->functions[EXECUTE_SLOT];
  *(execute_function *)&own_api->functions[EXECUTE_SLOT] = execute;
}

__attribute__((visibility("default"))) const struct api *GetPjrtApi(void) {
  pthread_once(&once, load);
  return own_api;
}
