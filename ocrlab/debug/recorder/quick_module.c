/* How a Quick is made, prepared and emptied, and the module itself; what happens in each step is in quick.c. */

#include "quick.h"

#include <structmember.h> /* T_BOOL, which is Py_T_BOOL from Python 3.12 on */

#ifndef FORM
#define FORM 0 /* hatch_build.py says which sources these are, so that Python does not take an old build for a new one */
#endif

static void side_clear(Side *side) {
    Py_CLEAR(side->still);
    Py_CLEAR(side->raw);
}

static int quick_forget(Quick *self) { /* what the last unusual step has prepared */
    self->ready = 0;
    while (self->known) side_clear(&self->sides[--self->known]);
    side_clear(&self->now);
    side_clear(&self->past);
    while (self->filled) Py_DECREF(self->told[--self->filled].words);
    Py_CLEAR(self->head);
    Py_CLEAR(self->optimizer);
    Py_CLEAR(self->model);
    Py_CLEAR(self->witness);
    return 0;
}

static PyObject *quick_pause(Quick *self, PyObject *unused) {
    quick_forget(self);
    Py_RETURN_NONE;
}

/* prepare(still, raw, more, head, until): from here on steps may be usual ones, whatever is learned; of None `still` all but
   their records. A record holds states as `raw` and `more` bytes that move. */
static PyObject *quick_prepare(Quick *self, PyObject *args) {
    PyObject *still, *raw, *head;
    Py_ssize_t more;
    double until;
    if (!PyArg_ParseTuple(args, "OO!nO!d", &still, &PyBytes_Type, &raw, &more, &PyBytes_Type, &head, &until)) return NULL;
    quick_forget(self);
    if (!self->page) Py_RETURN_NONE;
    self->now = (Side){Py_NewRef(still), Py_NewRef(raw), more};
    self->head = Py_NewRef(head);
    self->until = until;
    self->due = INT64_MAX;
    self->learns = 0;
    self->ready = 1;
    Py_RETURN_NONE;
}

/* know(still, raw, more): a batch may have been loaded with the states `still` and `more` bytes that move; `raw` is how a
   record holds the former */
static PyObject *quick_know(Quick *self, PyObject *args) {
    PyObject *still, *raw;
    Py_ssize_t more;
    if (!PyArg_ParseTuple(args, "OO!n", &still, &PyBytes_Type, &raw, &more)) return NULL;
    if (self->ready && self->known < SIDES) self->sides[self->known++] = (Side){Py_NewRef(still), Py_NewRef(raw), more};
    Py_RETURN_NONE;
}

/* look(due, walk, optimizer, model, witness): what is learned is looked at too, next at the micro-batch `due` */
static PyObject *quick_look(Quick *self, PyObject *args) {
    PyObject *optimizer, *model, *witness;
    long long due, walk;
    if (!PyArg_ParseTuple(args, "LLOOO", &due, &walk, &optimizer, &model, &witness)) return NULL;
    if (!self->ready) Py_RETURN_NONE;
    Py_XSETREF(self->optimizer, Py_NewRef(optimizer));
    Py_XSETREF(self->model, Py_NewRef(model));
    Py_XSETREF(self->witness, Py_NewRef(witness));
    self->due = due;
    self->walk = walk;
    self->learns = 1;
    Py_RETURN_NONE;
}

static PyObject *floats(const double *values, int64_t count) {
    PyObject *list = PyList_New(count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *value = PyFloat_FromDouble(values[i]);
        if (!value) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, value);
    }
    return list;
}

/* drain(): give what was noted of usual steps since the last time: batches, losses, learning rates of steps, indices */
static PyObject *quick_drain(Quick *self, PyObject *unused) {
    PyObject *losses = floats(self->loss, self->losses), *rates = floats(self->rate, self->steps);
    PyObject *indices = PyList_New(self->drawn), *found = NULL;
    if (losses && rates && indices) {
        for (int i = 0; i < self->drawn; i++) PyList_SET_ITEM(indices, i, self->indices[i]);
        found = Py_BuildValue("LOOO", (long long)self->batches, losses, rates, indices);
        self->batches = self->steps = self->losses = self->drawn = self->noted = 0;
    }
    Py_XDECREF(losses);
    Py_XDECREF(rates);
    Py_XDECREF(indices);
    return found;
}

/* off(): nothing is written from here on, also in the copy of a forked process */
static PyObject *quick_off(Quick *self, PyObject *unused) {
    self->page = NULL;
    Py_RETURN_NONE;
}

