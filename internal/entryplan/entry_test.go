package entryplan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
)

// sidecarSet selects Pods by app=<app>.
func sidecarSet(name, app string) *appsv1beta1.SidecarSet {
	return &appsv1beta1.SidecarSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1beta1.SidecarSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
}

// selecting is a SidecarSet with these requirements of Pods.
func selecting(requirements ...metav1.LabelSelectorRequirement) *appsv1beta1.SidecarSet {
	set := sidecarSet("log", "web")
	set.Spec.Selector = &metav1.LabelSelector{MatchExpressions: requirements}
	return set
}

func in(key string, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}
}

func exists(key string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpExists}
}

func annotated(key, value string) *appsv1beta1.SidecarSet {
	set := sidecarSet("log", "web")
	set.Annotations = map[string]string{key: value}
	return set
}

func inNamespaces(selector *metav1.LabelSelector) *appsv1beta1.SidecarSet {
	set := sidecarSet("log", "web")
	set.Spec.NamespaceSelector = selector
	return set
}

func entryOf(t testing.TB, set *appsv1beta1.SidecarSet) entryplan.Entry {
	t.Helper()
	e, err := entryplan.Of(set)
	if err != nil {
		t.Fatalf("Of(%s): %v", set.Name, err)
	}
	return e
}

func TestOfGivesEqualSidecarSetsOneEntry(t *testing.T) {
	tests := map[string]struct {
		a, b *appsv1beta1.SidecarSet
		same bool
	}{
		"another name is the same":                    {sidecarSet("a", "web"), sidecarSet("b", "web"), true},
		"values in another order are":                 {selecting(in("app", "a", "b")), selecting(in("app", "b", "a")), true},
		"requirements in another order are":           {selecting(in("app", "a"), exists("tier")), selecting(exists("tier"), in("app", "a")), true},
		"two requirements of a key in another order":  {selecting(in("app", "a"), exists("app")), selecting(exists("app"), in("app", "a")), true},
		"two of a key and an operator in another too": {selecting(in("app", "a"), in("app", "b")), selecting(in("app", "b"), in("app", "a")), true},
		"an empty namespace selector is none":         {inNamespaces(&metav1.LabelSelector{}), sidecarSet("log", "web"), true},
		"the default timeout in words is":             {annotated(appsv1beta1.AnnotationTimeoutSeconds, "5"), sidecarSet("log", "web"), true},
		"the default policy in words is":              {annotated(appsv1beta1.AnnotationFailurePolicy, "Fail"), sidecarSet("log", "web"), true},
		"another value is not":                        {sidecarSet("a", "web"), sidecarSet("a", "db"), false},
		"another operator is not":                     {selecting(exists("app")), selecting(metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist}), false},
		"another namespace selector is not":           {inNamespaces(&metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}), sidecarSet("log", "web"), false},
		"a selector of namespaces is none of Pods":    {inNamespaces(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}), sidecarSet("log", "web"), false},
		"another timeout is not":                      {annotated(appsv1beta1.AnnotationTimeoutSeconds, "6"), sidecarSet("log", "web"), false},
		"another policy is not":                       {annotated(appsv1beta1.AnnotationFailurePolicy, "Ignore"), sidecarSet("log", "web"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := tc.a.DeepCopy()
			a, b := entryOf(t, tc.a), entryOf(t, tc.b)
			if (a.Name == b.Name) != tc.same {
				t.Errorf("names %s and %s, want the same: %v", a.Name, b.Name, tc.same)
			}
			a.Members, b.Members, a.Contents, b.Contents = nil, nil, nil, nil
			if diff := cmp.Diff(a, b); (diff == "") != tc.same {
				t.Errorf("entries (-a +b):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.a); diff != "" {
				t.Errorf("Of changed the SidecarSet (-before +after):\n%s", diff)
			}
		})
	}
}

