package controllers

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// podServer speaks as much of the Kubernetes API as watching Pods takes. What a
// test may see of requests is recorded.
type podServer struct {
	*httptest.Server

	refuseWatchList bool

	mu       sync.Mutex
	version  int
	oldest   int // resourceVersions before it are gone
	pods     map[string]*corev1.Pod
	history  []podEvent
	changed  chan struct{} // closed when something happened
	requests []string      // "list limit=… rv=…", "watchlist", "watch"
	accepts  []string
}

type podEvent struct {
	version int
	kind    watch.EventType
	pod     *corev1.Pod
}

func newPodServer(t *testing.T) *podServer {
	t.Helper()
	s := &podServer{pods: map[string]*corev1.Pod{}, changed: make(chan struct{}), version: 10}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return s
}

func (s *podServer) listerWatcher(t *testing.T) cache.ListerWatcher {
	t.Helper()
	lw, err := newPodListerWatcher(&rest.Config{Host: s.URL, QPS: -1}, s.Client())
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	return lw
}

// put creates or changes a Pod; remove deletes one at once, as a forced deletion
// does.
func (s *podServer) put(pod *corev1.Pod) { s.happen(watch.Modified, pod) }

func (s *podServer) remove(pod *corev1.Pod) { s.happen(watch.Deleted, pod) }

func (s *podServer) happen(kind watch.EventType, pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(kind, pod)
	s.wake()
}

func (s *podServer) change(kind watch.EventType, pod *corev1.Pod) {
	s.version++
	pod = pod.DeepCopy()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	pod.ResourceVersion = strconv.Itoa(s.version)
	key := pod.Namespace + "/" + pod.Name
	if kind == watch.Deleted {
		delete(s.pods, key)
	} else {
		if _, exists := s.pods[key]; !exists {
			kind = watch.Added
		}
		s.pods[key] = pod
	}
	s.history = append(s.history, podEvent{s.version, kind, pod})
}

// missed makes changes that no watch delivers: all watches end, and what came
// before can no longer be watched, so that a client has to list again.
func (s *podServer) missed(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.version++
	s.oldest, s.history = s.version, nil
	s.wake()
}

func (s *podServer) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// seen returns the requests so far, and what each of them accepts.
func (s *podServer) seen() (requests, accepts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests), slices.Clone(s.accepts)
}

func (s *podServer) serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	initial := query.Get("sendInitialEvents") == "true"
	kind := "list limit=" + query.Get("limit") + " rv=" + query.Get("resourceVersion")
	if query.Get("watch") != "" {
		kind = "watch"
		if initial {
			kind = "watchlist"
		}
	}
	s.mu.Lock()
	s.requests = append(s.requests, kind)
	s.accepts = append(s.accepts, r.Header.Get("Accept"))
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path != "/api/v1/pods":
		http.NotFound(w, r)
	case strings.HasPrefix(kind, "list"):
		s.list(w, query.Get("limit"), query.Get("continue"))
	case initial && s.refuseWatchList:
		w.WriteHeader(http.StatusUnprocessableEntity)
		writeJSON(w, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
			Message: "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"})
	default:
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		s.watch(w, r, from, initial)
	}
}

func (s *podServer) list(w http.ResponseWriter, limitText, after string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	list.ResourceVersion = strconv.Itoa(s.version)
	limit, _ := strconv.Atoi(limitText)
	for _, key := range s.keys() {
		if key <= after {
			continue
		}
		if limit > 0 && len(list.Items) == limit {
			last := list.Items[limit-1]
			list.Continue = last.Namespace + "/" + last.Name
			break
		}
		list.Items = append(list.Items, *s.pods[key])
	}
	writeJSON(w, list)
}

func (s *podServer) keys() []string {
	keys := make([]string, 0, len(s.pods))
	for key := range s.pods {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (s *podServer) watch(w http.ResponseWriter, r *http.Request, from int, initial bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if initial {
		for _, key := range s.keys() {
			writeEvent(w, watch.Added, s.pods[key])
		}
		from = s.version
		end := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		end.ResourceVersion = strconv.Itoa(from)
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		writeEvent(w, watch.Bookmark, end)
	}
	for {
		if from < s.oldest {
			writeEvent(w, watch.Error, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "too old"})
			return
		}
		for _, e := range s.history {
			if e.version > from {
				writeEvent(w, e.kind, e.pod)
				from = e.version
			}
		}
		http.NewResponseController(w).Flush()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

func writeEvent(w http.ResponseWriter, kind watch.EventType, object any) {
	writeJSON(w, map[string]any{"type": kind, "object": object})
}

func writeJSON(w http.ResponseWriter, value any) {
	if err := json.NewEncoder(w).Encode(value); err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
}
