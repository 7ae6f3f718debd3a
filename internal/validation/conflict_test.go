package validation

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// conflicting returns a SidecarSet with one of each element that may conflict.
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
			errs := refusals(&set, []appsv1beta1.SidecarSet{conflicting("other", tc.other), conflicting("set", tc.set)})
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

// T8: if a key has Exists on one side, OpenKruise takes the selectors for disjoint. Such
// objects apply there, so they apply here, with a warning.
func TestT8OverlapThroughExistsIsAWarning(t *testing.T) {
	container := []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "c", Image: "i"}}}
	set := conflicting("set", func(s *appsv1beta1.SidecarSet) {
		s.Spec.Containers = container
		s.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpExists}}}
	})
	others := []appsv1beta1.SidecarSet{conflicting("other", func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = container })}
	if errs := refusals(&set, others); len(errs) > 0 {
		t.Errorf("refused: %v", errs)
	}
	if said := warnings(&set, others); len(said) != 1 || !strings.Contains(said[0], "other") {
		t.Errorf("warnings are %q", said)
	}
}

// OpenKruise compares names as users write them, list by list. Pods have one set of names, in
// which the containers of a hot upgrade are present twice.
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
			if errs := refusals(set, others); len(errs) > 0 {
				t.Errorf("refused: %v", errs)
			}
			if said := warnings(set, others); len(said) != 1 || !strings.Contains(said[0], "SidecarSet other") {
				t.Errorf("warnings are %q", said)
			}
		})
	}
}

// A SidecarSet for a few namespaces cannot prevent a user from applying one for more
// namespaces. In the other direction it is refused.
func TestASidecarSetOfFewerNamespacesIsAWarningForTheWiderOne(t *testing.T) {
	inA := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "tenant-a"}}
	full := func(medium corev1.StorageMedium) func(*appsv1beta1.SidecarSet) {
		return func(s *appsv1beta1.SidecarSet) {
			s.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "istio-proxy", Image: "i"}}}
			s.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}}
			s.Spec.PatchPodMetadata = []appsv1beta1.SidecarSetPatchPodMetadata{{Annotations: map[string]string{"example.com/k": "v"}, PatchPolicy: "Overwrite"}}
		}
	}
	mesh, squat := conflicting("mesh", full("")), conflicting("squat", full("Memory"))
	squat.Spec.NamespaceSelector = inA
	if errs := refusals(&mesh, []appsv1beta1.SidecarSet{squat}); len(errs) > 0 {
		t.Errorf("the wider one is refused: %v", errs)
	}
	said := warnings(&mesh, []appsv1beta1.SidecarSet{squat})
	const remedy = "; rename one of them or keep their selectors apart"
	for i, consequence := range []string{
		`spec.containers[0].name: "istio-proxy" is a container of SidecarSet squat as well, in fewer namespaces: a Pod that both select is refused, all others get this one` + remedy,
		`spec.volumes[0].name: "v" is another volume of SidecarSet squat as well, in fewer namespaces: a Pod that both select gets the volume of mesh` + remedy,
		`spec.patchPodMetadata[0].annotations[example.com/k]: "example.com/k" is an annotation of SidecarSet squat as well, in fewer namespaces: in a Pod that both select, squat writes it last` + remedy,
	} {
		if len(said) != 3 || said[i] != consequence {
			t.Errorf("warnings are\n%s\nwant among them\n%s", strings.Join(said, "\n"), consequence)
		}
	}
	if errs := refusals(&squat, []appsv1beta1.SidecarSet{mesh}); len(errs) != 3 {
		t.Errorf("the narrower one beside the wider one: %v, want three refusals", errs)
	}
	if names := refusing(&squat, mesh); len(names) != 1 || names[0] != "mesh" {
		t.Errorf("refused because of %v, want mesh", names)
	}
	if names := refusing(&mesh, squat); len(names) > 0 {
		t.Errorf("refused because of %v", names)
	}
}

func pointers(sets []appsv1beta1.SidecarSet) (all []*appsv1beta1.SidecarSet) {
	for i := range sets {
		all = append(all, &sets[i])
	}
	return all
}

func refusals(set *appsv1beta1.SidecarSet, others []appsv1beta1.SidecarSet) field.ErrorList {
	return FindConflicts(set, pointers(others)).refused
}

func warnings(set *appsv1beta1.SidecarSet, others []appsv1beta1.SidecarSet) []string {
	return FindConflicts(set, pointers(others)).warned
}

func refusing(set *appsv1beta1.SidecarSet, others ...appsv1beta1.SidecarSet) []string {
	found := FindConflicts(set, pointers(others))
	return found.Refusing()
}

// A made-up SidecarSet may have the names of all others a thousand times.
func TestConflictsThatAreKeptAreBounded(t *testing.T) {
	set := conflicting("set", nil)
	for range 1000 {
		set.Spec.Containers = append(set.Spec.Containers, appsv1beta1.SidecarContainer{Container: corev1.Container{Name: "c"}})
		set.Spec.InitContainers = append(set.Spec.InitContainers, appsv1beta1.SidecarContainer{Container: corev1.Container{Name: "c"}})
	}
	others := make([]appsv1beta1.SidecarSet, 200)
	for i := range others {
		others[i] = conflicting(fmt.Sprint("other-", i), func(s *appsv1beta1.SidecarSet) { s.Spec.Containers = set.Spec.Containers[:1] })
	}
	found := FindConflicts(&set, pointers(others))
	if len(found.refused) != mostConflicts || len(found.warned) != mostConflicts {
		t.Errorf("%d refusals and %d warnings are kept, want %d", len(found.refused), len(found.warned), mostConflicts)
	}
	if names := found.Refusing(); len(names) != len(others) {
		t.Errorf("%d SidecarSets refuse it, want %d", len(names), len(others))
	}
}
