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

// One selector is within another exactly if every label set that it matches is
// matched by the other.
func TestWithinEqualsASearchOverAllLabelSets(t *testing.T) {
	all := everyLabelSet()
	r := rand.New(rand.NewPCG(3, 4))
	within := 0
	for range 5000 {
		a, b := randomSelector(r), randomSelector(r)
		if !Overlap(a, a) {
			continue // matches nothing: conflicts with nothing
		}
		want := !exists(t, all, a, b)
		if got := isWithin(a, b); got != want {
			t.Fatalf("isWithin(%s, %s) = %t, want %t", metav1.FormatLabelSelector(a), metav1.FormatLabelSelector(b), got, want)
		}
		if want {
			within++
		}
	}
	if within < 500 || within > 4500 {
		t.Errorf("%d of 5000 pairs are within: the generator is one-sided", within)
	}
}

// exists reports whether some label set matches a and not b.
func exists(t *testing.T, all []labels.Set, a, b *metav1.LabelSelector) bool {
	t.Helper()
	matchA, err := metav1.LabelSelectorAsSelector(a)
	if err != nil {
		t.Fatal(err)
	}
	matchB, err := metav1.LabelSelectorAsSelector(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range all {
		if matchA.Matches(set) && !matchB.Matches(set) {
			return true
		}
	}
	return false
}

func TestNarrowerNamespaces(t *testing.T) {
	named := func(names ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: names}}}
	}
	labelled := func(text string) *metav1.LabelSelector {
		selector, err := metav1.ParseToLabelSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		return selector
	}
	tests := map[string]struct {
		a, b *metav1.LabelSelector
		want bool
	}{
		"one namespace, of all":                   {named("a"), nil, true},
		"all, of one namespace":                   {nil, named("a"), false},
		"all, of all":                             {nil, nil, false},
		"one name, of several":                    {named("a"), named("a", "b"), true},
		"the same name":                           {named("a"), named("a"), false},
		"other names":                             {named("a"), named("b", "c"), false},
		"one name, of a label":                    {named("a"), labelled("team=x"), true},
		"one name, of all but some":               {named("a"), labelled("control-plane notin (x)"), true},
		"a label, of one name":                    {labelled("team=x"), named("a"), false},
		"a label, of all":                         {labelled("team=x"), nil, true},
		"two labels, of one of them":              {labelled("team=x,env=prod"), labelled("team=x"), true},
		"one label, of two":                       {labelled("team=x"), labelled("team=x,env=prod"), false},
		"one label, of another":                   {labelled("team=x"), labelled("env=prod"), false},
		"the same name with a label, of the name": {&metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "a", "x": "y"}}, named("a"), true},
		"several names of which one is left out, of the rest": {labelled("kubernetes.io/metadata.name in (a,b),kubernetes.io/metadata.name notin (b)"), named("a", "b"), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := isNarrower(tc.a, tc.b); got != tc.want {
				t.Errorf("isNarrower(%s, %s) is %v", metav1.FormatLabelSelector(tc.a), metav1.FormatLabelSelector(tc.b), got)
			}
		})
	}
}

// A SidecarSet for a few namespaces cannot keep one for more of them from being
// applied; the other way round it is refused.
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
	if errs := validateConflicts(&mesh, []appsv1beta1.SidecarSet{squat}); len(errs) > 0 {
		t.Errorf("the wider one is refused: %v", errs)
	}
	said := warnAboutConflicts(&mesh, []appsv1beta1.SidecarSet{squat})
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
	if errs := validateConflicts(&squat, []appsv1beta1.SidecarSet{mesh}); len(errs) != 3 {
		t.Errorf("the narrower one beside the wider one: %v, want three refusals", errs)
	}
	if refusing := Refusing(&squat, []appsv1beta1.SidecarSet{mesh}); len(refusing) != 1 || refusing[0] != "mesh" {
		t.Errorf("refused because of %v, want mesh", refusing)
	}
	if refusing := Refusing(&mesh, []appsv1beta1.SidecarSet{squat}); len(refusing) > 0 {
		t.Errorf("refused because of %v", refusing)
	}
}
