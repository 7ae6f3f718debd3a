package tracker_test

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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
)

const excludedNamespace = "kube-system"

// compiled SidecarSet compiles a SidecarSet. Its hash is that of the annotation, and it has none without images, as
// the Pods of this file.
func compiled(t testing.TB, set *appsv1beta1.SidecarSet) *inject.Compiled {
	t.Helper()
	set = set.DeepCopy()
	set.Status.ObservedGeneration, set.Status.LatestRevision = set.Generation, set.Name+"-1"
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		t.Fatal(err)
	}
	p, err := inject.Compile(object)
	if err != nil {
		t.Fatal(err)
	}
	p.Hash, p.HashWithoutImage = set.Annotations[appsv1beta1.AnnotationHash], ""
	return p
}

// world has what an API server would hold.
type world struct {
	t           testing.TB
	sets        map[string]*appsv1beta1.SidecarSet
	sidecarSets map[string]*inject.Compiled
	namespaces  map[string]labels.Set
	pods        map[string]*corev1.Pod // by namespace/name
	nodes       map[podstate.Name]inplace.Node
	serial      int
}

func newWorld(t testing.TB) *world {
	return &world{
		t:           t,
		sets:        map[string]*appsv1beta1.SidecarSet{},
		sidecarSets: map[string]*inject.Compiled{},
		pods:        map[string]*corev1.Pod{},
		nodes:       map[podstate.Name]inplace.Node{podstate.MakeName("n0"): {}},
		namespaces: map[string]labels.Set{
			"a": {"kubernetes.io/metadata.name": "a"}, "b": {"kubernetes.io/metadata.name": "b", "team": "x"},
			excludedNamespace: {"kubernetes.io/metadata.name": excludedNamespace},
		},
	}
}

func (w *world) put(set *appsv1beta1.SidecarSet) {
	w.sets[set.Name] = set
	w.sidecarSets[set.Name] = compiled(w.t, set)
}

func (w *world) store() *match.Snapshot {
	sidecarSets := make([]*inject.Compiled, 0, len(w.sidecarSets))
	for _, name := range slices.Sorted(maps.Keys(w.sidecarSets)) {
		sidecarSets = append(sidecarSets, w.sidecarSets[name])
	}
	return match.Build(sidecarSets, maps.Clone(w.namespaces))
}

func (w *world) records() []*podstate.Summary {
	records := make([]*podstate.Summary, 0, len(w.pods))
	for _, pod := range w.pods {
		records = append(records, podstate.FromPod(pod))
	}
	return records
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
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}})
	set.Spec.UpdateStrategy.Paused = true
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

// manyLabels are more than a summary holds.
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
	for _, values := range [][]string{ // an annotation, and its values
		{corev1.MirrorPodAnnotationKey, "", "", "", "m"},
		{appsv1beta1.AnnotationInjectedList, "", "s0", "s1,s2", "s0,s1,s2,s3", "s1"},
		{appsv1beta1.AnnotationHash, "", "{", `{"s0":"h1","s1":"h2"}`, `{"s0":{"hash":"h1"},"s1":{"hash":"h1"},"s2":{"hash":"h2"}}`,
			`{"s0":{"hash":"h1","controllerRevision":"s0-a"},"s1":{"hash":"h2","controllerRevision":"s1-a"}}`, `{"s1":{"hash":"h1","controllerRevision":"s1-b"}}`},
		{appsv1beta1.AnnotationWorkingHotUpgradeContainer, "", "[", `{"hot":"hot-1"}`, `{"hot":"hot-2"}`},
	} {
		key := values[0]
		delete(pod.Annotations, key)
		if value := pick(r, values[1:]...); value != "" {
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
