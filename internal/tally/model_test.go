package tally_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

const excludedNamespace = "kube-system"

// program compiles a SidecarSet as far as the Tally and the snapshot look at it.
func program(t testing.TB, set *appsv1beta1.SidecarSet) *inject.Program {
	t.Helper()
	pods := selector(t, set.Spec.Selector, labels.Nothing())
	if pods.Empty() {
		pods = labels.Nothing()
	}
	return &inject.Program{
		Set:               set,
		Selector:          pods,
		NamespaceSelector: selector(t, set.Spec.NamespaceSelector, labels.Everything()),
		Hash:              set.Annotations[appsv1beta1.AnnotationHash],
	}
}

func selector(t testing.TB, s *metav1.LabelSelector, absent labels.Selector) labels.Selector {
	t.Helper()
	if s == nil {
		return absent
	}
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatalf("selector: %v", err)
	}
	return compiled
}

// world has what an API server would hold. Its recount looks at all Pods, one after the other: how one
// Pod counts is proven in package inplace.
type world struct {
	t          testing.TB
	sets       map[string]*appsv1beta1.SidecarSet
	programs   map[string]*inject.Program
	namespaces map[string]labels.Set
	pods       map[string]*corev1.Pod // by namespace/name
	nodes      map[podstate.Name]inplace.Node
	serial     int
	selectors  map[*metav1.LabelSelector]labels.Selector // compiled once
}

func newWorld(t testing.TB) *world {
	return &world{
		t:         t,
		sets:      map[string]*appsv1beta1.SidecarSet{},
		programs:  map[string]*inject.Program{},
		pods:      map[string]*corev1.Pod{},
		nodes:     map[podstate.Name]inplace.Node{podstate.MakeName("n0"): {}},
		selectors: map[*metav1.LabelSelector]labels.Selector{nil: labels.Everything()},
		namespaces: map[string]labels.Set{
			"a": {"kubernetes.io/metadata.name": "a"}, "b": {"kubernetes.io/metadata.name": "b", "team": "x"},
			excludedNamespace: {"kubernetes.io/metadata.name": excludedNamespace},
		},
	}
}

func (w *world) put(set *appsv1beta1.SidecarSet) {
	w.sets[set.Name] = set
	w.programs[set.Name] = program(w.t, set)
}

func (w *world) catalog() *match.Snapshot {
	programs := make([]*inject.Program, 0, len(w.programs))
	for _, name := range slices.Sorted(maps.Keys(w.programs)) {
		programs = append(programs, w.programs[name])
	}
	return match.Build(programs, maps.Clone(w.namespaces))
}

func (w *world) records() []*podstate.Record {
	records := make([]*podstate.Record, 0, len(w.pods))
	for _, pod := range w.pods {
		records = append(records, podstate.FromPod(pod))
	}
	return records
}

// count is what a recount finds about a SidecarSet.
type count struct {
	tally.Counters
	revisions  map[podstate.Name]tally.RevisionCount
	uninjected []appsv1beta1.SidecarSetPodGroup
}

func (w *world) recount(set *appsv1beta1.SidecarSet) count {
	c, content, lacking := count{revisions: map[podstate.Name]tally.RevisionCount{}}, inplace.ContentOf(w.programs[set.Name]), map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		pod := w.pods[key]
		r := podstate.FromPod(pod)
		if !r.Active || r.TooLarge || !w.selects(set, pod) {
			continue
		}
		is := func(what inplace.Count) int32 {
			if content.Count(r, 0)&what == what {
				return 1
			}
			return 0
		}
		if is(inplace.Lacking) == 1 {
			if w.expected(set, pod) {
				c.Uninjected++
				why := content.WhyLacking(r)
				lacking[why] = append(lacking[why], key)
			}
			continue
		}
		c.Matched, c.Updated, c.Ready = c.Matched+is(inplace.Matched), c.Updated+is(inplace.Updated), c.Ready+is(inplace.Ready)
		c.UpdatedReady += is(inplace.Updated | inplace.Ready)
		if in, _ := r.Injection(podstate.MakeName(set.Name)); in.Revision != 0 {
			n := c.revisions[in.Revision]
			c.revisions[in.Revision] = tally.RevisionCount{Pods: n.Pods + 1, Ready: n.Ready + is(inplace.Ready)}
		}
	}
	for _, why := range slices.Sorted(maps.Keys(lacking)) {
		names := lacking[why]
		c.uninjected = append(c.uninjected, appsv1beta1.SidecarSetPodGroup{Reason: why, Pods: int32(len(names)), First: names[:min(len(names), 3)]})
	}
	return c
}