static PyObject *quick_close(Quick *self, PyObject *unused) {
    self->page = NULL;
    if (self->view.obj) PyBuffer_Release(&self->view);
    Py_RETURN_NONE;
}

static int quick_init(Quick *self, PyObject *args, PyObject *unused) {
    PyObject *page, *marks_type, *marks, *cuda, *tensor, *walks, *otherwise, *behind, *measure;
    long long at[11];
    if (self->view.obj || self->marks) {
        PyErr_SetString(PyExc_RuntimeError, "it has been made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O(LLLLLLLLLLL)(iiii)O!OO!OOOOO", &page, at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6, at + 7,
                          at + 8, at + 9, at + 10, &self->data, &self->forward, &self->backward, &self->optimiser,
                          &PyType_Type, &marks_type, &marks, &PyDict_Type, &cuda, &tensor, &walks, &otherwise, &behind,
                          &measure))
        return -1;
    if ((PyObject *)Py_TYPE(marks) != marks_type) {
        PyErr_SetString(PyExc_TypeError, "these are no Marks");
        return -1;
    }
    if (PyObject_GetBuffer(page, &self->view, PyBUF_WRITABLE) < 0) return -1;
    self->slots = at[0], self->first = at[1], self->slot_bytes = at[2], self->room = at[3], self->large_at = at[4];
    self->blocks_at = at[5], self->blocks = at[6];
    self->phase_at = at[7], self->count_at = at[8], self->block_at = at[9], self->together = at[10];
    const int64_t size = self->view.len, words = self->first;
    if (size < 0 || self->slots < 1 || self->slots > size || self->slot_bytes < SLOT || self->slot_bytes > size ||
        self->room < 0 || self->room > size || words < 16 || words % 8 || self->slot_bytes % 8 || self->count_at % 8 ||
        self->count_at < 0 || self->count_at > words - 16 || self->block_at % 8 || self->block_at < 0 ||
        self->block_at > words - 8 || self->blocks < 1 || self->blocks > size || self->blocks_at < 0 || self->blocks_at % 8 ||
        self->blocks_at > size - self->blocks * BLOCK_BYTES || self->phase_at < 0 || self->phase_at > words - 2 ||
        self->large_at < 0 || words > size - self->slots * self->slot_bytes ||
        self->large_at > size - self->slots * self->room) {
        PyBuffer_Release(&self->view);
        PyErr_SetString(PyExc_ValueError, "the page is too small for its slots, or they do not lie at multiples of eight");
        return -1;
    }
    self->marks = (Marks *)Py_NewRef(marks);
    self->cuda = Py_NewRef(cuda);
    self->tensor = Py_NewRef(tensor);
    self->walks = Py_NewRef(walks);
    self->otherwise = Py_NewRef(otherwise);
    self->behind = Py_NewRef(behind);
    self->measure = Py_NewRef(measure);
    self->micro = self->quiet = -1;
    self->clean = 1;
    self->page = self->view.buf;
    return 0;
}

static int quick_traverse(Quick *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->marks);
    Py_VISIT(self->cuda);
    Py_VISIT(self->otherwise);
    Py_VISIT(self->behind);
    Py_VISIT(self->measure);
    for (int i = 0; i < self->known; i++) Py_VISIT(self->sides[i].still);
    Py_VISIT(self->now.still);
    Py_VISIT(self->past.still);
    Py_VISIT(self->optimizer);
    Py_VISIT(self->model);
    Py_VISIT(self->witness);
    return 0;
}

static int quick_clear(Quick *self) {
    quick_forget(self);
    while (self->drawn) Py_DECREF(self->indices[--self->drawn]);
    Py_CLEAR(self->marks);
    Py_CLEAR(self->cuda);
    Py_CLEAR(self->tensor);
    Py_CLEAR(self->walks);
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->behind);
    Py_CLEAR(self->measure);
    self->page = NULL;
    return 0;
}

