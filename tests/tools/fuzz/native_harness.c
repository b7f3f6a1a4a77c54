/* Has libFuzzer feed a function of Python, whose modules in C it is to watch.
 *
 * The first argument is code that defines `run`, which takes bytes. Modules that were
 * built with -fsanitize=fuzzer-no-link say what they cover. An error of Python's ends the
 * process, as a report of a sanitizer does.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *run;

static void
fail(const char *what)
{
    PyErr_Print();
    fprintf(stderr, "ERROR: %s\n", what);
    abort();
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *code = getenv("FUZZED_CODE");
    if (*argc < 1 || !(*argv)[0] || !code)
        return 1;
    Py_Initialize();
    PyObject *globals = PyModule_GetDict(PyImport_AddModule("__main__"));
    PyObject *done = PyRun_String(code, Py_file_input, globals, globals);
    run = done ? PyDict_GetItemString(globals, "run") : NULL;
    if (!run)
        fail("there is nothing to run");
    Py_DECREF(done);
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    PyObject *result = PyObject_CallFunction(run, "y#", data, (Py_ssize_t)size);
    if (!result)
        fail("an error that is no answer");
    Py_DECREF(result);
    return 0;
}
