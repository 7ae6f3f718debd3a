// Package clusterview holds what decides about a Pod: SidecarSets, Namespaces and recorded
// revisions, from files or from a cluster. It decides with the engine of the webhook.
package clusterview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/review"
	"github.com/sidecarset/operator/internal/revision"
)

// View remembers the labels of Namespaces, so it is not safe for concurrent use.
type View struct {
	// Snapshot has the SidecarSets that can be used.
	Snapshot *match.Snapshot
	// Objects are the SidecarSets by name, defaulted and of the hub version.
	Objects map[string]map[string]any
	// Unusable says, by the names of SidecarSets, why they can select or inject nothing.
	Unusable map[string]error
	// Excluded are the Namespaces whose Pods are never injected.
	Excluded inject.Exclusions
	// Now is the time that injected Pods record.
	Now time.Time

	// NamespaceLabels returns the labels of a Namespace. The error says why they are not known.
	NamespaceLabels func(ctx context.Context, namespace string) (labels.Set, error)

	// snapshot makes the Snapshot of some of the SidecarSets.
	snapshot func(in func(*inject.Compiled) bool) *match.Snapshot
}

// Parts are what a View is made of.
type Parts struct {
	// SidecarSets are objects of either served version, as written or as stored.
	SidecarSets []map[string]any
	// Namespaces are the labels of Namespaces by name.
	Namespaces map[string]labels.Set
	// Revisions are the ControllerRevisions of SidecarSets.
	Revisions []*appsv1.ControllerRevision
	// Labels reads the labels of a Namespace that Namespaces lacks. If it is nil, that is an
	// error.
	Labels   func(ctx context.Context, namespace string) (labels.Set, error)
	Excluded []string
	Now      time.Time
}

// New makes a View. It defaults SidecarSets as the webhook does. Of several with one name the
// last counts.
func New(parts Parts) *View {
	w := &View{Objects: map[string]map[string]any{}, Unusable: map[string]error{}, Excluded: parts.Excluded, Now: parts.Now}
	sidecarSets, history := map[string]*inject.Compiled{}, map[string]*inject.Compiled{}
	for _, object := range parts.SidecarSets {
		name := hub.NameOf(object)
		delete(sidecarSets, name)
		delete(w.Unusable, name)
		stored, err := Stored(object)
		if w.Objects[name] = stored; err == nil {
			var compiled *inject.Compiled
			if compiled, err = inject.Compile(stored); compiled != nil {
				sidecarSets[name] = compiled
			}
		}
		if err != nil {
			w.Unusable[name] = err
		}
	}
	for name, compiled := range sidecarSets {
		if recorded := recorded(compiled, parts.Revisions); recorded != nil {
			if p, err := inject.CompileRevision(compiled, recorded); err == nil { // without it, injection names the revision
				history[name] = p
			}
		}
	}
	namespaces := map[string]labels.Set{}
	for name, set := range parts.Namespaces {
		namespaces[name] = withName(name, set)
	}
	w.NamespaceLabels = func(ctx context.Context, name string) (labels.Set, error) {
		if set, known := namespaces[name]; known {
			return set, nil
		}
		if parts.Labels == nil {
			return nil, errors.New("its manifest is in no file; add it, so that spec.namespaceSelector can be judged")
		}
		set, err := parts.Labels(ctx, name)
		if err == nil {
			namespaces[name] = withName(name, set)
		}
		return set, err
	}
	w.snapshot = func(in func(*inject.Compiled) bool) *match.Snapshot {
		some := slices.DeleteFunc(slices.Collect(maps.Values(sidecarSets)), func(p *inject.Compiled) bool { return !in(p) })
		return match.Build(some, namespaces).WithHistory(history)
	}
	w.Snapshot = w.snapshot(func(*inject.Compiled) bool { return true })
	return w
}

// Undecided returns the SidecarSets that select a Pod with these labels if they select its Namespace,
// whose labels are not known; in name order. why says that, and known is the View without them.
func (w *View) Undecided(ctx context.Context, namespace string, pod labels.Set) (undecided []*inject.Compiled, known *View, why error) {
	if _, why = w.NamespaceLabels(ctx, namespace); why == nil {
		return nil, w, nil
	}
	isUndecided := func(p *inject.Compiled) bool {
		terms, _ := p.NamespaceSelector.Requirements()
		return p.Selector.Matches(pod) && slices.ContainsFunc(terms, func(t labels.Requirement) bool { return t.Key() != corev1.LabelMetadataName })
	}
	for _, p := range w.Snapshot.SidecarSets() {
		if isUndecided(p) {
			undecided = append(undecided, p)
		}
	}
	if len(undecided) == 0 {
		return nil, w, nil
	}
	without := *w
	without.Snapshot = w.snapshot(func(p *inject.Compiled) bool { return !isUndecided(p) })
	return undecided, &without, why
}

// Stored returns a SidecarSet of either served version in the hub version, defaulted, as the
// API server stores it.
func Stored(object map[string]any) (map[string]any, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	read, err := hub.Read(text)
	if err != nil {
		return nil, err
	}
	set, err := read.Hub()
	if err != nil {
		return nil, err
	}
	hub.Object(set.Object).Default()
	return set.Object, nil
}

