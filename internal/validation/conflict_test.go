package validation

import (
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

var (
	overlapKeys   = []string{"a", "b"}
	overlapValues = []string{"x", "y", "ALL"}
)

// randomSelector returns a valid selector over few keys and values.
func randomSelector(r *rand.Rand) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if r.IntN(2) == 0 {
		s.MatchLabels = map[string]string{overlapKeys[r.IntN(2)]: overlapValues[r.IntN(3)]}
	}
	operators := []metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
	}
	for range r.IntN(3) {
		e := metav1.LabelSelectorRequirement{Key: overlapKeys[r.IntN(2)], Operator: operators[r.IntN(4)]}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = overlapValues[:1+r.IntN(3)]
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// everyLabelSet returns all sets over the keys, with one value that no selector
// names.
func everyLabelSet() []labels.Set {
	var all []labels.Set
	values := append([]string{"", "other"}, overlapValues...)
	for _, a := range values {
		for _, b := range values {
			set := labels.Set{}
			if a != "" {
				set["a"] = a
			}
			if b != "" {
				set["b"] = b
			}
			all = append(all, set)
		}
	}
	return all
}

// Two selectors overlap exactly if one of all possible label sets matches both.
func TestOverlapEqualsASearchOverAllLabelSets(t *testing.T) {
	all := everyLabelSet()
	r := rand.New(rand.NewPCG(1, 2))
	overlapping := 0
	for range 5000 {
		a, b := randomSelector(r), randomSelector(r)
		matchA, err := metav1.LabelSelectorAsSelector(a)
		if err != nil {
			t.Fatal(err)
		}
		matchB, err := metav1.LabelSelectorAsSelector(b)
		if err != nil {
			t.Fatal(err)
		}
		want := false
		for _, set := range all {
			want = want || matchA.Matches(set) && matchB.Matches(set)
		}
		if got := Overlap(a, b); got != want {
			t.Fatalf("Overlap(%s, %s) = %t, want %t", matchA, matchB, got, want)
		}
		if want {
			overlapping++
		}
	}
	if overlapping == 0 || overlapping == 5000 {
		t.Errorf("%d of 5000 pairs overlap: the generator is one-sided", overlapping)
	}
}

func TestOverlapOfNothing(t *testing.T) {
	some := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "x"}}
	broken := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	for name, other := range map[string]*metav1.LabelSelector{"no selector (T10)": nil, "a broken one": broken} {
		if Overlap(some, other) || Overlap(other, some) {
			t.Errorf("%s overlaps with something", name)
		}
	}
}

// conflicting returns a SidecarSet with one of everything that may clash.
func conflicting(name string, change func(*appsv1beta1.SidecarSet)) appsv1beta1.SidecarSet {
	set := appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	if change != nil {
		change(&set)
	}
	return set
}