func TestOfReadsAnnotations(t *testing.T) {
	tests := map[string]struct {
		key, value string
		policy     admissionregistrationv1.FailurePolicyType
		seconds    int32
	}{
		"Ignore is taken":              {appsv1beta1.AnnotationFailurePolicy, "Ignore", admissionregistrationv1.Ignore, 5},
		"an unknown policy is Fail":    {appsv1beta1.AnnotationFailurePolicy, "ignore", admissionregistrationv1.Fail, 5},
		"an empty policy is Fail":      {appsv1beta1.AnnotationFailurePolicy, "", admissionregistrationv1.Fail, 5},
		"1 s is taken":                 {appsv1beta1.AnnotationTimeoutSeconds, "1", admissionregistrationv1.Fail, 1},
		"30 s are taken":               {appsv1beta1.AnnotationTimeoutSeconds, "30", admissionregistrationv1.Fail, 30},
		"0 s are the default":          {appsv1beta1.AnnotationTimeoutSeconds, "0", admissionregistrationv1.Fail, 5},
		"31 s are the default":         {appsv1beta1.AnnotationTimeoutSeconds, "31", admissionregistrationv1.Fail, 5},
		"a duration is the default":    {appsv1beta1.AnnotationTimeoutSeconds, "10s", admissionregistrationv1.Fail, 5},
		"a huge number is the default": {appsv1beta1.AnnotationTimeoutSeconds, "4294967297", admissionregistrationv1.Fail, 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := entryOf(t, annotated(tc.key, tc.value))
			if e.FailurePolicy != tc.policy || e.TimeoutSeconds != tc.seconds {
				t.Errorf("got %s, %d s; want %s, %d s", e.FailurePolicy, e.TimeoutSeconds, tc.policy, tc.seconds)
			}
		})
	}
}

func TestOfNamesTheFieldThatIsWrong(t *testing.T) {
	broken := metav1.LabelSelectorRequirement{Key: "zone", Operator: "Sometimes", Values: []string{"a"}}
	tests := map[string]struct {
		set  *appsv1beta1.SidecarSet
		want string
	}{
		"no selector":                            {selecting(), "spec.selector: Required"},
		"an unknown operator":                    {selecting(broken), "spec.selector.matchExpressions[0].operator"},
		"the position is that of the SidecarSet": {selecting(broken, exists("app")), "spec.selector.matchExpressions[0].operator"},
		"no values":                              {selecting(in("app")), "spec.selector.matchExpressions[0].values"},
		"a value that is no label value":         {sidecarSet("log", "not a value"), "spec.selector.matchLabels"},
		"a selector of namespaces":               {inNamespaces(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{exists("a b")}}), "spec.namespaceSelector.matchExpressions[0].key"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := entryplan.Of(tc.set)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Of = %v, %v; want an error about %s", e, err, tc.want)
			}
		})
	}
}

func TestCombineMergesMembers(t *testing.T) {
	web, db := entryOf(t, sidecarSet("b", "web")), entryOf(t, sidecarSet("c", "db"))
	again, first := entryOf(t, sidecarSet("a", "web")), entryOf(t, sidecarSet("b", "web"))
	in := []entryplan.Entry{web, db, again, first}
	got := map[string][]string{}
	names := make([]string, 0, 2)
	for _, e := range entryplan.Combine(in) {
		got[e.Name] = e.Members
		names = append(names, e.Name)
	}
	if diff := cmp.Diff(map[string][]string{web.Name: {"a", "b"}, db.Name: {"c"}}, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if len(names) != 2 || names[0] > names[1] {
		t.Errorf("the names %v are not in order", names)
	}
	if diff := cmp.Diff([]string{"b"}, in[0].Members); diff != "" {
		t.Errorf("Combine changed its input (-want +got):\n%s", diff)
	}
	if got := entryplan.Combine(nil); len(got) != 0 {
		t.Errorf("nothing combines to %v", got)
	}
}

func TestConfigurationNamesHaveIndices(t *testing.T) {
	for i := range entryplan.MaxConfigurations {
		if got, ok := entryplan.Index(entryplan.ConfigurationName(i)); !ok || got != i {
			t.Errorf("Index(%s) = %d, %v", entryplan.ConfigurationName(i), got, ok)
		}
	}
	for _, name := range []string{"", "sidecarset-pods-", "sidecarset-pods-16", "sidecarset-pods-01", "sidecarset-pods--1", "other"} {
		if got, ok := entryplan.Index(name); ok {
			t.Errorf("Index(%q) = %d, want none", name, got)
		}
	}
}
