package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// rig is an Executor with a real tally, and an API server that fails as the test says.
type rig struct {
	*Executor
	client *fake.Clientset

	mu    sync.Mutex
	tally *tally.Tally
	now   *match.Snapshot
}

func newRig(t *testing.T, pods ...*corev1.Pod) *rig {
	t.Helper()
	r := &rig{client: fake.NewClientset(), tally: tally.New(tally.Options{})}
	for _, p := range pods {
		if err := r.client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	r.follow(program(t, "side:v2"))
	for _, p := range pods {
		r.tally.Set(podstate.FromPod(p))
	}
	r.Executor = New(Options{
		Tally: r.use, Current: func() *match.Snapshot { return r.now }, Pods: r.client.CoreV1(), Nodes: r.client.CoreV1(), Registry: prometheus.NewRegistry(),
		Revision: func(_ context.Context, name string) (*appsv1.ControllerRevision, error) {
			return nil, apierrors.NewNotFound(appsv1.Resource("controllerrevisions"), name)
		},
	})
	return r
}

// follow makes a Program the current one, and tells the tally that it is recorded.
func (r *rig) follow(p *inject.Program) {
	r.now = match.Build([]*inject.Program{p}, map[string]labels.Set{"a": {}})
	r.tally.SetSnapshot(r.now)
	r.tally.SetCurrent("log", tally.Current{Program: p, Revision: p.Revision()})
}

// use is the Tally of the Executor.
func (r *rig) use(_ context.Context, f func(*tally.Tally)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.tally)
	return nil
}

// see has the tally see a Pod as the API server has it, changed by change.
func (r *rig) see(t *testing.T, name string, change func(*corev1.Pod)) {
	t.Helper()
	p, err := r.client.CoreV1().Pods("a").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.ResourceVersion = "9"
	change(p)
	if err := r.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, "a"); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.Set(podstate.FromPod(p))
	r.tally.Watched(9)
}

func (r *rig) report() rollout.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally.State("log").Rollout
}

// pass makes the Executor take what it can, and waits for it.
func (r *rig) pass(t *testing.T) {
	t.Helper()
	if err := r.look(t.Context(), item{sidecarSet: "log"}); err != nil {
		t.Fatal(err)
	}
	r.running.Wait()
}

func program(t *testing.T, image string) *inject.Program {
	t.Helper()
	return programOf(t, fmt.Sprintf(`{"name":"side","image":%q}`, image))
}