func (w *world) selects(set *appsv1beta1.SidecarSet, pod *corev1.Pod) bool {
	namespace, ok := w.namespaces[pod.Namespace]
	if !ok {
		namespace = labels.Set{"kubernetes.io/metadata.name": pod.Namespace}
	}
	if set.Spec.Selector == nil || len(set.Spec.Selector.MatchLabels)+len(set.Spec.Selector.MatchExpressions) == 0 {
		return false
	}
	return w.selector(set.Spec.Selector).Matches(labels.Set(pod.Labels)) && w.selector(set.Spec.NamespaceSelector).Matches(namespace)
}

func (w *world) selector(s *metav1.LabelSelector) labels.Selector {
	if _, compiled := w.selectors[s]; !compiled {
		w.selectors[s] = selector(w.t, s, nil)
	}
	return w.selectors[s]
}

func (w *world) expected(set *appsv1beta1.SidecarSet, pod *corev1.Pod) bool {
	if pod.Namespace == excludedNamespace || pod.Annotations[corev1.MirrorPodAnnotationKey] != "" ||
		len(set.Spec.Containers)+len(set.Spec.InitContainers) == 0 {
		return false
	}
	// The canaries of the SidecarSet, and theirs in turn.
	replaced := map[string]bool{set.Name: true}
	for range w.sets {
		for _, other := range w.sets {
			if base := appsv1beta1.BaseOfCanary(other.Annotations); base != "" && replaced[base] && w.selects(other, pod) {
				if hasInjected(pod, other.Name) {
					return false
				}
				replaced[other.Name] = true
			}
		}
	}
	return true
}

func hasInjected(pod *corev1.Pod, set string) bool {
	return slices.Contains(strings.Split(pod.Annotations[appsv1beta1.AnnotationInjectedList], ","), set)
}

// The random part has few names and values, so that they often coincide.

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func (w *world) randomSet(r *rand.Rand) *appsv1beta1.SidecarSet {
	w.serial++
	set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{
		Name: pick(r, "s0", "s1", "s2", "s3"), UID: types.UID(fmt.Sprint("set-", w.serial)), Generation: int64(w.serial),
		CreationTimestamp: metav1.Unix(int64(w.serial), 0),
		Annotations:       map[string]string{appsv1beta1.AnnotationHash: pick(r, "h1", "h2")},
	}}
	if r.IntN(4) == 0 {
		set.Annotations[appsv1beta1.AnnotationCanary] = pick(r, "true", "True")
		set.Annotations[appsv1beta1.AnnotationBase] = pick(r, "s0", "s1")
	}
	set.Spec.Selector = pick(r,
		nil, &metav1.LabelSelector{},
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}})
	set.Spec.NamespaceSelector = pick(r,
		nil, nil, &metav1.LabelSelector{},
		&metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "a"}},
		&metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x"}}}})
	for _, name := range pick(r, []string{}, []string{"log"}, []string{"log", "mesh"}) {
		set.Spec.Containers = append(set.Spec.Containers, appsv1beta1.SidecarContainer{Container: corev1.Container{Name: name}})
	}
	if r.IntN(4) == 0 {
		hot := appsv1beta1.SidecarContainer{Container: corev1.Container{Name: "hot"}}
		hot.UpgradeStrategy.UpgradeType = appsv1beta1.SidecarContainerHotUpgrade
		hot.UpgradeStrategy.HotUpgradeEmptyImage = pick(r, "", "empty:1")
		set.Spec.Containers = append(set.Spec.Containers, hot)
	}
	if r.IntN(3) == 0 {
		init := appsv1beta1.SidecarContainer{Container: corev1.Container{Name: pick(r, "mesh", "native")}}
		init.RestartPolicy = pick(r, nil, new(corev1.ContainerRestartPolicyAlways))
		set.Spec.InitContainers = append(set.Spec.InitContainers, init)
	}
	return set
}

