/* What every compiled module begins and ends with.
 *
 * No Py_RETURN_NONE and the like: the headers of Python 3.12 and newer do not count the
 * reference, in the stable ABI of 3.11 neither, whose interpreter then frees None.
 */

#ifndef ASYNCNN_NATIVE_H
#define ASYNCNN_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* What comes once, of _turn.c, and what others derive from it. Both are NULL for None. */
typedef struct {
    PyObject_HEAD
    PyObject *result;
    PyObject *waiting; /* a dictionary of waiters */
} End;

/* Make a type of a module; NULL with an exception set if that fails. */
static inline PyTypeObject *
add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, (PyTypeObject *)type))
        Py_CLEAR(type);
    return (PyTypeObject *)type;
}

/* Define the module `name`, which `execute` fills; more fields may follow. */
#define NATIVE_MODULE(name, ...) \
    static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}}; \
    static struct PyModuleDef module = { \
        PyModuleDef_HEAD_INIT, \
        .m_name = #name, \
        .m_slots = module_slots, \
        __VA_ARGS__ \
    }; \
    PyMODINIT_FUNC PyInit_##name(void) \
    { \
        return PyModuleDef_Init(&module); \
    }

#endif