// programOf is SidecarSet "log" with this sidecar.
func programOf(t *testing.T, sidecar string) *inject.Program {
	t.Helper()
	var object map[string]any
	text := fmt.Sprintf(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"log","uid":"set","generation":2},
		"spec":{"selector":{"matchLabels":{"app":"web"}},"updateStrategy":{"type":"RollingUpdate","maxUnavailable":2},"containers":[%s]}}`, sidecar)
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	p, err := inject.Compile(object)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// outdated returns a Pod that carries the last content, is ready, and has this name.
func outdated(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	before := program(t, "side:v1")
	hash := func(h string) string {
		return podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: h, SidecarList: []string{"side"}}).String()
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}, ResourceVersion: "7", Generation: 1,
			Annotations: map[string]string{
				"kruise.io/sidecarset-injected-list": "log", "kruise.io/sidecarset-hash": hash(before.Hash), "kruise.io/sidecarset-hash-without-image": hash(before.HashWithoutImage),
			},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}, {Name: "side", Image: "side:v1"}}},
	}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "sha256:" + c.Name, ContainerID: "c://" + c.Name, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		})
	}
	return p
}

// failPatches answers the first n patches of Pods with an error, before or after they
// are carried out.
func (r *rig) failPatches(n int, carriedOut bool, err error) {
	r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "" || n == 0 {
			return false, nil, nil
		}
		n--
		if carriedOut {
			reaction := clienttesting.ObjectReaction(r.client.Tracker())
			if _, _, err := reaction(action); err != nil {
				return true, nil, err
			}
		}
		return true, nil, err
	})
}

func (r *rig) image(t *testing.T, name string) string {
	t.Helper()
	p, err := r.client.CoreV1().Pods("a").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Spec.Containers[1].Image
}

func TestPodWriteAnswersDecideAboutRetriesAndTheBudget(t *testing.T) {
	pods := corev1.Resource("pods")
	status := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: strings.Repeat("ä", 1000)}}
	}
	tests := map[string]struct {
		fails      int
		carriedOut bool
		err        error
		image      string
		used       int // places of the budget
		blocked    string
	}{
		"it is written":                        {0, false, nil, "side:v2", 1, ""},
		"another writer was faster":            {2, false, apierrors.NewConflict(pods, "p", errors.New("changed")), "side:v2", 1, ""},
		"another writer is always faster":      {99, false, apierrors.NewConflict(pods, "p", errors.New("changed")), "side:v1", 1, ""}, // it is tried again in a moment
		"an admission policy forbids it":       {1, false, status(http.StatusForbidden, metav1.StatusReasonForbidden), "side:v1", 0, "Refused"},
		"it is not valid":                      {1, false, status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), "side:v1", 0, "Refused"},
		"an error, and then none":              {1, false, status(http.StatusInternalServerError, metav1.StatusReasonInternalError), "side:v2", 1, ""},
		"an error for a write that came true":  {1, true, status(http.StatusInternalServerError, metav1.StatusReasonInternalError), "side:v2", 1, ""},
		"a webhook that is always away":        {99, false, status(http.StatusInternalServerError, metav1.StatusReasonInternalError), "side:v1", 0, "WriteFailed"},
		"a time-out of a write that came true": {99, true, context.DeadlineExceeded, "side:v2", 1, ""},
		"a time-out of one that did not":       {99, false, context.DeadlineExceeded, "side:v1", 0, "WriteFailed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, outdated(t, "p"))
			r.failPatches(tc.fails, tc.carriedOut, tc.err)
			r.pass(t)
			if got := r.image(t, "p"); got != tc.image {
				t.Errorf("the image is %s, want %s", got, tc.image)
			}
			report := r.report()
			if report.Used != tc.used {
				t.Errorf("%d places of the budget are used, want %d", report.Used, tc.used)
			}
			blocked := ""
			for _, group := range report.Blocked {
				blocked += group.Reason
				if len([]rune(group.Message)) > maxMessage || group.Message == "" {
					t.Errorf("the message is %q", group.Message)
				}
			}
			if blocked != tc.blocked {
				t.Errorf("blocked for %q, want %q", blocked, tc.blocked)
			}
		})
	}
}

// A reason that does not end by itself needs a user. WriteFailed is for reasons that do.
func TestAPermanentWriteFailureHasItsOwnReason(t *testing.T) {
	merged := func(t *testing.T) *inject.Program {
		t.Helper()
		object := map[string]any{}
		p := program(t, "side:v2")
		text, err := json.Marshal(p.Set)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &object); err != nil {
			t.Fatal(err)
		}
		object["spec"].(map[string]any)["patchPodMetadata"] = []any{map[string]any{"annotations": map[string]any{"list": `{"a":"b"}`}, "patchPolicy": "MergePatchJson"}}
		p, err = inject.Compile(object)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, tc := range map[string]struct {
		prepare func(r *rig)
		says    string
	}{
		"an annotation that cannot be merged": {func(r *rig) { r.follow(merged(t)) }, "list"},
		"a defect": {func(r *rig) {
			r.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { panic("nil map") })
		}, "nil map"},
	} {
		t.Run(name, func(t *testing.T) {
			p := outdated(t, "p")
			p.Annotations["list"] = "no object"
			r := newRig(t, p)
			tc.prepare(r)
			r.pass(t)
			got := r.report().Blocked
			if len(got) != 1 || got[0].Reason != "UpdateImpossible" || !strings.Contains(got[0].Message, tc.says) {
				t.Errorf("blocked: %+v", got)
			}
		})
	}
}

// The queue's state of a Pod may be out of date.
func TestALivePodThatDiffersFromTheQueueIsNotWritten(t *testing.T) {
	tests := map[string]func(*corev1.Pod){
		"it is being deleted": func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"a/b"}
		},
		"it is finished":       func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"another has its name": func(p *corev1.Pod) { p.UID = "other" },
		"it is not selected":   func(p *corev1.Pod) { p.Labels = nil },
		"OpenKruise was faster": func(p *corev1.Pod) {
			p.Annotations["kruise.io/sidecarset-hash"] = `{"log":"` + program(t, "side:v2").Hash + `"}`
		},
		"its record is damaged":  func(p *corev1.Pod) { p.Annotations["sidecarset.io/in-place"] = "?" },
		"it must be made anew":   func(p *corev1.Pod) { p.Annotations["kruise.io/sidecarset-hash-without-image"] = `{"log":"x"}` },
		"it is available by now": nil, // was not when it was taken
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			p := outdated(t, "p")
			r := newRig(t, p)
			if change == nil {
				broken := p.DeepCopy()
				broken.Status.Conditions[0].Status = corev1.ConditionFalse
				r.tally.Set(podstate.FromPod(broken))
			} else {
				live := p.DeepCopy()
				change(live)
				if err := r.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), live, "a"); err != nil {
					t.Fatal(err)
				}
			}
			r.pass(t)
			for _, action := range r.client.Actions() {
				if action.GetVerb() == "patch" {
					t.Errorf("the Pod was written: %v", action)
				}
			}
		})
	}
}

// The Lease is released after Start has returned.
func TestStartReturnsWhenNoWriteIsUnderWay(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	sent, finish := make(chan struct{}), make(chan struct{})
	r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() == "" {
			close(sent)
			<-finish
		}
		return false, nil, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	r.Wake("log")
	<-sent
	stop()
	select {
	case <-done:
		t.Fatal("Start returned with a write under way")
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := r.image(t, "p"); got != "side:v2" {
		t.Errorf("the image is %s", got)
	}
}

// A Pod whose Node is lost during its update takes no place of the budget.
func TestALostNodeDoesNotHoldUpOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		node *corev1.Node
		want int // places that are used
	}{
		"the Node is gone":      {nil, 0},
		"the Node is not ready": {&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}, 0},
		"the Node is ready":     {&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := outdated(t, "p")
			p.Spec.NodeName = "n"
			r := newRig(t, p)
			if tc.node != nil {
				tc.node.Name = "n"
				if err := r.client.Tracker().Add(tc.node); err != nil {
					t.Fatal(err)
				}
			}
			r.pass(t)
			down := func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
			}
			r.see(t, "p", down)
			r.pass(t)     // the watch has delivered the write
			for range 2 { // at the first look the Pod may be about to come back
				if used := r.report().Used; used != 1 {
					t.Fatalf("%d places are used by a Pod in flight, want 1", used)
				}
				if err := r.lookAtNodes(t.Context(), "log"); err != nil {
					t.Fatal(err)
				}
				r.running.Wait()
			}
			if used := r.report().Used; used != tc.want {
				t.Errorf("%d places are used, want %d", used, tc.want)
			}
			r.see(t, "p", func(*corev1.Pod) {}) // the kubelet may be back
			if used := r.report().Used; used != 1 {
				t.Errorf("%d places are used after an event, want 1", used)
			}
			if err := r.lookAtNodes(t.Context(), "log"); err != nil {
				t.Fatal(err)
			}
			r.running.Wait()
			if used := r.report().Used; used != tc.want {
				t.Errorf("%d places are used after another look, want %d", used, tc.want)
			}
		})
	}
}
