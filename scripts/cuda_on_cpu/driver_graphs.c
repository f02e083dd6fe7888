/*
 * CUDA graphs of the simulated driver; driver.c includes this file. A graph has the work that a stream
 * recorded during a capture.
 */

static long graphs, graph_launches;

static int refuses_to(const char *what) {
    const char *refused = getenv("FAKE_CUDA_NO_GRAPHS");
    return refused && !strcmp(refused, what);
}

Result cuStreamBeginCapture_v2(Object stream, int mode) {
    if (refuses_to("begin"))
        return INVALID_VALUE;
    if (fake_cuda_is_captured(stream))
        return refuse_captured("to capture it");
    struct Graph *graph = calloc(1, sizeof *graph);
    graph->holders = 1;
    pthread_mutex_lock(&queue_lock);
    ((struct Stream *)stream)->captured = graph;
    pthread_mutex_unlock(&queue_lock);
    return OK;
}

Result cuStreamEndCapture(Object stream, Object *graph) {
    if (!fake_cuda_is_captured(stream))
        return refuse("to end a capture that never began", 0);
    pthread_mutex_lock(&queue_lock);
    *graph = ((struct Stream *)stream)->captured;
    ((struct Stream *)stream)->captured = NULL;
    pthread_mutex_unlock(&queue_lock);
    return OK;
}

Result cuGraphGetNodes(Object of, Object *nodes, size_t *count) {
    struct Graph *graph = of;
    if (nodes) {
        size_t n = 0;
        for (struct Task *task = graph->first; task && n < *count; task = task->next)
            nodes[n++] = task;
        *count = n;
    } else {
        *count = graph->nodes;
    }
    return OK;
}

Result cuGraphNodeGetType(Object node, int *type) {
    enum { KERNEL = 0, COPY = 1 };
    *type = ((struct Task *)node)->kernel ? KERNEL : COPY;
    return OK;
}

Result cuGraphInstantiateWithFlags(Object *made, Object graph, unsigned long long flags) {
    if (refuses_to("instantiate"))
        return INVALID_VALUE;
    ((struct Graph *)graph)->holders++;
    graphs++;
    *made = graph;
    return OK;
}

static Result let_go(struct Graph *graph) {
    catch_up_all();
    if (--graph->holders)
        return OK;
    for (struct Task *task = graph->first, *next; task; task = next) {
        next = task->next;
        if (task->release)
            task->release(task->job);
        free(task);
    }
    free(graph);
    return OK;
}
Result cuGraphDestroy(Object graph) { return let_go(graph); }
Result cuGraphExecDestroy(Object graph) { return let_go(graph); }
Result cuGraphUpload(Object graph, Object stream) { return OK; }

Result cuGraphLaunch(Object of, Object stream) {
    __atomic_add_fetch(&graph_launches, 1, __ATOMIC_RELAXED);
    for (const struct Task *task = ((struct Graph *)of)->first; task; task = task->next) {
        if (task->kernel) {
            __atomic_add_fetch(&task->kernel->replays, 1, __ATOMIC_RELAXED);
            __atomic_add_fetch(&task->kernel->replayed_threads, task->threads, __ATOMIC_RELAXED);
        }
        if (task->run)
            append(stream, (struct Task){.run = task->run, .job = task->job});
    }
    return OK;
}
