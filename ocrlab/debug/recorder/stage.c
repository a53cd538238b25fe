/* What a module is called through, so that its stage is known. */

#include "quick.h"

#include <structmember.h> /* T_PYSSIZET, which is Py_T_PYSSIZET from Python 3.12 on */

PyTypeObject *stage_type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc called;
    Quick *quick;
    PyObject *inner, *dict; /* how the module was called before; what hearing.py notes of this */
    int number;             /* of the stage's word */
} Stage;

static PyObject *stage_called(Stage *self, PyObject *const *args, size_t count, PyObject *names) {
    if (self->quick->page) *(volatile unsigned char *)(self->quick->page + self->quick->phase_at + 1) = (unsigned char)self->number;
    return PyObject_Vectorcall(self->inner, args, count, names);
}

static int stage_traverse(Stage *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->quick);
    Py_VISIT(self->inner);
    Py_VISIT(self->dict);
    return 0;
}

static int stage_clear(Stage *self) {
    Py_CLEAR(self->dict);
    return 0; /* it can be called up to its end */
}

static void stage_dealloc(Stage *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    stage_clear(self);
    Py_CLEAR(self->quick);
    Py_CLEAR(self->inner);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef stage_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Stage, called), READONLY, NULL},
                                      {"__dictoffset__", T_PYSSIZET, offsetof(Stage, dict), READONLY, NULL},
                                      {NULL}};
static PyType_Slot stage_slots[] = {{Py_tp_members, stage_members},
                                    {Py_tp_call, PyVectorcall_Call},
                                    {Py_tp_dealloc, stage_dealloc},
                                    {Py_tp_traverse, stage_traverse},
                                    {Py_tp_clear, stage_clear},
                                    {Py_tp_getattro, PyObject_GenericGetAttr},
                                    {Py_tp_setattro, PyObject_GenericSetAttr},
                                    {0}};
PyType_Spec stage_spec = {"ocrlab.recording.quick.Stage", sizeof(Stage), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                     Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 stage_slots};

/* stage(inner, number): return what says the word of a stage and calls `inner` */
PyObject *quick_stage(Quick *self, PyObject *args) {
    PyObject *inner;
    int number;
    if (!PyArg_ParseTuple(args, "Oi", &inner, &number)) return NULL;
    if (!PyCallable_Check(inner) || number < 0 || number > 255) {
        PyErr_SetString(PyExc_ValueError, "a stage is something that can be called, and the number of a word");
        return NULL;
    }
    Stage *made = PyObject_GC_New(Stage, stage_type);
    if (!made) return NULL;
    made->called = (vectorcallfunc)stage_called;
    made->quick = (Quick *)Py_NewRef(self);
    made->inner = Py_NewRef(inner);
    made->dict = NULL;
    made->number = number;
    PyObject_GC_Track(made);
    return (PyObject *)made;
}