// recorded returns the revision that a SidecarSet may inject in place of its current one; nil if it refers to
// none that is there.
func recorded(compiled *inject.Compiled, all []*appsv1.ControllerRevision) *appsv1.ControllerRevision {
	ref, refers := compiled.Refers()
	if !refers {
		return nil
	}
	set := compiled.Set
	own := slices.DeleteFunc(slices.Clone(all), func(r *appsv1.ControllerRevision) bool { return r.Labels[appsv1beta1.LabelSidecarSetName] != set.Name })
	return revision.NewHistory(own, revision.Owner{Name: set.Name, UID: set.UID}).Choose(ref)
}

func withName(name string, set labels.Set) labels.Set {
	out := labels.Set{corev1.LabelMetadataName: name}
	maps.Copy(out, set)
	return out
}

// Selecting returns the SidecarSets that select a Pod with these labels, in name order.
func (w *View) Selecting(ctx context.Context, namespace string, pod labels.Set) ([]*inject.Compiled, error) {
	selected, err := w.Snapshot.Select(namespace, pod, func(name string) (labels.Set, error) { return w.NamespaceLabels(ctx, name) })
	return selected.SidecarSets, err
}

// Decision says what becomes of one Pod.
type Decision struct {
	Namespace string
	// Excluded says that Pods of the Namespace are never injected. Nothing else is known then.
	Excluded bool
	Pod      inject.PodView
	Plan     inject.Plan
	// Refused is why the webhook refuses the Pod; nil if it does not.
	Refused error
}

// Patch returns the operations that inject, as the webhook answers them.
func (d *Decision) Patch() []byte {
	if d.Refused != nil || d.Plan.Empty() {
		return nil
	}
	return d.Plan.AppendPatch(nil)
}

// Decide decides about a Pod, which has metadata and spec as they are in a manifest. The error
// says why no decision is possible.
func (w *View) Decide(ctx context.Context, namespace string, pod map[string]any) (Decision, error) {
	d := Decision{Namespace: namespace}
	if w.Excluded.Namespace(namespace) {
		d.Excluded = true
		return d, nil
	}
	document, err := reviewOf(namespace, pod)
	if err != nil {
		return d, err
	}
	var reader review.Reader
	head, err := reader.ReadHead(document)
	if err != nil {
		return d, err
	}
	sidecarSets, err := w.Selecting(ctx, namespace, head.Labels)
	if err != nil {
		return d, err
	}
	candidates := w.Snapshot.Candidates(sidecarSets, func() float64 { return 0 })
	if d.Pod, err = reader.ReadPod(document, head.Labels); err != nil {
		return d, err
	}
	d.Plan, d.Refused = inject.Compute(inject.Input{Pod: d.Pod, Candidates: candidates, Now: w.Now, Known: w.Snapshot.Has})
	return d, nil
}

// reviewOf is the review that an API server sends for the Pod.
func reviewOf(namespace string, pod map[string]any) ([]byte, error) {
	metadata, _ := pod["metadata"].(map[string]any)
	spec, ok := pod["spec"].(map[string]any)
	if !ok {
		return nil, errors.New("the Pod has no spec")
	}
	return json.Marshal(map[string]any{
		"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
		"request": map[string]any{
			"uid": "offline", "operation": "CREATE", "namespace": namespace,
			"resource": map[string]any{"group": "", "version": "v1", "resource": "pods"},
			"object":   map[string]any{"metadata": metadata, "spec": admitted(spec)},
		},
	})
}

// admitted is the spec with those defaults that API servers set before they call webhooks and
// that injection reads: restartPolicy, host ports in the network of the node, requests that
// follow from limits, and volumes without a source. The original stays as it is.
func admitted(spec map[string]any) map[string]any {
	out := runtime.DeepCopyJSON(spec)
	if _, set := out["restartPolicy"]; !set {
		out["restartPolicy"] = string(corev1.RestartPolicyAlways)
	}
	for _, volume := range members(out["volumes"]) {
		if len(volume) == 1 {
			volume["emptyDir"] = map[string]any{}
		}
	}
	onNode, _ := out["hostNetwork"].(bool)
	for _, list := range []string{"initContainers", "containers"} {
		for _, c := range members(out[list]) {
			resources, _ := c["resources"].(map[string]any)
			if limits, _ := resources["limits"].(map[string]any); len(limits) > 0 {
				requests := maps.Clone(limits)
				given, _ := resources["requests"].(map[string]any)
				maps.Copy(requests, given)
				resources["requests"] = requests
			}
			for _, port := range members(c["ports"]) {
				if _, set := port["hostPort"]; onNode && !set {
					port["hostPort"] = port["containerPort"]
				}
			}
		}
	}
	return out
}

// members returns the elements of a list that are objects.
func members(list any) (objects []map[string]any) {
	elements, _ := list.([]any)
	for _, element := range elements {
		if object, ok := element.(map[string]any); ok {
			objects = append(objects, object)
		}
	}
	return objects
}

// UnusableError joins the reasons why SidecarSets of the View cannot be used; nil if there is
// none.
func (w *View) UnusableError() error {
	var all []error
	for _, name := range slices.Sorted(maps.Keys(w.Unusable)) {
		err := w.Unusable[name]
		if !strings.Contains(err.Error(), name) {
			err = fmt.Errorf("SidecarSet %q: %w", name, err)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