func TestRules42To45Conflicts(t *testing.T) {
	container := func(name string) []appsv1beta1.SidecarContainer {
		return []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: name, Image: "i"}}}
	}
	volume := func(medium corev1.StorageMedium) []corev1.Volume {
		return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}}
	}
	annotate := func(policy appsv1beta1.SidecarSetPatchPolicyType) []appsv1beta1.SidecarSetPatchPodMetadata {
		return []appsv1beta1.SidecarSetPatchPodMetadata{{Annotations: map[string]string{"example.com/k": "v"}, PatchPolicy: policy}}
	}
	type edit = func(*appsv1beta1.SidecarSet)
	tests := map[string]struct {
		set, other edit
		want       string // path of the refusal
	}{
		"42: init containers of one name": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.InitContainers = container("c") },
			func(s *appsv1beta1.SidecarSet) { s.Spec.InitContainers = container("c") }, "spec.initContainers"},
		"43: containers of one name": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container("c") },
			func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container("c") }, "spec.containers"},
		"44: volumes of one name that differ": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.Volumes = volume("") },
			func(s *appsv1beta1.SidecarSet) { s.Spec.Volumes = volume("Memory") }, "spec.volumes"},
		"44: equal volumes may be shared": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.Volumes = volume("") },
			func(s *appsv1beta1.SidecarSet) { s.Spec.Volumes = volume("") }, ""},
		"45: one annotation, one of them overwriting": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.PatchPodMetadata = annotate("Overwrite") },
			func(s *appsv1beta1.SidecarSet) { s.Spec.PatchPodMetadata = annotate("MergePatchJson") }, "spec.patchPodMetadata"},
		"45: two may merge": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.PatchPodMetadata = annotate("MergePatchJson") },
			func(s *appsv1beta1.SidecarSet) { s.Spec.PatchPodMetadata = annotate("MergePatchJson") }, ""},
		"selectors that no Pod can match both of": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container("c") },
			func(s *appsv1beta1.SidecarSet) {
				s.Spec.Containers = container("c")
				s.Spec.Selector.MatchLabels["app"] = "db"
			}, ""},
		"namespaces that are not the same": {
			func(s *appsv1beta1.SidecarSet) {
				s.Spec.Containers = container("c")
				s.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"n": "1"}}
			},
			func(s *appsv1beta1.SidecarSet) {
				s.Spec.Containers = container("c")
				s.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"n": "2"}}
			}, ""},
		"T9: a canary beside its base": {
			func(s *appsv1beta1.SidecarSet) {
				s.Spec.Containers = container("c")
				s.Annotations = map[string]string{appsv1beta1.AnnotationCanary: "true", appsv1beta1.AnnotationBase: "other"}
			},
			func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container("c") }, ""},
		"T9: a base beside its canary": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container("c") },
			func(s *appsv1beta1.SidecarSet) {
				s.Spec.Containers = container("c")
				s.Annotations = map[string]string{appsv1beta1.AnnotationCanary: "true", appsv1beta1.AnnotationBase: "set"}
			}, ""},
		"T10: another one without a selector": {
			func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container("c") },
			func(s *appsv1beta1.SidecarSet) {
				s.Spec.Containers = container("c")
				s.Spec.Selector = nil
			}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := conflicting("set", tc.set)
			errs := validateConflicts(&set, []appsv1beta1.SidecarSet{conflicting("other", tc.other), conflicting("set", tc.set)})
			if tc.want == "" {
				if len(errs) > 0 {
					t.Errorf("refused: %v", errs)
				}
				return
			}
			if len(errs) != 1 || !strings.HasPrefix(errs[0].Field, tc.want) || !strings.Contains(errs[0].Detail, "other") {
				t.Errorf("got %v, want one error at %s that names the other SidecarSet", errs, tc.want)
			}
		})
	}
}

// T8: the reference took Exists on a key of one side for disjoint. Such objects
// apply there, so they apply here, with a warning.
func TestT8OverlapThroughExistsIsAWarning(t *testing.T) {
	container := []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "c", Image: "i"}}}
	set := conflicting("set", func(s *appsv1beta1.SidecarSet) {
		s.Spec.Containers = container
		s.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpExists}}}
	})
	others := []appsv1beta1.SidecarSet{conflicting("other", func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container })}
	if errs := validateConflicts(&set, others); len(errs) > 0 {
		t.Errorf("refused: %v", errs)
	}
	if warnings := warnAboutConflicts(&set, others); len(warnings) != 1 || !strings.Contains(warnings[0], "other") {
		t.Errorf("warnings are %q", warnings)
	}
}

// The reference compares names as they are written, list by list. Pods have one
// set of names, in which the containers of a hot upgrade stand twice.
func TestNamesThatMeetOnlyInPodsAreWarnings(t *testing.T) {
	plain := func(name string) []appsv1beta1.SidecarContainer {
		return []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: name, Image: "i"}}}
	}
	hot := func(name string) []appsv1beta1.SidecarContainer {
		c := plain(name)
		c[0].UpgradeStrategy.UpgradeType = appsv1beta1.SidecarContainerHotUpgrade
		return c
	}
	type spec = appsv1beta1.SidecarSetSpec
	tests := map[string]struct{ set, other spec }{
		"an init container and a container": {spec{InitContainers: plain("c")}, spec{Containers: plain("c")}},
		"a container and an init container": {spec{Containers: plain("c")}, spec{InitContainers: plain("c")}},
		"a hot upgrade's second container":  {spec{Containers: hot("c")}, spec{Containers: plain("c-2")}},
		"a container named like its first":  {spec{Containers: plain("c-1")}, spec{Containers: hot("c")}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.set.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			tc.other.Selector = tc.set.Selector
			set, others := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: tc.set}, []appsv1beta1.SidecarSet{{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: tc.other}}
			if errs := validateConflicts(set, others); len(errs) > 0 {
				t.Errorf("refused: %v", errs)
			}
			if warnings := warnAboutConflicts(set, others); len(warnings) != 1 || !strings.Contains(warnings[0], "SidecarSet other") {
				t.Errorf("warnings are %q", warnings)
			}
		})
	}
}