// manyLabels are more than a record holds.
const manyLabels = 400

func tooManyLabels() map[string]string {
	set := map[string]string{"app": "web"}
	for i := range manyLabels {
		set[fmt.Sprint("example.com/", i)] = "x"
	}
	return set
}

func (w *world) randomPod(r *rand.Rand) *corev1.Pod {
	w.serial++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		UID: types.UID(fmt.Sprint("pod-", w.serial)), Namespace: pick(r, "a", "b", "new", excludedNamespace), Name: fmt.Sprint("p", r.IntN(12)),
		CreationTimestamp: metav1.Unix(int64(w.serial)-r.Int64N(2), 0),
		Annotations:       map[string]string{},
	}}
	w.randomChange(r, pod)
	return pod
}

// randomChange draws new values for what can change on a Pod.
func (w *world) randomChange(r *rand.Rand, pod *corev1.Pod) {
	pod.Labels = pick(r, nil, map[string]string{"app": "web"}, map[string]string{"app": "db", "x": "y"}, map[string]string{"x": "y"})
	if r.IntN(16) == 0 {
		pod.Labels = tooManyLabels()
	}
	for key, values := range map[string][]string{
		corev1.MirrorPodAnnotationKey:      {"", "", "", "m"},
		appsv1beta1.AnnotationInjectedList: {"", "s0", "s1,s2", "s0,s1,s2,s3", "s1"},
		appsv1beta1.AnnotationHash: {"", "{", `{"s0":"h1","s1":"h2"}`, `{"s0":{"hash":"h1"},"s1":{"hash":"h1"},"s2":{"hash":"h2"}}`,
			`{"s0":{"hash":"h1","controllerRevision":"s0-a"},"s1":{"hash":"h2","controllerRevision":"s1-a"}}`, `{"s1":{"hash":"h1","controllerRevision":"s1-b"}}`},
		appsv1beta1.AnnotationWorkingHotUpgradeContainer: {"", "[", `{"hot":"hot-1"}`, `{"hot":"hot-2"}`},
	} {
		delete(pod.Annotations, key)
		if value := pick(r, values...); value != "" {
			pod.Annotations[key] = value
		}
	}
	pod.Spec, pod.Status.ContainerStatuses = corev1.PodSpec{NodeName: pick(r, "", "n0", "n1")}, nil
	settled := r.IntN(2) == 0 // or else hardly any Pod with many containers ever is
	for _, name := range pick(r, []string{"app"}, []string{"app", "log"}, []string{"app", "log", "mesh", "hot-1", "hot-2"}) {
		repository, _, _ := strings.Cut(name, "-")
		c := corev1.Container{Name: name, Image: pick(r, "empty:1", repository+":1", repository+":2", repository+"@sha256:a")}
		status := corev1.ContainerStatus{Name: name, Image: pick(r, repository+":1", repository+":2"), ImageID: repository + pick(r, "@sha256:a", "@sha256:b")}
		if settled {
			status.Image, status.ImageID = c.Image, repository+"@sha256:a"
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		if settled || r.IntN(8) > 0 {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
		}
	}
	if r.IntN(4) == 0 {
		pod.Spec.InitContainers = []corev1.Container{{Name: pick(r, "mesh", "setup", "native")}}
	}
	pod.Status.Phase = pick(r, corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodSucceeded)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: pick(r, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse)}}
	pod.DeletionTimestamp = nil
	if r.IntN(8) == 0 {
		pod.DeletionTimestamp = &metav1.Time{}
	}
}