static void quick_dealloc(Quick *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    quick_clear(self);
    if (self->view.obj) PyBuffer_Release(&self->view);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef quick_methods[] = {{"begin", (PyCFunction)(void (*)(void))quick_begin, METH_FASTCALL, NULL},
                                      {"loss", (PyCFunction)quick_loss, METH_O, NULL},
                                      {"stepping", (PyCFunction)(void (*)(void))quick_stepping, METH_FASTCALL, NULL},
                                      {"behind", (PyCFunction)(void (*)(void))quick_stepped, METH_FASTCALL, NULL},
                                      {"nameless", (PyCFunction)quick_nameless, METH_O, NULL},
                                      {"wait", (PyCFunction)quick_wait, METH_NOARGS, NULL},
                                      {"walk", (PyCFunction)quick_walk, METH_VARARGS, NULL},
                                      {"stage", (PyCFunction)quick_stage, METH_VARARGS, NULL},
                                      {"prepare", (PyCFunction)quick_prepare, METH_VARARGS, NULL},
                                      {"know", (PyCFunction)quick_know, METH_VARARGS, NULL},
                                      {"look", (PyCFunction)quick_look, METH_VARARGS, NULL},
                                      {"pause", (PyCFunction)quick_pause, METH_NOARGS, NULL},
                                      {"drain", (PyCFunction)quick_drain, METH_NOARGS, NULL},
                                      {"off", (PyCFunction)quick_off, METH_NOARGS, NULL},
                                      {"close", (PyCFunction)quick_close, METH_NOARGS, NULL},
                                      {NULL}};
static PyMemberDef quick_members[] = {{"noted", T_BOOL, offsetof(Quick, noted), READONLY, NULL},
                                      {"in_step", T_BOOL, offsetof(Quick, in_step), 0, NULL},
                                      {"stepped", T_BOOL, offsetof(Quick, stepped), 0, NULL},
                                      {"clean", T_BOOL, offsetof(Quick, clean), 0, NULL},
                                      {"micro", T_LONGLONG, offsetof(Quick, micro), 0, NULL},
                                      {"number", T_LONGLONG, offsetof(Quick, number), 0, NULL},
                                      {"epoch", T_LONGLONG, offsetof(Quick, epoch), 0, NULL},
                                      {NULL}};
static PyType_Slot quick_slots[] = {{Py_tp_methods, quick_methods},
                                    {Py_tp_members, quick_members},
                                    {Py_tp_init, quick_init},
                                    {Py_tp_dealloc, quick_dealloc},
                                    {Py_tp_traverse, quick_traverse},
                                    {Py_tp_clear, quick_clear},
                                    {Py_tp_doc, "Writes the records of usual steps into a ring that is a Writer's."},
                                    {0}};
static PyType_Spec quick_spec = {"ocrlab.recording.quick.Quick", sizeof(Quick), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 quick_slots};

static const struct {
    PyObject **name;
    const char *text;
} NAMES[] = {{&n_base, "base"},           {&n_states, "states"},           {&n_text, "text"},         {&n_walk, "walk"},
             {&n_position, "position"},   {&n_generator, "_bit_generator"}, {&n_initialized, "_initialized"},
             {&n_item, "item"},           {&n_is_cuda, "is_cuda"},         {&n_groups, "param_groups"}, {&n_lr, "lr"},
             {&n_training, "training"},   {&n_grad, "grad"},               {&n_indices, "indices"},
             {&n_begins, "begins"},       {&n_ends, "ends"},                {&n_left, "over"},
             {&n_begin, "begin"},         {&n_random, "random"},            {&n_snapshot, "snapshot"},
             {&n_closure, "closure"},     {&n_gauss, "gauss_next"},        {&n_names[PYTHON], "python"},
             {&n_names[NUMPY], "numpy"},  {&n_names[TORCH], "torch"},    {&n_samples, "samples"},
             {&n_first, "first"},         {&n_told, "told"},                {&n_fresh, "fresh"},
             {&n_load, "load"},           {&n_refuse, "refuse"}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "quick", "The usual step of the flight recorder.", -1, NULL};

PyMODINIT_FUNC PyInit_quick(void) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!(*NAMES[i].name = PyUnicode_InternFromString(NAMES[i].text))) return NULL;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xedb88320u ^ crc >> 1 : crc >> 1;
        crc_table[i] = crc;
    }
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "FORM", FORM) < 0) Py_CLEAR(made);
    PyType_Spec *specs[] = {&marks_spec, &quick_spec, &notes_spec};
    const char *names[] = {"Marks", "Quick", "Notes"};
    for (int i = 0; made && i < 3; i++) {
        PyObject *type = PyType_FromSpec(specs[i]);
        if (!type || PyModule_AddObjectRef(made, names[i], type) < 0) Py_CLEAR(made);
        Py_XDECREF(type);
    }
    PyTypeObject **types[] = {&stage_type, &walk_type};
    PyType_Spec *others[] = {&stage_spec, &walk_spec};
    const char *called[] = {"Stage", "Walk"};
    for (int i = 0; made && i < 2; i++) {
        if (!*types[i]) *types[i] = (PyTypeObject *)PyType_FromSpec(others[i]);
        if (!*types[i] || PyModule_AddObjectRef(made, called[i], (PyObject *)*types[i]) < 0) Py_CLEAR(made);
    }
    return made;
}
